"""A committed table kept in step with its bucket by a streaming query, without Dagster.

The stream says which slots changed (`read="slots"`), and for each micro-batch `Ingest.run` takes them in. The heads of
the table are the truth and the checkpoint only a hint: a micro-batch that is repeated, or a checkpoint that was lost,
finds what is committed and commits nothing twice. Several of these, and Dagster besides, may work on one table.

As the sensor and the IO manager do it: entries of the source's topic are removed after the commit, slots that were not
taken in whole are asked for again by moving their signals, those that failed as well, with backoff, and both are owed
a listing until then, so that a restart asks for them too. The bucket is listed, unless the source has a topic
(`s3notify topics create NAME`) and no writer signals without queueing: then once, when the topic is first seen.
"""

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import NotFoundError, S3NotifyError, UsageError
from s3notify_platform.ingest.results import BatchResult, SlotResult
from s3notify_platform.ingest.run_state import Progress
from s3notify_platform.ingest.source import Source
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.source_enumerator import RescanBacklog, Rescans
from s3notify_platform.slots import Slot
from s3notify_platform.spark.batch_schema import Transform
from s3notify_platform.spark.datasource.batch import FORMAT, register
from s3notify_platform.spark.datasource.options import reading_of
from s3notify_platform.spark.jobs import spark_ingest
from s3notify_platform.spark.session import is_remote
from s3notify_platform.stores.s3.fast import shared_store

RETRY_SECONDS: Final = 10.0
RETRY_CEILING_SECONDS: Final = 900.0


@dataclass(slots=True, kw_only=True)
class TableKeeper:
    """Takes in slots that changed, and sees to it that those which need it are asked for again."""

    spark: SparkSession
    source: Source
    transform: Transform | None = None
    progress: Progress = lambda _: None
    clock: Clock = SYSTEM_CLOCK
    later: Callable[[float, Callable[[], None]], None] = field(default_factory=lambda: _in_background)
    max_attempts: int = 5
    """Batches of a slot in which an object's read may fail: the last gives it up to quarantine."""
    failing: dict[Slot, SlotResult] = field(default_factory=dict)
    """Slots whose last batch did not commit all of them."""
    _attempts: dict[Slot, int] = field(default_factory=dict)

    def take(self, signals: Mapping[Slot, str | None], *, batch: str) -> BatchResult:
        """Ingest these slots, and those that are owed a listing. May be repeated.

        Requests as `Ingest.run`, 2 or more for topic and debt, `NotificationQueue.remove` for what is committed.
        Raises `UsageError` if nothing can be ingested at all; a slot that fails is in `failing`, and asked for again.
        """
        rescans = self._backlog.read()
        epoch = self._topic()
        everything = bool(epoch) and rescans.enumerated != epoch
        listing = everything or not epoch or bool(rescans.slots) or self._backlog.unqueued_writers(rescans)
        wanted = {*signals, *rescans.slots} if listing else {*signals}
        wanted = {*self.source.location.all_slots()} if everything else wanted
        ingest = spark_ingest(
            self.spark, self.source, transform=self.transform, clock=self.clock, progress=self.progress
        )
        seen = {slot: etag for slot, etag in signals.items() if etag}
        last_try = [slot for slot, attempts in self._attempts.items() if attempts >= self.max_attempts - 1]
        result = ingest.run(
            wanted, batch=batch, signals=seen, listing=listing, only_found=everything, last_attempt=last_try
        )
        if not listing and result.unqueued:
            # Somebody signals without queueing: only a listing tells what.
            self._backlog.add(result.unqueued, unqueued=True)
            self._ask_again(result.unqueued)
        done = {slot for slot, each in result.slots.items() if each.ok and each.complete}
        queue = self.source.location.queue()
        if entries := [e for slot, of_slot in result.entries.items() if slot in done for e in of_slot]:
            queue.remove(entries)
        self._follow_up(result, done, rescans if listing else Rescans())
        if everything:  # what failed is owed
            self._backlog.enumerated(epoch)
        if epoch and self._topic() != epoch:
            self._ask_again(wanted)  # it was lost, or made again, and with it what the next batch has to list
        return result

    def ask_again_for_rescans(self) -> None:
        """Have what an earlier life left behind taken up by the next micro-batch. 1 request, and as `_ask_again`."""
        self._ask_again(self._backlog.read().slots)

    @property
    def _backlog(self) -> RescanBacklog:
        return RescanBacklog(self.source.location.records(), clock=self.clock)

    def _topic(self) -> str:
        """The epoch of the source's topic; empty: it has none."""
        try:
            return self.source.location.queue().topics.get(self.source.name).epoch
        except NotFoundError:
            return ""

    def _follow_up(self, result: BatchResult, done: set[Slot], rescans: Rescans) -> None:
        failed = {slot: each for slot, each in result.slots.items() if not each.ok}
        unfinished = result.slots.keys() - failed.keys() - done
        for slot in result.slots.keys() - failed.keys():
            self.failing.pop(slot, None)
            self._attempts.pop(slot, None)
        self._backlog.add({*unfinished, *failed})
        self._backlog.settle({slot: serial for slot, serial in rescans.slots.items() if slot in done})
        self._ask_again(unfinished)
        for slot, each in failed.items():
            self.failing[slot] = each
            self._attempts[slot] = self._attempts.get(slot, 0) + 1
            self.progress(f"slot {slot}: {each.error or json.dumps(dict(each.failed_objects))}")
        if failed:
            exponent = min(self._attempts[slot] for slot in failed) - 1
            seconds = min(RETRY_CEILING_SECONDS, RETRY_SECONDS * 2 ** min(exponent, 10))
            self.later(seconds, lambda: self._ask_again(failed))

    def _ask_again(self, slots: Iterable[Slot]) -> None:
        """`Publisher.signal_slots`."""
        source = self.source
        store = shared_store(source.location.platform)
        Publisher(
            store,
            prefix=source.location.keyspace_prefix,
            slots=source.location.slots,
            queued=True,
            clock=self.clock,
        ).signal_slots(slots)


def _in_background(seconds: float, action: Callable[[], None]) -> None:
    def act() -> None:
        try:
            action()
        except S3NotifyError:
            _in_background(RETRY_SECONDS, action)

    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def ingest_stream(
    spark: SparkSession,
    options: Mapping[str, str],
    *,
    checkpoint: str,
    every_seconds: float | None = 10.0,
    transform: Transform | None = None,
    progress: Progress = lambda _: None,
) -> tuple[StreamingQuery, TableKeeper]:
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
    source = source.settle_commit_mode(shared_store(source.location.platform))
    keeper = TableKeeper(spark=spark, source=source, transform=transform, progress=progress)
    keeper.ask_again_for_rescans()
    changed = spark.readStream.format(FORMAT).options(**{**options, "read": "slots"}).load()

    def take(rows: DataFrame, number: int) -> None:
        found = {Slot(row["slot"]): row["signal"] for row in rows.toArrow().to_pylist()}
        if found:
            keeper.take(found, batch=f"{query_name}-{number}")

    query_name = f"s3notify-{source.name}"
    trigger: dict[str, Any] = {"availableNow": True}
    if every_seconds is not None:
        trigger = {"processingTime": f"{int(every_seconds * 1000)} milliseconds"}
    writer = changed.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    return writer.queryName(query_name).trigger(**trigger).start(), keeper
