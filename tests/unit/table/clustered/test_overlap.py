"""The choice of files that compaction merges: small files and overlapping files, each once. Files with separate ranges
stay.
"""

import json

from s3notify_platform.table.clustered.cluster_order import Clustered
from s3notify_platform.table.clustered.overlap import overlapping
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
