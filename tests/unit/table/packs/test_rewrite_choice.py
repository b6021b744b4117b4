"""The choice of packs to merge: few files remain, each row is rewritten few times, and young packs are not merged with
old packs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.table.delta.actions import Add, Vector
from s3notify_platform.table.packs.pack_file import PackSizes
from s3notify_platform.table.packs.rewrite_choice import Merge, compaction, plan_round
from s3notify_platform.table.packs.round_packs import Withdrawal

SIZES = PackSizes(target=64_000, smallest=1_000)
CLASSES = 4


def pack(path: str, size: int, label: int, **more: object) -> Add:
    return replace(Add(path=path, size=size, rows=100, modified_ms=0, since=label, until=label), **more)  # type: ignore[arg-type]


def after(packs: Sequence[Add], merges: Sequence[Merge], sizes: PackSizes = SIZES) -> list[Add]:
    """Returns the packs after these merges. Merged packs are divided as the writer divides them."""
    by_path = {each.path: each for each in packs}
    gone = Counter(path for merge in merges for path in merge.paths)
    assert set(gone.values()) <= {1}
    kept = [each for each in packs if each.path not in gone]
    for number, merge in enumerate(merges):
        parts = max(1, merge.size // sizes.target)
        kept += [
            pack(f"{by_path[merge.paths[0]].path}+{number}.{part}", merge.size // parts, 0)
            for part in range(parts)
        ]
        kept[-parts:] = [replace(each, since=merge.since, until=merge.until) for each in kept[-parts:]]
    return kept


def in_classes(packs: Sequence[Add], sizes: PackSizes = SIZES) -> Counter[int | None]:
    return Counter(sizes.class_of(each.size) for each in packs)


batches = st.lists(st.lists(st.integers(1, 200_000) | st.integers(1, 1_000), max_size=12), max_size=40)


@given(batches)
def test_number_of_files_is_bounded_after_any_number_of_batches(found: list[list[int]]) -> None:
    packs: list[Add] = []
    for label, sizes in enumerate(found, 1):
        packs = after(packs, compaction(packs, SIZES, budget=1 << 40))
        classes = in_classes(packs)
        full = classes.pop(None, 0)
        assert max(classes.values(), default=0) <= SIZES.in_class
        assert full <= sum(each.size for each in packs) / SIZES.target
        assert len(packs) <= sum(each.size for each in packs) / SIZES.target + CLASSES * SIZES.in_class
        packs += [pack(f"{label}.{n}", size, label) for n, size in enumerate(sizes)]
    # Rounding causes a small difference.
    assert sum(map(sum, found)) - sum(each.size for each in packs) <= 200 * len(found)


@given(batches, st.integers(0, 300_000))
def test_merges_stay_within_the_budget_unless_a_single_merge_exceeds_it(
    found: list[list[int]], budget: int
) -> None:
    packs = [
        pack(f"{label}.{n}", size, label) for label, sizes in enumerate(found) for n, size in enumerate(sizes)
    ]
    sizes_of = {each.path: each.size for each in packs}
    merges = compaction(packs, SIZES, budget=budget)
    costs = [sum(sizes_of[path] for path in merge.paths) for merge in merges]
    assert sum(costs) <= max(budget, max(costs, default=0))
    over = {
        number for number, count in in_classes(packs).items() if number is not None and count > SIZES.in_class
    }
    assert bool(merges) == bool(over)


def test_each_row_is_rewritten_about_once_for_each_class_of_sizes() -> None:
    packs: list[Add] = []
    written = 0
    for label in range(1, 1025):
        merges = compaction(packs, SIZES)
        written += sum(merge.size for merge in merges)
        packs = after(packs, merges)
        packs.append(pack(f"{label}", 700, label))
    assert written < (CLASSES + 0.5) * 700 * 1024


def test_rows_that_compress_well_count_as_rows() -> None:
    """If a round counted only bytes, it would merge many packs with such rows, and decode gigabytes."""
    sizes = replace(SIZES, row=10)
    full = [pack(f"{n}", 500, n, rows=6_400) for n in range(50)]
    assert compaction(full, sizes) == []
    small = [pack(f"{n}", 500, n, rows=1_000) for n in range(50)]
    (merge,) = compaction(small, sizes, budget=100_000)
    assert (len(merge.paths), merge.size) == (10, 100_000)
    (merge,) = compaction(small, SIZES, budget=100_000)
    assert len(merge.paths) == 46


def test_packs_of_the_last_batches_stay_apart_from_old_ones() -> None:
    packs: list[Add] = []
    for label in range(1, 513):
        packs = after(packs, compaction(packs, SIZES))
        packs.append(pack(f"{label}", 700, label))
        last_hour = [each for each in packs if each.until > label - 60]
        assert sum(each.until - each.since + 1 for each in last_hour) <= 60 + 32
        assert len(last_hour) <= 24


def test_packs_that_are_rewritten_anyway_use_up_no_budget() -> None:
    packs = [pack(f"{n}", 20_000, n) for n in range(9)] + [pack(f"s{n}", 500, n) for n in range(9)]
    assert [len(merge.paths) for merge in compaction(packs, SIZES, budget=0)] == [5]
    touched = {each.path for each in packs}
    assert len(compaction(packs, SIZES, budget=0, touched=touched)) == 2


def test_packs_with_most_hidden_rows_are_rewritten_first() -> None:
    def covered(path: str, rows: int) -> Add:
        vector = Vector(storage="u", body=path, size=1, rows=rows)
        return pack(path, 64_000, 1, vector=vector)

    packs = [covered("a", 10), covered("b", 40), covered("c", 100), covered("d", 50)]
    assert [merge.paths for merge in compaction(packs, SIZES)] == [("b",), ("c",), ("d",)]
    assert [merge.paths for merge in compaction(packs, SIZES, budget=33_000)] == [("c",), ("d",)]


def test_plan_hides_or_rewrites_each_pack_once() -> None:
    packs = [pack(f"{n}", 500, n, slots=(0, 9)) for n in range(1, 10)] + [
        pack("big", 64_000, 3, slots=(5, 9))
    ]
    leaving = [Withdrawal(slot=7, key="a", since=3, until=3), Withdrawal(slot=1, key="b", since=9, until=9)]
    plan = plan_round(packs, leaving, sizes=SIZES)
    assert {rewrite.paths for rewrite in plan.rewrites} == {("1", "2", "3", "4", "5"), ("9",), ("big",)}
    assert not plan.hides
    assert all(rewrite.data_change for rewrite in plan.rewrites)
    hiding = plan_round(packs, leaving, sizes=SIZES, vectors=True)
    assert {*hiding.hides} == {"9", "big"}
    (merge,) = hiding.rewrites
    assert merge.leaving == {"3": [leaving[0]]}
    assert not plan_round(packs, (), sizes=SIZES).rewrites[0].data_change
