"""The choice of files that compaction merges: each small file and each overlapping file is merged once. Files with
separate ranges stay.
"""

import json
import random

import pytest

from s3notify_platform.maintenance.compaction import STEP_BYTES
from s3notify_platform.table.clustered.cluster_order import Clustered
from s3notify_platform.table.clustered.overlap import DEPTH, overlapping, separate
from s3notify_platform.table.delta.actions import Add

ORDER = Clustered(columns=("v",), file_bytes=100)


def add(name, low, high, size=100):
    stats = {"numRecords": 1, "minValues": {"v": low}, "maxValues": {"v": high}}
    if low is None:
        stats = {"numRecords": 1, "nullCount": {"v": 1}}
    return Add(path=name, size=size, rows=1, modified_ms=1, stats=json.dumps(stats))


def steps(*files, step_bytes=1000):
    return [[pack.path for pack in step] for step in overlapping(files, ORDER, step_bytes)]


def test_files_with_separate_ranges_stay():
    assert steps(add("a", 1, 2), add("b", 3, 4), add("c", 5, 6)) == []


def test_small_files_are_merged():
    assert steps(add("a", 1, 5, 10), add("b", 2, 4, 10), add("c", 5, 6, 10), add("d", 7, 8, 10)) == [
        ["a", "b", "c"]
    ]


def test_overlapping_large_files_are_merged():
    """Otherwise a value would be in more than `DEPTH` files, or two overlapping files would be merged too early."""
    three = [add(name, low, 9) for name, low in zip("abc", (1, 2, 3), strict=True)]
    assert steps(*three) == []
    assert steps(*three, add("d", 4, 5)) == [["a", "b", "c", "d"]]


def test_step_has_about_the_given_bytes():
    files = [add(f"f{n}", 1, 9, 10) for n in range(9)]
    found = steps(*files, step_bytes=40)
    assert [len(step) for step in found] == [4, 4]
    assert len({path for step in found for path in step}) == 8


def test_texts_are_ordered_and_files_without_a_value_come_last():
    found = steps(
        add("z", None, None, 1), add("b", "b", "c", 1), add("a", "a", "b", 1), add("y", None, None, 1)
    )
    assert found == [["a", "b"], ["y", "z"]]


MB = 1 << 20
FULL = 40
"""The number of rows of a full file in `sorted_out`."""


def file_of(name, rows, order):
    """A file with these rows. The file's size is in proportion to the number of rows."""
    stats = {"numRecords": len(rows), "minValues": {}, "maxValues": {}, "nullCount": {}}
    for column, values in zip(order.columns, zip(*rows, strict=True), strict=True):
        known = [value for value in values if value is not None]
        stats["nullCount"][column] = len(values) - len(known)
        if known:
            stats["minValues"][column], stats["maxValues"][column] = min(known), max(known)
    size = order.file_bytes * len(rows) // FULL
    return Add(path=name, size=size, rows=len(rows), modified_ms=1, stats=json.dumps(stats))


def sorted_out(bodies, order):
    """Does passes of a compaction until none is needed. Returns the bodies of the files by name, and the number of
    passes.
    """
    count = 0
    while True:
        live = [file_of(name, rows, order) for name, rows in bodies.items()]
        found = list(overlapping(live, order, STEP_BYTES))
        if not found:
            return bodies, count
        for number, step in enumerate(found):
            assert len(step) == 2 or sum(pack.size for pack in step[:-1]) < STEP_BYTES
            rows = [row for pack in step for row in bodies.pop(pack.path)]
            rows.sort(key=lambda row: [(value is None, value or 0) for value in row])
            parts = {f"{count}-{number}-{n}": rows[n : n + FULL] for n in range(0, len(rows), FULL)}
            assert separate([file_of(name, part, order) for name, part in parts.items()], order)
            bodies |= parts
        count += 1
        assert count < 20


def row(seed, shape):
    random_ = random.Random(seed)
    return {
        "wide": lambda: (random_.randrange(10**6), 0),
        "few": lambda: (random_.randrange(3), random_.randrange(10**6)),
        "nulls": lambda: (random_.choice([None, 1, 2]), random_.choice([None, *range(50)])),
        "hot": lambda: (random_.choice([7, 7, 7, 7, 8]), 1),
    }[shape]()


@pytest.mark.parametrize("shape", ["wide", "few", "nulls", "hot"])
@pytest.mark.parametrize("file_bytes", [130 * MB, 32 * MB])
def test_full_files_with_equal_ranges_are_sorted_until_few_overlap(shape, file_bytes):
    """Otherwise an order by columns that do not follow time would be lost, or each compaction would rewrite the whole
    table.
    """
    order = Clustered(columns=("dt", "customer_id"), file_bytes=file_bytes)
    bodies = {f"f{n}": [row(f"{n}.{m}", shape) for m in range(FULL)] for n in range(40)}
    done, passes = sorted_out(dict(bodies), order)
    assert passes > 0
    assert depth(0, done.values()) <= DEPTH
    for first in {rows[0][0] for rows in done.values()}:
        assert depth(1, [rows for rows in done.values() if {each[0] for each in rows} == {first}]) <= DEPTH


def depth(column, bodies):
    """The maximum number of files that have values both below and above one value."""
    ranges = [[value for value in (row[column] for row in rows) if value is not None] for rows in bodies]
    bounds = [(min(values), max(values)) for values in ranges if values]
    values = {value + half for each in bounds for value in each for half in (-0.5, 0, 0.5)}
    return max((sum(low < value < high for low, high in bounds) for value in values), default=0)


DAY = "2026-01-01T10:00:00.00"


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ({"v": 1}, {"v": 1}),
        ({"v": "x" * 32}, {"v": "x" * 31 + "y"}),
        ({"v": DAY + "1Z"}, {"v": DAY + "2Z"}),
        ({}, {}),
    ],
    ids=["one value", "a cut text", "a rounded time", "no bounds"],
)
def test_files_that_may_have_one_value_stay(low, high):
    """Otherwise each compaction would rewrite files that no sort can separate."""
    stats = json.dumps({"numRecords": 2, "minValues": low | {"w": 1}, "maxValues": high | {"w": 1}})
    files = [Add(path=str(n), size=100, rows=2, modified_ms=1, stats=stats) for n in range(9)]
    assert not list(overlapping(files, Clustered(columns=("v", "w"), file_bytes=100), 1000))


def test_next_columns_separate_files_with_one_value():
    """Otherwise each compaction would rewrite the files of a day, which are in order already."""
    order = Clustered(columns=("dt", "customer_id"), file_bytes=32 * MB)
    files = [file_of(str(n), [("2026-01-01", n * 10 + m // 5) for m in range(FULL)], order) for n in range(8)]
    assert not list(overlapping(files, order, STEP_BYTES))
    files = [file_of(str(n), [("2026-01-01", m) for m in range(FULL)], order) for n in range(8)]
    assert [len(step) for step in overlapping(files, order, STEP_BYTES)] == [8]
