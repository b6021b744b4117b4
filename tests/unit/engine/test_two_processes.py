"""Batches of processes that remember a snapshot, against a real server: no needless request, and no stale result."""

from collections import Counter
from itertools import count
from typing import Any

import pytest

from s3notify_platform.engine.driver import Ingest
from s3notify_platform.engine.loop import commit_round
from s3notify_platform.engine.values.results import BatchResult
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.maintenance.vacuuming import vacuum
from s3notify_platform.protocols.notification_queue import Event, TopicSettings
from s3notify_platform.source import location
from s3notify_platform.table.commit import MAX_RUN_SECONDS
from s3notify_platform.table.log_table import SnapshotMemory
from tests.support.clocks import HandClock
from tests.support.ingested import Place
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server

pytestmark = pytest.mark.server

SLOT = slot_of("raw/a", 4)
NUMBERS = count()


class Process:
    """A long-lived process that has its own clock and its own memory."""

    def __init__(self, place: Place, patched: pytest.MonkeyPatch) -> None:
        self.place = place
        self.clock = HandClock(f"{next(NUMBERS)}")
        self.memory = SnapshotMemory()
        self.patched = patched

    def ingest(self, jobs: type[LocalJobs] = LocalJobs) -> Ingest:
        self.patched.setattr(location, "_memory", lambda *_: self.memory)
        source = self.place.source
        return Ingest(jobs=jobs(source=source), source=source, clock=self.clock)

    def run(self, *slots: Slot) -> BatchResult:
        return self.ingest().run(slots or (SLOT,), batch="b")


@pytest.fixture
def place(ministack: S3Server) -> Place:
    return Place(ministack)


@pytest.fixture
def process(place: Place, monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda: Process(place, monkeypatch)


def test_the_second_batch_lists_the_bucket_and_the_newest_versions(place: Place, process: Any) -> None:
    one, slots = process(), place.source.location.all_slots()
    place.put("a", 1)
    one.run(*slots)
    place.put("a", 2)
    second = one.run(*slots)
    assert (second.requests["LIST"], second.requests["HEAD"]) == (2, 0), "the bucket; the newest versions"
    assert place.values() == Counter([2])


def test_a_batch_that_follows_entries_lists_only_the_queue(place: Place, process: Any) -> None:
    """If a batch listed the bucket in spite of its entries, each small change would cost a listing of the
    whole source. If the snapshot that the process remembers hid the second change, the table would keep the
    rows of the overwritten object.
    """
    one, queue = process(), place.source.location.queue()
    queue.topics.create("orders", TopicSettings(prefix="raw/", slots=4))
    for value in (1, 2):
        place.put("a", value)
        queue.commit(queue.reserve("orders", Event(key="raw/a")))
        result = one.ingest().run([SLOT], batch="b", listing=False)
        queue.remove(result.entries[SLOT])
    assert result.requests["LIST"] == 2, "the queue; the newest versions"
    assert place.values() == Counter([2])
    assert result.slots[SLOT].status == "committed"


def test_two_processes_see_each_others_commits(place: Place, process: Any) -> None:
    """Two processes take turns on one slot. If a process planned on its remembered snapshot alone, the process would
    read objects again that the other process has already committed.
    """
    one, other = process(), process()
    for value in range(3):
        place.put("a", value)
        assert one.run().slots[SLOT].generation == 2 * value + 1
        place.put("a", 10 + value)
        assert other.run().slots[SLOT].generation == 2 * value + 2
        assert place.values() == Counter([10 + value])
    assert one.run().slots[SLOT].status == "unchanged"


def test_an_object_that_came_back_in_the_meantime_is_read(place: Place, process: Any) -> None:
    """The object is the same as in the remembered snapshot, but another process has meanwhile committed another version
    of the object. If the remembered snapshot decided, the table would keep the rows of that other version.
    """
    one, other = process(), process()
    for process_, value in ((one, 1), (other, 2), (one, 1)):
        place.put("a", value)
        process_.run()
    assert place.values() == Counter([1])


def test_a_forgotten_table_is_noticed(place: Place, process: Any) -> None:
    one = process()
    place.put("a", 1)
    one.run()
    place.empty("_s3notify/orders/table/")
    place.forget()
    assert one.run().slots[SLOT].generation == 1
    assert place.values() == Counter([1])


@pytest.mark.parametrize("beyond_half", [True, False])
def test_a_process_with_an_old_snapshot_opens_the_newest_version(
    place: Place, process: Any, *, beyond_half: bool
) -> None:
    """Vacuum may have removed the versions between the remembered version and the newest version. If a process needed
    the removed versions, its batches would fail.
    """
    one, other = process(), process()
    place.put("a", 0)
    one.run()
    for value in range(1, 5):
        place.put("a", value)
        other.run()
    one.clock.now += MAX_RUN_SECONDS / 2 + (1 if beyond_half else -1)
    table = place.source.table()
    vacuum(table.committer, place.snapshot(), retention_seconds=MAX_RUN_SECONDS, clock=one.clock)
    place.put("a", 5)
    assert one.run().slots[SLOT].status == "committed"
    assert place.values() == Counter([5])


def test_a_late_round_is_not_committed(place: Place, process: Any) -> None:
    """The round's plan is older than half of `MAX_RUN_SECONDS`, so vacuum may have removed versions since the plan. A
    commit of such a plan could create a removed version again.
    """
    one = process()
    place.put("a", 0)
    one.run()
    place.put("a", 1)
    rounds = one.ingest().rounds([SLOT], batch="b")
    staged = next(rounds)
    one.clock.now += MAX_RUN_SECONDS / 2 + 1
    commit_round(staged)
    assert place.values() == Counter([0])
    assert not [*rounds]
    one.run()
    assert place.values() == Counter([1])


def test_the_newest_version_of_an_object_stays_if_another_run_commits_it_first(
    place: Place, process: Any
) -> None:
    """The object must have one row, of its newest version."""
    one, other = process(), process()
    place.put("a", 0)
    one.run()
    place.put("a", 1)

    class Late(LocalJobs):
        def stage(self, *arguments: Any, **more: Any) -> Any:
            place.put("a", 2)
            other.run()
            return super().stage(*arguments, **more)

    one.ingest(Late).run([SLOT], batch="b")
    assert place.values() == Counter([2])
