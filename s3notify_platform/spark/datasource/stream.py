"""`readStream.format("s3notify")`: what changes in a bucket, as a stream. Without Dagster.

Steps
    1. `latestOffset` polls the keyspace. Slots whose signal differs from the start offset's have changed; in a new
       stream all slots have.
    2. What is in these slots now is listed and compared with what the stream has read of them: its own state, in a
       table of object states without files. What fits is written down as a plan, and the end offset names the plan.
    3. `partitions` deals the plan's object versions to tasks, which read them pinned to their ETag.
    4. When Spark has committed the batch, the states of the plan's slots are committed and the plan is removed.

Storage, below `{platform_prefix}streams/{stream}/`
    plans/{number}-{random}.json   object versions to read, and versions that have left, of one micro-batch
    commits/ state/                object states, as in a table

The offset is `{stream, number, plan, digests}`: digests has 8 bytes for the signal of each slot, 11 KB for 1000. The
stream's name is drawn when its first batch is planned, and kept by the checkpoint alone: so state and checkpoint
belong together, and a new checkpoint is a new stream, which reads everything.

Guarantees
    - A micro-batch that Spark repeats, after a failed sink or a restart, has the same plan, and so the same rows, but
      for objects that were overwritten or deleted since: these have none, and are told of by their own signal.
    - Each record of each object version is given once, with `_change` "row" (or "reject"). A version that was replaced,
      or whose object left, is given as one row with `_change` "gone", its `_key` and `_etag`, in the batch that has its
      successor. A sink that applies "gone" before "row" holds what the bucket holds.
    - A checkpoint older than the state, or a state that is gone, is an error, never a gap or a second reading.

Requests: an idle poll is 1 HEAD, at most one in `poll_seconds`. A changed one is 1 HEAD and 1 LIST of the keyspace, 1
LIST for each 1000 objects below the prefix, at most once in `list_seconds`, and for each changed slot 1 GET (and its
state pages) and 2 PUTs, LISTs as `SlotTable.newest`. The driver holds the objects of the changed slots, at most twice
`max_objects` and one slot's.

Limits: an object is never divided between micro-batches. Where a writer does not signal, nothing is seen.
"""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.errors import CorruptError, NotFoundError
from s3notify_platform.ingest.compare import IN_FLIGHT
from s3notify_platform.ingest.stream_state import (
    Offset,
    Poller,
    SlotWork,
    StreamPlan,
    StreamState,
    changed_between,
    digest_at,
)
from s3notify_platform.ingest.wire import Batches
from s3notify_platform.protocols.keyspace import (
    NEVER_SEEN,
    QUEUED,
    digest_of,
    signal_key,
)
from s3notify_platform.protocols.notification_queue import Entry
from s3notify_platform.protocols.source_enumerator import (
    Enumerator,
    ObjectVersion,
    RescanBacklog,
    SlotChanges,
    Split,
    changes_of_slot,
    cut_to_bytes,
)
from s3notify_platform.slots import Slot
from s3notify_platform.spark.datasource.options import Reading
from s3notify_platform.spark.datasource.rows import RowReader, Work, work_of
from s3notify_platform.stores.s3.fast import shared_store
from s3notify_platform.table.commit import SlotCommit
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.states import States

UNLIMITED: Final = 1 << 62


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Rows of what changed. Lives in one process of the driver for as long as the query runs."""

    def __init__(
        self,
        reading: Reading,
        rows: RowReader,
        width: int,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._reading = reading
        self._rows = rows
        self._width = width
        self._clock = clock
        self._target: bytes | None = None
        self._listed_at: float | None = None
        self._poller: Poller | None = None
        self._state: StreamState | None = None
        self._epoch = ""

    def __getstate__(self) -> dict[str, Any]:
        """What travels to tasks: they need no more than to read rows."""
        return {"_rows": self._rows}

    # As Spark calls it, in order

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader.initialOffset`: nothing was ever read."""
        return Offset(digests=NEVER_SEEN * self._reading.source.location.slots).dumps()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader.getDefaultReadLimit`: `max_objects`, and within it `max_bytes`."""
        return ReadMaxFiles(self._reading.source.input.max_objects)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """See `SupportsTriggerAvailableNow`: the query ends when all is read that is signalled now."""
        self._target = self._poll()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader.latestOffset`: steps 1 and 2."""
        offset = self._offset(start)
        self._state_of(offset).settle(offset.plan)
        target = self._target or self._poll()
        offset = self._with_topic(offset, target)
        if not (changed := changed_between(offset.digests, target)):
            return start
        follows = self._follows(offset)
        listed = [slot for slot in changed if not follows or digest_at(offset.digests, slot) == NEVER_SEEN]
        now = self._clock.monotonic()
        soon = self._listed_at is not None and now - self._listed_at < self._reading.list_seconds
        if listed and soon and self._target is None:
            return start
        self._listed_at = now if listed else self._listed_at
        if (entries := self._entries(changed)) is None:
            return start
        unqueued = self._plain(set(changed) - {*listed})
        planned, taken = self._planned(
            offset, {*listed} | unqueued, {*changed} - {*listed} - unqueued, entries, limit
        )
        digests = offset.advanced(taken, target)
        seen = tuple(entry for entry in entries if entry.slot in taken)
        if not planned:
            if seen:
                self._reading.source.location.queue().remove(seen)  # what they tell of was read before
            return replace(offset, digests=digests).dumps()
        stream = offset.stream or self._state_of(offset).stream
        number = offset.number + 1
        plan = StreamPlan(
            name=f"{number:010d}-{unique_name(self._clock)}", slots=tuple(planned), entries=seen
        )
        self._state_of(offset).pin(plan)
        if len(taken) < len(changed):
            self._listed_at = None  # there is more to be had at once
        return replace(offset, stream=stream, number=number, plan=plan.name, digests=digests).dumps()

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

    def _offset(self, body: dict[str, Any]) -> Offset:
        return Offset.loads(body, self._reading.source.location.slots)

    def _poll(self) -> bytes:
        if self._poller is None:
            store = shared_store(self._reading.source.location.platform)
            self._poller = Poller(
                self._reading.source, store, self._clock, seconds=self._reading.poll_seconds
            )
        return self._poller.poll()

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

    # The topic, if there is one

    def _with_topic(self, offset: Offset, target: bytes) -> Offset:
        """The offset, to begin again with all slots if from now on entries are followed.

        What was written before there was the topic is compared by one listing.
        """
        name = self._reading.topic
        if not name or (offset.epoch == self._epoch and offset.digests == target):
            return offset
        try:
            self._epoch = self._reading.source.location.queue().topics.get(name).epoch
        except NotFoundError:
            self._epoch = ""
        if self._epoch == offset.epoch:
            return offset
        digests = NEVER_SEEN * self._reading.source.location.slots if self._epoch else offset.digests
        return replace(offset, epoch=self._epoch, digests=digests)

    def _follows(self, offset: Offset) -> bool:
        """Whether entries tell of all changes: there is the topic, and nobody signals without queueing."""
        if not offset.epoch or offset.epoch != self._epoch:
            return False
        return not self._backlog.unqueued_writers(self._backlog.read())

    @property
    def _backlog(self) -> RescanBacklog:
        return RescanBacklog(self._reading.source.location.records(), clock=self._clock)

    def _entries(self, changed: Sequence[Slot]) -> tuple[Entry, ...] | None:
        """The topic's entries of changed slots. Before the bucket is looked at. None: it is not that topic any more."""
        if not self._epoch:
            return ()
        queue, name = self._reading.source.location.queue(), str(self._reading.topic)
        try:
            entries = queue.entries(name, changed)
            return entries if queue.topics.get(name).epoch == self._epoch else None
        except NotFoundError:
            return None

    def _plain(self, slots: Collection[Slot]) -> set[Slot]:
        """Those that were last signalled by a writer who does not queue. 1 HEAD each."""
        store = shared_store(self._reading.source.location.platform)
        prefix = self._reading.source.location.keyspace_prefix

        def unqueued(slot: Slot) -> bool:
            signal = store.head(signal_key(prefix, slot))
            return signal is not None and QUEUED not in signal.metadata

        wanted = sorted(slots)
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            found = {
                slot for slot, is_plain in zip(wanted, pool.map(unqueued, wanted), strict=True) if is_plain
            }
        if found:
            self._backlog.add((), unqueued=True)
        return found

    def _planned(
        self,
        offset: Offset,
        listed: Collection[Slot],
        followed: Collection[Slot],
        entries: Sequence[Entry],
        limit: ReadLimit,
    ) -> tuple[list[SlotWork], list[Slot]]:
        """What to do next, and the slots of which that is all."""
        source = self._reading.source
        unlimited = isinstance(limit, ReadAllAvailable)
        most = (
            limit.max_files
            if isinstance(limit, ReadMaxFiles)
            else UNLIMITED
            if unlimited
            else source.input.max_objects
        )
        found = self._listed(listed, most) if listed else {}
        told: dict[Slot, set[str]] = {slot: set() for slot in followed}
        for entry in entries:
            if entry.slot in told:
                told[Slot(entry.slot)].add(entry.event.key)
        found |= self._looked_up(told)
        state = self._state_of(offset)
        heads = state.table.heads(found)
        state.check(offset, heads)
        all_changes: list[SlotChanges] = []
        known: dict[Slot, States] = {}
        left = most
        for slot, states in state.states(heads, told):
            changes = changes_of_slot(slot, found[slot], states, max_objects=left, touched=told.get(slot))
            keys = {split.version.key for split in changes.read} | {*changes.gone}
            known[slot] = {key: states[key] for key in keys & states.keys()}
            all_changes.append(changes)
            left -= len(changes.read) + len(changes.gone)
            if left <= 0:
                break
        # No object is cut: it would be given in two batches, of which one could be of another version.
        fitting = cut_to_bytes(
            all_changes,
            UNLIMITED if unlimited else source.input.max_bytes,
            least=source.input.split_bytes,
            cuttable=lambda _: False,
        )
        work: list[SlotWork] = []
        taken: list[Slot] = []
        for changes in fitting:
            if changes:
                work.append(_slot_work(changes, known[changes.slot], heads[changes.slot]))
            if changes.complete:
                taken.append(changes.slot)
        return work, taken

    def _looked_up(self, told: Mapping[Slot, Collection[str]]) -> dict[Slot, list[ObjectVersion]]:
        """What is there now under the keys that entries name. 1 HEAD each."""
        source = self._reading.source
        enumerator = Enumerator(
            shared_store(source.input.bucket), prefix=source.input.prefix, slots=source.location.slots
        )
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            return {
                slot: [v for v in pool.map(enumerator.current, sorted(keys)) if v is not None]
                for slot, keys in sorted(told.items())
            }

    def _listed(self, changed: Collection[Slot], most: int) -> dict[Slot, list[ObjectVersion]]:
        """The objects of changed slots, by slot: of the first ones, where all are too many to hold."""
        source = self._reading.source
        found: dict[Slot, list[ObjectVersion]] = {slot: [] for slot in sorted(changed)}
        held = 0
        enumerator = Enumerator(
            shared_store(source.input.bucket), prefix=source.input.prefix, slots=source.location.slots
        )
        for version in enumerator.versions(frozenset(changed)):
            if version.slot in found:
                found[version.slot].append(version)
                held += 1
                while held > 2 * most and len(found) > 1:
                    held -= len(found.popitem()[1])
        return found


def _slot_work(changes: SlotChanges, states: States, head: SlotCommit | None) -> SlotWork:
    read = tuple(split.version for split in changes.read)
    replaced = [(v.key, states[v.key].etag) for v in read if v.key in states]
    left = [(key, states[key].etag) for key in changes.gone]
    objects = (head.objects if head else 0) + len(read) - len(replaced) - len(left)
    generation = Generation(head.generation if head else 0)
    return SlotWork(
        slot=changes.slot, generation=generation, read=read, gone=(*replaced, *left), objects=objects
    )


class SlotsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Only which slots changed, for a sink that finds out itself what that means. Keeps nothing but the checkpoint."""

    def __init__(self, reading: Reading, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._reading = reading
        self._clock = clock
        self._poller: Poller | None = None
        self._target: bytes | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tasks need nothing of it."""
        return {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader.initialOffset`."""
        return Offset(digests=NEVER_SEEN * self._reading.source.location.slots).dumps()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """See `SupportsTriggerAvailableNow`."""
        self._target = self._polled().poll()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """See `DataSourceStreamReader.latestOffset`."""
        target = self._target or self._polled().poll()
        offset = Offset.loads(start, self._reading.source.location.slots)
        return start if target == offset.digests else replace(offset, digests=target).dumps()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """See `DataSourceStreamReader.partitions`."""
        slots = self._reading.source.location.slots
        last = Offset.loads(end, slots).digests
        changed = changed_between(Offset.loads(start, slots).digests, last)
        signals = self._polled().signals
        seen = {slot: signals[slot] for slot in changed if slot in signals}
        same = {
            slot: etag
            for slot, etag in seen.items()
            if not changed_between(digest_at(last, slot), digest_of(etag))
        }
        return [InputPartition([(slot, same.get(slot)) for slot in changed])] if changed else []

    def read(self, partition: InputPartition) -> Batches:
        """See `DataSourceStreamReader.read`."""
        slots, signals = zip(*partition.value, strict=True)
        yield pa.record_batch({"slot": pa.array(slots, pa.int32()), "signal": pa.array(signals, pa.string())})

    def _polled(self) -> Poller:
        if self._poller is None:
            store = shared_store(self._reading.source.location.platform)
            self._poller = Poller(
                self._reading.source, store, self._clock, seconds=self._reading.poll_seconds
            )
        return self._poller
