"""Object versions: what a slot needs, how splits are dealt to tasks, and what the bucket holds now."""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from s3notify_platform.errors import UsageError
from s3notify_platform.ports import ETag, ObjectMeta, ObjectStore, list_all
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
class Split:
    """What one task reads of an object version: the records that begin at `start` bytes or later, and before `end`.

    `in_quotes`: a quoted CSV value is open at `start`. With `by_record` the object can be read from its beginning
    only, because it is compressed or encoded: `start` then counts records to pass over, `end` does not matter, and
    the split ends with the first record that brings it to `limit_bytes` decoded bytes; 0: with the object.
    """

    version: ObjectVersion
    start: int
    end: int
    by_record: bool = False
    in_quotes: bool = False
    limit_bytes: int = 0


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
    slot: Slot,
    found: Iterable[ObjectVersion],
    committed: Mapping[str, str],
    *,
    max_objects: int,
    touched: Collection[str] | None = None,
) -> SlotChanges:
    """Compare one slot's enumerated versions with its committed ETags by key. Pure.

    `touched`: the keys that were looked at; None: all of the slot, so that what was not found has left.
    """
    looked_at = committed if touched is None else touched
    versions = {version.key: version for version in found}
    gone = sorted(key for key in looked_at if key in committed and key not in versions)[: max_objects + 1]
    read = sorted((v for v in versions.values() if committed.get(v.key) != v.etag), key=lambda v: v.key)
    room = max_objects - len(gone[:max_objects])
    return SlotChanges(
        slot=slot,
        read=tuple(read[:room]),
        gone=tuple(gone[:max_objects]),
        complete=len(gone) <= max_objects and len(read) <= room,
    )


def deal(sizes: Sequence[int], tasks: int) -> list[int]:
    """The task, in `0 .. tasks-1`, of each split, balanced by bytes: the largest first, to the least loaded.

    No task gets more than 4/3 of the best possible (Graham's bound). Not by `assign_slots`: a task reads objects one
    by one, wherever they lie, and keeps nothing from one batch to the next, so that contiguous ranges, which can
    be twice the best possible (one large object beside many small ones), would gain nothing. Pure.
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
        return self.among(list_all(self._source, self._prefix), wanted)

    def among(self, listed: Iterable[ObjectMeta], wanted: frozenset[Slot]) -> Iterator[ObjectVersion]:
        """Those of `listed` whose slot is wanted. No request."""
        for meta in listed:
            slot = slot_of(meta.key, self._slots)
            if slot in wanted:
                yield ObjectVersion(slot=slot, key=meta.key, etag=meta.etag, size=meta.size)

    def covers(self, key: str) -> bool:
        """Whether a key is the source's."""
        return key.startswith(self._prefix)

    def current(self, key: str) -> ObjectVersion | None:
        """What is there under a key that an entry names; None if nothing is, or it is not below the prefix.

        1 HEAD. The entry is a hint that the key changed: entries may be late, and come in any order.
        """
        if not self.covers(key) or (meta := self._source.head(key)) is None:
            return None
        return ObjectVersion(slot=slot_of(key, self._slots), key=key, etag=meta.etag, size=meta.size)
