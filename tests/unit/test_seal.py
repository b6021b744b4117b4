"""Files of a slot over many commits: merged when small, rewritten when rows leave, and nothing else touched."""

from s3notify_platform.protocols.conditional_commit import Committed
from s3notify_platform.spark.seal import MAX_SMALL_FILES
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.reader import read_slots
from tests.support.slot_writer import (
    SLOT,
    Body,
    SlotWriter,
    content_in,
    content_of,
    history_of,
    slot_table,
)


def test_small_files_are_merged() -> None:
    """Many small commits do not leave as many files behind, of rows or of rejects."""
    writer, bucket = SlotWriter(store=MemoryObjectStore()), {}
    for number in range(40):
        bucket[f"{number}"] = Body(etag="1", rows=1, rejects=1)
        assert isinstance(writer.run(bucket), Committed)
        head = history_of(writer.table)[-1]
        assert max(len(head.files), len(head.rejects)) <= MAX_SMALL_FILES
        assert head.rows == number + 1
    assert content_in(writer.table) == content_of(bucket)


def test_only_files_with_leaving_rows_are_rewritten() -> None:
    """An overwritten object costs its own files, not the slot's: 1 GET of the head, 1 of each such file."""
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
    commit = writer.seal(planned, bucket)
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
