"""The shards of the topics: their entries, and the counters that bound them. What every side of the queue builds on."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from s3notify_platform.clock import Clock, backoff_seconds
from s3notify_platform.errors import S3NotifyError, UnavailableError, UnknownOutcomeError
from s3notify_platform.parallel import in_parallel
from s3notify_platform.ports import RecordStore
from s3notify_platform.protocols.notification_queue.entries import (
    Entry,
    Topic,
    count_key,
    counts_partition,
    decode_entry,
    depth_key,
    depth_partition,
    encode_entry,
    queue_partition,
)
from s3notify_platform.protocols.updates import ATTEMPTS, RecordOutcome, Stored, Updates

T = TypeVar("T")
R = TypeVar("R")


class Shards:
    """The shards of all topics of one record store. Thread-safe; holds no state."""

    def __init__(self, records: RecordStore, clock: Clock, *, parallelism: int) -> None:
        self._records = records
        self._clock = clock
        self._updates = Updates(records, clock)
        self._parallelism = parallelism

    def scan(self, topic: Topic, shard: int, *, prefix: str = "") -> Iterator[Entry]:
        """The shard's entries of this epoch of the topic, in every state. One scan."""
        for record in self._records.scan(queue_partition(topic.name, shard), prefix=prefix):
            entry = decode_entry(topic.name, shard, record)
            if entry.epoch == topic.epoch:
                yield entry

    def replace(self, entry: Entry, after: Entry) -> RecordOutcome:
        """Replace an entry in the version that is known. 1 request."""
        return self._updates.replace(entry.partition, entry.key, encode_entry(after), expected=entry.version)

    def counted(self, topic: Topic, shard: int) -> int:
        """The shard's counter, without the base. 1 request."""
        key = depth_key(topic.epoch, shard, topic.quotas[shard].generation)
        record = self._records.read(depth_partition(topic.name), key)
        return int(record.value) if record is not None else 0

    def give_back(self, entries: Iterable[Entry]) -> None:
        """Free the space of entries that this process removed, each of them once. 1 `add` for each shard.

        Sent once: if its answer is lost the space is too, until the reconciler counts again; never given twice.
        A counter of an older generation is no longer read, and may be gone.
        """
        counters = Counter(
            (depth_partition(entry.topic), depth_key(entry.epoch, entry.shard, entry.quota))
            for entry in entries
        )
        self._add_each({place: -number for place, number in counters.items()})

    def count(self, entries: Iterable[Entry], kind: str) -> None:
        """Add to the totals that people read."""
        self._add_each(
            Counter(
                (counts_partition(entry.topic), count_key(entry.epoch, entry.shard, kind))
                for entry in entries
            )
        )

    def in_parallel(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """The results, in order, with at most `parallelism` calls at once."""
        return in_parallel(function, items, self._parallelism)

    def remove_one(self, entry: Entry) -> bool | S3NotifyError:
        """Whether this call, and no other, removed the entry in this version."""
        try:
            outcome = self._updates.remove(entry.partition, entry.key, expected=entry.version)
        except (UnavailableError, UnknownOutcomeError) as error:
            return error
        return isinstance(outcome, Stored)

    def remove_each(self, entries: Sequence[Entry]) -> tuple[list[Entry], dict[Entry, S3NotifyError]]:
        """Those that this call removed, and the errors of those that may be left."""
        results = list(zip(entries, self.in_parallel(self.remove_one, entries), strict=True))
        removed = [entry for entry, result in results if result is True]
        return removed, {entry: result for entry, result in results if isinstance(result, S3NotifyError)}

    def _add_each(self, amounts: Mapping[tuple[str, str], int]) -> None:
        self.in_parallel(lambda place: self._add_once(*place, amounts[place]), list(amounts))

    def _add_once(self, partition: str, key: str, amount: int) -> None:
        for attempt in range(ATTEMPTS):
            try:
                self._records.add(partition, key, amount)
            except UnavailableError:
                self._clock.sleep(backoff_seconds(attempt, self._clock))
            else:
                return
