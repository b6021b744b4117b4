"""Files of a slot over many commits: merged when small, rewritten when rows leave, and nothing else touched."""

import os
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from s3notify_platform.errors import CorruptError
from s3notify_platform.ingest import slot_files
from s3notify_platform.ingest.outcome import Outcome, joined
from s3notify_platform.ingest.slot_files import SMALL_FILE_BYTES, new_files
from s3notify_platform.ingest.wire import READ, FailedSlot, Lineage, Read, ReadObject, Staged, StagedSlot
from s3notify_platform.limits import MAX_DEPTH
from s3notify_platform.ports import Written, list_all
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import TableFile
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.reader import read_slots
from s3notify_platform.table.schema import check_size
from tests.support.slot_writer import (
    SLOT,
    Body,
    SlotWriter,
    content_in,
    content_of,
    history_of,
    slot_table,
)


def test_a_slot_of_little_is_one_file() -> None:
    """Of rows, and one of rejects, after as many small commits as may be."""
    writer, bucket = SlotWriter(store=MemoryObjectStore()), {}
    for number in range(40):
        bucket[f"{number}"] = Body(etag="1", rows=1, rejects=1)
        assert isinstance(writer.run(bucket), Written)
        head = history_of(writer.table)[-1]
        assert (len(head.files), len(head.rejects)) == (1, 1)
        assert head.rows == number + 1
    assert content_in(writer.table) == content_of(bucket)


def test_a_slot_that_grows_has_few_files_and_writes_rows_again_few_times() -> None:
    """Both by the logarithm of its bytes; what is large stays as it is."""
    table, total, written = slot_table(MemoryObjectStore()), 0, 0
    files: tuple[TableFile, ...] = ()
    for number in range(150):
        data, _ = new_files(table, SLOT, Generation(number + 1))
        rows = pa.table({"_key": [f"{number}"], "bytes": [os.urandom(200 << 10)]})
        data.add(rows)
        total += rows.nbytes
        replaced = data.replace(files, (), ())
        large = {file.name for file in files if file.bytes >= SMALL_FILE_BYTES}
        assert not replaced & large
        files = (*(file for file in files if file.name not in replaced), *data.written)
        written += sum(file.bytes for file in data.written)
        small = [file for file in files if file.bytes < SMALL_FILE_BYTES]
        assert len(small) <= 6
        assert sum(file.rows for file in files) == number + 1
    assert len(files) <= total / SMALL_FILE_BYTES + 6
    assert written <= 6 * total


def test_only_files_with_leaving_rows_are_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """An overwritten object costs its own files, not the slot's: 1 GET of the head, 1 of each such file."""
    monkeypatch.setattr(slot_files, "MERGED_BYTES", 0)
    memory = MemoryObjectStore()
    bucket = {"a": Body(etag="1", rows=2), "b": Body(etag="1", rows=2)}
    SlotWriter(store=memory).run(bucket)
    bucket["c"] = Body(etag="1", rows=2)
    SlotWriter(store=memory).run(bucket)
    bucket["c"] = Body(etag="2", rows=1)
    store = CountingStore(memory)
    writer = SlotWriter(store=store)
    planned = writer.plan(bucket)
    store.counts.clear()
    commit = writer.stage(planned, bucket)
    assert commit is not None
    assert store.counts == {"GET": 2, "PUT": 1}
    before = history_of(slot_table(memory))[-1]
    assert before.files[0] in commit.files
    assert before.files[1] not in commit.files
    assert [state.key for state in commit.deltas] == ["a", "b", "c"]


def test_all_rows_leave() -> None:
    """Then no file is left, and the objects' states are gone."""
    memory = MemoryObjectStore()
    bucket = {"a": Body(etag="1", rows=2, rejects=1), "b": Body(etag="1", rows=0)}
    SlotWriter(store=memory).run(bucket)
    SlotWriter(store=memory).run({})
    head = history_of(slot_table(memory))[-1]
    assert (head.files, head.rejects, head.rows) == ((), (), 0)
    assert slot_table(memory).states(head) == {}
    assert next(iter(read_slots(slot_table(memory), [SLOT]))).table.num_rows == 0


def test_objects_that_gave_nothing_are_counted() -> None:
    """As long as they are there, and give nothing; those that were not read to their end may still give something."""
    writer = SlotWriter(store=MemoryObjectStore())
    bucket = {
        "header": Body(etag="1", rows=0),
        "other": Body(etag="1", rows=0),
        "rejects": Body(etag="1", rows=0, rejects=1),
        "rows": Body(etag="1", rows=1),
    }
    counted = []
    for changed in ({}, {"other": Body(etag="2", rows=2)}, {"rows": Body(etag="2", rows=0)}):
        writer.run(bucket | changed)
        bucket |= changed
        counted.append(history_of(writer.table)[-1].without_records)
    del bucket["header"]
    writer.run(bucket)
    assert [*counted, history_of(writer.table)[-1].without_records] == [2, 1, 2, 1]


def file(name: str) -> TableFile:
    return TableFile(name=name, rows=1, bytes=1)


def part(start: int, offset: int, **fields: object) -> Outcome:
    found = Outcome.whole("ok", "e", 100, start=start, offset=offset, reach_end=offset == 100)
    return replace(found, **fields)  # type: ignore[arg-type] - as the test names them


def test_parts_of_an_object_are_joined() -> None:
    """In whatever order they come: rows add up, and reading goes on behind the last."""
    found = joined(
        [part(50, 100, rows=2, data=(file("b"),)), part(0, 55, rows=1, rejects=1, data=(file("a"),))],
        whole=False,
    )
    assert (found.status, found.rows, found.rejects, found.data) == ("ok", 3, 1, (file("a"), file("b")))
    assert (found.start, found.offset, found.reach_end, found.failed) == (0, 100, True, "")


def test_what_comes_after_a_part_that_failed_is_left() -> None:
    """What was read without a gap counts, with its files; behind the failure nothing does. Or, whole, nothing."""
    failed = part(30, 30, status="failed", reason="why", reach_end=False)
    parts = [part(60, 100, rows=4, data=(file("c"),)), failed, part(0, 31, rows=1, data=(file("a"),))]
    found = joined(parts, whole=False)
    assert (found.status, found.rows, found.data) == ("ok", 1, (file("a"),))
    assert (found.offset, found.reach_end, found.failed) == (31, False, "why")
    assert joined(parts, whole=True).status == "failed"
    first = joined([replace(failed, start=0), part(60, 100)], whole=False)
    assert (first.status, first.reason, first.rows) == ("failed", "why", 0)


@pytest.mark.parametrize("status", ["superseded", "deleted"])
def test_one_part_of_another_version_is_all_of_another_version(status: str) -> None:
    found = joined([part(0, 50, rows=3, data=(file("a"),)), part(50, 50, status=status)], whole=False)
    assert (found.status, found.rows, found.data) == (status, 0, ())


def test_parts_of_what_can_only_be_read_from_its_beginning() -> None:
    """The first part has read it all; the others have found out that they cannot."""
    beside = part(50, 0, status="by_record", by_record=True, reach_end=False)
    found = joined([beside, part(0, 7, by_record=True, reach_end=False, rows=7)], whole=False)
    assert (found.status, found.rows, found.offset) == ("ok", 7, 7)
    assert not found.reach_end
    assert not found.failed


def test_no_progress_is_a_failure() -> None:
    """A round that does not get past where it began would be followed by others like it."""
    found = joined([part(10, 10, reach_end=False)], whole=False)
    assert found.status == "failed"
    assert "raise max_bytes" in found.reason


def test_a_slot_goes_on_in_the_next_window() -> None:
    """What is fetched in windows comes window by window: outcomes, then rows, then more outcomes."""
    memory = MemoryObjectStore()
    writer = SlotWriter(store=memory)
    bucket = {f"{n}": Body(etag="1", rows=2, rejects=1) for n in range(7)}
    planned = writer.plan(bucket)
    commit = writer.stage(planned, bucket, window=3)
    assert commit is not None
    assert isinstance(writer.commit(planned, commit), Written)
    assert content_in(writer.table) == content_of(bucket)


def staged(*records: Read, transformed: bool = False) -> Staged:
    """What a slot makes of these records, of which each row has its key as its value."""
    writer = SlotWriter(store=MemoryObjectStore())
    stage = writer.slot_stage(writer.plan({}), transformed=transformed)
    stage.add(READ.batch(records).append_column("value", pa.array([one.key for one in records])))
    return stage.finish()


def outcome(key: str, start: int, offset: int, **fields: object) -> ReadObject:
    return ReadObject(slot=SLOT, key=key, outcome=part(start, offset, **fields))


def row(key: str, offset: int) -> Lineage:
    return Lineage(slot=SLOT, key=key, etag="e", offset=offset)


def test_rows_that_do_not_arrive_are_noticed() -> None:
    """Nothing is committed of a slot to which fewer rows, or more, came than were parsed."""
    rows = [row("k", 0), row("k", 7), row("k", 14)]
    for arrived in (1, 3):
        found = staged(outcome("k", 0, 100, rows=2), *rows[:arrived])
        assert isinstance(found, FailedSlot)
        assert f"2 rows were parsed and {arrived} arrived" in found.error
    assert isinstance(staged(outcome("k", 0, 100, rows=2), *rows[:2]), StagedSlot)


def test_nothing_is_appended_to_another_version() -> None:
    """A part that is not the first needs what is before it, of the same version, in the table."""
    found = staged(outcome("k", 50, 100, rows=1), row("k", 50))
    assert isinstance(found, FailedSlot)
    assert "read on from 50, and no such version is committed" in found.error


def test_of_an_object_that_was_read_in_part_a_transform_keeps_nothing() -> None:
    """Its rows came, and then the rest of it failed: it is asked for again, whole. The others are there."""
    failed = outcome("half", 50, 50, status="failed", reason="why", reach_end=False)
    found = staged(
        outcome("half", 0, 50, rows=1),
        failed,
        outcome("whole", 0, 100, rows=1),
        row("half", 0),
        row("whole", 0),
        transformed=True,
    )
    assert isinstance(found, StagedSlot)
    assert (found.result.objects, found.result.failed_objects) == (1, {"half": "why"})
    assert found.commit is not None
    assert found.commit.rows == 1


@given(
    kinds=st.lists(st.sampled_from(["list", "map", "struct"]), min_size=MAX_DEPTH - 1, max_size=MAX_DEPTH - 1)
)
@example(kinds=["list", "struct"] * (MAX_DEPTH // 2 - 1) + ["list"])
@example(kinds=["list"] * (MAX_DEPTH - 1))
@example(kinds=["map"] * (MAX_DEPTH - 1))
def test_no_object_makes_files_that_nobody_could_open(kinds: list[str]) -> None:
    """As deep as a schema may be that objects give, the record itself included, in whatever types."""
    kind = pa.int64()
    for name in kinds:
        match name:
            case "list":
                kind = pa.list_(kind)
            case "map":
                kind = pa.map_(pa.string(), kind)
            case _:
                kind = pa.struct([("a", kind)])
    store = MemoryObjectStore()
    check_size(from_arrow_schema(pa.schema([("deep", kind)])).json())
    data, _ = new_files(slot_table(store), SLOT, Generation(1))
    data.add(pa.table({"_key": ["k"], "deep": pa.nulls(1, kind)}))
    data.flush()
    assert data.written


def test_a_file_that_nobody_could_open_is_not_uploaded() -> None:
    """Parquet that is nested too deeply can be written and not read."""
    store = MemoryObjectStore()
    kind = pa.int64()
    for _ in range(110):
        kind = pa.struct([("a", kind)])
    data, _ = new_files(slot_table(store), SLOT, Generation(1))
    data.add(pa.table({"_key": ["k"], "deep": pa.nulls(1, kind)}))
    with pytest.raises(CorruptError, match="could not be read again"):
        data.flush()
    assert not list(list_all(store, ""))
