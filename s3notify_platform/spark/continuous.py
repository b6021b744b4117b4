"""A committed table kept in step with its bucket, without Dagster.

`run` polls the keyspace, and ingests the slots that changed by `Ingest.rounds`. The table is the truth, and the signals
that were seen (`engine.batch.signals_seen`) are only a hint: slots that are ingested again commit nothing twice.
Several of these, and Dagster besides, may work on one table.

As for the sensor's batches, `follow` decides whether a batch lists the bucket or follows the entries of the source's
topic (`s3notify topics create NAME`), and entries are removed after the commit. Slots that were not taken in whole, and
after a backoff those that failed, are asked for again by moving their signals. Until then both are in the rescan
backlog, so that a restart asks for them too; and with it how often they have failed, so that their last attempt comes
also if each is another process's (`--once`). Slots that failed are taken in apart from the others; if anything fails as
a whole, it is tried again in halves, until the slot at fault fails alone.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from s3notify_platform.engine.batch.list_or_follow import (
    Decision,
    ask_again,
    decide,
    note_writers,
    topic_epoch,
)
from s3notify_platform.engine.batch.signals_seen import Seen, read_seen, write_seen
from s3notify_platform.engine.batch.traces import trace_batch
from s3notify_platform.engine.loop import commit_rounds
from s3notify_platform.engine.values.results import BatchResult, Progress, Reading, SlotResult
from s3notify_platform.formats.rescue import added
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, backoff_seconds, unique_name
from s3notify_platform.kernel.errors import (
    OUTAGES,
    ConflictError,
    CorruptError,
    NotFoundError,
    S3NotifyError,
    UnavailableError,
    UsageError,
)
from s3notify_platform.kernel.limits import OUTAGE_WAIT_SECONDS
from s3notify_platform.kernel.parallel import readers
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.tagging import tag_committed
from s3notify_platform.protocols.keyspace import Watcher
from s3notify_platform.protocols.notification_queue import TopicUser
from s3notify_platform.protocols.notification_queue.segments import Segment
from s3notify_platform.protocols.source_enumerator import Failed, RescanBacklog, Rescans
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.source.source import Source
from s3notify_platform.spark.batch_schema import Transform
from s3notify_platform.spark.failures import JOB_ERRORS, failed_slot, in_halves
from s3notify_platform.spark.following import follow
from s3notify_platform.spark.spark_jobs import spark_ingest
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.open_table import OpenTable

if TYPE_CHECKING:
    from s3notify_platform.kernel.ports import Record


def _in_background(seconds: float, action: Callable[[], None]) -> None:
    def act() -> None:
        try:
            action()
        except S3NotifyError:
            _in_background(seconds, action)

    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


TAGGING_SECONDS: Final = 2.0
"""At most between two polls, and as long as one slot takes."""


@dataclass(slots=True, kw_only=True)
class ContinuousIngest:
    """Takes in slots that changed, and asks again for those that were not taken in."""

    spark: SparkSession
    source: Source
    transform: Transform | None = None
    code_version: str = ""
    """The fingerprint of the transform, if the source declares no version."""
    progress: Progress = lambda _: None
    reads: Callable[[Reading | None], None] = lambda _: None
    """Called when a round begins to read."""
    clock: Clock = SYSTEM_CLOCK
    settings: BatchSettings = field(default_factory=BatchSettings)
    """Of its retries."""
    later: Callable[[float, Callable[[], None]], None] = _in_background
    """Calls a function after so many seconds."""
    list_seconds: float = 10.0
    """Between two listings of the bucket, at least."""
    failing: Mapping[Slot, Failed] = field(default_factory=dict)
    """Slots whose last batch did not commit all of them, whichever process took it; as of the last look."""
    unfinished: frozenset[Slot] = frozenset()
    """Slots of the last batch that were asked for again at once."""
    opened: OpenTable | None = None
    """The source's table, as it was when the batch began."""
    behind: str = ""
    """Why a table that follows the source's is not in step; "" if all are."""
    _counts: Counter[str] = field(default_factory=Counter)
    _listed_ms: int = 0
    _topic: str = ""
    """Epoch of the source's topic, as it was read last."""

    def counts(self) -> Mapping[str, int]:
        """What was done since this began, as `BatchResult.counts`; and how many slots fail now."""
        return {**self._counts.copy(), "failing_slots": len(self.failing)}

    def run(self, stop: threading.Event, *, every_seconds: float | None, sweep: bool = False) -> None:
        """Take in what changes until `stop` is set, polling so often; None: what is signalled now, then return.

        It goes on from the signals that any process has seen (`engine.batch.signals_seen`); at first, and with `sweep`,
        it compares all objects. A table that misses versions is refused, also where nothing has changed. Outages are
        waited out with backoff, and reported by `progress`; with None they are raised. Errors of Spark, once it does
        not work any more, and those that only an operator can fix, are raised.

        An idle poll is 1 HEAD, a changed one 1 HEAD and 1 LIST. For each batch 4 requests, and those of `take`.
        """
        following, outages = _Following(self, sweep=sweep), 0
        hurry = every_seconds is None
        while not stop.is_set():
            try:
                wait, outages = following.step(hurry=hurry), 0
            except OUTAGES as error:
                if hurry:
                    raise
                wait = backoff_seconds(outages, self.clock, base=1.0, ceiling=OUTAGE_WAIT_SECONDS)
                outages += 1
                self.progress(f"goes on in {wait:.1f} s: {error}")
            if every_seconds is not None:
                stop.wait(max(wait, every_seconds))
            elif not self.unfinished:
                return

    def take(self, signals: Mapping[Slot, str | None], *, batch: str) -> BatchResult:
        """Ingest these slots, and those that wait for a rescan. May be repeated.

        Requests as `Ingest.rounds`, 2 or more for topic and backlog, and those of `commit_rounds`.
        Raises `UsageError` if nothing can be ingested at all, `UnavailableError` after an outage (`Ingest.rounds`); a
        slot that fails is in `failing`, and asked for again.
        """
        rescans = self.backlog.read()
        with ThreadPoolExecutor(1, "room") as beside:
            decision = self.decided(signals, rescans)
            return self.take_decided(signals, decision, rescans, batch=batch, beside=beside)

    def segments(self, slots: Iterable[Slot]) -> Sequence[Segment] | None:
        """The segments of these slots, to be read while other things are; None as long as the topic is not known.

        1 scan (`NotificationQueue.segments`).
        """
        location = self.source.location
        return location.queue().segments(location.name, slots) if self._topic else None

    def tag(self, *, seconds: float | None) -> int:
        """Tag what was committed, if the source has `committed_tags`; what cannot be now is tagged after a later batch.

        How many slots are left after so many seconds. Requests and limits of `tag_committed`.
        """
        if not self.source.input.tags:
            return 0
        left = 0
        try:
            done = tag_committed(self.source, seconds=seconds, clock=self.clock)
            self._counts["tagged"] += done.counts.get("added", 0)
            refused, left = done.refused, done.left
        except S3NotifyError as error:
            refused = str(error)
        if refused:
            self.progress(f"committed objects are not tagged: {refused}")
        elif left:
            self.progress(f"{self._counts['tagged']} objects tagged; {left} slots are left")
        return left

    def decided(self, signals: Iterable[Slot], rescans: Rescans, *, unqueued: bool = False) -> Decision:
        """How to find out what changed in these slots. `rescans`: the backlog, read after them.

        `unqueued`: one of their signals is of a writer that does not queue. 1 request; none while entries are followed.
        """

        def decided() -> Decision:
            return decide(
                signals,
                rescans,
                topic=self._topic,
                enumerated=rescans.enumerated,
                now_ms=self.clock.wall_ms(),
                unqueued=unqueued,
                listed_ms=self._listed_ms,
                list_seconds=self.list_seconds,
            )

        if self._topic and (decision := decided()).how == "follow":
            return decision  # the plan finds out whether it still is this topic
        self._topic = self._topic_epoch()
        return decided()

    def take_decided(
        self,
        signals: Mapping[Slot, str | None],
        decision: Decision,
        rescans: Rescans,
        *,
        batch: str,
        beside: Executor,
        segments: Sequence[Segment] | None = None,
    ) -> BatchResult:
        """As `take`, by what `decided` said. `segments`: those of the slots, if they were read since.

        `beside` frees the room of entries that leave the queue.
        """
        location, backlog, topic = self.source.location, self.backlog, decision.topic
        began_ms = self.clock.wall_ms()
        self.failing = rescans.failed
        slots = frozenset(location.all_slots()) if decision.everything else decision.slots
        result = BatchResult()
        for part in in_halves(
            [sorted(self.failing.keys() & set(slots)), sorted(set(slots) - self.failing.keys())],
            lambda part: self._taken(part, signals, decision, batch=batch, segments=segments, beside=beside),
            self._all_failed,
            errors=(*JOB_ERRORS, ConflictError, CorruptError),
            what="a batch",
            progress=self.progress,
        ):
            result.add(part)
        note_writers(backlog, decision, unannounced=result.unannounced)
        done = {slot for slot, each in result.slots.items() if each.ok and each.complete}
        failed = self._failed(result)
        backlog.add(result.slots.keys() - done - failed.keys())
        backlog.note_failed(failed, ended=self.failing.keys() & slots - failed.keys())
        self.failing = {s: one for s, one in self.failing.items() if s not in slots} | failed
        if decision.listing:
            self._listed_ms = began_ms
            backlog.settle(rescans.slots)  # but for those that were just added again
        if decision.everything:
            backlog.enumerated(topic)
        for name, rows in added(each.broken for each in result.slots.values()).items():
            self.progress(f"{rows} rows break the rule {name}")
        counts = result.counts()
        self._counts = self._counts + counts
        trace_batch(self.source.name, batch, result.seconds, counts)
        again = result.slots.keys() - done - self.failing.keys()
        self.unfinished = frozenset(again)
        self._ask_again(again)
        return result

    def _taken(
        self,
        slots: Sequence[Slot],
        signals: Mapping[Slot, str | None],
        decision: Decision,
        *,
        batch: str,
        segments: Sequence[Segment] | None,
        beside: Executor,
    ) -> BatchResult:
        ingest = spark_ingest(
            self.spark,
            self.source,
            transform=self.transform,
            clock=self.clock,
            progress=self.progress,
            reads=self.reads,
            opened=self.opened,
            code_version=self.code_version,
        )
        last = [slot for slot, item in self.failing.items() if self.settings.is_last(item.attempts)]
        try:
            rounds = ingest.rounds(
                slots,
                batch=batch,
                signals={slot: etag for slot, etag in signals.items() if etag},
                listing=decision.listing,
                only_found=decision.everything,
                seen_ms=self.clock.wall_ms(),
                last_attempt=last,
                topic="" if decision.listing else decision.topic,
                segments=segments,
            )
            for _ in commit_rounds(rounds, queue=self.source.location.queue(), beside=beside):
                self.lead_on(batch)
            return ingest.result()
        except (NotFoundError, UsageError) as error:
            self._topic = ""
            if decision.topic and self._topic_epoch() != decision.topic:
                raise UnavailableError(f"topic {self.source.name!r} is another one since: {error}") from error
            raise

    def lead_on(self, batch: str) -> None:
        """Lead the tables on that follow the source's. What fails is reported, and is tried again (`behind`)."""
        self.behind = ""
        for asset in self.source.kinds:
            try:
                done = follow(self.spark, self.source, asset, batch=batch)
            except S3NotifyError as error:
                self.behind = f"{asset} is behind: {error}"
                self.progress(self.behind)
                continue
            self._counts["followed"] += done.changed
            if done.rebuilt:
                self.progress(f"{asset} was rebuilt, {done.rows} rows: {done.rebuilt}")

    def _topic_epoch(self) -> str:
        location = self.source.location
        user = TopicUser(slots=location.slots)
        return topic_epoch(location.queue(), location.name, user, signals=location.signals)

    @property
    def backlog(self) -> RescanBacklog:
        """Slots that wait for a rescan, and slots that failed."""
        return RescanBacklog(self.source.location.records(), clock=self.clock)

    def _failed(self, result: BatchResult) -> dict[Slot, Failed]:
        """The slots that failed, with this attempt. They are asked for again after a while."""
        failed: dict[Slot, Failed] = {}
        waits: list[float] = []
        for slot, each in result.slots.items():
            if each.ok:
                continue
            attempts = self.failing[slot].attempts + 1 if slot in self.failing else 1
            waits.append(self.settings.retry_seconds(attempts))
            reason = each.error or json.dumps(each.unread)
            failed[slot] = Failed(
                attempts=attempts,
                not_before_ms=self.clock.wall_ms() + int(waits[-1] * 1000),
                reason=reason,
                trace=next(iter(each.every_trace.values()), ""),
            )
            self.progress(f"slot {slot}: {reason}")
        if waits:
            self.later(min(waits), lambda: self._ask_again(failed))
        return failed

    def _all_failed(self, slots: Sequence[Slot], error: Exception) -> BatchResult:
        """The result of slots for which a run failed as a whole."""
        rows = [failed_slot(slot, error) for slot in slots]
        if rows[0].trace:
            self.progress(rows[0].trace)
        return BatchResult(
            slots={
                row.slot: SlotResult(slot=row.slot, status="failed", error=row.error, trace=row.trace)
                for row in rows
            }
        )

    def _ask_again(self, slots: Iterable[Slot]) -> None:
        ask_again(self.source.location, slots, listing=False, clock=self.clock)


class _Following:
    """What a running `ContinuousIngest` has seen of its source's signals."""

    def __init__(self, ingest: ContinuousIngest, *, sweep: bool) -> None:
        self._ingest = ingest
        self._sweep = sweep
        self._watcher: Watcher | None = None
        self._waiting: dict[Slot, str | None] = {}
        self._unqueued: frozenset[Slot] = frozenset()
        self._seen: Record | None = None
        self._table = ""
        self._followed = False
        """Whether the last batch followed entries: then they are read before it is known that this one does."""
        self._untagged = 0
        self._led = False
        """Whether the tables that follow were led on since this began."""
        self._batches = (f"ingest-{unique_name(ingest.clock)[:12]}-{number}" for number in count())

    def step(self, *, hurry: bool) -> float:
        """Poll, and take in what changed. How long to wait, in seconds: no listing may be due. `hurry`: it is."""
        ingest, location = self._ingest, self._ingest.source.location
        watcher = self._watcher = self._watcher or self._begun()
        poll = watcher.poll()
        self._waiting |= poll.changed
        self._unqueued |= poll.unqueued
        if not self._waiting:
            if ingest.behind or not self._led:
                ingest.lead_on("")
                self._led = True
            if self._untagged:
                self._untagged = ingest.tag(seconds=TAGGING_SECONDS)
            return 0.0
        follows = self._followed and not self._unqueued
        with readers(2) as ahead:
            reading = ahead.submit(ingest.backlog.read)
            looking = ahead.submit(ingest.segments, [*self._waiting]) if follows else None
            table = ingest.opened = ingest.source.open_table(expected=self._table, clock=ingest.clock)
            rescans = reading.result()
            segments = looking.result() if looking is not None else None
        if self._table not in ("", table.id):  # it was forgotten, or rewritten as another
            self._waiting, segments = {**dict.fromkeys(location.all_slots()), **self._waiting}, None
        decision = ingest.decided(self._waiting, rescans, unqueued=bool(self._unqueued))
        self._followed = not decision.listing
        if decision.wait_seconds and not hurry:
            return decision.wait_seconds
        with ThreadPoolExecutor(1, "room") as beside:
            ingest.take_decided(
                self._waiting,
                decision,
                rescans,
                batch=next(self._batches),
                beside=beside,
                segments=segments,
            )
            if ingest.failing:
                ingest.spark.range(1).count()  # raises if Spark is what failed
            self._waiting, self._unqueued, self._table, self._led = {}, frozenset(), table.id, True
            seen = Seen(state=watcher.state, table=table.id)
            self._seen = write_seen(location, seen, known=self._seen, clock=ingest.clock)
        self._untagged = ingest.tag(seconds=None if hurry else TAGGING_SECONDS)
        return 0.0

    def _begun(self) -> Watcher:
        """The watcher, as far as any process was; at first, and for a sweep, all slots wait."""
        ingest, location = self._ingest, self._ingest.source.location
        platform = open_store(location.platform)
        ingest.source = ingest.source.settle_commit_mode(platform)
        seen = None if self._sweep else read_seen(location)
        if seen is None:
            self._waiting = dict.fromkeys(location.all_slots())
        backlog = ingest.backlog
        if self._sweep:
            backlog.add(location.all_slots())
        self._waiting |= dict.fromkeys(backlog.read().slots)  # what an earlier process has left
        self._table = seen.table if seen else ""
        location.open_table(platform, expected=self._table)  # refused, if it is not whole
        return location.watcher(platform, state=seen.state if seen else None, clock=ingest.clock)
