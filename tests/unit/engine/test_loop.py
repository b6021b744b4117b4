"""Rounds: which slots are reported, which entries leave the queue, and the order of the steps after a commit."""

import ast
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from s3notify_platform import engine
from s3notify_platform.engine.loop import Round, StagedTable, Steps, close, commit_rounds
from s3notify_platform.engine.values.results import SlotResult
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry, Event, NotificationQueue, TopicSettings
from s3notify_platform.protocols.notification_queue.entries import Place
from s3notify_platform.stores.memory import MemoryRecordStore

COMMITTED, FAILED, INCOMPLETE, OF_ONE_TABLE = map(Slot, range(4))


def entry(slot: Slot) -> Entry:
    place = Place(topic="t", epoch="e", shard=0, key="id.all", quota=0)
    return Entry(place=place, n=slot, slot=slot, state="committed", event=Event(key="k"))


ORDER = ["ask_again", "note_writers", "note_open", "settle", "acknowledge"]


class Recorded:
    """A driver that only records the names of its steps."""

    def __init__(self, record: Callable[[str], None]) -> None:
        self._record = record

    def ask_again(self, slots: Iterable[Slot]) -> None:
        self._record("ask_again")

    def note_writers(self, done: Round) -> None:
        self._record("note_writers")

    def note_open(self, done: Round) -> None:
        self._record("note_open")

    def settle(self, done: Round) -> None:
        self._record("settle")

    def acknowledge(self, done: Round) -> None:
        self._record("acknowledge")


def test_only_entries_of_completely_read_slots_leave_the_queue() -> None:
    """Without the entries of failed or unfinished slots, a retry of such a slot would not find the changed
    objects. If entries stayed because a derived table has failed, each batch of the source would look at
    committed objects again.
    """
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
    """Otherwise the topic would count removed entries until a reconciler recounts them, and a topic with free space
    could refuse new entries. The space is released in the background, so that no step after a commit waits for the
    release.
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
            steps=Recorded(lambda step: steps.append(f"{step}, {queue.stats('t').depth} entries")),
        )
        assert [*rounds] == [round_]
    assert steps == ["reported, 3 entries", *(f"{step}, 0 entries" for step in ORDER)]
    assert before.counted - queue.stats("t").counted == 3


@pytest.mark.parametrize("closes", [True, False], ids=["by round", "by batch"])
def test_steps_after_a_commit_have_one_order(closes: bool) -> None:
    """If the steps had another order, a crash could leave a committed slot without a report, or a failed slot
    without a retry. Some drivers take the last steps once for the whole batch. If these steps lacked the
    results of a round, the round's failed slots would not be retried.
    """
    steps: list[str] = []
    results = [
        {COMMITTED: SlotResult(slot=COMMITTED, status="committed")},
        {FAILED: SlotResult(slot=FAILED, status="failed", error="why")},
    ]

    def staged(number: int) -> StagedTable:
        def commit() -> dict[Slot, SlotResult]:
            steps.append(f"commit {number}")
            return results[number]

        return StagedTable(name="orders", commit=commit)

    whole, recorded = Round(tables=iter(())), Recorded(steps.append)
    with ThreadPoolExecutor(1) as beside:
        for each in commit_rounds(
            [Round(tables=iter([staged(n)]), unannounced=n + 1) for n in range(2)],
            queue=NotificationQueue(MemoryRecordStore()),
            beside=beside,
            steps=recorded,
            closes=closes,
        ):
            whole.add(each)
    if not closes:
        close(whole, recorded)
    assert (whole.good(), whole.bad(), whole.unannounced) == ([COMMITTED], [FAILED], 3)
    last = ORDER[1:]
    by_round = [step for n in range(2) for step in (f"commit {n}", *ORDER)]
    by_batch = ["commit 0", "ask_again", "commit 1", "ask_again", *last]
    assert steps == (by_round if closes else by_batch)


def test_only_the_loop_calls_the_steps_after_a_commit() -> None:
    """Otherwise a second driver could use another order. Only these steps call the backlog's own methods."""
    assert {name for name in vars(Steps) if not name.startswith("_")} == {*ORDER}
    package = Path(engine.__file__).parents[1]
    calls: list[str] = []
    for file in ("spark/continuous.py", "orchestration/io_manager.py", "orchestration/assets.py"):
        for node in ast.walk(ast.parse((package / file).read_text())):
            if isinstance(node, ast.Call):
                name = (
                    node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                )
                if name in {*ORDER[1:], "note_failed", "enumerated", "stamp_children", "remove"}:
                    calls.append(f"{file}:{node.lineno}: {name}")
    assert calls == []
