"""Source enumerator: which object versions a batch has to read, and which task reads them.

After the S3 source of RisingWave (its RFC).

Steps of a batch. (1) `Enumerator.versions` finds the object versions of the wanted slots. (2)
`changes_of_slot` compares those of one slot with the committed state: a key not in the state, or with
another ETag, is a split to read; a key in the state that is not in the bucket has left. (3) `deal` gives the
splits to tasks by bytes.

Invariants. Identity is (key, ETag), never the name alone, and never LastModified. What is planned twice is
committed once: the state of the commit decides. An object that changes after it was enumerated fails its
pinned read and is left to its own signal.

Limits. Enumerating lists the source prefix, one request for each 1000 objects of the bucket, once for a batch
however many slots it has. Only this class knows: the notification queue replaces the listing behind the same
method. A plan holds at most `max_objects` changes, deletions first; a slot with more is `complete=False` and
is planned again after its commit.

What differs from the original: overwrites, deletions and emptied objects are changes like any other.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from s3notify_platform.errors import UsageError
from s3notify_platform.ports import ETag, ObjectStore, list_all
from s3notify_platform.slots import SLOT_COUNT, Slot, check_slot_count, slot_of

OBJECT_COST_BYTES: Final = 64 << 10
"""What a request costs a task, in bytes it could have read instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVersion:
    """An object as enumerated."""

    slot: Slot
    key: str
    etag: ETag
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChanges:
    """What one slot needs. `complete` is False if `max_objects` cut it short."""

    slot: Slot
    read: tuple[ObjectVersion, ...]
    gone: tuple[str, ...]
    complete: bool

    def __bool__(self) -> bool:
        return bool(self.read or self.gone)


def changes_of_slot(
    slot: Slot, listed: Iterable[ObjectVersion], committed: Mapping[str, str], *, max_objects: int
) -> SlotChanges:
    """Compare one slot's enumerated versions with its committed ETags by key. Pure."""
    found = {version.key: version for version in listed}
    gone = sorted(key for key in committed if key not in found)[: max_objects + 1]
    read = sorted((v for v in found.values() if committed.get(v.key) != v.etag), key=lambda v: v.key)
    room = max_objects - len(gone[:max_objects])
    return SlotChanges(
        slot=slot,
        read=tuple(read[:room]),
        gone=tuple(gone[:max_objects]),
        complete=len(gone) <= max_objects and len(read) <= room,
    )


def deal(sizes: Sequence[int], tasks: int) -> list[int]:
    """The task, in `0 .. tasks-1`, of each split, balanced by bytes: the largest first, to the least loaded.

    No task gets more than 4/3 of the best possible (Graham's bound). Pure.
    """
    if tasks < 1:
        raise UsageError(f"tasks={tasks}: need at least one")
    loads = [(0, task) for task in range(tasks)]
    task_of = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda n: -sizes[n]):
        load, task = heapq.heappop(loads)
        task_of[number] = task
        heapq.heappush(loads, (load + sizes[number] + OBJECT_COST_BYTES, task))
    return task_of


class Enumerator:
    """Finds the current object versions of slots."""

    def __init__(self, source: ObjectStore, *, prefix: str, slots: int = SLOT_COUNT) -> None:
        self._source = source
        self._prefix = prefix
        self._slots = check_slot_count(slots)

    def versions(self, wanted: frozenset[Slot]) -> Iterator[ObjectVersion]:
        """Every object below the prefix whose slot is wanted, as a stream: holds one page at a time.

        One LIST for each 1000 objects of the prefix.
        """
        for meta in list_all(self._source, self._prefix):
            slot = slot_of(meta.key, self._slots)
            if slot in wanted:
                yield ObjectVersion(slot=slot, key=meta.key, etag=meta.etag, size=meta.size)
