"""The shards of the topics: the segments of a shard, and the counters that bound the number of its entries. All sides
of the queue build on the shards.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from s3notify_platform.kernel.attempts import answered
from s3notify_platform.kernel.clock import Clock, unique_name
from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.kernel.ports import Record, RecordStore
from s3notify_platform.protocols.notification_queue.entries import (
    Entry,
    Place,
    Topic,
    count_key,
    counts_partition,
    depth_key,
    depth_partition,
    queue_partition,
)
from s3notify_platform.protocols.notification_queue.segments import (
    Segment,
    decode_segment,
    encode_segment,
    shard_prefix,
)
from s3notify_platform.protocols.updates import REMOVE, Remove, Stored, Updates

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited(Generic[T]):
    """A segment after an edit, and the result of the edit. If the segment has no entries, its record was removed."""

    segment: Segment
    result: T


Edit = Callable[[Segment], tuple[Segment, T]]
"""A function that returns the edited segment and a result. The function is called again if the segment has changed
meanwhile.
"""


class Shards:
    """The shards of all topics of one record store. Thread-safe; keeps no state."""

    def __init__(self, records: RecordStore, clock: Clock, *, parallelism: int) -> None:
        self._records = records
        self._clock = clock
        self._updates = Updates(records, clock)
        self._parallelism = parallelism

    def scan(
        self,
        topic: Topic,
        shard: int,
        *,
        wanted: Callable[[str], bool] | None = None,
        known: dict[str, Record] | None = None,
    ) -> Iterator[Segment]:
        """The shard's segments in the topic's epoch, if their keys are `wanted`; old segments first. One scan. `known`:
        see `scan_name`.
        """
        found = self.scan_name(topic.name, shard_prefix(shard), wanted=wanted, known=known)
        return (segment for segment in found if segment.place.epoch == topic.epoch)

    def scan_all(self, topic: Topic, *, wanted: Callable[[str], bool] | None = None) -> Iterator[Segment]:
        """The segments of all shards, one shard after the other, as in `scan`. One scan."""
        found = self.scan_name(topic.name, wanted=wanted)
        return (segment for segment in found if segment.place.epoch == topic.epoch)

    def scan_name(
        self,
        topic: str,
        prefix: str = "",
        *,
        wanted: Callable[[str], bool] | None = None,
        known: dict[str, Record] | None = None,
    ) -> Iterator[Segment]:
        """The segments of all topics that ever had this name, so the segments of all epochs. One scan.

        `known`: the records of the caller's last scan, by key. If the queue is on a bucket, this scan reads only
        changed records. The scan replaces the content of `known` by its own records.
        """
        before = dict(known or {})
        if known is not None:
            known.clear()
        for record in self._records.scan(queue_partition(topic), prefix=prefix, known=before, wanted=wanted):
            if known is not None:
                known[record.key] = record
            yield decode_segment(topic, record)

    def create(self, segment: Segment) -> Segment | None:
        """Creates a segment; None if its key is taken. `UnknownOutcomeError`: the segment may exist, or may be created
        later.
        """
        value = encode_segment(segment, unique_name(self._clock)[:16])
        outcome = self._updates.create(segment.place.partition, segment.place.key, value, once=True)
        return replace(segment, version=outcome.version) if isinstance(outcome, Stored) else None

    def edit(self, place: Place, edit: Edit[T], *, known: Segment | None = None) -> Edited[T] | None:
        """Edits a segment; repeats the edit after each conflict. Returns None if the segment does not exist. Does not
        write an unchanged segment.

        `known`: the segment as the caller last read or wrote it. Returns the result of the last call of `edit`. After a
        lost answer, the function `edit` may find that its work is done. In this case, the result does not contain this
        work, as if another client had done the work. Cost: 1 write; 1 read if the segment is not known; 2 requests for
        each conflict. `UnavailableError`: nothing was applied. `UnknownOutcomeError`: read the segment again.
        """
        write = unique_name(self._clock)[:16]
        first = Record(key=place.key, value=b"", version=known.version) if known and known.version else None

        def decide(record: Record | None) -> tuple[bytes | Remove | None, Edited[T] | None]:
            if record is None:
                return None, None
            known_still = known if record is first else None
            before = known_still or decode_segment(place.topic, record)
            after, result = edit(before)
            if after == before:
                return None, Edited(segment=before, result=result)
            value = encode_segment(after, write) if after.entries else REMOVE
            return value, Edited(segment=after, result=result)

        edited, record = self._updates.change(place.partition, place.key, decide, known=first, patient=True)
        if edited is None or record is None:
            return edited
        return replace(edited, segment=replace(edited.segment, version=record.version))

    def take_out(
        self, place: Place, take: Callable[[Entry], bool], *, known: Segment | None = None
    ) -> list[Entry]:
        """Removes entries. Returns the entries that this call certainly removed: free their space by `give_back`.

        Requests and errors as in `edit`.
        """

        def edit(segment: Segment) -> tuple[Segment, list[Entry]]:
            taken = [entry for entry in segment.entries if take(entry)]
            return segment.without({entry.n for entry in taken}), taken

        edited = self.edit(place, edit, known=known)
        return edited.result if edited is not None else []

    def counted(self, topic: Topic, shard: int) -> int:
        """The value of the shard's counter, without the older entries in `Quota.base`. Cost: 1 request."""
        key = depth_key(topic.epoch, shard, topic.quotas[shard].generation)
        record = self._records.read(depth_partition(topic.name), key)
        return int(record.value) if record is not None else 0

    def give_back(self, entries: Iterable[Entry]) -> None:
        """Frees the space of entries that this process removed, each entry once. Cost: 1 `add` for each shard.

        The request is sent once, so space is never freed twice. If the answer is lost, the space may stay in use until
        the reconciler recounts the shard. If an entry was counted by the counter of an older generation, the `add` has
        no effect: nobody reads this counter, which may even have been deleted.
        """
        self.give_back_rooms(Counter(entry.place for entry in entries))

    def give_back_rooms(self, rooms: Mapping[Place, int]) -> None:
        """Frees the space of some entries. `rooms`: the number of these entries, by place. See `give_back`."""
        counters: Counter[tuple[str, str]] = Counter()
        for place, number in rooms.items():
            key = depth_key(place.epoch, place.shard, place.quota)
            counters[depth_partition(place.topic), key] -= number
        self._add_each({at: number for at, number in counters.items() if number})

    def count(self, entries: Iterable[Entry], kind: str) -> None:
        """Adds the number of entries to the totals, which are for people. Cost: 1 `add` for each shard."""
        self._add_each(
            Counter(
                (counts_partition(entry.topic), count_key(entry.epoch, entry.shard, kind))
                for entry in entries
            )
        )

    def in_parallel(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Returns the results, in order, from at most `parallelism` concurrent calls."""
        return in_parallel(function, items, self._parallelism)

    def _add_each(self, amounts: Mapping[tuple[str, str], int]) -> None:
        self.in_parallel(lambda place: self._add_once(*place, amounts[place]), list(amounts))

    def _add_once(self, partition: str, key: str, amount: int) -> None:
        with suppress(UnavailableError):
            answered(lambda: self._records.add(partition, key, amount), self._clock)


def by_place(entries: Iterable[Entry]) -> dict[Place, list[Entry]]:
    """Groups entries by segment."""
    found: dict[Place, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.place, []).append(entry)
    return found
