"""A committed table kept in step with its bucket by a streaming query, without Dagster.

The stream says which slots changed (`read="slots"`), and for each micro-batch `Ingest.run` takes them in. The heads of
the table are the truth and the checkpoint only a hint: a micro-batch that is repeated, or a lost checkpoint,
finds what is committed and commits nothing twice. Several of these, and Dagster besides, may work on one table.

As for the sensor's batches, `follow` decides whether a micro-batch lists the bucket or follows the entries of the
source's topic (`s3notify topics create NAME`), and entries are removed after the commit. Slots that were not taken in
whole, and after a backoff those that failed, are asked for again by moving their signals. Until then both are in the
rescan backlog, so that a restart asks for them too. Slots that failed are taken in apart from the others; if anything
fails as a whole, it is tried again in halves, until the slot at fault fails alone.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import ConflictError, CorruptError, S3NotifyError, UsageError
from s3notify_platform.ingest.batches import BatchSettings, Failing
from s3notify_platform.ingest.follow import Decision, ask_again, decide, note_writers, topic_epoch
from s3notify_platform.ingest.results import BatchResult, Progress, SlotResult
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.traces import trace_batch
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.slots import Slot
from s3notify_platform.spark.batch_schema import Transform
from s3notify_platform.spark.datasource.batch import FORMAT, register
from s3notify_platform.spark.datasource.options import reading_of
from s3notify_platform.spark.failures import JOB_ERRORS, in_halves, reason_of
from s3notify_platform.spark.jobs import spark_ingest
from s3notify_platform.spark.session import is_remote
from s3notify_platform.stores.s3.fast import shared_store


def _in_background(seconds: float, action: Callable[[], None]) -> None:
    def act() -> None:
        try:
            action()
        except S3NotifyError:
            _in_background(seconds, action)

    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


@dataclass(slots=True, kw_only=True)
class ContinuousIngest:
    """Takes in slots that changed, and asks again for those that were not taken in."""

    spark: SparkSession
    source: Source
    transform: Transform | None = None
    progress: Progress = lambda _: None
    clock: Clock = SYSTEM_CLOCK
    settings: BatchSettings = field(default_factory=BatchSettings)
    """Of its retries."""
    later: Callable[[float, Callable[[], None]], None] = _in_background
    """Calls a function after so many seconds."""
    failing: dict[Slot, Failing] = field(default_factory=dict)
    """Slots whose last batch did not commit all of them."""
    _counts: Counter[str] = field(default_factory=Counter)

    def counts(self) -> Mapping[str, int]:
        """What was done since this began, as `BatchResult.counts`; and how many slots fail now."""
        return {**self._counts.copy(), "failing_slots": len(self.failing)}

    def take(self, signals: Mapping[Slot, str | None], *, batch: str) -> BatchResult:
        """Ingest these slots, and those that wait for a rescan. May be repeated.

        Requests as `Ingest.run`, 2 or more for topic and backlog, `NotificationQueue.remove` for what is committed.
        Raises `UsageError` if nothing can be ingested at all, `UnavailableError` after an outage (`Ingest.rounds`); a
        slot that fails is in `failing`, and asked for again.
        """
        location, backlog = self.source.location, self._backlog
        queue = location.queue()
        topic, rescans = topic_epoch(queue, location.name), backlog.read()
        decision = decide(
            signals, rescans, topic=topic, enumerated=rescans.enumerated, now_ms=self.clock.wall_ms()
        )
        slots = location.all_slots() if decision.everything else decision.slots
        result = BatchResult()
        for part in in_halves(
            [sorted(self.failing.keys() & set(slots)), sorted(set(slots) - self.failing.keys())],
            lambda part: self._taken(part, signals, decision, batch),
            _all_failed,
            errors=(*JOB_ERRORS, ConflictError, CorruptError),
            what="a batch",
            progress=self.progress,
        ):
            result.add(part)
        note_writers(backlog, decision, unqueued=result.unqueued, unannounced=result.unannounced)
        done = {slot for slot, each in result.slots.items() if each.ok and each.complete}
        if entries := [e for slot, of_slot in result.entries.items() if slot in done for e in of_slot]:
            queue.remove(entries)
        backlog.add(result.slots.keys() - done)
        if decision.listing:
            backlog.settle(rescans.slots)  # but for those that were just added again
        if decision.everything:
            backlog.enumerated(topic)
        counts = result.counts()
        self._counts = self._counts + counts
        trace_batch(self.source.name, batch, result.seconds, counts)
        self._retry_failed(result)
        self._ask_again((result.slots.keys() - done - self.failing.keys()) | result.unqueued)
        if topic and topic_epoch(queue, location.name) != topic:
            self._ask_again(
                slots
            )  # some entries may be gone with the topic: the next batch compares everything
        return result

    def _taken(
        self, slots: Sequence[Slot], signals: Mapping[Slot, str | None], decision: Decision, batch: str
    ) -> BatchResult:
        ingest = spark_ingest(
            self.spark, self.source, transform=self.transform, clock=self.clock, progress=self.progress
        )
        return ingest.run(
            slots,
            batch=batch,
            signals={slot: etag for slot, etag in signals.items() if etag},
            listing=decision.listing,
            only_found=decision.everything,
            seen_ms=self.clock.wall_ms(),
            last_attempt=[
                slot for slot, item in self.failing.items() if self.settings.is_last(item.attempts)
            ],
        )

    def ask_again_for_rescans(self) -> None:
        """Have the next micro-batch take up what an earlier process left. 1 request, and as `follow.ask_again`."""
        self._ask_again(self._backlog.read().slots)

    @property
    def _backlog(self) -> RescanBacklog:
        return RescanBacklog(self.source.location.records(), clock=self.clock)

    def _retry_failed(self, result: BatchResult) -> None:
        waits: dict[Slot, float] = {}
        for slot, each in result.slots.items():
            earlier = self.failing.pop(slot, None)
            if each.ok:
                continue
            attempts = earlier.attempts + 1 if earlier else 1
            waits[slot] = self.settings.retry_seconds(attempts)
            reason = each.error or json.dumps(each.unread)
            again_ms = self.clock.wall_ms() + int(waits[slot] * 1000)
            self.failing[slot] = Failing(attempts=attempts, not_before_ms=again_ms, reason=reason, group=slot)
            self.progress(f"slot {slot}: {reason}")
        if waits:
            self.later(min(waits.values()), lambda: self._ask_again(waits))

    def _ask_again(self, slots: Iterable[Slot]) -> None:
        ask_again(self.source.location, slots, listing=False, clock=self.clock)


def _all_failed(slots: Sequence[Slot], error: Exception) -> BatchResult:
    """The result of slots for which a run failed as a whole."""
    reason = reason_of(error)
    return BatchResult(slots={slot: SlotResult(slot=slot, status="failed", error=reason) for slot in slots})


def ingest_stream(
    spark: SparkSession,
    options: Mapping[str, str],
    *,
    checkpoint: str,
    every_seconds: float | None = 10.0,
    transform: Transform | None = None,
    progress: Progress = lambda _: None,
) -> tuple[StreamingQuery, ContinuousIngest]:
    """Start a query that keeps the committed table of a source in step; the query, and what it works with.

    `options` as of the data source. `every_seconds`: how often the keyspace is polled (1 HEAD if nothing changed);
    None: take in all that is signalled now, and end. `checkpoint`: where Spark notes how far it is; losing it costs one
    comparison of everything. `UsageError` on Spark Connect, where the query's driver is another process.
    """
    if is_remote(spark):
        raise UsageError(
            "ingest_stream runs on the driver: start it there, or use a master in place of Connect"
        )
    register(spark)
    source = reading_of(options).source
    source.open_table(create=False)  # refused before anything is written
    source = source.settle_commit_mode(shared_store(source.location.platform))
    ingest = ContinuousIngest(spark=spark, source=source, transform=transform, progress=progress)
    ingest.ask_again_for_rescans()
    changed = spark.readStream.format(FORMAT).options(**{**options, "read": "slots"}).load()

    def take(rows: DataFrame, number: int) -> None:
        found = {Slot(row["slot"]): row["signal"] for row in rows.toArrow().to_pylist()}
        if found:
            ingest.take(found, batch=f"{query_name}-{number}")

    query_name = f"s3notify-{source.name}"
    trigger: dict[str, Any] = {"availableNow": True}
    if every_seconds is not None:
        trigger = {"processingTime": f"{int(every_seconds * 1000)} milliseconds"}
    writer = changed.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    return writer.queryName(query_name).trigger(**trigger).start(), ingest
