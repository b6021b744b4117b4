"""Object versions: the changes that a slot needs, the assignment of splits to tasks, and the bucket's current
content.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, repeat
from operator import attrgetter
from typing import Final, TypeVar

from s3notify_platform.kernel.errors import RefusedError, UsageError
from s3notify_platform.kernel.ports import ETag, ListedColumns, ObjectMeta, ObjectStore, list_all
from s3notify_platform.kernel.slots import SLOT_COUNT, Slot, check_slot_count, slot_of
from s3notify_platform.protocols.source_enumerator.chosen_objects import Choice

T = TypeVar("T")

OBJECT_COST_BYTES: Final = 64 << 10
"""Cost of a request, expressed as the bytes that a task could read in the same time."""


def pickled_by_values(kind: type[T]) -> type[T]:
    """Makes a frozen dataclass (`slots=True`) whose instances are pickled in half the usual CPU time. A plan may have
    100,000 instances.
    """
    names: tuple[str, ...] = kind.__slots__  # type: ignore[attr-defined]
    values = attrgetter(*names)

    def state_of(self: object) -> object:
        return values(self)

    def restore(self: object, state: tuple[object, ...]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    setattr(kind, "__getstate__", state_of)  # noqa: B010 - mypy takes an assignment for a method
    setattr(kind, "__setstate__", restore)  # noqa: B010
    return kind


@pickled_by_values
@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVersion:
    """An object version as it was enumerated."""

    slot: Slot
    key: str
    etag: ETag
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnchosenObject:
    """An existing object whose key is chosen, although the object itself is not chosen."""

    slot: Slot
    key: str


@pickled_by_values
@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The part of an object version that one task reads: the records that begin at or after `start`, and before `end`.

    `by_record`: the object can only be read from its beginning, because it is compressed or encoded. For such an
    object, `start` is the number of records to skip, and `end` is not used. The split ends with the record at which the
    decoded bytes of the split reach `limit_bytes`. If `limit_bytes` is 0, the split ends with the object.
    """

    version: ObjectVersion
    start: int
    end: int
    by_record: bool = False
    limit_bytes: int = 0

    @property
    def stored_bytes(self) -> int:
        """The maximum number of bytes of the object that a task reads for this split."""
        return self.version.size if self.by_record else min(self.end, self.version.size) - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectState:
    """The state of one object version in a commit.

    Reading continues at `offset`. The offset is a number of bytes, or of records if the object is read `by_record` (see
    `Split`). If `reach_end` is true, the object was read to its end. The object's rows and rejects are in files of the
    generations `since` to `until`. `reason`: the reason why the object is in quarantine as a whole. If the object is in
    quarantine, the other fields still describe the parts of this version that were read. An object in quarantine is not
    read further until it changes or is retried. `trace`: the traceback, if the error was unforeseen. `expired`: the
    bucket's lifecycle has removed the object, and its rows stay. `gone` marks a key whose object has left. `again`: the
    object must be read again, although it has not changed.
    """

    key: str
    etag: str
    size: int
    offset: int = 0
    reach_end: bool = True
    by_record: bool = False
    rows: int = 0
    rejects: int = 0
    since: int = 0
    until: int = 0
    reason: str = ""
    trace: str = ""
    expired: bool = False
    gone: bool = False
    again: bool = False

    @property
    def failing(self) -> bool:
        """True if the object is in quarantine as a whole."""
        return bool(self.reason) and not self.gone

    @property
    def pending(self) -> bool:
        """True if an unchanged object must be read further, or again."""
        return not self.gone and (self.again or not (self.reach_end or self.reason))

    @property
    def without_records(self) -> bool:
        """True if the object has bytes and was read to its end, but gave neither rows nor rejects."""
        return bool(self.size and self.reach_end and not (self.rows or self.rejects or self.reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChanges:
    """The changes that one slot needs: each object to read, with the place where reading starts, and the keys that have
    left.

    The rows of `expired` keys stay. `complete` is False if a limit cut the changes; `beyond` is the number of changes
    left out.
    """

    slot: Slot
    read: tuple[Split, ...]
    gone: tuple[str, ...]
    complete: bool
    beyond: int = 0
    expired: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.read or self.gone)


def changes_of_slot(
    slot: Slot,
    found: Iterable[ObjectVersion],
    states: Mapping[str, ObjectState],
    *,
    max_objects: int,
    touched: Collection[str] | None = None,
    pending: Collection[str] = (),
    stale: Collection[str] = (),
    expired: Collection[str] = (),
    stays: Callable[[ObjectState], bool] = lambda _: False,
) -> SlotChanges:
    """Compares one slot's enumerated versions with its committed states by key. Pure.

    `touched`: the keys that were looked up; None: all keys of the slot. A key that was looked up but not found has
    left. The object of a `pending` key is read further, from the offset that was reached. If the object of a `pending`
    key was read to its end, it is read again, even with the same ETag. `stale` keys are read again. `expired` keys were
    removed by the bucket's lifecycle. `stays`: returns true for the state of a key that counts as present even if no
    version was found.
    """
    looked_at = states if touched is None else touched
    versions = {version.key: version for version in found}
    gone = sorted(
        key for key in looked_at if key in states and key not in versions and not stays(states[key])
    )
    read: list[Split] = []
    for key in sorted(versions):
        version, state = versions[key], states.get(key)
        # An expired object that is found again counts as new.
        same = state is not None and state.etag == version.etag and not state.expired
        if not same or key in stale or key in pending:
            start = state.offset if state and same and key not in stale and not state.reach_end else 0
            by_record = bool(state and start and state.by_record)
            read.append(Split(version=version, start=start, end=version.size, by_record=by_record))
    room = max(0, max_objects - len(gone))
    taken, left = tuple(read[:room]), tuple(gone[:max_objects])
    beyond = len(read) + len(gone) - len(taken) - len(left)
    return SlotChanges(
        slot=slot,
        read=taken,
        gone=left,
        complete=not beyond,
        beyond=beyond,
        expired=frozenset(left).intersection(expired),
    )


def cut_to_bytes(
    changes: Iterable[SlotChanges], max_bytes: int, *, least: int, cuttable: Callable[[Split], bool]
) -> Iterator[SlotChanges]:
    """As much of the work as `max_bytes` allows, in order; always includes the first item. Pure.

    An object that does not fit is cut if it is `cuttable`, and if its part gets at least `least` bytes. Otherwise, this
    object and the slot's later objects are left for the next round. Each split gets a limit of decoded bytes: the bytes
    that were left for the split, but at least `least`.
    """
    left, taken = max_bytes, False
    for each in changes:
        read: list[Split] = []
        for split in each.read:
            size = split.stored_bytes
            limited = replace(split, limit_bytes=max(left, least))
            if size > left and cuttable(split) and (left >= least or not taken):
                limited = replace(limited, end=min(split.end, split.start + max(left, least)))
            elif size > left and taken:
                break
            read.append(limited)
            left, taken = max(0, left - size), True
        cut = len(read) < len(each.read) or any(
            one.end != whole.end for one, whole in zip(read, each.read, strict=False)
        )
        yield replace(each, read=tuple(read), complete=each.complete and not cut)


def parts_of(split: Split, size: int) -> list[Split]:
    """Cuts the split into parts of `size` bytes, which different tasks may read at the same time. Pure."""
    starts = range(split.start, max(split.end, split.start + 1), size)
    return [replace(split, start=start, end=min(start + size, split.end)) for start in starts]


def assign(sizes: Sequence[int], tasks: int) -> list[int]:
    """Returns the task of each split, from 0 to `tasks - 1`. The largest split goes first, to the task with the fewest
    bytes.

    No task gets more than 4/3 of the best possible load (Graham's bound). `assign_slots` is not used here: a task reads
    objects one by one, and keeps nothing from one batch to the next. Contiguous ranges have no advantage here. The
    best contiguous ranges of the sizes 1, 2, 1 for two tasks have 1.5 times the best possible load. Pure.
    """
    if tasks < 1:
        raise UsageError(f"tasks={tasks}: must be at least 1")
    loads = [(0, task) for task in range(tasks)]
    task_of = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda n: -sizes[n]):
        load, task = heapq.heappop(loads)
        task_of[number] = task
        heapq.heappush(loads, (load + sizes[number] + OBJECT_COST_BYTES, task))
    return task_of


def head_or_listed(store: ObjectStore, key: str) -> ObjectMeta | None:
    """The object by HEAD. If the HEAD is refused, the object by LIST, without its metadata. `RefusedError`: both are
    refused. Cost: 1 HEAD, and 1 LIST if the HEAD is refused.
    """
    try:
        return store.head(key)
    except RefusedError:
        # If the key exists, it is the first key that begins with this text.
        return next((each for each in store.list(key, limit=1).objects if each.key == key), None)


class Enumerator:
    """Finds the current object versions of slots, among the objects that are chosen."""

    def __init__(self, source: ObjectStore, choice: Choice, *, slots: int = SLOT_COUNT) -> None:
        self.choice = choice
        self._source = source
        self._slots = check_slot_count(slots)

    def versions(self, wanted: frozenset[Slot]) -> Iterator[ObjectVersion]:
        """Every chosen object whose slot is wanted, as a stream. Only one page at a time is in memory.

        Cost: one LIST for each 1000 objects of the prefix.
        """
        return self.among(list_all(self._source, self.choice.prefix), wanted)

    def among(self, listed: Iterable[ObjectMeta], wanted: frozenset[Slot]) -> Iterator[ObjectVersion]:
        """The listed objects that are chosen and whose slot is wanted. Cost: no request."""
        for meta in listed:
            slot = slot_of(meta.key, self._slots)
            if slot in wanted and not self.choice.why_not(meta.key, meta):
                yield ObjectVersion(slot=slot, key=meta.key, etag=meta.etag, size=meta.size)

    def columns_among(
        self, listed: ListedColumns, wanted: frozenset[Slot], chosen: Sequence[bool] | None
    ) -> dict[str, Sequence[object]]:
        """Like `among`, but returns columns, named after the fields of `ObjectVersion`. `chosen`: the result of
        `Choice.among` for `listed`. Cost: no request.
        """
        slots = [slot_of(key, self._slots) for key in listed.keys]
        columns = {"slot": slots, "key": listed.keys, "etag": listed.etags, "size": listed.sizes}
        if not wanted.issuperset(slots):
            chosen = [
                slot in wanted and one for slot, one in zip(slots, chosen or repeat(True), strict=False)
            ]
        if chosen is None:
            return columns
        return {name: [*compress(column, chosen)] for name, column in columns.items()}

    def unchosen_among(
        self, listed: ListedColumns, wanted: frozenset[Slot], chosen: Sequence[bool] | None
    ) -> dict[str, Sequence[object]]:
        """The listed objects that are not chosen, although their keys are chosen and their slots are wanted. Returns
        columns, named after the fields of `UnchosenObject`. `chosen`: as for `columns_among`. Cost: no request.
        """
        found = [
            (slot, key)
            for key, one in zip(listed.keys, chosen or repeat(True), strict=False)
            if not one and (slot := slot_of(key, self._slots)) in wanted and not self.choice.why_not(key)
        ]
        return {"slot": [slot for slot, _ in found], "key": [key for _, key in found]}

    def current(self, key: str) -> ObjectVersion | None:
        """The current version of a key that an entry names; None if the object is missing or not chosen.

        Cost: no request if the key is not chosen; else that of `head_or_listed`. So an object whose HEAD is refused is
        still found, as in a sweep. The entry is only a hint that the key changed: entries may be late and in any order.
        """
        if self.choice.why_not(key):
            return None
        meta = head_or_listed(self._source, key)
        if meta is None or self.choice.why_not(key, meta):
            return None
        return ObjectVersion(slot=slot_of(key, self._slots), key=key, etag=meta.etag, size=meta.size)
