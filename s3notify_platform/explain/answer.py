"""The facts about one key, the verdict that follows from these facts, and a text with verdict and facts. Pure.

The verdicts `committed`, `deleted`, `kept` and `not_chosen` mean that the table agrees with the bucket.

- committed: the current version is committed, with all its records.
- rejected: the current version is committed, except for some records, which are in quarantine.
- quarantined: the current version could not be read to its end.
- reading: the slot's next batch reads the next part of the current version, or reads this version again.
- deleted: the object and its rows are deleted.
- kept: the object is deleted, and its rows stay because of `on_delete`.
- not_chosen: the settings of the source exclude the key.
- writing: space is reserved in the queue. A writer is at work, or a reconciler will resolve the reservation of a killed
  writer.
- in_batch: an open batch will read the change.
- failing: the slot's last batch failed. The slot is requested again later. A parked slot is also requested when the
  slot changes.
- waiting: an entry in the queue names the key.
- dead: an entry that names the key became a dead letter of the source's topic.
- rescan: a listing that is due will find the change.
- signalled: a writer that does not queue signalled the slot. The next batch lists the slot.
- unseen: neither an entry nor a signal announced the change. An announcement may still be on its way. Otherwise only a
  sweep finds the change.
- unknown: no object, no rows and no entry have this key.
- refused: the store refuses to say if there is an object under this key.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from s3notify_platform.engine.batch.batches import Failing
from s3notify_platform.engine.batch.list_or_follow import How
from s3notify_platform.explain.timeline import cut, cut_lines, duration, first_report, timeline
from s3notify_platform.explain.views import (
    BatchView,
    CommittedVersion,
    Notice,
    ObjectNow,
    Rejection,
    SensorView,
    Signal,
    TopicView,
)
from s3notify_platform.kernel.texts import counted
from s3notify_platform.protocols.source_enumerator import Failed

Kind = Literal[
    "committed", "rejected", "quarantined", "reading", "deleted", "writing", "in_batch", "failing", "waiting",
    "dead", "rescan", "signalled", "unseen", "unknown", "kept", "not_chosen",
    "refused",
]  # fmt: skip

SILENT_MS: Final = 300_000
"""If the sensor has not ticked for this number of milliseconds, the text says that the sensor does not run."""

_BY_BATCH: Final = ("failing", "waiting", "rescan", "signalled")
"""Verdicts about changes that only another batch can commit."""

STATE_WORDS: Final = {"reserved": "reserved", "committed": "queued", "dead": "dead letter"}
"""The names of an entry's states for people. The state "committed" is shown as "queued", because the state says nothing
about a commit to the table.
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer in short. `kind` is for programs. `text`, one line, is for people."""

    kind: Kind
    text: str

    @property
    def settled(self) -> bool:
        """True if the table agrees with the bucket."""
        return self.kind in ("committed", "deleted", "kept", "not_chosen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All facts that were found about one key, at the time `asked_ms` of this machine's wall clock."""

    source: str
    bucket: str
    key: str
    slot: int
    asked_ms: int
    object: ObjectNow | None
    no_object: str
    """The reason why the existence of the object is unknown, or "" if the existence is known."""
    signal: Signal | None
    """The signal of the key's slot, or the root if the source has `signals: root`."""
    topics: tuple[TopicView, ...]
    topic_exists: bool
    """True if the source's own topic exists."""
    topics_cut: bool
    """True if only some of the topics were read."""
    batches: tuple[BatchView, ...]
    batches_cut: bool
    """True if only some of the ack chains were read. If the sensor's cursor is known, all open chains are known."""
    rescans: bool
    """True if the slot waits for a rescan."""
    next_batch: How
    """The way in which the next batch finds the changes, as of now."""
    committed: CommittedVersion | None
    left: int
    """The version of the table that removed the rows of the deleted object, or 0 if this version is unknown or does not
    exist."""
    newest: int
    """The version of the table that last changed the slot, or 0 if no version has changed the slot."""
    newest_signal: str
    """The first digits of the signal's ETag, as seen by the batch that committed `newest`."""
    rejections: tuple[Rejection, ...]
    not_chosen: str
    """The reason why the source does not read the object (`Choice`), or "" if the source reads it."""
    stays: bool
    """True if the object's rows stay after its deletion."""
    refused: str
    """The reason why runs refuse the table: a loss, or settings that differ from the table's settings
    (`table.open_table`)."""
    signal_taken: bool | None
    """True if the sensor has seen the slot's current signal. None if the sensor's cursor is unknown, or if the signal
    is a root.
    """
    sensor: SensorView | None
    failed: Failed | None = None
    """The slot's failures in `s3notify ingest`, or None if the slot has not failed since its last commit."""

    @property
    def failing(self) -> Failing | Failed | None:
        """The slot's failures in the sensor's batches, or else in the batches of `s3notify ingest`."""
        return (self.sensor.failing if self.sensor is not None else None) or self.failed

    @property
    def trace(self) -> str:
        """The traceback of the slot's failure, if the error was unforeseen."""
        return (self.sensor.trace if self.sensor is not None else "") or (
            self.failed.trace if self.failed else ""
        )

    @property
    def verdict(self) -> Verdict:
        """The verdict that follows from the facts."""
        now, held = self.object, self.committed
        if self.not_chosen:
            return _not_chosen(self, held)
        if self.no_object:
            return _refused(self, held)
        if held is not None and self.is_current(held):
            return _taken_in(self, held)
        entries = [notice for notice in self.notices if notice.state != "dead"]
        if now is None and held is not None and self.stays and not entries:
            text = f"the object is deleted, and its {held.rows} rows stay because of on_delete"
            return Verdict("kept", text)
        if now is None and held is None and not entries:
            if self.left:
                return Verdict("deleted", f"deleted: its rows were removed, by version {self.left}")
            text = f"unknown: no object, no rows and no entry under this key of source {self.source!r}"
            return Verdict("unknown", text)
        meanwhile = "nothing of it is committed"
        if held is not None:
            version = "an older version" if now is not None else "the deleted object"
            meanwhile = f"{version} is committed, in {_version(held)}"
        if self.refused:
            return Verdict("failing", f"runs refuse the table: {self.refused}; {meanwhile}")
        pending = _pending(self, entries)
        stopped = f"; {self.stopped}" if self.stopped and pending.kind in _BY_BATCH else ""
        return Verdict(pending.kind, f"{pending.text}; {meanwhile}{stopped}")

    @property
    def stopped(self) -> str:
        """The reason why the source's sensor opens no batch now, or "" if the sensor ticks or is unknown."""
        if self.sensor is None:
            return ""
        if not self.sensor.on:
            return f"the source is paused, until `s3notify resume {self.source}`"
        if self.sensor.ticked_ms and self.asked_ms - self.sensor.ticked_ms > SILENT_MS:
            silent = self.ago(self.sensor.ticked_ms)
            return f"the source's sensor has not ticked for {silent}: does Dagster's daemon run?"
        return ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of the text: the verdict, then the events in time order, then the facts."""
        return (self.verdict.text, "in time order, in UTC:", *timeline(_events(self)), *_facts(self))

    def document(self) -> dict[str, Any]:
        """Returns the values for JSON: `verdict` and `text`, then the facts under the names of the fields of this
        class.
        """
        facts = asdict(self)
        facts.pop("sensor")
        facts.pop("failed")
        facts["sensor_on"] = self.sensor.on if self.sensor else None
        facts["ticked_ms"] = self.sensor.ticked_ms if self.sensor else None
        facts["reported_ms"] = self.reported_ms
        facts["failing"] = {**asdict(self.failing), "trace": self.trace} if self.failing else None
        return {"verdict": self.verdict.kind, "text": self.verdict.text, **facts}

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The entries and dead letters of the key in the source's own topic."""
        return tuple(notice for topic in self.topics if topic.own for notice in topic.notices)

    @property
    def reported_ms(self) -> int | None:
        """The time when Dagster received the committed version or a later version. None without Dagster's event log."""
        if self.committed is None or self.sensor is None:
            return None
        held = self.committed
        return first_report(self.sensor.reported, held.version, held.committed_ms)

    def is_current(self, held: CommittedVersion) -> bool:
        """Returns true if the committed version is the object's current version."""
        return self.object is not None and self.object.etag == held.etag

    def has_taken(self, signal: Signal) -> bool:
        """Returns true if the slot's last committed batch had seen this signal."""
        return bool(self.newest_signal) and signal.etag.startswith(self.newest_signal)

    def ago(self, then_ms: int) -> str:
        """Returns the time from `then_ms` to `asked_ms`, as text."""
        return duration(self.asked_ms - then_ms) if then_ms else "an unknown time"


def _not_chosen(found: Answer, held: CommittedVersion | None) -> Verdict:
    text = f"not read by source {found.source!r}: {found.not_chosen}"
    if held is None:
        return Verdict("not_chosen", text)
    return Verdict("rescan", f"{text}; its {held.rows} rows leave when a batch lists the source")


def _refused(found: Answer, held: CommittedVersion | None) -> Verdict:
    """Returns the verdict for an object that cannot be compared with the table."""
    if held is not None and held.reason:
        return _taken_in(found, held)
    known = f"{held.rows} records of it are in {_version(held)}" if held else "it has no rows"
    waits = ", and an entry in the queue names it" if found.notices else ""
    return Verdict("refused", f"not known: {found.no_object}; {known}{waits}")


def _taken_in(found: Answer, held: CommittedVersion) -> Verdict:
    when = f"{_version(held)}, {found.ago(held.committed_ms)} ago"
    again = "; a new read is requested: the slot's next batch reads the object" if held.pending else ""
    if held.reason:
        read = f"; {held.rows} records of it are committed" if held.rows else ""
        text = f"quarantined because it could not be read: {cut(held.reason)}{read}{again}"
        return Verdict("quarantined", text)
    if not held.reach_end:
        text = f"read in part: {held.read}, {held.rows} rows, {held.rejects} rejects, in {when}"
        text += "; the slot's next batch continues"
        return Verdict("reading", text)
    if not held.rejects:
        read = counted(held.rows, "record")
        if not held.rows:
            read = f"{held.read}, 0 rows, 0 rejects: {held.emptiness or 'nothing to read'}"
        return Verdict("reading" if again else "committed", f"committed in {when}: {read}{again}")
    first = found.rejections[0] if found.rejections else None
    why = f", first at offset {first.offset}: {cut(first.reason)}" if first else ""
    others = f"; the others are committed in {when}" if held.rows else ""
    records = held.rows + held.rejects
    return Verdict("rejected", f"rejected: {held.rejects} of {records} records{why}{others}{again}")


def _pending(found: Answer, entries: list[Notice]) -> Verdict:
    """Returns the reason why a change is not committed yet (of several reasons, the closest to the commit)."""
    ready = [notice for notice in entries if notice.state == "committed"]
    if batch := next((b for b in found.batches if ready or b.listing), None):
        runs = f", run {', '.join(batch.runs)}" if batch.runs else ""
        return Verdict("in_batch", f"in batch {batch.id}, open for {found.ago(batch.opened_ms)}{runs}")
    compared = found.rescans or found.next_batch == "everything"
    failing = found.failing
    if failing is not None and (ready or (compared and not entries)):
        left_ms = failing.not_before_ms - found.asked_ms
        again = f"due again in {duration(left_ms)}" if left_ms > 0 else "due again now"
        if isinstance(failing, Failing) and failing.parked:
            again = f"parked, {again}, or when the slot changes"
        text = f"failing: {failing.attempts} attempts, {again}: {cut(failing.reason)}"
        return Verdict("failing", text)
    since = found.ago(min((notice.since_ms for notice in ready or entries if notice.since_ms), default=0))
    if ready:
        silent = ", but the slot was not signalled yet; the writer or a reconciler has to signal the slot"
        text = f"waiting in the queue for {since}"
        return Verdict("waiting", text + (silent if found.signal_taken or found.signal is None else ""))
    if entries:
        text = (
            f"being written: space is reserved in the queue for {since}; if the writer was killed, a reconciler "
            "has to resolve the reservation"
        )
        return Verdict("writing", text)
    if dead := [notice for notice in found.notices if notice.state == "dead"]:
        why = cut(dead[0].reason or dead[0].last_error)
        return Verdict("dead", f"dead letter of topic {found.source!r}: {why}")
    if found.rescans:
        return Verdict("rescan", f"waits for a rescan: the next listing compares slot {found.slot}")
    if compared:
        first = "its first batch since its topic was created" if found.topic_exists else "its next batch"
        text = f"waits for a listing of the whole source, by {first}"
        return Verdict("rescan", text)
    return _unannounced(found)


def _unannounced(found: Answer) -> Verdict:
    """Returns the verdict that follows from the slot's signal, if there is no entry, batch or rescan."""
    signal, now = found.signal, found.object
    among = " among those read" if any(topic.cut for topic in found.topics if topic.own) else ""
    no_entry = f"not announced: no entry{among}, and"
    sweep = "unless an announcement is still on its way, only a sweep finds the change"
    if signal is None:
        return Verdict("unseen", f"{no_entry} slot {found.slot} was never signalled; {sweep}")
    if now is not None and signal.modified_ms < now.modified_ms:
        return Verdict("unseen", f"{no_entry} the slot's signal is older than the object; {sweep}")
    lists = "a batch that lists the slot finds the object"
    if not signal.queued and (batch := next(iter(found.batches), None)):
        reads = f"batch {batch.id} reads only what entries name"
        return Verdict("signalled", f"signalled without an entry: {reads}; {lists}")
    if found.signal_taken if found.signal_taken is not None else found.has_taken(signal):
        return Verdict("unseen", f"{no_entry} the batch of the signal did not find the change; {sweep}")
    if signal.queued and found.next_batch == "follow":
        text = f"{no_entry} the slot's signal is for another key, because the signal's writer also queues keys; {sweep}"
        return Verdict("unseen", text)
    return Verdict("signalled", f"signalled {found.ago(signal.modified_ms)} ago without an entry: {lists}")


def _events(found: Answer) -> Iterator[tuple[int, str]]:
    if found.object is not None:
        yield found.object.modified_ms, f"written, {found.object.size} bytes"
    for topic in found.topics:
        for notice in topic.notices:
            if notice.since_ms:
                yield notice.since_ms, f"{notice.op} announced to topic {topic.name}"
    if found.signal is not None:
        yield found.signal.modified_ms, f"slot {found.slot} signalled last"
    for batch in found.batches:
        yield batch.opened_ms, f"batch {batch.id} opened"
    if (held := found.committed) is not None and held.committed_ms:
        version = "" if found.no_object or found.is_current(held) else ", an older version"
        moments = (
            (held.seen_ms, f"seen: batch {held.batch} opened"),
            (held.planned_ms, "planned"),
            (held.committed_ms, f"read and committed, version {held.version}{version}"),
            (found.reported_ms or 0, "reported to Dagster"),
        )
        yield from ((at, what) for at, what in moments if at)
    yield found.asked_ms, "now"


def _facts(found: Answer) -> Iterator[str]:
    now = found.object
    yield f"key: {found.key if found.key.isprintable() else repr(found.key)}"
    if found.no_object:
        yield f"object: not known, {found.no_object}"
    elif now is None:
        yield f"object: none in bucket {found.bucket!r}"
    else:
        yield f"object: ETag {now.etag}, {now.size} bytes, written {found.ago(now.modified_ms)} ago"
    yield f"slot: {found.slot}, {_signal_fact(found)}"
    for topic in found.topics:
        yield from _topic_facts(found, topic)
    if not found.topic_exists:
        made = (
            "the source's sensor or `s3notify ingest` creates it; to create it now: "
            f"`s3notify topics create {found.source}`"
        )
        yield f"topic {found.source!r}: not created yet; {made}"
    if found.topics_cut:
        yield "topics: there are more topics than were read"
    for batch in found.batches:
        how = "lists" if batch.listing else "reads entries"
        runs = f"; runs: {', '.join(batch.runs)}" if batch.runs else ""
        yield f"batch {batch.id}: open for {found.ago(batch.opened_ms)}, {how}{runs}"
    if found.batches_cut:
        yield "batches: there are more ack chains than were read; run this command with access to the Dagster instance"
    if (failing := found.failing) is not None:
        who = "sensor" if isinstance(failing, Failing) else "ingest"
        plan = "parked" if isinstance(failing, Failing) and failing.parked else "to be retried"
        yield f"{who}: the slot failed {failing.attempts} times, {plan}: {cut(failing.reason)}"
        yield from cut_lines(found.trace)
    if found.rescans:
        yield "rescan: the slot waits for a rescan"
    yield f"sensor: {_sensor_fact(found)}"
    yield from _table_facts(found)


def _sensor_fact(found: Answer) -> str:
    if (sensor := found.sensor) is None:
        return "unknown; set the DAGSTER_HOME of the sensor's Dagster. `s3notify ingest` needs no sensor"
    last = f"last tick {found.ago(sensor.ticked_ms)} ago" if sensor.ticked_ms else "no tick yet"
    return f"{'on' if sensor.on else f'off, until `s3notify resume {found.source}`'}, {last}"


def _signal_fact(found: Answer) -> str:
    signal = found.signal
    if signal is None:
        return "never signalled"
    who = "a writer that queues" if signal.queued else "a writer that does not queue"
    seen = {True: ", seen by the sensor", False: ", not yet seen by the sensor", None: ""}
    return f"signalled {found.ago(signal.modified_ms)} ago by {who} (ETag {signal.etag}){seen[found.signal_taken]}"


def _topic_facts(found: Answer, topic: TopicView) -> Iterator[str]:
    label = f"topic {topic.name!r} ({'pushed' if topic.pushed else 'pulled'})"
    for notice in topic.notices:
        words = [f"{notice.op} {STATE_WORDS[notice.state]} for {found.ago(notice.since_ms)}"]
        if notice.etag:
            words.append(f"ETag {notice.etag}")
        if notice.attempts:
            words.append(f"{notice.attempts} attempts")
        if notice.worker:
            words.append(f"taken by {notice.worker}")
        if notice.reason:
            words.append(f"dead letter because: {cut(notice.reason)}")
        if notice.last_error:
            words.append(f"last error: {cut(notice.last_error)}")
        yield f"{label}: {', '.join(words)}"
    if not topic.notices:
        yield f"{label}: no entry of this key"
    if topic.cut:
        yield f"{label}: the slot has more entries than were read"


def _table_facts(found: Answer) -> Iterator[str]:
    if found.refused:
        yield f"refused: {found.refused}"
    held = found.committed
    if held is None:
        at = f"was last changed by version {found.newest}" if found.newest else "was never committed"
        yield f"table: no rows of this key; slot {found.slot} {at}"
        return
    same = "the current version" if found.is_current(held) else "not the current version"
    if found.no_object:
        same = "perhaps the current version"
    yield (
        f"table: ETag {held.etag} ({same}), {held.read}, {held.rows} rows, {held.rejects} rejects, "
        f"committed by {_version(held)}, slot {found.slot} last changed by {held.newest}"
        f"{f', batch {held.batch}' if held.batch else ''}"
    )
    if held.reason:
        retry = f"`s3notify quarantine retry KEY --name {found.source}`"
        yield f"quarantine: unreadable object: {cut(held.reason)}; {retry}"
        yield from cut_lines(held.trace)
    for file in held.files:
        yield f"data file: {file}"
    for rejection in found.rejections:
        yield f"reject at offset {rejection.offset}: {cut(rejection.reason)}"
    if held.rejects > len(found.rejections):
        yield f"rejects: {held.rejects - len(found.rejections)} more in the quarantine"


def _version(held: CommittedVersion) -> str:
    return f"version {held.version} {held.doubt}".rstrip()
