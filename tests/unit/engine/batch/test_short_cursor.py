"""The cursor that Dagster stores, and the record that it names."""

from dataclasses import replace

import pytest

from s3notify_platform.engine.batch import short_cursor
from s3notify_platform.engine.batch.batches import SensorState
from s3notify_platform.engine.batch.short_cursor import MOVED_MAX, RECORD, ShortCursor
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.keyspace import WatcherState
from s3notify_platform.protocols.source_enumerator.rescan import PARTITION
from s3notify_platform.stores.memory import MemoryRecordStore

SHORT = 2500


@pytest.fixture(autouse=True)
def _another_process() -> None:
    short_cursor._kept.cache_clear()


def seen(state: SensorState, slots: range, tag: str = "e") -> SensorState:
    signals = {Slot(slot): ETag(f"{tag}{slot}") for slot in slots}
    return replace(state, watch=state.watch.advance(signals, signals).at_root(ETag(tag)))


def names(records: MemoryRecordStore) -> list[str]:
    return [record.key for record in records.scan(PARTITION, prefix=RECORD)]


def test_few_moved_slots_are_in_the_cursor() -> None:
    """If few slots have moved, no record is needed."""
    records = MemoryRecordStore()
    cursor = ShortCursor(records=records)
    state = seen(SensorState(epoch="e"), range(MOVED_MAX))
    text = cursor.dumps(state, "")
    assert (cursor.loads(text), names(records), len(text) < SHORT) == (state, [], True)


def test_many_moved_slots_are_in_a_record() -> None:
    """A process reads the record once, and the cursor stays short while further slots move."""
    records = MemoryRecordStore()
    cursor = ShortCursor(records=records)
    state = seen(SensorState(epoch="e"), range(1000))
    text = cursor.dumps(state, "")
    assert len(names(records)) == 1
    later = seen(state, range(20), "f")
    after = cursor.dumps(later, text)
    assert (len(text) < SHORT, len(after) < SHORT) == (True, True)
    short_cursor._kept.cache_clear()
    assert cursor.loads(text) == state
    assert cursor.loads(after) == later
    assert len(names(records)) == 1


def test_a_repeated_tick_finds_the_record_of_its_cursor() -> None:
    """A record is removed only after Dagster has stored a cursor that names another record."""
    records = MemoryRecordStore()
    cursor = ShortCursor(records=records)
    first = seen(SensorState(epoch="e"), range(1000))
    stored = cursor.dumps(first, "")
    second = seen(first, range(500), "f")
    for _ in range(2):  # the first of these cursors is lost
        short_cursor._kept.cache_clear()
        assert cursor.loads(stored) == first
        newer = cursor.dumps(second, stored)
    assert len(names(records)) == 2
    assert cursor.loads(newer) == second
    newest = cursor.dumps(second, newer)
    assert len(names(records)) == 1
    short_cursor._kept.cache_clear()
    assert cursor.loads(newest) == second


def test_a_lost_record_costs_a_look_at_all_slots() -> None:
    """Only the signals in the cursor itself count as seen, and the next poll lists the signals."""
    records = MemoryRecordStore()
    cursor = ShortCursor(records=records)
    text = cursor.dumps(seen(SensorState(epoch="e"), range(1000)), "")
    (record,) = records.scan(PARTITION)
    records.remove(PARTITION, record.key, expected=record.version)
    short_cursor._kept.cache_clear()
    state = cursor.loads(text)
    assert state.watch == WatcherState()
    assert cursor.loads(cursor.dumps(state, text)) == state


def test_entries_are_kept_too() -> None:
    """With `signals: root`, the watcher's state also has `entries`, which the cursor and its record must keep."""
    records = MemoryRecordStore()
    cursor = ShortCursor(records=records)
    watch = replace(WatcherState(slots=50), entries=bytes(range(200)) * 2, listed_root=ETag("l"))
    state = SensorState(epoch="e", watch=watch)
    assert cursor.loads(cursor.dumps(state, "")) == state
    assert len(names(records)) == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"watch": {}}', '{"watch": {"slots": "x"}}'])
def test_another_text_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(CorruptError, match="reset it in the UI"):
        ShortCursor(records=MemoryRecordStore()).loads(text)
