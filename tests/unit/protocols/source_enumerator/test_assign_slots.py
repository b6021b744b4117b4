"""Assignment of slots to readers: contiguous, complete, disjoint, balanced, and with the fewest moves."""

from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import (
    BALANCE_SLACK,
    OBJECT_COST_BYTES,
    Assignment,
    assign_slots,
)

MB = 1 << 20

some_slots = st.sets(st.integers(0, 999).map(Slot), max_size=60)
few_slots = st.sets(st.integers(0, 11).map(Slot), min_size=1, max_size=8)
sizes = st.integers(0, 8).map(lambda number: number * MB)


def loads_of(found: Assignment, bytes_of: dict[Slot, int] | None) -> list[int]:
    def load(slot: Slot) -> int:
        return 1 if bytes_of is None else bytes_of.get(slot, 0) + OBJECT_COST_BYTES

    return [sum(map(load, slots)) for slots in found.ranges]


def moved_from(found: Assignment, previous: Assignment) -> int:
    """Returns the number of slots that had another reader before."""
    before = previous.reader_of()
    return sum(before.get(slot, reader) != reader for slot, reader in found.reader_of().items())


def every_assignment(slots: set[Slot], readers: int) -> list[Assignment]:
    """Returns all assignments that are contiguous, complete and disjoint. A reader is idle only if there are more
    readers than slots.
    """
    line = sorted(slots)
    count = min(readers, len(line))
    found = []
    for inner in combinations(range(1, len(line)), count - 1):
        edges = (0, *inner, len(line))
        parts = [tuple(line[a:b]) for a, b in pairwise(edges)]
        for who in permutations(range(readers), count):
            ranges: list[tuple[Slot, ...]] = [()] * readers
            for reader, part in zip(who, parts, strict=True):
                ranges[reader] = part
            found.append(Assignment(ranges=tuple(ranges)))
    return found


def check_form(found: Assignment, slots: set[Slot], readers: int) -> None:
    assert len(found.ranges) == readers
    assert sorted(slot for part in found.ranges for slot in part) == sorted(slots), "each slot once"
    line = sorted(slots)
    for part in found.ranges:
        if part:
            start = line.index(part[0])
            assert list(part) == line[start : start + len(part)], "contiguous among the assigned slots"
    assert sum(1 for part in found.ranges if part) == min(readers, len(slots)), (
        "no reader is idle unnecessarily"
    )


@given(some_slots, st.integers(1, 80), st.none() | st.dictionaries(st.integers(0, 999).map(Slot), sizes))
def test_ranges_are_contiguous_complete_and_disjoint(
    slots: set[Slot], readers: int, bytes_of: dict[Slot, int] | None
) -> None:
    """Otherwise a slot would have no reader or two, or a reader would be idle."""
    found = assign_slots(slots, readers, bytes_of=bytes_of)
    check_form(found, slots, readers)
    assert found.ranges == tuple(sorted(found.ranges, key=lambda part: part or (Slot(1000),)))
    assert assign_slots(slots, readers, found, bytes_of=bytes_of) == found, "nothing changed, nothing moves"


@given(some_slots.filter(bool), st.integers(1, 80))
def test_slots_count_equally_if_their_bytes_are_not_given(slots: set[Slot], readers: int) -> None:
    """Otherwise one reader would get two slots more than another."""
    counts = [len(part) for part in assign_slots(slots, readers).ranges]
    assert max(counts) - min(counts) <= 1


@given(few_slots, st.integers(1, 4), st.dictionaries(st.integers(0, 11).map(Slot), sizes))
def test_the_largest_load_is_the_least_possible(
    slots: set[Slot], readers: int, bytes_of: dict[Slot, int]
) -> None:
    """Otherwise a run would take longer than necessary because one reader has too much load."""
    found = assign_slots(slots, readers, bytes_of=bytes_of)
    best = min(max(loads_of(each, bytes_of)) for each in every_assignment(slots, readers))
    assert max(loads_of(found, bytes_of)) == best


@given(
    few_slots,
    st.integers(1, 4),
    few_slots,
    st.integers(1, 4),
    st.none() | st.dictionaries(st.integers(0, 11).map(Slot), sizes),
)
def test_no_balanced_contiguous_assignment_moves_fewer_slots(
    before: set[Slot], had: int, slots: set[Slot], readers: int, bytes_of: dict[Slot, int] | None
) -> None:
    """Otherwise slots would change their reader although a balanced assignment with fewer moves exists."""
    previous = assign_slots(before, had)
    found = assign_slots(slots, readers, previous, bytes_of=bytes_of)
    check_form(found, slots, readers)
    all_there_are = every_assignment(slots, readers)
    bound = int(BALANCE_SLACK * min(max(loads_of(each, bytes_of)) for each in all_there_are))
    assert max(loads_of(found, bytes_of)) <= bound
    least = min(
        moved_from(each, previous) for each in all_there_are if max(loads_of(each, bytes_of)) <= bound
    )
    assert moved_from(found, previous) == least


@given(st.permutations(range(4)), st.integers(1, 6), st.integers(1, 6))
@example([2, 0, 3, 1], 4, 3)
def test_slots_keep_their_readers_even_if_the_readers_are_out_of_order(
    order: list[int], readers: int, slots_each: int
) -> None:
    """Otherwise slots would move if the order of the readers differs from the order of their ranges, as it may after
    earlier scaling.
    """
    ranges: list[tuple[Slot, ...]] = [()] * 4
    for place, reader in enumerate(order):
        ranges[reader] = tuple(Slot(n) for n in range(place * slots_each, (place + 1) * slots_each))
    previous = Assignment(ranges=tuple(ranges))
    slots = {Slot(n) for n in range(4 * slots_each)}
    found = assign_slots(slots, readers, previous)
    check_form(found, slots, readers)
    if readers == 4:
        assert found == previous


def test_few_of_a_thousand_slots_move_when_readers_change() -> None:
    """Otherwise more than 1/4 of the slots would move when a fifth reader joins, or more than 2/5 when the last of four
    readers leaves.
    """
    slots = [Slot(n) for n in range(1000)]
    four = assign_slots(slots, 4)
    five = assign_slots(slots, 5, four)
    assert moved_from(five, four) <= 250
    assert max(map(len, five.ranges)) <= 220
    three = assign_slots(slots, 3, four)
    assert moved_from(three, four) <= 400
    many = assign_slots(slots, 64, assign_slots(slots, 60))
    assert max(map(len, many.ranges)) <= 17
    assert min(map(len, many.ranges)) >= 1


def test_the_example_of_the_rfc_has_no_overlap() -> None:
    """Otherwise a slot would be given to two readers, like slot 171 in the RFC, or to none."""
    found = assign_slots([Slot(n) for n in range(1000)], 6)
    edges = [(part[0], part[-1]) for part in found.ranges]
    assert edges[0][0] == 0
    assert edges[-1][1] == 999
    assert all(after[0] == before[1] + 1 for before, after in pairwise(edges))


def test_a_heavy_slot_has_its_own_reader() -> None:
    """Otherwise a reader with one heavy slot would get other slots, too."""
    found = assign_slots([Slot(n) for n in range(9)], 3, bytes_of={Slot(4): 1000 * MB})
    assert found.ranges == ((0, 1, 2, 3), (4,), (5, 6, 7, 8))


def test_impossible_assignments_are_refused() -> None:
    """Otherwise a caller would get an assignment without readers, or an assignment based on ranges that are not
    contiguous.
    """
    with pytest.raises(UsageError, match="readers=0"):
        assign_slots([Slot(1)], 0)
    torn = Assignment(ranges=((Slot(0), Slot(2)), (Slot(1),)))
    with pytest.raises(UsageError, match="not contiguous"):
        assign_slots([Slot(0), Slot(1), Slot(2)], 2, torn)
    assert assign_slots([], 3) == Assignment(ranges=((), (), ()))
    assert {len(p.ranges) for p in (assign_slots([Slot(1)], n, torn) for n in (1, 2, 5))} == {1, 2, 5}
