"""Rounds: which slots are reported, which entries leave the queue, and the order of the steps after a commit."""

from concurrent.futures import ThreadPoolExecutor

from s3notify_platform.engine.loop import Round, StagedTable, commit_rounds
from s3notify_platform.engine.values.results import SlotResult
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry, Event, NotificationQueue, TopicSettings
from s3notify_platform.protocols.notification_queue.entries import Place
from s3notify_platform.stores.memory import MemoryRecordStore

COMMITTED, FAILED, INCOMPLETE, OF_ONE_TABLE = map(Slot, range(4))


def entry(slot: Slot) -> Entry:
    place = Place(topic="t", epoch="e", shard=0, key="id.all", quota=0)
    return Entry(place=place, n=slot, slot=slot, state="committed", event=Event(key="k"))


def test_only_entries_of_completely_read_slots_leave_the_queue() -> None:
    """Entries of failed or unfinished slots stay. If only a derived table fails, the entries leave the queue."""
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


def test_removed_entries_free_their_space() -> None:
    """The space of removed entries is released in the background. After the thread pool has ended, the space is
    available again.
    """
    queue = NotificationQueue(MemoryRecordStore())
    queue.topics.create("t", TopicSettings(shards=1))
    for n in range(3):
        queue.push("t", Event(key=f"k{n}"))
    before = queue.stats("t")
    entries: dict[Slot, list[Entry]] = {}
    for each in queue.entries("t", range(1000)):
        entries.setdefault(Slot(each.slot), []).append(each)
    done = {slot: SlotResult(slot=slot, status="committed") for slot in entries}
    steps: list[str] = []
    round_ = Round(tables=iter([StagedTable(name="orders", commit=lambda: done)]), entries=entries)
    with ThreadPoolExecutor(1) as beside:
        rounds = commit_rounds(
            [round_],
            queue=queue,
            beside=beside,
            report=lambda _: steps.append(f"reported, {queue.stats('t').depth} entries"),
            settle=lambda _: steps.append(f"settled, {queue.stats('t').depth} entries"),
        )
        assert [*rounds] == [round_]
    assert steps == ["reported, 3 entries", "settled, 0 entries"]
    assert before.counted - queue.stats("t").counted == 3
