"""Rounds: which slots are reported, and which entries may leave the queue. Pure."""

from s3notify_platform.engine.loop import Round
from s3notify_platform.engine.values.results import SlotResult
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry, Event
from s3notify_platform.protocols.notification_queue.entries import Place

COMMITTED, FAILED, INCOMPLETE, OF_ONE_TABLE = map(Slot, range(4))


def entry(slot: Slot) -> Entry:
    place = Place(topic="t", epoch="e", shard=0, key="id.all", quota=0)
    return Entry(place=place, n=slot, slot=slot, state="committed", event=Event(key="k"))


def test_only_what_is_taken_in_whole_leaves_the_queue() -> None:
    """Entries of slots that failed, or were not finished, stay. What fails in a derived table alone delays nothing."""
    done = {slot: SlotResult(slot=slot, status="committed") for slot in (COMMITTED, OF_ONE_TABLE)}
    failed = {FAILED: SlotResult(slot=FAILED, status="failed", error="why")}
    unfinished = {INCOMPLETE: SlotResult(slot=INCOMPLETE, status="committed", complete=False)}
    derived = {
        COMMITTED: done[COMMITTED],
        OF_ONE_TABLE: SlotResult(slot=OF_ONE_TABLE, status="failed", error="its transform"),
    }
    one = Round(
        tables=iter(()),
        entries={slot: [entry(slot)] for slot in (COMMITTED, FAILED, INCOMPLETE, OF_ONE_TABLE)},
        results={"orders": done | failed | unfinished, "paid_orders": derived},
    )
    assert one.bad() == [FAILED]
    assert one.good() == [COMMITTED, INCOMPLETE, OF_ONE_TABLE]
    assert one.incomplete() == {INCOMPLETE}
    assert [each.slot for each in one.done_entries()] == [COMMITTED, OF_ONE_TABLE]
    assert {name: list(results) for name, results in one.failed().items()} == {
        "orders": [FAILED],
        "paid_orders": [OF_ONE_TABLE],
    }
