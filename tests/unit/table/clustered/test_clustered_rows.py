"""A clustered table always has the rows of its source, in its own order, whatever changes in the source."""

import json

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.clustered.cluster_order import Clustered
from s3notify_platform.table.clustered.overlap import DEPTH
from s3notify_platform.table.snapshot import Snapshot
from tests.support.keyed_rounds import CLUSTERED, ORDER, KeyedRounds, clustered_rows, following

NUMBERS = [n for n in range(1, 400) if n % 3]


@pytest.fixture(params=[False, True], ids=["plain", "vectors"])
def source(request):
    return KeyedRounds(store=MemoryObjectStore(), vectors=request.param)


def followed(source, bucket, **more):
    source.commit(source.planned(bucket))
    table = following(CLUSTERED, source, **more)
    done = table.follow()
    assert sorted(clustered_rows(table.table), key=str) == sorted(source.rows(), key=str)
    return done


def files(source):
    found = following(CLUSTERED, source).table.newest()
    assert isinstance(found, Snapshot)
    return found.packs


def test_rows_are_added_and_withdrawn(source):
    bucket = {f"{c}{n}": ("e", tuple(NUMBERS[n * 10 : n * 10 + 10])) for c in "abc" for n in range(5)}
    assert followed(source, bucket).rebuilt == "the table was never built"
    bucket |= {"a1": ("f", (1, 2)), "d1": ("e", (4, 5))}
    assert followed(source, bucket).rebuilt == ""
    del bucket["b2"]
    assert followed(source, bucket).changed == 10
    assert followed(source, {}).changed > 0
    assert files(source) == {}


def test_small_files_become_large_ones(source):
    """Otherwise a table with frequent commits would have more and more files."""
    bucket = {}
    for n in range(40):
        bucket[f"a{n}"] = ("e", tuple(NUMBERS[n * 5 : n * 5 + 5]))
        followed(source, bucket)
    assert len(files(source)) < 20


def test_row_that_left_is_searched_only_where_it_may_be(source):
    """Otherwise a withdrawal would read all files, even files whose bounds exclude the row."""
    # Each object has the rows of one key.
    bucket = {f"a{n}": ("e", tuple(k for k in NUMBERS if k % 4 == n)) for n in range(4)}
    order = Clustered(columns=("id",), file_bytes=1)
    followed(source, bucket, clustered=order)
    assert len(files(source)) >= 4
    source.commit(source.planned({key: found for key, found in bucket.items() if key != "a1"}))
    store = CountingStore(source.store)
    table = following(CLUSTERED, source, store, clustered=order)
    table.table.newest()
    keys = []
    read = store.get

    def get(key):
        keys.append(key)
        return read(key)

    store.get = get
    table.follow()
    read_files = {key for key in keys if key.startswith("clustered/data/")}
    assert 0 < len(read_files) < len(files(source)) + 2
    assert sorted(clustered_rows(table.table), key=str) == sorted(source.rows(), key=str)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("no",), "cluster_by: the table has no column 'no': it has _slot, _key"),
        (("id", "no"), "no column 'no'"),
    ],
)
def test_missing_column_is_refused(source, columns, message):
    source.commit(source.planned({"a1": ("e", (1,))}))
    with pytest.raises(UsageError, match=message):
        following(CLUSTERED, source, clustered=Clustered(columns=columns)).follow()


def test_new_order_rebuilds_the_table(source):
    followed(source, {"a1": ("e", (1, 2, 4))})
    done = followed(source, {"a1": ("e", (1, 2, 4))}, clustered=Clustered(columns=("id",)))
    assert done.rebuilt == "its definition has changed"


def test_compaction_uses_the_current_file_size(source):
    """Otherwise a new file size would have no effect, or would rewrite all files at once."""
    bucket = {f"a{n}": ("e", tuple(NUMBERS[n * 10 : n * 10 + 10])) for n in range(8)}
    small = Clustered(columns=("id", "at"), file_bytes=1)
    followed(source, bucket, clustered=small)
    table = following(CLUSTERED, source).table
    rows = len(source.rows())
    compact(table)
    assert len(files(source)) == rows, "each file is full"
    bucket["b1"] = ("e", (1,))
    assert followed(source, bucket).rebuilt == ""
    found = following(CLUSTERED, source).table.newest()
    assert found.metadata.configuration["delta.targetFileSize"] == str(ORDER.file_bytes)
    assert len(files(source)) < rows / 4
    assert sorted(clustered_rows(table), key=str) == sorted(source.rows(), key=str)


def test_compaction_separates_ranges(source):
    """Otherwise a query would read many overlapping files, or compaction would merge a file twice or change rows."""
    bucket = {}
    for n in range(12):
        bucket[f"a{n}"] = ("e", tuple(NUMBERS[n::12]))
        followed(source, bucket)
    table = following(CLUSTERED, source).table
    before = table.newest()
    foreseen = compact(table, dry_run=True)
    assert table.newest().version == before.version
    done = compact(table)
    assert (done.packs, done.versions) == (foreseen.packs, foreseen.versions)
    assert len(files(source)) < len(before.packs)
    assert sorted(clustered_rows(table), key=str) == sorted(source.rows(), key=str)
    assert compact(following(CLUSTERED, source).table).packs == 0
    assert followed(source, bucket | {"b1": ("e", (1,))}).rebuilt == ""


def test_compaction_sorts_full_files_until_few_overlap(source):
    """The values of the sort column do not grow with time, so the files of each commit contain the whole range of
    values. Without compaction, the table would lose its order.
    """
    order = Clustered(columns=("id", "n"), file_bytes=100)  # each file is full
    bucket = {}
    for n in range(8):
        bucket[f"a{n}"] = ("e", tuple(NUMBERS[n::8]))
        followed(source, bucket, clustered=order)
    table = following(CLUSTERED, source, clustered=order).table
    two_files = 2 * max(pack.size for pack in files(source).values())
    assert compact(table, step_bytes=two_files).packs > 0
    bounds = []
    for pack in files(source).values():
        stats = json.loads(pack.stats)
        low, high = (stats[name].get("id") for name in ("minValues", "maxValues"))
        if low == high and (low is None or not stats["nullCount"]["id"]):
            bounds.append((low, stats["minValues"]["n"], stats["maxValues"]["n"]))
    for key in {each[0] for each in bounds}:
        inside = [sum(low < n < high for each, low, high in bounds if each == key) for n in NUMBERS]
        assert max(inside) <= DEPTH
    assert sorted(clustered_rows(table), key=str) == sorted(source.rows(), key=str)
    assert compact(table, step_bytes=two_files).versions == 0
