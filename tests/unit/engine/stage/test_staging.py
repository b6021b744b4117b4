"""Packs of a task: sorted for any order of rows, bounded in size, and always readable."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from s3notify_platform.engine.stage import staging as stage
from s3notify_platform.engine.stage.staging import Packs, in_order
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.limits import MAX_DEPTH
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.packs import pack_set
from s3notify_platform.table.packs.pack_set import StagedPack
from s3notify_platform.table.pinned_schema import check_size
from s3notify_platform.table.reading import read_slots
from tests.support.log_tables import LAYOUT, Table


def rows(*places: tuple[int, str, int], **more: pa.Array) -> pa.RecordBatch:
    slots, keys, offsets = zip(*places, strict=True)
    return pa.record_batch(
        {
            "_slot": pa.array(slots, pa.int32()),
            "_key": pa.array(keys),
            "_etag": pa.array(["e"] * len(places)),
            "_offset": pa.array(offsets, pa.int64()),
            **more,
        }
    )


def written(store: MemoryObjectStore, *batches: pa.RecordBatch) -> list[StagedPack]:
    with ThreadPoolExecutor(2) as pool:
        packs = Packs(packs=Table(store=store).whole.data, label=7, pool=pool)
        for batch in batches:
            packs.add(batch)
        return [each.staged for each in packs.written(of_rejects=False, split=None)]


def stored(store: MemoryObjectStore, *batches: pa.RecordBatch) -> list[StagedPack]:
    found = written(store, *batches)
    for each in found:
        if each.body:
            store.put(LAYOUT.file(each.add.path), each.body)
    return found


def test_small_packs_are_sent_to_the_driver_and_big_packs_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each small pack would cost a separate PUT, or the driver would have the big packs of all tasks in
    memory.
    """
    store = MemoryObjectStore()
    (small,) = written(store, rows((1, "a", 0)))
    monkeypatch.setattr(pack_set, "CARRIED_PACK_BYTES", 0)
    (big,) = written(store, rows((1, "a", 0)))
    assert small.body
    assert not big.body
    assert [meta.key for meta in list_all(store, LAYOUT.prefix)] == [LAYOUT.file(big.add.path)]


def test_a_failed_slot_is_removed_from_a_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the table would have rows of a slot whose states were not committed, and the slot's next batch would
    add these rows again. A big pack is stored immediately, because a round may have more big packs than the driver's
    memory can hold.
    """
    store = MemoryObjectStore()
    packs = Table(store=store).whole.data
    (whole,) = written(store, rows((1, "a", 0), (2, "b", 0), (2, "b", 1), (3, "c", 0)))
    (small,) = packs.narrowed(whole, frozenset({1, 3}))
    assert (small.slots, store.get(LAYOUT.file(small.add.path))) == ({2: 2}, None)
    monkeypatch.setattr(pack_set, "CARRIED_PACK_BYTES", 0)
    (big,) = packs.narrowed(whole, frozenset({1, 3}))
    assert (big.slots, big.body) == ({2: 2}, b"")
    assert small.body
    store.put(LAYOUT.file(small.add.path), small.body)
    for pack in (small, big):
        (found,) = read_slots(store, LAYOUT, [pack.add], None, rows((1, "a", 0)).schema)
        places = [(row["_slot"], row["_key"], row["_offset"]) for row in found.to_pylist()]
        assert places == [(2, "b", 0), (2, "b", 1)]


def test_rows_in_any_order_are_sorted() -> None:
    """A transform may return rows in any order. Without the sort, the writer of packs would refuse the rows.
    If a pack had the label of another plan, a later batch could not find the rows of an overwritten object.
    """
    store = MemoryObjectStore()
    (pack,) = stored(store, rows((2, "b", 5), (1, "z", 0)), rows((2, "b", 0), (2, "a", 9), (1, "y", 1)))
    assert (pack.slots, pack.add.since, pack.add.until) == ({1: 2, 2: 3}, 7, 7)
    schema = rows((1, "a", 0)).schema
    (found,) = read_slots(store, LAYOUT, [pack.add], None, schema)
    places = zip(*(found.column(name).to_pylist() for name in ("_slot", "_key", "_offset")), strict=True)
    assert [*places] == [(1, "y", 1), (1, "z", 0), (2, "a", 9), (2, "b", 0), (2, "b", 5)]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(["", "a", "b", "\u00e9", "\U0001f642"]), st.integers(0, 3)
        )
    )
)
def test_rows_are_in_the_order_of_keys_in_utf8(places: list[tuple[int, str, int]]) -> None:
    """A merge expects the keys of a pack in the order of code points, which is also the order of UTF-8. If a
    pack had another order, a merge would cut the pack at wrong places.
    """
    if places:
        found = in_order(pa.Table.from_batches([rows(*places)])).to_pylist()
        assert [(row["_slot"], row["_key"], row["_offset"]) for row in found] == sorted(places)


def test_gathered_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "GATHERED_BYTES", 100_000)
    text = pa.array(["x" * 10_000] * 10)
    batches = [rows(*((n, f"{n}", m) for m in range(10)), text=text) for n in range(5)]
    packs = stored(MemoryObjectStore(), *batches)
    assert len(packs) == 5
    assert sum(sum(pack.slots.values()) for pack in packs) == 50


@given(
    kinds=st.lists(st.sampled_from(["list", "map", "struct"]), min_size=MAX_DEPTH - 1, max_size=MAX_DEPTH - 1)
)
@example(kinds=["list", "struct"] * (MAX_DEPTH // 2 - 1) + ["list"])
@example(kinds=["list"] * (MAX_DEPTH - 1))
@example(kinds=["map"] * (MAX_DEPTH - 1))
def test_no_object_makes_unreadable_packs(kinds: list[str]) -> None:
    """Otherwise an object with deeply nested values would make its slot fail in every batch, because an unreadable pack
    is refused. The record itself counts as one level of the depth.
    """
    kind = pa.int64()
    for name in kinds:
        match name:
            case "list":
                kind = pa.list_(kind)
            case "map":
                kind = pa.map_(pa.string(), kind)
            case _:
                kind = pa.struct([("a", kind)])
    check_size(from_arrow_schema(pa.schema([("deep", kind)])).json())
    assert stored(MemoryObjectStore(), rows((1, "k", 0), deep=pa.nulls(1, kind)))


def test_an_unreadable_pack_is_not_stored() -> None:
    """Parquet that is nested too deeply can be written, but not read. If such a pack were committed, every reader of
    its slots would fail.
    """
    store = MemoryObjectStore()
    kind = pa.int64()
    for _ in range(110):
        kind = pa.struct([("a", kind)])
    with pytest.raises(CorruptError, match="could not be read again"):
        stored(store, rows((1, "k", 0), deep=pa.nulls(1, kind)))
    assert not list(list_all(store, ""))
