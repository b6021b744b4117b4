"""The bound of a topic's entries: room that was lost in a crash comes back, and no room is granted twice."""

import pytest

from s3notify_platform.protocols.notification_queue import (
    Event,
    QuotaExceeded,
    Reconciler,
    Reservation,
)
from tests.support.faults import CrashedError, Fault, at
from tests.unit.protocols.notification_queue.helpers import (
    all_entries,
    events,
    over,
    recount,
    room,
)


def test_room_lost_in_a_crash_comes_back(queue, records, clock):
    """Otherwise a crash between the count and the creation of an entry would reduce the topic's capacity for ever."""
    for _ in range(2):
        with pytest.raises(CrashedError):
            over(records, clock, at("create", Fault.CRASH_BEFORE)).reserve("t", Event(key="a"))
    assert queue.stats("t").counted == 2
    reconciler = Reconciler(queue, leak_seconds=30)
    assert reconciler.resolve_stale("t", lambda _: None).recounted == 0
    clock.now += 31
    assert reconciler.resolve_stale("t", lambda _: None).recounted == 1
    clock.now += queue.topics.outdated_seconds
    reconciler.resolve_stale("t", lambda _: None)
    stats = queue.stats("t")
    assert (stats.depth, stats.counted) == (0, 0)
    assert room(queue) == 3


def test_a_writer_that_sleeps_during_a_recount_gets_no_old_room(queue, records, clock):
    """Otherwise a writer that counted its entry in the former quota would exceed the topic's capacity."""
    woken = []

    def schedule(call):
        if call.method == "create" and not woken:
            woken.append(call)
            assert recount(queue, clock).recounted == 1
            assert len(queue.reserve_many("t", events(3, "other"))) == 3
        return Fault.NONE

    refused = over(records, clock, schedule).reserve("t", Event(key="asleep"))
    assert isinstance(refused, QuotaExceeded)
    assert queue.stats("t").depth == 3


def test_room_given_back_late_is_not_granted_twice(queue, records, clock):
    """Otherwise a remover that sleeps before it gives room back would free this room again after a recount."""
    queue.push_many("t", events(3))

    def schedule(call):
        if call.method == "add" and "depth" in call.key:
            recount(queue, clock)
        return Fault.NONE

    (first, *_) = all_entries(queue)
    assert over(records, clock, schedule).remove([first]) == 1
    assert room(queue) == 1


@pytest.mark.parametrize("method", ["add", "replace"])
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_an_interrupted_recount_is_finished_by_the_next_passes(queue, records, clock, method, fault):
    """Otherwise a shard would refuse entries for ever, or grant more room than its capacity."""
    queue.push("t", Event(key="there"))
    with pytest.raises(CrashedError):
        over(records, clock, at("create", Fault.CRASH_BEFORE)).reserve("t", Event(key="a"))
    with pytest.raises(CrashedError):
        Reconciler(over(records, clock, at(method, fault)), leak_seconds=0).resolve_stale("t", lambda _: None)
    sealed = (method, fault) in [("add", Fault.CRASH_AFTER), ("replace", Fault.CRASH_BEFORE)]
    assert isinstance(queue.reserve("t", Event(key="b")), QuotaExceeded if sealed else Reservation)
    recount(queue, clock)
    assert room(queue) == (2 if sealed else 1)
    assert len(list(records.scan("depth.t"))) == 1


def test_old_entries_free_their_room_after_a_recount(queue, clock):
    """Otherwise the room of an entry from before a recount would stay in use after the entry is removed."""
    queue.push_many("t", events(2))
    queue.records.add("depth.t", next(queue.records.scan("depth.t")).key, 1)
    recount(queue, clock)
    assert queue.stats("t").counted == 2
    queue.remove(all_entries(queue))
    assert queue.stats("t").counted == 2
    reconciler = Reconciler(queue)
    reconciler.resolve_stale("t", lambda _: None)
    assert queue.stats("t").counted == 2, "a new reconciler may not know yet which quota writers rely on"
    clock.now += queue.topics.outdated_seconds
    reconciler.resolve_stale("t", lambda _: None)
    assert queue.stats("t").counted == 0
