"""`readStream.format("s3notify")`: what changes in a bucket, as a stream. Without Dagster.

Steps
    1. `latestOffset` polls the keyspace. Slots whose signal differs from the start offset's have changed; in a new
       stream all slots have.
    2. What is in these slots now is found by a listing, or with a topic by its entries (`ingest.follow`), and compared
       with what the stream has read of them: its own state, in a table of object states without files. What fits is
       written down as a plan, and the end offset names the plan.
    3. `partitions` assigns the plan's object versions to tasks, which read them pinned to their ETag.
    4. When Spark has committed the batch, the states of the plan's slots are committed and the plan is removed.

Storage, below `{platform_prefix}streams/{stream}/`
    plans/{number}-{random}.json   object versions to read, and versions that have left, of one micro-batch
    commits/ state/                object states, as in a table

The offset is `{stream, number, plan, epoch, digests, heads, place}`: `digests` has 8 bytes for the signal of each slot,
11 KB for 1000; `epoch` is the topic's; `heads` are the generations of the state, and `place` is bucket and prefix. The
stream's name is drawn when its first batch is planned, and kept by the checkpoint alone: so state and checkpoint belong
together, and a new checkpoint is a new stream, which reads everything.

Guarantees
    - A micro-batch that Spark repeats, after a failed sink or a restart, has the same plan, and so the same rows, but
      for objects that were overwritten or deleted since: these have none, and have moved their own signal.
    - Each record of each object version is given once, with `_change` "row" (or "reject"). A version that was replaced,
      or whose object left, is given as one row with `_change` "gone", its `_key` and `_etag`, in the batch that has its
      successor. A sink that applies "gone" before "row" holds what the bucket holds.
    - A checkpoint older than the state, a state of which a commit is gone, or another bucket or prefix is an error,
      never a gap or a second reading.

Requests: an idle poll is 1 HEAD, at most one in `poll_seconds`. A changed one is 1 HEAD and 1 LIST of the keyspace;
for a listing 1 LIST for each 1000 objects below the prefix, at most once in `list_seconds`; and for each changed slot
1 GET (and its state pages) and 2 PUTs, LISTs as `SlotTable.newest`. With a topic, 3 GETs and
`NotificationQueue.entries`; to follow these, 1 HEAD for each slot's signal, at most 1 for each key, no listing. The
driver holds the objects of the changed slots, at most twice `max_objects` and one slot's.

Limits: an object is never divided between micro-batches. Where a writer does not signal, nothing is seen.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.errors import CorruptError, NotFoundError, UsageError
from s3notify_platform.ingest.follow import Decision, decide, topic_epoch
from s3notify_platform.ingest.row_schema import Batches
from s3notify_platform.ingest.stream_plan import any_unqueued, planned_work
from s3notify_platform.ingest.stream_state import (
    Offset,
    SlotWork,
    StreamPlan,
    StreamState,
    changed_between,
    digest_at,
    seen_of,
)
from s3notify_platform.ingest.wire import QueuedEntry
from s3notify_platform.protocols.keyspace import NEVER_SEEN, Watcher
from s3notify_platform.protocols.notification_queue import Entry, TopicUser
from s3notify_platform.protocols.source_enumerator import RescanBacklog, Rescans, Split
from s3notify_platform.slots import Slot
from s3notify_platform.spark.datasource.options import Reading
from s3notify_platform.spark.datasource.rows import RowReader, Work, work_of
from s3notify_platform.stores.s3.fast import shared_store

UNLIMITED: Final = 1 << 62


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Rows of what changed. Lives in one process of the driver for as long as the query runs."""

    def __init__(self, reading: Reading, rows: RowReader, width: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._reading = reading
        self._clock = clock
        self._until: bytes | None = None
        self._polled_at: float | None = None
        self._rows = rows
        self._width = width
        self._listed_ms = 0
        self._state: StreamState | None = None
        self._epoch = ""

    def __getstate__(self) -> dict[str, Any]:
        """What travels to tasks: they need no more than to read rows."""
        return {"_rows": self._rows}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader.initialOffset`: nothing was ever read."""
        return Offset(digests=NEVER_SEEN * self._reading.source.location.slots).dumps()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """See `SupportsTriggerAvailableNow`: the query ends when all is read that is signalled now."""
        self._until = self._poll()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader.getDefaultReadLimit`: `max_objects`, and within it `max_bytes`."""
        return ReadMaxFiles(self._reading.source.input.max_objects)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader.latestOffset`: steps 1 and 2."""
        offset = self._placed(self._offset(start))
        self._state_of(offset).settle(offset.plan)
        target = self._until or self._poll()
        if self._reading.topic and (offset.epoch != self._epoch or offset.digests != target):
            queue = self._reading.source.location.queue()
            self._epoch = topic_epoch(queue, self._reading.topic, self._user)
        if offset.digests == target and self._epoch in ("", offset.epoch):
            return start
        decision = self._decide(offset, target)
        if decision.everything:
            # What was written before there was this topic has no entry: begin again with all slots.
            offset = replace(offset, digests=NEVER_SEEN * self._reading.source.location.slots)
        offset = replace(offset, epoch=self._epoch)
        state = self._state_of(offset)
        if decision.how == "follow" and any_unqueued(state, decision.slots):
            self._backlog.add((), unqueued=True)
            decision = self._decide(offset, target)
        if decision.wait_seconds:
            return start
        changed = changed_between(offset.digests, target)
        decision = replace(decision, slots=frozenset(changed))
        if (entries := self._entries(changed)) is None:
            return start
        if decision.listing:
            self._listed_ms = self._clock.wall_ms()
        max_objects, max_bytes = self._limits(limit)
        work, done = planned_work(
            state, offset, decision, entries, max_objects=max_objects, max_bytes=max_bytes
        )
        if len(done) < len(changed):
            self._listed_ms = 0  # there is more to be had at once
        end = replace(offset, digests=offset.advanced(done, target))
        seen = tuple(entry for entry in entries if entry.slot in done)
        return self._pinned(state, end, work, seen).dumps()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """See `DataSourceStreamReader.partitions`: step 3."""
        offset = self._offset(end)
        if offset.plan == self._offset(start).plan:
            return []
        if (plan := self._state_of(offset).plan(offset.plan)) is None:
            raise CorruptError(
                f"plan {offset.plan} of stream {offset.stream} is gone, and Spark has not committed its batch: "
                "restore it, or begin with a new checkpoint, which reads everything"
            )
        splits = [Split(version=v, start=0, end=v.size) for work in plan.slots for v in work.read]
        gone = [(work.slot, key, etag) for work in plan.slots for key, etag in work.gone]
        return work_of(self._reading.source, splits, self._width, gone)

    def read(self, partition: InputPartition) -> Batches:
        """See `DataSourceStreamReader.read`."""
        assert isinstance(partition, Work), "partitions() makes no others"
        yield from self._rows.gone(partition.gone)
        yield from self._rows.read(partition.splits)

    def commit(self, end: dict[str, Any]) -> None:
        """See `DataSourceStreamReader.commit`: step 4."""
        offset = self._offset(end)
        self._state_of(offset).settle(offset.plan)

    # How

    def _poll(self) -> bytes:
        """All slots' digests, at most `poll_seconds` old. 1 HEAD if nothing changed, else 1 LIST besides."""
        now = self._clock.monotonic()
        if self._polled_at is None or now - self._polled_at >= self._reading.poll_seconds:
            self._watcher.poll()
            self._polled_at = now
        return seen_of(self._watcher)

    @cached_property
    def _watcher(self) -> Watcher:
        place = self._reading.source.location
        store = shared_store(place.platform)
        return Watcher(store, prefix=place.keyspace_prefix, slots=place.slots, clock=self._clock)

    def _offset(self, body: dict[str, Any]) -> Offset:
        return Offset.loads(body, self._reading.source.location.slots)

    def _placed(self, offset: Offset) -> Offset:
        """The offset with the place of its objects. Refused if that is another than before: all would seem gone."""
        read = self._reading.source.input
        place = f"s3://{read.bucket.bucket}/{read.prefix}"
        if offset.place not in ("", place):
            raise UsageError(
                f"the checkpoint is of {offset.place!r}, and the query reads {place!r}: set bucket and prefix back, or "
                "begin with another checkpoint, which reads everything"
            )
        return replace(offset, place=place)

    def _state_of(self, offset: Offset) -> StreamState:
        if self._state is None or offset.stream not in ("", self._state.stream):
            store = shared_store(self._reading.source.location.platform)
            self._state = StreamState(
                source=self._reading.source.settle_commit_mode(store),
                stream=offset.stream or unique_name(self._clock),
                store=store,
                clock=self._clock,
            )
        return self._state

    def _limits(self, limit: ReadLimit) -> tuple[int, int]:
        """Objects and bytes of a micro-batch."""
        read = self._reading.source.input
        if isinstance(limit, ReadAllAvailable):
            return UNLIMITED, UNLIMITED
        return limit.max_files if isinstance(limit, ReadMaxFiles) else read.max_objects, read.max_bytes

    def _decide(self, offset: Offset, target: bytes) -> Decision:
        """How to find out what changed since. Slots that were never read wait for a rescan."""
        changed = changed_between(offset.digests, target)
        unread = {slot: 0 for slot in changed if digest_at(offset.digests, slot) == NEVER_SEEN}
        return decide(
            changed,
            replace(self._backlog.read() if self._epoch else Rescans(), slots=unread),
            topic=self._epoch,
            enumerated=offset.epoch,
            now_ms=self._clock.wall_ms(),
            listed_ms=self._listed_ms,
            list_seconds=self._reading.list_seconds if self._until is None else 0,
        )

    def _pinned(
        self, state: StreamState, offset: Offset, work: Sequence[SlotWork], entries: tuple[Entry, ...]
    ) -> Offset:
        """The offset with a plan of this work, if there is any. `entries` name what was read before, or is in it."""
        if not work:
            if entries:
                self._reading.source.location.queue().remove(entries)
            return offset
        number = offset.number + 1
        name = f"{number:010d}-{unique_name(self._clock)}"
        queued, topic = tuple(map(QueuedEntry.of, entries)), self._reading.topic or ""
        state.pin(StreamPlan(name=name, slots=tuple(work), topic=topic, entries=queued))
        return replace(offset, stream=state.stream, number=number, plan=name, heads=offset.planned(work))

    @property
    def _backlog(self) -> RescanBacklog:
        return RescanBacklog(self._reading.source.location.records(), clock=self._clock)

    def _entries(self, changed: Sequence[Slot]) -> tuple[Entry, ...] | None:
        """The topic's entries of changed slots. Before the bucket is looked at. None: it is not that topic any more."""
        if not self._epoch:
            return ()
        queue, name = self._reading.source.location.queue(), str(self._reading.topic)
        try:
            entries = queue.entries(name, changed, user=self._user)
        except NotFoundError:
            return None
        return entries if topic_epoch(queue, name, self._user) == self._epoch else None

    @property
    def _user(self) -> TopicUser:
        """The stream as a user of its topic; the same whatever its checkpoint, and no table of the source."""
        place = self._reading.source.location
        return TopicUser(slots=place.slots, table=f"stream:{place.platform.bucket}/{place.platform_prefix}")
