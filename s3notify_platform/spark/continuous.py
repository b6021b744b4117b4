"""Updates a table whenever its bucket changes, without Dagster.

`run` polls the keyspace, and ingests the changed slots by `Ingest.rounds`. Correctness depends only on the table. The
record of seen signals (`engine.batch.last_poll`) is a hint: if a slot is ingested again, no row is committed twice.
Several of these processes, and Dagster, may work on one table.

The function `decide` chooses whether a batch lists the bucket or reads the entries of the source's topic (`s3notify
topics create NAME`). The sensor uses `decide`, too. Entries are removed after the commit. A slot that was ingested only
in part is requested again at once, by its signal. A failed slot is requested again after a backoff. Unfinished and
failed slots are in the rescan backlog, so that a restarted process requests them, too. The backlog also counts
failures, so the last allowed attempt is recognised even if each attempt is in another process (`--once`). Failed slots
are ingested separately. A batch that fails as a whole is tried in halves, until the slot at fault fails alone.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from s3notify_platform.engine.batch.last_poll import Seen, read_seen, write_seen
from s3notify_platform.engine.batch.list_or_follow import Decision, decide, topic_epoch
from s3notify_platform.engine.batch.traces import trace_batch
from s3notify_platform.engine.loop import Round, close, commit_rounds
from s3notify_platform.engine.run_state import Reading
from s3notify_platform.engine.values.results import BatchResult, Progress
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
from s3notify_platform.spark.failures import JOB_ERRORS, failure_of, in_halves
from s3notify_platform.spark.following import follow
from s3notify_platform.spark.ingest_steps import IngestSteps, all_failed, in_background
from s3notify_platform.spark.spark_jobs import spark_ingest
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.open_table import OpenTable

if TYPE_CHECKING:
    from s3notify_platform.kernel.ports import Record


TAGGING_SECONDS: Final = 2.0
"""Maximum seconds for tagging between two polls. A slot whose tagging has begun is finished even after this time."""

SWEEP_SECONDS: Final = 86_400.0
"""Seconds between two comparisons of the whole bucket by processes that run permanently."""


@dataclass(slots=True, kw_only=True)
class ContinuousIngest:
    """Ingests changed slots, and requests failed slots and unfinished slots again."""

    spark: SparkSession
    source: Source
    transform: Transform | None = None
    code_version: str = ""
    """The fingerprint of the transform's code, for a source that declares no code version."""
    progress: Progress = lambda _: None
    reads: Callable[[Reading | None], None] = lambda _: None
    """This function is called when a round begins to read."""
    clock: Clock = SYSTEM_CLOCK
    settings: BatchSettings = field(default_factory=BatchSettings)
    """The settings for retries of failed slots."""
    later: Callable[[float, Callable[[], None]], None] = in_background
    """Calls the given function after the given number of seconds."""
    list_seconds: float = 10.0
    """The minimum time between two listings of the bucket."""
    failing: Mapping[Slot, Failed] = field(default_factory=dict)
    """The slots whose last batch (in any process) failed, as of the last read of the backlog."""
    unfinished: frozenset[Slot] = frozenset()
    """The slots that the last batch ingested only in part, and that were requested again."""
    opened: OpenTable | None = None
    """The source's table at the beginning of the batch."""
    behind: str = ""
    """The derived tables that are older than the source's table, each with the reason; "" if all are up to date."""
    _counts: Counter[str] = field(default_factory=Counter)
    _listed_ms: int = 0
    _topic: str = ""
    """The epoch of the source's topic, as of the last read."""

    def counts(self) -> Mapping[str, int]:
        """Returns the counts of all batches since the start (`BatchResult.counts`), and the number of failed slots."""
        return {**self._counts.copy(), "failing_slots": len(self.failing)}

    def run(self, stop: threading.Event, *, every_seconds: float | None, sweep: bool = False) -> None:
        """Polls every `every_seconds`, and ingests changes until `stop` is set. If `every_seconds` is None, ingests the
        present changes, and returns.

        Continues from the last signals that any process has seen (`engine.batch.last_poll`). Compares all objects at
        the first start. With `sweep`, also compares all objects at this start. A process that runs permanently also
        compares all objects if no process has done so for `SWEEP_SECONDS`. A table with missing versions is refused.
        During an outage, waits with backoff and reports to `progress`. If `every_seconds` is None, raises the error
        instead. Also raises Spark's errors if Spark no longer works, and errors that only an operator can fix.

        Cost: 1 HEAD for an idle poll; 1 HEAD and 1 LIST for a poll with changes. A batch costs 4 requests, and
        the requests of `take`.
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
                self.progress(f"retrying in {wait:.1f} s: {error}")
            if every_seconds is not None:
                stop.wait(max(wait, every_seconds))
            elif not self.unfinished:
                return

    def take(self, signals: Mapping[Slot, str | None], *, batch: str) -> BatchResult:
        """Ingests these slots, and the slots that wait for a rescan. The call may be repeated. Raises `UsageError` if
        no slot can be ingested, and `UnavailableError` for an outage (`Ingest.rounds`). A slot that fails is added to
        `failing` and requested again. Cost: the requests of `Ingest.rounds` and of `commit_rounds`, and a few requests
        for the topic and the backlog.
        """
        rescans = self.backlog.read()
        with ThreadPoolExecutor(1, "room") as beside:
            decision = self.decided(signals, rescans)
            return self.take_decided(signals, decision, rescans, batch=batch, beside=beside)

    def segments(self, slots: Iterable[Slot]) -> Sequence[Segment] | None:
        """Reads the segments of these slots; None while the topic is unknown. Can run beside other work.

        Cost: 1 scan (`NotificationQueue.segments`).
        """
        location = self.source.location
        return location.queue().segments(location.name, slots) if self._topic else None

    def tag(self, *, seconds: float | None) -> int:
        """Tags committed objects, if the source has `committed_tags`.

        A later batch tags objects that cannot be tagged now. Stops after `seconds`, and returns the number of remaining
        slots. Cost and limits are the same as for `tag_committed`.
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
        """Decides how to find the changes in these slots. `rescans`: the backlog, read after the poll. `unqueued`: true
        if one of the signals is from an unqueued writer. Cost: 1 request; none if the decision is to read the entries
        of a known topic.
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
            return decision  # the plan checks that the topic was not replaced
        self.read_topic()
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
        """Does the work of `take` after the decision of `decided`. `segments`: the slots' segments, if they were
        already read. `beside` runs tasks that free the space of removed entries in the queue.
        """
        began_ms = self.clock.wall_ms()
        self.failing = rescans.failed
        steps = IngestSteps(
            source=self.source,
            backlog=self.backlog,
            decision=decision,
            rescans=rescans,
            settings=self.settings,
            clock=self.clock,
            progress=self.progress,
            later=self.later,
        )
        slots, result = steps.slots, BatchResult()
        for part in in_halves(
            [sorted(self.failing.keys() & slots), sorted(slots - self.failing.keys())],
            lambda part: self._taken(part, signals, steps, batch=batch, segments=segments, beside=beside),
            partial(all_failed, progress=self.progress),
            errors=(*JOB_ERRORS, ConflictError, CorruptError),
            what="a batch",
            progress=self.progress,
        ):
            result.add(part)
        results = {self.source.name: result.slots}
        done = Round(tables=iter(()), unannounced=result.unannounced, results=results)
        close(done, steps)
        self.failing = {s: one for s, one in self.failing.items() if s not in slots} | steps.failed
        self.unfinished = frozenset(done.incomplete())
        if decision.listing:
            self._listed_ms = began_ms
        for name, rows in added(each.broken for each in result.slots.values()).items():
            self.progress(f"{rows} rows break the rule {name}")
        counts = result.counts()
        self._counts = self._counts + counts
        trace_batch(self.source.name, batch, result.seconds, counts)
        return result

    def _taken(
        self,
        slots: Sequence[Slot],
        signals: Mapping[Slot, str | None],
        steps: IngestSteps,
        *,
        batch: str,
        segments: Sequence[Segment] | None,
        beside: Executor,
    ) -> BatchResult:
        decision = steps.decision
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
            queue = self.source.location.queue()
            for _ in commit_rounds(rounds, queue=queue, beside=beside, steps=steps, closes=False):
                self.advance(batch)
            return ingest.result()
        except (NotFoundError, UsageError) as error:
            self._topic = ""
            if decision.topic and self.read_topic() != decision.topic:
                raise UnavailableError(
                    f"topic {self.source.name!r} was created again meanwhile: {error}"
                ) from error
            raise

    def advance(self, batch: str) -> None:
        """Updates the source's derived tables. `behind` shows a failure; a later poll or batch tries again.

        No failure raises an error, because the source's rows are already committed.
        """
        behind = list[str]()
        for asset in self.source.kinds:
            try:
                done = follow(self.spark, self.source, asset, batch=batch)
            except Exception as error:  # noqa: BLE001 - the docstring has the reason
                failure = failure_of(error)
                behind.append(f"{asset} is behind: {failure.reason}")
                self.progress(f"{behind[-1]}\n{failure.trace}".rstrip())
                continue
            self._counts["followed"] += done.changed
            if done.rebuilt:
                self.progress(f"{asset} was rebuilt, {done.rows} rows: {done.rebuilt}")
        self.behind = "; ".join(behind)

    def read_topic(self) -> str:
        """Returns the epoch of the source's topic; "" without a topic. Cost: 1 request."""
        location = self.source.location
        user = TopicUser(slots=location.slots)
        self._topic = topic_epoch(location.queue(), location.name, user, signals=location.signals)
        return self._topic

    @property
    def backlog(self) -> RescanBacklog:
        """The slots that wait for a rescan, and the slots that failed."""
        return RescanBacklog(self.source.location.records(), clock=self.clock)


class _Following:
    """Polls for a running `ContinuousIngest`, and stores the signals seen."""

    def __init__(self, ingest: ContinuousIngest, *, sweep: bool) -> None:
        self._ingest = ingest
        self._sweep, self._swept_ms = sweep, 0
        self._watcher: Watcher | None = None
        self._resumed = False
        self._waiting: dict[Slot, str | None] = {}
        self._unqueued: frozenset[Slot] = frozenset()
        self._seen: Record | None = None
        self._table = ""
        self._followed = False
        """True if the last decision was to read the topic's entries. Then the next step reads the entries before its
        decision.
        """
        self._untagged = 0
        self._advanced = False
        """True if the derived tables were updated since the start."""
        self._fails, self._advance_at = 0, 0.0
        """For updates of the derived tables outside of batches: the number of successive failures, and the time of the
        next update.
        """
        self._batches = (f"ingest-{unique_name(ingest.clock)[:12]}-{number}" for number in count())

    def step(self, *, hurry: bool) -> float:
        """Polls, and ingests the changes. Returns the seconds until the bucket may be listed. `hurry`: do not wait."""
        ingest, location = self._ingest, self._ingest.source.location
        watcher = self._watcher = self._watcher or self._begun()
        if not hurry and self._begins_sweep():
            ingest.backlog.add(location.all_slots())
            self._waiting = {**dict.fromkeys(location.all_slots()), **self._waiting}
            self._note(watcher)  # before the sweep, so that no other process begins a sweep, too
        poll = watcher.poll()
        self._waiting |= poll.changed
        self._unqueued |= poll.unqueued
        resumed = None if self._resumed else self._resume()
        if not self._waiting:
            if ingest.opened is None:  # an incomplete table is refused before any change
                ingest.opened = ingest.source.open_table(expected=self._table, clock=ingest.clock)
            if not self._advanced or (ingest.behind and ingest.clock.monotonic() >= self._advance_at):
                self._advance()
            if self._untagged:
                self._untagged = ingest.tag(seconds=TAGGING_SECONDS)
            return 0.0
        follows = self._followed and not self._unqueued
        with readers(2) as ahead:
            reading = ahead.submit(lambda: resumed or ingest.backlog.read())
            looking = ahead.submit(ingest.segments, [*self._waiting]) if follows else None
            table = ingest.opened = ingest.source.open_table(expected=self._table, clock=ingest.clock)
            rescans = reading.result()
            segments = looking.result() if looking is not None else None
        if self._table not in ("", table.id):  # the table was forgotten, or replaced by another
            self._waiting, segments = {**dict.fromkeys(location.all_slots()), **self._waiting}, None
        decision = ingest.decided(self._waiting, rescans, unqueued=bool(self._unqueued))
        self._followed = not decision.listing
        if decision.wait_seconds and not hurry:
            return decision.wait_seconds
        with ThreadPoolExecutor(1, "room") as beside:
            ingest.take_decided(
                self._waiting, decision, rescans, batch=next(self._batches), beside=beside, segments=segments
            )
            self._check_spark()
            self._waiting, self._unqueued, self._table, self._advanced = {}, frozenset(), table.id, True
            self._note(watcher)
        self._untagged = ingest.tag(seconds=None if hurry else TAGGING_SECONDS)
        return 0.0

    def _note(self, watcher: Watcher) -> None:
        location, clock = self._ingest.source.location, self._ingest.clock
        seen = Seen(state=watcher.state, table=self._table, swept_ms=self._swept_ms)
        self._seen = write_seen(location, seen, known=self._seen, clock=clock)

    def _begins_sweep(self) -> bool:
        """True if no process has begun a sweep for `SWEEP_SECONDS`. Then this process sweeps. Cost: 1 request a day."""
        now = self._ingest.clock.wall_ms()
        # A time in the future, by a wrong clock, must not delay the sweep.
        if self._swept_ms <= now < self._swept_ms + SWEEP_SECONDS * 1000:
            return False
        seen, self._seen = read_seen(self._ingest.source.location)
        others = seen.swept_ms if seen else 0
        begins = not self._swept_ms < others <= now
        self._swept_ms = now if begins else others
        return begins

    def _advance(self) -> None:
        """Updates the derived tables. After a failure, the next update waits as long as a failed slot waits for its
        retry, because an update may read the whole table.
        """
        ingest = self._ingest
        ingest.advance("")
        self._advanced = True
        self._fails = self._fails + 1 if ingest.behind else 0
        self._advance_at = ingest.clock.monotonic() + ingest.settings.retry_seconds(self._fails)
        self._check_spark()

    def _check_spark(self) -> None:
        """Raises an error if Spark itself has failed."""
        if self._ingest.failing or self._ingest.behind:
            self._ingest.spark.range(1).count()

    def _begun(self) -> Watcher:
        """Returns a watcher with the last state that any process has seen.

        If no state is stored, or if a sweep was requested, the next batch has all slots.
        """
        ingest, location = self._ingest, self._ingest.source.location
        platform = open_store(location.platform)
        ingest.source = ingest.source.settle_commit_mode(platform)
        seen, self._seen = (None, None) if self._sweep else read_seen(location)
        self._waiting = {} if seen else dict.fromkeys(location.all_slots())
        if self._sweep:
            ingest.backlog.add(location.all_slots())
        self._table = seen.table if seen else ""
        self._swept_ms = seen.swept_ms if seen else ingest.clock.wall_ms()
        return location.watcher(platform, state=seen.state if seen else None, clock=ingest.clock)

    def _resume(self) -> Rescans:
        """After the first poll, adds the slots that earlier processes left, or all slots. Returns the backlog."""
        ingest, rescans = self._ingest, self._ingest.backlog.read()
        lacks = ingest.read_topic() not in ("", rescans.enumerated)  # the topic lacks earlier changes
        slots = ingest.source.location.all_slots() if lacks else rescans.slots
        self._waiting, self._resumed = {**dict.fromkeys(slots), **self._waiting}, True
        return rescans
