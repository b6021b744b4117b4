"""Batches of a process that remembers heads, over a real server: it lists for none twice, and is never misled."""

from collections import Counter
from typing import Any

import pytest

from s3notify_platform.ingest.engine import Ingest
from s3notify_platform.ingest.results import BatchResult
from s3notify_platform.ingest.rounds import commit_round
from s3notify_platform.protocols.notification_queue import Event, TopicSettings
from s3notify_platform.slots import Slot, slot_of
from s3notify_platform.table.heads import MAX_RUN_SECONDS
from s3notify_platform.table.vacuum import vacuum
from tests.support.clocks import HandClock
from tests.support.ingested import Place
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server

pytestmark = pytest.mark.server

SLOT = slot_of("raw/a", 4)


class Process:
    """One that lives on: a memory belongs to a clock."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.clock = HandClock()

    def run(self, *slots: Slot) -> BatchResult:
        return self.place.ingest(self.clock).run(slots or (SLOT,), batch="b")

    def die_before_it_notes(self) -> None:
        """A run that commits, and says so nowhere."""
        for each in self.place.ingest(self.clock).rounds([SLOT], batch="b"):
            commit_round(each)


@pytest.fixture
def place(ministack: S3Server) -> Place:
    return Place(ministack)


def generation_in(result: BatchResult) -> int:
    return result.slots[SLOT].generation


def test_the_second_batch_lists_nothing_but_the_bucket(place: Place) -> None:
    """A slot that has changed takes 1 GET, and one that has not 1 HEAD more."""
    process, slots = Process(place), place.source.location.all_slots()
    place.put("a", 1)
    assert process.run(*slots).requests["LIST"] == 1 + 1
    place.put("a", 2)
    second = process.run(*slots)
    assert (second.requests["LIST"], second.requests["HEAD"]) == (1, 3)
    assert place.values() == Counter([2])
    assert (process.run(SLOT).requests["LIST"], generation_in(process.run(SLOT))) == (1, 2)
    assert Process(place).run(*slots).requests["LIST"] == 1 + 1, "another process"


def test_entries_that_are_followed(place: Place) -> None:
    """The second batch lists the queue, and neither bucket nor heads."""
    process, queue = Process(place), place.source.location.queue()
    queue.topics.create("orders", TopicSettings(prefix="raw/", slots=4))
    listed = []
    for value in (1, 2):
        place.put("a", value)
        queue.commit(queue.reserve("orders", Event(key="raw/a")))
        result = place.ingest(process.clock).run([SLOT], batch="b", listing=False)
        queue.remove(result.entries[SLOT])
        listed.append(result.requests["LIST"])
    assert place.values() == Counter([2])
    assert listed[0] == listed[1] + 1


@pytest.mark.parametrize("noted", [True, False])
def test_two_processes_that_take_turns(place: Place, *, noted: bool) -> None:
    """A stale memory costs a conflict, or nothing where the other's generation is known."""
    one, other = Process(place), Process(place)
    for value in range(3):
        place.put("a", value)
        assert generation_in(one.run()) == 2 * value + 1
        place.put("a", 10 + value)
        _ = other.run() if noted else other.die_before_it_notes()
        assert place.values() == Counter([10 + value])
        assert place.heads() == {SLOT: 2 * value + 2}
    last = one.run()
    assert (last.slots[SLOT].status, generation_in(last)) == ("unchanged", 6)
    assert last.requests["LIST"] == (1 if noted else 1 + 1 + 1), "after a conflict, bucket and head again"


def test_what_came_back_meanwhile(place: Place) -> None:
    """The object is as it was when the memory is from, and the table is not."""
    one, other = Process(place), Process(place)
    place.put("a", 1)
    one.run()
    place.put("a", 2)
    other.die_before_it_notes()
    place.put("a", 1)
    assert generation_in(one.run()) == 3
    assert place.values() == Counter([1])


def test_commits_that_were_lost_and_forgotten(place: Place) -> None:
    """The slot is taken in again, on top of what is left."""
    process = Process(place)
    for value in range(3):
        place.put("a", value)
        process.run()
    layout = place.source.location.layout
    place.store.delete(layout.commit(SLOT, 3))
    assert "CorruptError" in (process.run().slots[SLOT].error or "")
    place.forget(SLOT)
    assert generation_in(process.run()) == 3
    assert place.values() == Counter([2])


def test_another_table_in_its_place(place: Place) -> None:
    process = Process(place)
    place.put("a", 1)
    process.run()
    place.empty("_s3notify/orders/table/")
    place.forget()
    assert generation_in(process.run()) == 1
    assert place.values() == Counter([1])


@pytest.mark.parametrize("beyond_half", [True, False])
def test_a_memory_of_long_ago(place: Place, *, beyond_half: bool) -> None:
    """It is not used after half of the longest run. Until then vacuum leaves what it needs."""
    one, other = Process(place), Process(place)
    place.put("a", 0)
    one.run()
    for value in range(1, 5):
        place.put("a", value)
        other.die_before_it_notes()
    one.clock.now += MAX_RUN_SECONDS / 2 + (1 if beyond_half else -1)
    vacuum(place.source.table(), retention_seconds=MAX_RUN_SECONDS)
    place.put("a", 5)
    result = one.run()
    assert place.values() == Counter([5])
    assert generation_in(result) == 6
    assert place.heads() == {SLOT: 6}
    # Listed once for the head, after the conflict or without one.
    assert result.requests["LIST"] == (2 if beyond_half else 1 + 2)


def test_a_plan_that_outlives_what_it_was_recalled_for(place: Place) -> None:
    """The head is listed for after all: vacuum may have taken what came after the one that is remembered."""
    one, other = Process(place), Process(place)
    place.put("a", 0)
    one.run()
    for value in (1, 2):
        place.put("a", value)
        other.die_before_it_notes()
    recalled = []

    class Slow(LocalJobs):
        def plan(self, slots: Any, **arguments: Any) -> Any:
            recalled.append(arguments["recalled"])
            if arguments["recalled"]:
                one.clock.now += MAX_RUN_SECONDS + 1
                place.store.delete(place.source.location.layout.commit(SLOT, 2))
            return super().plan(slots, **arguments)

    result = Ingest(jobs=Slow(source=place.source), source=place.source, clock=one.clock).run(
        [SLOT], batch="b"
    )
    assert recalled == [{SLOT: 1}, {}]
    assert (result.slots[SLOT].status, generation_in(result)) == ("unchanged", 3)
    assert place.values() == Counter([2])


def test_a_run_is_as_old_as_what_it_recalls(place: Place) -> None:
    """It is refused when the longest run has passed since its slot was seen, however late it was planned."""
    process = Process(place)
    place.put("a", 0)
    process.run()
    place.put("a", 1)
    process.clock.now += MAX_RUN_SECONDS / 2 - 1
    staged = next(place.ingest(process.clock).rounds([SLOT], batch="b"))
    process.clock.now += MAX_RUN_SECONDS / 2 + 2
    commit_round(staged)
    assert staged.bad() == [SLOT]
    assert place.heads() == {SLOT: 1}
    assert generation_in(process.run()) == 2


def test_a_plan_that_nobody_checked_is_not_remembered(place: Place) -> None:
    """That a slot has changes says nothing about whether its head stands."""
    one, other = Process(place), Process(place)
    place.put("a", 0)
    one.run()
    place.put("a", 1)
    other.die_before_it_notes()
    one.clock.now += MAX_RUN_SECONDS / 2 - 1
    next(place.ingest(one.clock).rounds([SLOT], batch="b"))
    one.clock.now += 2
    result = one.run()
    assert (result.slots[SLOT].status, generation_in(result), result.requests["LIST"]) == ("unchanged", 2, 2)


def test_a_slot_of_which_nothing_could_be_read(place: Place) -> None:
    """Its object was overwritten, and another run has taken that in: the slot is planned again."""
    one, other = Process(place), Process(place)
    place.put("a", 0)
    one.run()
    place.put("a", 1)

    class Late(LocalJobs):
        def stage(self, *arguments: Any, **more: Any) -> Any:
            place.put("a", 2)
            other.die_before_it_notes()
            return super().stage(*arguments, **more)

    result = Ingest(jobs=Late(source=place.source), source=place.source, clock=one.clock).run(
        [SLOT], batch="b"
    )
    assert generation_in(result) == 2
    assert place.values() == Counter([2])
