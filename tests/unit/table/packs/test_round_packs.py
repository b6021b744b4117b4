"""The packs of a round: written rows are stored in order. Withdrawn rows are removed, and other rows stay."""

import io
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.table.delta.actions import Add
from s3notify_platform.table.packs.pack_file import NewPack, OpenPack, PackReader, PackSizes
from s3notify_platform.table.packs.round_packs import (
    Held,
    Withdrawal,
    candidates,
    hidden,
    rewritten,
    without_slots,
    write,
)
from tests.support.packs import SCHEMA, TINY, PackTable, Row, rows_in, rows_of

objects = st.dictionaries(
    st.tuples(st.integers(0, 9), st.text("ab/é\U0010ffff", min_size=1, max_size=3)),
    st.integers(0, 40),
    max_size=12,
)


def expanded(found: dict[tuple[int, str], int], etag: str = "e") -> list[Row]:
    return sorted((slot, key, etag, n) for (slot, key), count in found.items() for n in range(count))


def reader(pack: NewPack, gone: Sequence[int] | None = None) -> PackReader:
    rows = None if gone is None else np.array(gone, dtype=np.int64)
    return PackReader.of(pack.body, rows, where="test")


@given(objects, st.integers(1, 50))
def test_rows_are_read_in_order_and_packs_have_correct_bounds(
    found: dict[tuple[int, str], int], batch: int
) -> None:
    rows = expanded(found)
    packs = [*write(rows_of(rows).to_batches(max_chunksize=batch), TINY)]
    assert [row for pack in packs for row in rows_in(pack)] == rows
    for pack in packs:
        held = rows_in(pack)
        assert pack.slots == Counter(row[0] for row in held)
        assert pack.keys == (min(row[1] for row in held), max(row[1] for row in held))
        assert pack.rows == len(held) > 0


def test_small_slots_share_a_pack_and_big_ones_do_not() -> None:
    sizes = PackSizes(target=20_000, smallest=1_500, group=4_000)
    counts = {0: 20, 1: 20, 2: 2_000, 3: 20, 4: 20}
    rows = [(slot, f"k{slot}", "e", n * 7919) for slot, count in counts.items() for n in range(count)]
    packs = [*write([rows_of(rows)], sizes)]
    assert [set(pack.slots) for pack in packs] == [{0, 1}, {2}, {3, 4}]


def test_big_slot_is_divided_into_packs_of_the_target_size() -> None:
    sizes = PackSizes(target=20_000, smallest=1_500, group=4_000)
    rows = [(5, f"k{n:05}", f"{n * 7919 % 100_003:x}", 0) for n in range(20_000)]
    packs = [*write([rows_of(rows)], sizes)]
    assert len(packs) > 3
    assert all(len(pack.body) < 2 * sizes.target for pack in packs)
    assert [row for pack in packs for row in rows_in(pack)] == rows


def test_pack_ends_after_many_rows_that_compress_well() -> None:
    """Otherwise the withdrawal of one row would rewrite millions of rows."""
    rows = rows_of([(slot, "k", "e", n) for slot in range(8) for n in range(100)])
    sizes = PackSizes(target=20_000, smallest=1_500, group=4_000)
    assert len([*write([rows], sizes)]) == 1
    assert len([*write([rows], replace(sizes, row=200))]) == 4


def test_rows_of_one_slot_are_in_few_row_groups() -> None:
    sizes = PackSizes(target=10 << 20, group=4_000)
    rows = [(slot, f"k{slot}", "e", n) for slot in range(50) for n in range(20)]
    (pack,) = write([rows_of(rows)], sizes)
    metadata = pq.ParquetFile(io.BytesIO(pack.body)).metadata
    assert metadata.num_row_groups > 5
    spans = [metadata.row_group(n).column(0).statistics for n in range(metadata.num_row_groups)]
    for slot in range(50):
        assert sum(span.min <= slot <= span.max for span in spans) == 1
    assert [c.column_index for c in metadata.row_group(0).sorting_columns] == [0, 1, 3]


@pytest.mark.parametrize(
    "rows",
    [
        [(1, "b", "e", 0), (1, "a", "e", 0)],
        [(2, "a", "e", 0), (1, "a", "e", 0)],
        [(1, "a", "e", 1), (1, "a", "e", 0)],
        [(1, "a", "e", 0), (1, None, "e", 0)],
    ],
)
def test_unsorted_rows_are_refused(rows: list[Row]) -> None:
    columns = [*zip(*rows, strict=True), [""] * len(rows)]
    table = pa.table([pa.array(v, f.type) for v, f in zip(columns, SCHEMA, strict=True)], SCHEMA.names)
    with pytest.raises(UsageError, match="sorted by _slot"):
        [*write([table])]
    with pytest.raises(UsageError, match="sorted by _slot"):
        [*write([table.slice(0, 1), table.slice(1)], PackSizes(group=1))]


def test_damaged_pack_is_named() -> None:
    with pytest.raises(CorruptError, match="data/x"):
        PackReader.of(b"none", where="data/x")


@given(st.lists(objects, min_size=1, max_size=4), st.sets(st.integers(0, 20)), st.data())
def test_rewritten_pack_has_the_remaining_rows_in_order(
    tables: list[dict[tuple[int, str], int]], gone: set[int], data: st.DataObject
) -> None:
    packs = [pack for n, t in enumerate(tables) for pack in write([rows_of(expanded(t, f"e{n}"))], TINY)]
    every = sorted({(slot, key) for table in tables for slot, key in table})
    leaving = data.draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    objects_left = [Withdrawal(slot=slot, key=key) for slot, key in leaving]
    # An object with the same key in another slot must remove nothing.
    objects_left = [*objects_left, Withdrawal(slot=77, key="a")] if (77, "a") not in leaving else objects_left
    hide = [sorted(n for n in gone if n < pack.rows) for pack in packs]
    if not packs:
        return
    held = [Held(pack=reader(p, h), leaving=objects_left) for p, h in zip(packs, hide, strict=True)]
    live = [
        row for pack, h in zip(packs, hide, strict=True) for row in rows_in(pack, np.array(h, dtype=np.int64))
    ]
    by_key = {each.key: each.slot for each in objects_left}
    left = [row for row in live if (row[0], row[1]) in leaving and by_key[row[1]] == row[0]]
    if len(by_key) < len(objects_left):
        return  # a key is in one slot only
    done = rewritten(held, TINY)
    found = [row for pack in done.packs for row in rows_in(pack)]
    assert Counter(found) == Counter(live) - Counter(left)
    assert [(r[0], r[1], r[3]) for r in found] == sorted((r[0], r[1], r[3]) for r in found)
    assert done.withdrawn == Counter(row[0] for row in left)
    for one, pack in zip(held, packs, strict=True):
        vector = hidden(one)
        assert Counter(rows_in(pack, vector.rows)) == Counter(rows_in(pack, one.pack.hidden)) - Counter(left)
        assert [*vector.rows] == sorted({*vector.rows})


def test_missing_columns_are_null_after_a_merge() -> None:
    older = rows_of([(1, "a", "e", 0)]).drop_columns("value")
    packs = [next(write([table])) for table in (older, rows_of([(1, "b", "e", 0)]))]
    done = rewritten([Held(pack=reader(pack)) for pack in packs])
    (merged,) = done.packs
    assert pq.read_table(io.BytesIO(merged.body))["value"].to_pylist() == [None, "b/e/0"]


def test_merge_writes_while_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a merge would hold all rows of an object, possibly gigabytes, in memory."""
    packs = [
        pack
        for part in range(2)
        for pack in write([rows_of([(1, "k", "e", 1000 * part + n) for n in range(1000)])], TINY)
    ]
    events: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            events.append(name)
            return function(*arguments)

        return call

    monkeypatch.setattr(OpenPack, "close", noted("closed", OpenPack.close))
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted("read", pq.ParquetFile.read_row_group))
    held = [Held(pack=PackReader.of(pack.body, where="test")) for pack in packs]
    assert sum(sum(pack.slots.values()) for pack in rewritten(held, TINY).packs) == 2000
    reads = [number for number, event in enumerate(events) if event == "read"]
    assert events.index("closed") < reads[-1]


def test_pack_without_remaining_rows_is_not_replaced() -> None:
    pack = next(write([rows_of([(1, "a", "e", n) for n in range(9)])]))
    done = rewritten([Held(pack=reader(pack), leaving=[Withdrawal(slot=1, key="a")])])
    assert (done.packs, done.withdrawn) == ([], {1: 9})


def test_slots_are_left_out_of_a_pack() -> None:
    pack = next(write([rows_of([(slot, "a", "e", n) for slot in range(4) for n in range(9)])]))
    kept = without_slots(pack, [1, 3])
    assert kept is not None
    assert kept.slots == {0: 9, 2: 9}
    assert without_slots(pack, range(4)) is None


def test_vector_is_made_from_two_columns_of_matching_row_groups() -> None:
    etags = [sha256(b"%d" % n).hexdigest() for n in range(20_000)]
    rows = [(slot, f"k{slot}", etags[100 * slot + n], n) for slot in range(200) for n in range(100)]
    (pack,) = write([rows_of(rows)], PackSizes(group=200_000))
    read: list[int] = []

    class Ranges(io.BytesIO):
        def read(self, size: int = -1, /) -> bytes:
            read.append(size)
            return super().read(size)

    source = pa.PythonFile(Ranges(pack.body), "r")
    held = Held(pack=PackReader.of(source, where="test"), leaving=[Withdrawal(slot=17, key="k17")])
    assert [*hidden(held).rows] == [*range(1700, 1800)]
    assert sum(read) < len(pack.body) / 5


spans = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda pair: (min(pair), max(pair)))


@given(
    st.lists(st.tuples(spans, spans, st.sampled_from("abc"))), st.lists(st.tuples(st.integers(0, 5), spans))
)
def test_packs_that_may_hold_an_object_are_found(
    packs: list[tuple[tuple[int, int], tuple[int, int], str]], leaving: list[tuple[int, tuple[int, int]]]
) -> None:
    adds = [
        Add(path=f"{n}", size=1, rows=1, modified_ms=0, slots=slots, since=low, until=high, keys=("a", key))
        for n, (slots, (low, high), key) in enumerate(packs)
    ]
    objects_left = [Withdrawal(slot=slot, key="b", since=low, until=high) for slot, (low, high) in leaving]
    expected = {
        add.path: held
        for add in adds
        if (held := [w for w in objects_left if add.may_hold(w.slot, w.key, w.since, w.until)])
    }
    found = candidates(adds, objects_left)
    assert {path: Counter(held) for path, held in found.items()} == {
        path: Counter(held) for path, held in expected.items()
    }


rounds = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from([f"k{n}" for n in range(24)]), st.integers(0, 30), max_size=8),
        st.lists(st.sampled_from([f"k{n}" for n in range(24)]), max_size=3),
    ),
    max_size=10,
)


@pytest.mark.parametrize("vectors", [False, True])
@given(rounds)
def test_no_row_is_lost_or_duplicated_and_the_number_of_files_is_bounded(
    vectors: bool, steps: list[tuple[dict[str, int], list[str]]]
) -> None:
    table = PackTable(vectors=vectors)
    for changed, gone in steps:
        table.round(
            {key: (int(key[1:]) % 5, count) for key, count in changed.items()},
            [key for key in gone if key not in changed],
        )
        assert table.live() == table.rows
    # Rewritten packs may be smaller than expected. Later rounds merge these packs further.
    for _ in range(3):
        table.round({})
    assert table.live() == table.rows
    classes = table.in_classes()
    assert all(count <= TINY.in_class for number, count in classes.items() if number is not None)
