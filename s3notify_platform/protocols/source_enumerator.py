"""Source enumerator: which object versions a batch has to read, and which task reads them.

After the S3 source of RisingWave (its RFC).

Steps
    1. A source's first batch lists the bucket once (`Enumerator.versions`), and once more when every writer has
       heard of its topic. From then on the entries of its topic name the keys that changed, and the bucket is
       asked what is there under each now (`Enumerator.current`): nothing is listed.
    2. `changes_of_slot` compares what was found with the slot's committed state: a key not in the state, or with
       another ETag, is a split to read; one that was not read to its end is read on from its offset; a key in the
       state that is not in the bucket has left.
    3. `within` cuts the work to what one round may read, `parts_of` a big object to what one task may, and `deal`
       gives the splits to tasks by bytes.
    4. The commit keeps for every object version `(key, etag, offset, reach_end)`, together with its rows.
    5. Entries are removed after the commit that has seen them.

Storage (partition / key; JSON)
    enumerator / to_list    slots that have to be compared by a listing, and when a writer was last seen that
                            signals and does not queue (`ListingDebt`)

Invariants
    - Identity is (key, ETag), never the name alone, and never LastModified. What is planned twice is committed
      once: the state of the commit decides. So entries may come twice, late, and in any order.
    - An entry is removed only after a commit of a plan that was made when the entry was there.
    - An object that changes after it was enumerated fails its pinned read and is left to its own entry.
    - A slot that was signalled by a writer without an entry is listed, and stays owed until it has been.

Limits. A plan holds at most `max_objects` changes, deletions first, and reads about `max_bytes`; a slot with more is
`complete=False` and is planned again after its commit. A plain signal may hide behind a queued one of the same slot
until the next plain one: from then on, for `PLAIN_SECONDS`, all that is signalled is listed; the sweep finds what came
before.

Differs from the original: overwrites, deletions and emptied objects are changes like any other; notifications
are removed when they are committed, not when they are read.
"""

import heapq
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, backoff_seconds
from s3notify_platform.errors import CorruptError, UnavailableError, UsageError
from s3notify_platform.ports import ETag, ObjectStore, RecordStore, Version, Written, list_all
from s3notify_platform.slots import SLOT_COUNT, Slot, check_slot_count, slot_of

OBJECT_COST_BYTES: Final = 64 << 10
"""What a request costs a task, in bytes it could have read instead."""

PLAIN_SECONDS: Final = 3600.0
"""For so long after a writer was seen that does not queue, everything that is signalled is listed."""

ATTEMPTS: Final = 30

PARTITION, TO_LIST = "enumerator", "to_list"


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
class ObjectState:
    """What a commit knows of one object version.

    Reading goes on at `offset`, and is done if `reach_end`: bytes of the object, or its records if it is read
    `by_record` (see `Split`). Its rows and rejects are in files of the generations `since` to `until`.
    `code_version` is that of the transform which made the rows, if it has one. `reason`: why it is in quarantine as a
    whole; it is not read again until it changes or is sent again. `gone` marks a key whose object has left.
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
    code_version: str = ""
    reason: str = ""
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChanges:
    """What one slot needs: each object to read, from where, and the keys that have left.

    `complete` is False if a limit cut it short.
    """

    slot: Slot
    read: tuple[Split, ...]
    gone: tuple[str, ...]
    complete: bool

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
) -> SlotChanges:
    """Compare one slot's enumerated versions with its committed states by key. Pure.

    `touched`: the keys that were looked at; None: all of the slot, so that what was not found has left. `pending` keys
    are read on where that ended, or again if it was done, although their ETag is the same; `stale` ones are read again.
    """
    looked_at = states if touched is None else touched
    versions = {version.key: version for version in found}
    gone = sorted(key for key in looked_at if key in states and key not in versions)[: max_objects + 1]
    read: list[Split] = []
    for key in sorted(versions):
        version, state = versions[key], states.get(key)
        same = state is not None and state.etag == version.etag
        if not same or key in stale or key in pending:
            start = state.offset if state and same and key not in stale and not state.reach_end else 0
            by_record = bool(state and start and state.by_record)
            read.append(Split(version=version, start=start, end=version.size, by_record=by_record))
    room = max_objects - len(gone[:max_objects])
    return SlotChanges(
        slot=slot,
        read=tuple(read[:room]),
        gone=tuple(gone[:max_objects]),
        complete=len(gone) <= max_objects and len(read) <= room,
    )


def within(
    changes: Iterable[SlotChanges], max_bytes: int, *, least: int, cuttable: Callable[[Split], bool]
) -> Iterator[SlotChanges]:
    """As much of the work as `max_bytes` holds, in order; what comes first is done, whatever its size. Pure.

    An object that does not fit is cut where it may be, though to no less than `least` bytes, and otherwise left for
    the next round with all that follows. Every split may decode to as many bytes as were left for it.
    """
    left, taken = max_bytes, False
    for each in changes:
        read: list[Split] = []
        for split in each.read:
            size = split.end - split.start
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
    """The split, cut into parts of `size` bytes, that many tasks may read at once. Pure."""
    starts = range(split.start, max(split.end, split.start + 1), size)
    return [replace(split, start=start, end=min(start + size, split.end)) for start in starts]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """Slots to be compared by a listing, each with the serial number under which it was last added."""

    slots: Mapping[Slot, int] = field(default_factory=dict)
    plain_ms: int = 0
    """When a writer was last seen that signals and does not queue; wall clock; 0: never."""
    serial: int = 0


class ListingDebt:
    """Which slots of a source have to be compared by a listing. Thread-safe; any process may add and settle."""

    def __init__(self, records: RecordStore, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._records = records
        self._clock = clock

    def read(self) -> Owed:
        """What is owed now. 1 request."""
        return self._read()[0]

    def owe(self, slots: Iterable[Slot], *, plain: bool = False) -> None:
        """Add slots; `plain`: because a writer does not queue. 1 read and 1 write, more if others come between."""
        wanted = set(slots)

        def add(owed: Owed) -> Owed:
            serial = owed.serial + 1
            plain_ms = self._clock.wall_ms() if plain else owed.plain_ms
            return Owed(
                slots={**owed.slots, **dict.fromkeys(wanted, serial)}, plain_ms=plain_ms, serial=serial
            )

        if wanted or plain:
            self._change(add)

    def settle(self, slots: Mapping[Slot, int]) -> None:
        """These were listed and committed; one that was added anew since then stays. Requests as `owe`."""

        def remove(owed: Owed) -> Owed:
            left = {slot: serial for slot, serial in owed.slots.items() if slots.get(slot) != serial}
            return Owed(slots=left, plain_ms=owed.plain_ms, serial=owed.serial)

        if slots:
            self._change(remove)

    def plain_writers(self, owed: Owed) -> bool:
        """Whether a writer was seen lately that does not queue."""
        return bool(owed.plain_ms) and self._clock.wall_ms() - owed.plain_ms < PLAIN_SECONDS * 1000

    def _change(self, change: Callable[[Owed], Owed]) -> None:
        # Any change may be applied twice: an answer that was lost needs no more than another round.
        for attempt in range(ATTEMPTS):
            if attempt:
                self._clock.sleep(backoff_seconds(attempt, self._clock))
            before, version = self._read()
            if (after := change(before)) == before:
                return
            body = json.dumps(
                {
                    "v": 1,
                    "slots": {str(k): n for k, n in after.slots.items()},
                    "plain_ms": after.plain_ms,
                    "serial": after.serial,
                }
            ).encode()
            if version is None:
                outcome = self._records.create(PARTITION, TO_LIST, body)
            else:
                outcome = self._records.replace(PARTITION, TO_LIST, body, expected=version)
            if isinstance(outcome, Written):
                return
        raise UnavailableError("the list of slots to compare kept changing; try again")

    def _read(self) -> tuple[Owed, Version | None]:
        record = self._records.read(PARTITION, TO_LIST)
        if record is None:
            return Owed(), None
        try:
            body = json.loads(record.value)
            slots = {Slot(int(slot)): int(serial) for slot, serial in body["slots"].items()}
            return Owed(slots=slots, plain_ms=body["plain_ms"], serial=body["serial"]), record.version
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"{PARTITION}/{TO_LIST} holds {record.value[:80]!r}: remove it") from error
