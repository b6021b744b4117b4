"""Reads the states of objects: by keys, by slots, or only the failing or the pending objects of slots.

A warm process has the tails of all files (`state_file`) in its cache. The filters are in the tails. So a key without a
state costs no request, except if a filter wrongly accepts the key (0.3% of the pages). A key with a state costs at most
the read of one page. A cold process makes 1 GET more for each file that may hold one of the keys. A small file is read
as a whole. Neighbouring pages of one file are read together.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.limits import (
    REQUESTS_IN_FLIGHT,
    STATE_GAP_BYTES,
    STATE_READ_BYTES,
    STATE_WHOLE_BYTES,
)
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.states.state_cache import SHARED_CACHE, Ranges, StateCache, bytes_of
from s3notify_platform.table.states.state_columns import (
    Changes,
    Place,
    columns_of,
    failing_in,
    pending_in,
    place_at,
    rows_before,
    state_at,
    states_of,
)
from s3notify_platform.table.states.state_file import PageEntry, StateFile, Tail, page_of, tail_of
from s3notify_platform.table.states.state_filter import hash_of
from s3notify_platform.table.states.state_levels import StateSet

Keys = Mapping[Slot, Collection[str]]
"""The wanted keys, by slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReader:
    """Reads states by `ranges`. Thread-safe.

    `CorruptError`: a file is missing, or its bytes were changed after the write.
    """

    ranges: Ranges
    cache: StateCache = field(default_factory=lambda: SHARED_CACHE)

    def lookup(self, states: StateSet, keys: Keys) -> dict[str, ObjectState]:
        """Returns the states of these keys. Keys without a state, and keys with a `gone` mark, are left out.

        A warm process makes at most 1 GET for each key with a state, and for each key that a filter wrongly accepts. A
        cold process makes 1 GET more for each file whose range has one of the keys. Nearly all requests are made in
        parallel, but a cold process first reads the tails.
        """
        places = sorted({(slot, key) for slot, wanted in keys.items() for key in wanted})
        found = self._find(states.inline, states.files, places)
        return {key: state for (_, key), state in found.items() if not state.gone}

    def of_slots(
        self, states: StateSet, slots: Collection[Slot]
    ) -> Iterator[tuple[Slot, dict[str, ObjectState]]]:
        """Yields each of these slots in order, with the slot's states by key. Memory holds one slot. The call makes the
        requests of `columns`.
        """
        for slot, columns in self.columns(states, slots):
            yield slot, states_of(columns)

    def columns(self, states: StateSet, slots: Collection[Slot]) -> Iterator[tuple[Slot, pa.RecordBatch]]:
        """Yields the states of each of these slots as columns, sorted by key.

        Memory holds one slot, and some megabytes for each file of level 0 and for each other level. The requests are
        made one after the other. A file that may have states of the slots costs 1 GET, and each 8 MB of the slots'
        pages cost 1 GET.
        """
        wanted = sorted(set(slots))
        merged = merge_sorted(
            [
                iter([columns_of({slot: states.inline[slot] for slot in wanted if slot in states.inline})]),
                *(self._scan(files, wanted) for files in runs_of(states.files)),
            ]
        )
        rows = by_slot(batch.filter(pc.invert(batch.column("gone"))) for batch in merged)
        upcoming = next(rows, None)
        for slot in wanted:
            while upcoming and upcoming[0] < slot:
                upcoming = next(rows, None)
            of_slot = upcoming is not None and upcoming[0] == slot
            yield slot, upcoming[1] if upcoming and of_slot else columns_of({})

    def failing(self, states: StateSet, slots: Collection[Slot]) -> dict[Slot, dict[str, ObjectState]]:
        """Returns the failing objects of slots, by slot and key. Slots without a failing object are left out.

        The call reads the pages that have one of these slots and a failing object. Cost: at most 1 GET for each of
        these pages. A cold process also makes 1 GET for the tail of each file with these slots and a failing object.
        """
        return self._marked(
            states, slots, failing_in, lambda state: state.failing, lambda counted: counted.failing
        )

    def pending(self, states: StateSet, slots: Collection[Slot]) -> dict[Slot, dict[str, ObjectState]]:
        """Returns the pending objects of slots. See `failing`."""
        return self._marked(
            states, slots, pending_in, lambda state: state.pending, lambda counted: counted.pending
        )

    # By keys

    def _find(
        self, inline: Changes, files: Sequence[StateFile], places: Sequence[Place]
    ) -> dict[Place, ObjectState]:
        """Returns the newest states at these sorted places. `gone` marks are included."""
        found = {
            (slot, key): state
            for slot, key in places
            if (state := inline.get(Slot(slot), {}).get(key)) is not None
        }
        rest = [place for place in places if place not in found]
        within = [(file, _between(rest, file)) for file in files]
        within = [(file, some) for file, some in within if some]
        hashes = {place: hash_of(place[1]) for place in {*chain.from_iterable(some for _, some in within)}}
        pages: dict[Place, list[tuple[Tail, int]]] = {place: [] for place in hashes}
        for tail, (_, some) in zip(self._tails([file for file, _ in within]), within, strict=True):
            for place in some:
                if (number := tail.page_of(place, hashes[place])) is not None:
                    pages[place].append((tail, number))
        # If the filters of several pages accept a key, the newest of these pages nearly always has the key.
        for depth in range(max(map(len, pages.values()), default=0)):
            wanted: dict[str, tuple[Tail, dict[int, list[Place]]]] = {}
            for place, candidates in pages.items():
                if place not in found and depth < len(candidates):
                    tail, number = candidates[depth]
                    wanted.setdefault(tail.file.name, (tail, {}))[1].setdefault(number, []).append(place)
            for tail, number, page in self._pages([(tail, [*some]) for tail, some in wanted.values()]):
                for place in wanted[tail.file.name][1][number]:
                    if (state := state_at(page, place)) is not None:
                        found[place] = state
        return found

    def _marked(
        self,
        states: StateSet,
        slots: Collection[Slot],
        rows: Callable[[pa.RecordBatch], pa.BooleanArray],
        holds: Callable[[ObjectState], bool],
        count: Callable[[StateFile | PageEntry], int],
    ) -> dict[Slot, dict[str, ObjectState]]:
        wanted = sorted(set(slots))
        found: dict[Slot, dict[str, ObjectState]] = {}
        for slot in wanted:
            marked = {key: state for key, state in states.inline.get(slot, {}).items() if holds(state)}
            if marked:
                found[slot] = marked
        files = [file for file in states.files if count(file) and _has_slots(file, wanted)]
        for file, tail in zip(files, self._tails(files), strict=True):
            numbers = [n for n in tail.pages_of_slots(wanted) if count(tail.pages[n])]
            newer = states.files[: states.files.index(file)]
            for page in self._read(tail, numbers):
                of_slots = pc.is_in(page.column("slot"), pa.array(wanted, pa.int32()))
                some = page.filter(pc.and_(rows(page), of_slots))
                places = [place_at(some, row) for row in range(some.num_rows)]
                later = self._find(states.inline, newer, places)
                for place, state in zip(places, states_of(some).values(), strict=True):
                    if place not in later:
                        found.setdefault(Slot(place[0]), {})[place[1]] = state
        return found

    # Files

    def _tails(self, files: Sequence[StateFile]) -> list[Tail]:
        return in_parallel(self.tail, files, REQUESTS_IN_FLIGHT)

    def tail(self, file: StateFile) -> Tail:
        """Returns the tail of a file. Cost: 1 GET, or no request if the tail is cached. A small file is read and cached
        as a whole.
        """
        if (tail := self.cache.tail(file)) is not None:
            return tail
        start = 0 if file.bytes <= STATE_WHOLE_BYTES else file.bytes - file.tail
        body = bytes_of(self.ranges, file, start, file.bytes)
        tail = tail_of(file, body[len(body) - file.tail :])
        if start == 0:
            for number in range(len(tail.pages)):
                self.cache.keep_page(file, number, page_of(tail, number, body, 0))
        self.cache.keep_tail(tail)
        return tail

    def _pages(
        self, wanted: Iterable[tuple[Tail, Collection[int]]]
    ) -> Iterator[tuple[Tail, int, pa.RecordBatch]]:
        """Yields first the pages in the cache, and then the other pages, which are read in parallel and cached."""
        to_read: list[tuple[Tail, list[int]]] = []
        for tail, numbers in wanted:
            missing = []
            for number in sorted(numbers):
                page = self.cache.page(tail.file, number)
                if page is None:
                    missing.append(number)
                else:
                    yield tail, number, page
            to_read += [(tail, run) for run in _together(tail, missing)]
        for (tail, run), pages in zip(
            to_read, in_parallel(lambda one: [*self._run(*one)], to_read, REQUESTS_IN_FLIGHT), strict=True
        ):
            for number, page in zip(run, pages, strict=True):
                self.cache.keep_page(tail.file, number, page)
                yield tail, number, page

    def _run(self, tail: Tail, numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
        start, end = tail.pages[numbers[0]].start, tail.pages[numbers[-1]].end
        body = bytes_of(self.ranges, tail.file, start, end)
        for number in numbers:
            yield page_of(tail, number, body, start)

    def _read(self, tail: Tail, numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yields pages in order. Pages that are read here are not cached."""
        for run in _together(tail, numbers):
            kept = [page for number in run if (page := self.cache.page(tail.file, number)) is not None]
            yield from kept if len(kept) == len(run) else self._run(tail, run)

    def _scan(self, files: Iterable[StateFile], slots: Sequence[Slot]) -> Iterator[pa.RecordBatch]:
        """Yields the states of these slots. `files`: files whose ranges follow each other without an overlap."""
        values = pa.array(slots, pa.int32())
        for file in files:
            if _has_slots(file, slots):
                tail = self.tail(file)
                for page in self._read(tail, tail.pages_of_slots(slots)):
                    yield page.filter(pc.is_in(page.column("slot"), values))


def _between(places: Sequence[Place], file: StateFile) -> Sequence[Place]:
    return places[bisect_left(places, file.first) : bisect_left(places, file.end)]


def _has_slots(file: StateFile, slots: Sequence[Slot]) -> bool:
    at = bisect_left(slots, file.first[0])
    return at < len(slots) and (slots[at], "") < file.end


def _together(tail: Tail, numbers: Sequence[int]) -> list[list[int]]:
    """Yields groups of sorted pages. One request reads a whole group."""
    runs: list[list[int]] = []
    for number in numbers:
        page = tail.pages[number]
        if (
            runs
            and page.start - tail.pages[runs[-1][-1]].end <= STATE_GAP_BYTES
            and page.end - tail.pages[runs[-1][0]].start <= STATE_READ_BYTES
        ):
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def runs_of(files: Iterable[StateFile]) -> list[list[StateFile]]:
    """Returns the files in groups, the newest first. In a group, the ranges of the files follow each other without an
    overlap.
    """
    runs: list[list[StateFile]] = []
    for file in files:
        if file.level and runs and runs[-1][0].level == file.level:
            runs[-1].append(file)
        else:
            runs.append([file])
    return runs


# Sorted columns


def merge_sorted(sources: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Merges sorted streams into one. If several streams have a state of one slot and key, the state of the first of
    these streams is used.

    Memory holds one batch of each stream.
    """
    waiting: list[pa.RecordBatch | None] = [None] * len(sources)
    while True:
        for n, source in enumerate(sources):
            batch = waiting[n]
            while batch is None or not batch.num_rows:
                if (batch := next(source, None)) is None:
                    break
            waiting[n] = batch
        live = [n for n, batch in enumerate(waiting) if batch is not None]
        if not live:
            return
        bound = min(place_at(batch, batch.num_rows - 1) for batch in waiting if batch is not None)
        parts = []
        for n in live:
            batch = waiting[n]
            assert batch is not None
            rows = rows_before(batch, bound, including=True)
            parts.append(batch.slice(0, rows))
            waiting[n] = batch.slice(rows)
        yield _newest([part for part in parts if part.num_rows])


def _newest(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Returns the sorted states of all parts. If parts have states of the same key, the first part's state is used."""
    if len(parts) == 1:
        return parts[0]
    batch = pa.concat_batches(parts)
    age = pa.concat_arrays(
        [pa.repeat(pa.scalar(n, pa.int32()), part.num_rows) for n, part in enumerate(parts)]
    )
    by = pa.record_batch([batch.column("slot"), batch.column("key"), age], names=["slot", "key", "age"])
    order = pc.sort_indices(by, sort_keys=[(name, "ascending") for name in ("slot", "key", "age")])
    keys = by.column("key").take(order)
    # A key is in only one slot, so the key alone identifies the place.
    first = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))
    return batch.take(order.filter(pa.concat_arrays([pa.array([True]), first])))


def by_slot(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Slot, pa.RecordBatch]]:
    """Yields sorted states, slot by slot."""

    def pieces() -> Iterator[tuple[int, pa.RecordBatch]]:
        for batch in batches:
            start = 0
            while start < batch.num_rows:
                slot = batch.column("slot")[start].as_py()
                end = rows_before(batch, (slot + 1, ""))
                yield slot, batch.slice(start, end - start)
                start = end

    for slot, parts in groupby(pieces(), lambda piece: piece[0]):
        yield Slot(slot), pa.concat_batches([part for _, part in parts])
