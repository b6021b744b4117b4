"""The cursor that Dagster stores, and the record that the cursor names."""

from dataclasses import replace

import pytest

from s3notify_platform.engine.batch import short_cursor
from s3notify_platform.engine.batch.batches import Failing, SensorState
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


def test_few_changed_slots_are_in_the_cursor() -> None:
    """Otherwise every small batch would cost a write of a record, and later a read and a removal."""
    records = MemoryRecordStore()
    cursor = ShortCursor(records=records)
    state = seen(SensorState(epoch="e"), range(MOVED_MAX))
    text = cursor.dumps(state, "")
    assert (cursor.loads(text), names(records), len(text) < SHORT) == (state, [], True)


def test_many_changed_slots_are_in_a_record() -> None:
    """Otherwise the cursor would have 11 KB of digests, which is too long for Dagster's UI. If a few further changes
    caused another record, every small batch would cost three more requests.
    """
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
    """A record is removed only after Dagster has stored a cursor that names another record. If a repeated tick did not
    find its record, the tick would look at all slots again.
    """
    records = MemoryRecordStore()
    cursor = ShortCursor(records=records)
    first = seen(SensorState(epoch="e"), range(1000))
    stored = cursor.dumps(first, "")
    second = seen(first, range(500), "f")
    for _ in range(2):  # the cursor of the first pass is lost
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
    """Without the record, the seen signals are unknown. If the root still counted as seen, the next poll would list no
    signals, and a changed slot could wait until the root moves again.
    """
    records = MemoryRecordStore()
    cursor = ShortCursor(records=records)
    text = cursor.dumps(seen(SensorState(epoch="e"), range(1000)), "")
    (record,) = records.scan(PARTITION)
    records.remove(PARTITION, record.key, expected=record.version)
    short_cursor._kept.cache_clear()
    state = cursor.loads(text)
    assert state.watch == WatcherState()
    assert cursor.loads(cursor.dumps(state, text)) == state


def failing(count: int, tag: str = "") -> SensorState:
    """A state in which each failing slot has a long reason of its own."""
    slots = {
        slot: Failing(
            attempts=5, not_before_ms=1_700_000_000_000 + slot, reason=f"{tag}{slot} " * 60, group=slot
        )
        for slot in range(count)
    }
    return SensorState(epoch="e", enumerated="t", failing=slots)


@pytest.mark.parametrize(("count", "records_needed"), [(0, 0), (3, 0), (1000, 1)])
def test_failing_slots_with_long_reasons_leave_the_cursor_short(count: int, records_needed: int) -> None:
    """Every slot of a source may fail, each for a different reason. If the cursor itself had all reasons, the cursor
    would be too long for Dagster's UI.
    """
    records = MemoryRecordStore()
    cursor = ShortCursor(records=records)
    text = cursor.dumps(failing(count), "")
    assert len(text) < SHORT
    assert len(names(records)) == records_needed
    short_cursor._kept.cache_clear()
    assert cursor.loads(text) == failing(count)
    again = cursor.dumps(cursor.loads(text), text)
    assert (cursor.loads(again), len(names(records))) == (failing(count), records_needed)


def test_the_record_of_failing_slots_is_removed_later() -> None:
    """A repeated tick must find the record of its cursor. When no slot fails any more, no record remains."""
    records = MemoryRecordStore()
    cursor = ShortCursor(records=records)
    text = cursor.dumps(failing(500), "")
    newer = cursor.dumps(failing(500, "other "), text)
    short_cursor._kept.cache_clear()
    assert (cursor.loads(text), cursor.loads(newer)) == (failing(500), failing(500, "other "))
    well = cursor.dumps(failing(0), newer)
    assert cursor.loads(newer) == failing(500, "other ")
    assert cursor.loads(cursor.dumps(failing(0), well)) == failing(0)
    assert names(records) == []


def test_a_lost_record_of_failing_slots_costs_a_comparison_of_everything() -> None:
    """Nobody knows any more which slots must be requested again."""
    records = MemoryRecordStore()
    cursor = ShortCursor(records=records)
    text = cursor.dumps(failing(1000), "")
    (record,) = records.scan(PARTITION)
    records.remove(PARTITION, record.key, expected=record.version)
    short_cursor._kept.cache_clear()
    assert cursor.loads(text) == SensorState(epoch="e", enumerated="")


def test_entries_are_kept_too() -> None:
    """With `signals: root`, the watcher's state also has `entries`, which the cursor and its record must keep."""
    records = MemoryRecordStore()
    cursor = ShortCursor(records=records)
    watch = replace(WatcherState(slots=50), entries=bytes(range(200)) * 2, listed_root=ETag("l"))
    state = SensorState(epoch="e", watch=watch)
    assert cursor.loads(cursor.dumps(state, "")) == state
    assert len(names(records)) == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"watch": {}}', '{"watch": {"slots": "x"}}'])
def test_a_text_that_is_no_cursor_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(CorruptError, match="reset the cursor in the UI"):
        ShortCursor(records=MemoryRecordStore()).loads(text)
