"""Keyspaces in which writers that queue move only the root: the signals, the requests of a poll, and the watcher's
state.
"""

import pytest

from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.protocols.keyspace import (
    CausalCache,
    NotSignalledError,
    Publisher,
    Watcher,
    WatcherState,
)
from s3notify_platform.protocols.keyspace.watcher import HIDDEN_SECONDS
from s3notify_platform.stores.counting import CountingStore
from tests.support.clocks import HandClock
from tests.support.faults import Fault, FaultyStore, at

KS = "ks/"
A, B = Slot(3), Slot(5)


class Queue:
    """The marks of a topic, which show the slots with entries. `looks` counts how often the marks are read."""

    def __init__(self):
        self.marks, self.looks = {}, 0

    def __call__(self):
        self.looks += 1
        return dict(self.marks)


@pytest.fixture
def queue():
    return Queue()


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def keyspace(store):
    return CountingStore(store)


@pytest.fixture
def watcher(keyspace, queue, clock):
    watcher = Watcher(keyspace, prefix=KS, clock=clock, entries=queue)
    watcher.poll()
    keyspace.counts.clear()
    queue.looks = 0
    return watcher


def put(publisher, queue, slot, mark):
    """Acts like a writer that queues: adds its entry, then moves the root."""
    queue.marks = {**queue.marks, slot: [*queue.marks.get(slot, []), mark]}
    publisher.signal(["any"], queued=["any"], alone=True)


def test_only_the_root_moves_if_all_changes_are_queued(store):
    """Otherwise a queued put would cost two signals, or an unqueued change would not move the signal of its slot."""
    counting = CountingStore(store)
    publisher = Publisher(counting, prefix=KS)
    publisher.signal(["a", "b"], queued=["a", "b"], alone=True)
    assert counting.counts == {"PUT": 1}
    assert [meta.key for meta in store.list(KS).objects] == [f"{KS}_"]
    publisher.signal(["a", "b"], queued=["a"], alone=True)
    assert {meta.key for meta in store.list(KS).objects} == {f"{KS}{slot_of(k)}" for k in "ab"} | {f"{KS}_"}


def test_a_root_that_could_not_be_moved_is_reported_for_all_keys(store):
    """Otherwise the caller would not learn that nobody looks at its entries."""
    publisher = Publisher(FaultyStore(store, at("put", Fault.REFUSED)), prefix=KS)
    with pytest.raises(NotSignalledError) as caught:
        publisher.signal(["a", "b"], queued=["a", "b"], alone=True)
    assert caught.value.keys == ("a", "b")


def test_a_poll_with_changes_takes_one_head_and_one_read_of_the_queue(keyspace, publisher, queue, watcher):
    put(publisher, queue, A, "1")
    poll = watcher.poll()
    assert (set(poll.changed), poll.unqueued, poll.listed, poll.pages) == ({A}, frozenset(), False, 1)
    assert (keyspace.counts, queue.looks) == ({"HEAD": 1}, 1)
    assert not watcher.poll().changed
    assert (keyspace.counts, queue.looks) == ({"HEAD": 2}, 1), "idle"


def test_each_entry_is_seen_once_and_its_removal_is_no_change(publisher, queue, watcher):
    for slot, mark in ((A, "1"), (A, "2"), (B, "3")):
        put(publisher, queue, slot, mark)
        assert set(watcher.poll().changed) == {slot}
    del queue.marks[A]
    put(publisher, queue, B, "4")
    assert set(watcher.poll().changed) == {B}


def test_a_poll_also_lists_the_signals_if_an_unqueued_writer_moved_the_root(
    keyspace, publisher, queue, watcher
):
    """Otherwise a change of an unqueued writer would be missed if entries were queued just before this change."""
    put(publisher, queue, A, "1")
    publisher.put("b", b"1")
    poll = watcher.poll()
    assert set(poll.changed) == {A, slot_of("b")}
    assert poll.unqueued == {slot_of("b")}
    assert (keyspace.counts, queue.looks) == ({"HEAD": 1, "LIST": 1}, 1)


def test_a_signal_is_seen_soon_if_the_next_move_of_the_root_hides_it(
    keyspace, clock, publisher, queue, watcher
):
    """Otherwise a change of an unqueued writer would be missed if a writer that queues moves the root right after this
    change.
    """
    publisher.put("b", b"1")
    put(publisher, queue, A, "1")
    assert set(watcher.poll().changed) == {A}
    assert not watcher.poll().changed
    clock.now += HIDDEN_SECONDS
    assert set(watcher.poll().changed) == {slot_of("b")}
    keyspace.counts.clear()
    clock.now += HIDDEN_SECONDS
    assert not watcher.poll().changed
    assert keyspace.counts == {"HEAD": 1}
    publisher.put("b", b"2")
    put(publisher, queue, A, "2")
    assert set(watcher.poll().changed) == {A}
    assert set(watcher.poll().changed) == {slot_of("b")}


def test_a_poll_that_cannot_read_the_queue_remembers_nothing(publisher, queue, store, clock):
    def fails():
        raise UnavailableError("no answer")

    watcher = Watcher(store, prefix=KS, clock=clock, entries=queue)
    watcher.poll()
    put(publisher, queue, A, "1")
    state = watcher.state
    failing = Watcher(store, prefix=KS, clock=clock, entries=fails, state=state)
    with pytest.raises(UnavailableError):
        failing.poll()
    assert failing.state is state
    assert set(watcher.poll().changed) == {A}


def test_slots_are_polled_again_if_the_state_was_not_advanced_for_them(publisher, queue, watcher):
    """Otherwise a sensor that advances its state for one slot of two would never see the other slot again."""
    put(publisher, queue, A, "1")
    put(publisher, queue, B, "2")
    poll = watcher.observe(watcher.state)
    state = poll.settled(watcher.state.advance([A], poll.changed))
    again = watcher.observe(state)
    assert (set(again.changed), again.followed) == ({B}, True)
    state = again.settled(state.advance([B], again.changed))
    assert not watcher.observe(state).pages


def test_the_state_is_advanced_for_both_the_entry_and_the_signal_of_a_slot(publisher, queue, watcher):
    key = "b"
    queue.marks = {slot_of(key): ["1"]}
    publisher.put(key, b"1")
    poll = watcher.observe(watcher.state)
    state = poll.settled(watcher.state.advance(poll.changed, poll.changed))
    again = watcher.observe(state)
    assert set(again.changed) == {slot_of(key)}
    assert not watcher.observe(again.settled(state.advance(again.changed, again.changed))).pages
    assert not watcher.observe(poll.taken(watcher.state)).pages


def test_the_state_of_signals_and_entries_survives_as_a_string(publisher, queue, watcher):
    put(publisher, queue, A, "1")
    publisher.put("b", b"1")
    watcher.poll()
    state = WatcherState.loads(watcher.state.dumps())
    assert state == watcher.state
    assert not watcher.observe(state, relist=True).changed


def test_watchers_without_the_queue_refuse_a_keyspace_with_writers_that_queue(store, publisher, queue):
    """Otherwise a watcher or a cache that does not read the queue would miss changes silently."""
    watcher = Watcher(store, prefix=KS)
    cache = CausalCache(store, Watcher(store, prefix=KS))
    put(publisher, queue, A, "1")
    for look in (watcher.poll, lambda: cache.get("a")):
        with pytest.raises(UsageError, match="signals: root"):
            look()
    publisher.put("a", b"1")
    assert set(watcher.poll().changed) == {slot_of("a")}


def test_a_watcher_with_the_queue_also_sees_signalled_slots(store, publisher, queue):
    watcher = Watcher(store, prefix=KS, entries=queue)
    publisher.put("a", b"1")
    assert set(watcher.poll().changed) == {slot_of("a")}
