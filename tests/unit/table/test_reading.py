"""Reading rows of slots from packs: exactly the present rows, distributed evenly to tasks, with few requests."""

import json
import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.limits import BATCH_BYTES, PACK_WHOLE_BYTES
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.arrow_schema import REJECT_SCHEMA, arrow_schema
from s3notify_platform.table.delta.actions import Add
from s3notify_platform.table.delta.metadata import delta_schema
from s3notify_platform.table.packs.pack_file import PackSizes
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.reading import plan_read, read, read_slots
from tests.support.log_rounds import SCHEMA, Rounds, slot_of_key
from tests.support.log_tables import LAYOUT


def rows_of(batches):
    return Counter(tuple(row.items()) for batch in batches for row in batch.to_pylist())


def expected(bucket, slots, *, rejects=False):
    return Counter(
        (("_slot", slot_of_key(key)), ("_key", key), ("_etag", etag), ("_offset", at), ("n", n))
        for key, (etag, numbers) in bucket.items()
        if slots is None or slot_of_key(key) in slots
        for at, n in enumerate(numbers)
        if bool(n % 3) != rejects
    )


def committed(rounds, bucket):
    rounds.commit(rounds.planned(bucket))
    return rounds.table.opened()


objects = st.dictionaries(
    st.builds("{}{}".format, st.sampled_from("abcdef"), st.integers(0, 9)),
    st.lists(st.integers(0, 9), max_size=30).map(tuple),
    max_size=20,
)


@given(
    versions=st.lists(objects, min_size=1, max_size=4),
    slots=st.none() | st.sets(st.integers(0, 6)),
    tasks=st.integers(1, 4),
    vectors=st.booleans(),
    compacted=st.booleans(),
)
def test_exactly_the_present_rows_of_the_slots_are_read(versions, slots, tasks, vectors, compacted):
    store = MemoryObjectStore()
    process = Rounds(store=store, vectors=vectors)
    for number, objects in enumerate(versions):
        bucket = {key: (f"e{number}", numbers) for key, numbers in objects.items()}
        snapshot = committed(process, bucket)
    packs = [*snapshot.packs.values()]
    if compacted and packs:
        packs = process.compacted(packs)
    for live, rejects in ((packs, False), (snapshot.manifest.rejects, True)):
        planned = pickle.loads(pickle.dumps(plan_read(live, slots, tasks=tasks)))
        assert len(planned) <= tasks
        found = [batch for task in planned for batch in read(store, LAYOUT, task, SCHEMA)]
        assert rows_of(found) == expected(bucket, slots, rejects=rejects)
        assert rows_of(read_slots(store, LAYOUT, live, slots, SCHEMA)) == rows_of(found)


BIG = pa.schema([*SCHEMA, pa.field("body", pa.binary()), pa.field("last", pa.int64())])


def big_pack(store, *, slots, rows, name="big", size=1000, group=100_000, first=0):
    """Makes a pack of `slots` slots with `rows` rows each."""
    dice = np.random.default_rng(1)
    count = slots * rows
    columns = [
        pa.array(np.arange(first, first + slots).repeat(rows), pa.int32()),
        pa.array([f"k{n // rows:05}" for n in range(count)]),
        pa.array(["e"] * count),
        pa.array([*range(rows)] * slots, pa.int64()),
        pa.array(range(count), pa.int64()),
        pa.array([dice.bytes(size) for _ in range(count)]),
        pa.array(range(count), pa.int64()),
    ]
    sizes = PackSizes(target=1 << 30, group=group)
    (pack,) = write([pa.table(columns, schema=BIG)], sizes)
    path = LAYOUT.pack_path(name)
    store.put(LAYOUT.file(path), pack.body)
    return pack.add(path, now_ms=1, since=1, until=1)


def counted(store, packs, slots, output=BIG, **given):
    counting = CountingStore(store)
    rows = sum(batch.num_rows for batch in read_slots(counting, LAYOUT, packs, slots, output, **given))
    return rows, counting.counts


def test_slot_of_a_big_pack_takes_its_footer_and_one_range():
    store = MemoryObjectStore()
    packs = [big_pack(store, slots=40, rows=100, name=f"{n}") for n in range(3)]
    assert all(pack.size > 3 * PACK_WHOLE_BYTES for pack in packs)
    assert counted(store, packs, {Slot(17)}) == (300, {"GET": 3 * 2})


def test_reading_a_whole_big_pack_costs_a_get_of_its_footer_and_one_for_each_eight_megabytes():
    store = MemoryObjectStore()
    pack = big_pack(store, slots=100, rows=100, size=2000, group=1 << 20)
    assert 16 << 20 < pack.size < 24 << 20
    assert counted(store, [pack], None) == (10_000, {"GET": 1 + 3})


def test_small_pack_is_read_whole():
    store = MemoryObjectStore()
    pack = big_pack(store, slots=40, rows=10)
    assert pack.size < PACK_WHOLE_BYTES
    assert counted(store, [pack], {Slot(17)}) == (10, {"GET": 1})


def test_pack_without_the_slots_costs_nothing():
    store = MemoryObjectStore()
    assert counted(store, [big_pack(store, slots=40, rows=10)], {Slot(77)}) == (0, {})


def test_bytes_of_unwanted_columns_are_not_read():
    class Bytes(CountingStore):
        read = 0

        def get_range(self, key, start, end):
            self.read += end - start
            return super().get_range(key, start, end)

    store = Bytes(MemoryObjectStore())
    pack = big_pack(store, slots=30, rows=100, size=2000, group=1 << 20)
    store.counts.clear()
    found = [*read_slots(store, LAYOUT, [pack], None, BIG, columns=["_key", "n"])]
    assert found[0].schema.names == ["_key", "n"]
    assert sum(batch.num_rows for batch in found) == 3000
    assert pack.size > 6_000_000
    assert store.read < 300_000, "the footer, and the first columns of each row group"


def test_rows_are_filtered_by_slot_without_a_slot_column_in_the_result():
    store = MemoryObjectStore()
    pack = big_pack(store, slots=40, rows=10)
    rows = [*read_slots(store, LAYOUT, [pack], {Slot(3), Slot(5)}, BIG, columns=["_key"])]
    assert rows_of(rows) == Counter({(("_key", "k00003"),): 10, (("_key", "k00005"),): 10})


def test_big_packs_are_distributed_evenly_and_each_row_is_read_once():
    store = MemoryObjectStore()
    packs = [big_pack(store, slots=40, rows=200, name="a"), big_pack(store, slots=40, rows=300, name="b")]
    for slots in (None, {*range(10, 30)}):
        tasks = plan_read(packs, slots, tasks=4)
        assert len(tasks) == 4
        found = [
            [row for batch in read(store, LAYOUT, task, BIG) for row in batch["n"].to_pylist()]
            for task in tasks
        ]
        counts = [len(rows) for rows in found]
        assert sum(counts) == (500 * 40 if slots is None else 500 * 20)
        assert max(counts) < 1.5 * min(counts)


def test_plan_of_many_tasks_is_small():
    store = MemoryObjectStore()
    pack = big_pack(store, slots=1, rows=1)
    packs = [replace(pack, path=f"data/{n}", size=64 << 20, slots=(0, 999)) for n in range(1000)]
    tasks = plan_read(packs, range(1000), tasks=100)
    assert len(tasks) == 100
    assert max(task.bytes for task in tasks) < 1.2 * min(task.bytes for task in tasks)
    assert max(len(pickle.dumps(task)) for task in tasks) < 8000


def test_small_tables_take_few_tasks():
    store = MemoryObjectStore()
    packs = [big_pack(store, slots=4, rows=10, name=f"{n}") for n in range(20)]
    assert len(plan_read(packs, tasks=100)) == 1
    assert plan_read(packs, [], tasks=100) == plan_read([], tasks=100) == []


def test_bytes_of_a_batch_are_bounded():
    store = MemoryObjectStore()
    pack = big_pack(store, slots=2, rows=30, size=1_000_000, group=1 << 30)
    batches = [*read_slots(store, LAYOUT, [pack], None, BIG)]
    assert sum(batch.num_rows for batch in batches) == 60
    assert max(batch.nbytes for batch in batches) <= BATCH_BYTES


def test_large_row_group_is_read_while_it_is_decoded():
    store = MemoryObjectStore()
    pack = big_pack(store, slots=2, rows=35, size=1_000_000, group=1 << 30)
    rows, counts = counted(store, [pack], {Slot(1)})
    assert rows == 35
    assert counts["GET"] < 30


def test_few_bytes_are_in_flight_while_a_batch_is_consumed():
    class Ahead(CountingStore):
        read = 0

        def get_range(self, key, start, end):
            self.read += end - start
            return super().get_range(key, start, end)

    store = Ahead(MemoryObjectStore())
    packs = [big_pack(store, slots=10, rows=10, size=100_000, name=f"{n}", group=1 << 20) for n in range(12)]
    (task,) = plan_read(packs)
    batches = read(store, LAYOUT, task, BIG)
    next(batches)
    assert store.read < 80 << 20 < sum(pack.size for pack in packs)
    batches.close()


def test_columns_are_cast_and_missing_ones_are_null():
    store = MemoryObjectStore()
    inner = pa.struct([("x", pa.int32())])
    schema = pa.schema([*SCHEMA, pa.field("s", inner)])
    table = pa.table([[1], ["k"], ["e"], [0], [7], [{"x": 1}]], schema=schema)
    (pack,) = write([table])
    path = LAYOUT.pack_path("p")
    store.put(LAYOUT.file(path), pack.body)
    wider = pa.struct([("x", pa.int64()), ("y", pa.string())])
    output = pa.schema([("n", pa.float64()), ("s", wider), ("new", pa.date32())])
    (batch,) = read_slots(store, LAYOUT, [pack.add(path, now_ms=1, since=1, until=1)], None, output)
    assert batch.to_pylist() == [{"n": 7.0, "s": {"x": 1, "y": None}, "new": None}]


def test_rows_are_counted_if_no_pack_has_the_columns():
    store = MemoryObjectStore()
    output = pa.schema([("new", pa.int64())])
    batches = [*read_slots(store, LAYOUT, [big_pack(store, slots=3, rows=5)], {Slot(1)}, output)]
    assert [row for batch in batches for row in batch.to_pylist()] == [{"new": None}] * 5


@pytest.mark.parametrize("rows", [10, 400])
def test_missing_or_damaged_pack_is_named(rows):
    store = MemoryObjectStore()
    pack = big_pack(store, slots=10, rows=rows)
    key, body = LAYOUT.file(pack.path), store.get(LAYOUT.file(pack.path)).body
    damages = {
        "is missing": lambda: store.delete(key),
        "bytes instead of": lambda: store.put(key, body[:-1000]),
        "not a Parquet file": lambda: store.put(key, b"x" * len(body)),
        "damaged": lambda: store.put(key, body[:4] + b"\xff" * (len(body) - 100_004) + body[-100_000:]),
    }
    for why, damage in damages.items():
        damage()
        with pytest.raises(CorruptError, match=f"{pack.path}.*{why}"):
            [*read_slots(store, LAYOUT, [pack], None, BIG)]
    store.put(key, body)
    with pytest.raises(CorruptError, match="the log says 1"):
        [*read_slots(store, LAYOUT, [replace(pack, rows=1)], None, BIG)]


def test_pack_of_another_engine_is_filtered_by_its_row_groups():
    store = MemoryObjectStore()
    pack = big_pack(store, slots=40, rows=100)
    theirs = Add.of({"path": pack.path, "size": pack.size, "modificationTime": 1})
    assert counted(store, [theirs], {Slot(17)}) == (100, {"GET": 2})


def test_schema_of_the_table_is_that_of_its_rows():
    fields = [
        {"name": "d", "type": "decimal(10,2)"},
        {"name": "t", "type": "timestamp"},
        {"name": "a", "type": {"type": "array", "elementType": "long", "containsNull": True}},
        {
            "name": "m",
            "type": {
                "type": "map",
                "keyType": "string",
                "valueType": {"type": "struct", "fields": [{"name": "x", "type": "date"}]},
                "valueContainsNull": True,
            },
        },
    ]
    schema = delta_schema(json.dumps({"type": "struct", "fields": fields})).schema
    assert arrow_schema(schema) == pa.schema(
        [
            *list(SCHEMA)[:4],
            ("d", pa.decimal128(10, 2)),
            ("t", pa.timestamp("us", "UTC")),
            ("a", pa.list_(pa.int64())),
            ("m", pa.map_(pa.string(), pa.struct([("x", pa.date32())]))),
        ]
    )
    assert REJECT_SCHEMA.names[:4] == arrow_schema(schema).names[:4]


def test_footer_longer_than_usual_takes_a_second_request():
    store = MemoryObjectStore()
    pack = big_pack(store, slots=300, rows=10, size=1000, group=5000)
    assert pack.size > PACK_WHOLE_BYTES
    assert counted(store, [pack], {Slot(17)}) == (10, {"GET": 3})


def test_rows_hidden_by_a_vector_in_a_file_are_left_out(monkeypatch):
    monkeypatch.setattr("s3notify_platform.table.delta.vectors.INLINE_BYTES", 0)
    store = MemoryObjectStore()
    process = Rounds(store=store, vectors=True)
    bucket = {f"a{n:03}": ("e", (1,)) for n in range(100)}
    committed(process, bucket)
    for key in [*bucket][::5]:
        bucket[key] = ("new", (2, 4))
    snapshot = committed(process, bucket)
    assert "u" in {pack.vector.storage for pack in snapshot.packs.values() if pack.vector}
    found = read_slots(store, LAYOUT, snapshot.packs.values(), None, SCHEMA)
    assert rows_of(found) == expected(bucket, None)
