"""The watcher: the requests of a poll, and its state."""

import logging

import pytest

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import CorruptError, UnavailableError, UsageError
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.protocols.keyspace import (
    Publisher,
    Put,
    Watcher,
    WatcherState,
    digest_of,
    signal_body,
    signal_key,
)
from s3notify_platform.protocols.keyspace import watcher as watching
from s3notify_platform.stores.counting import CountingStore
from tests.support.clocks import HandClock
from tests.support.faults import CrashedError, Fault, FaultyStore, at

KS = "ks/"


def test_an_idle_poll_sends_one_head(store, publisher):
    """Otherwise an idle bucket would cost more than one request for each poll."""
    publisher.put("a", b"1")
    counting = CountingStore(store)
    watcher = Watcher(counting, prefix=KS)
    watcher.poll()
    counting.counts.clear()
    assert not watcher.poll().listed
    assert counting.counts == {"HEAD": 1}


def test_a_poll_after_a_change_sends_one_head_and_one_list(store, publisher):
    """Otherwise a full keyspace with 1000 signals would take a second page at each poll."""
    for slot in range(1000):
        store.put(signal_key(KS, slot), signal_body(SYSTEM_CLOCK))
    publisher.put("a", b"1")
    counting = CountingStore(store)
    watcher = Watcher(counting, prefix=KS)
    assert len(watcher.poll().changed) == 1000
    publisher.put("a", b"2")
    counting.counts.clear()
    poll = watcher.poll()
    assert counting.counts == {"HEAD": 1, "LIST": 1}
    assert (poll.changed, poll.pages, len(poll.signals)) == ({143: store.head("ks/143").etag}, 1, 1000)
    assert poll.root_etag == store.head("ks/_").etag
    assert not watcher.poll().changed


def test_the_root_is_remembered_only_after_the_list_succeeded(store, publisher):
    """Otherwise a failed LIST would lose a change until somebody writes again."""
    faulty = FaultyStore(store)
    watcher = Watcher(faulty, prefix=KS)
    watcher.poll()
    publisher.put("a", b"1")
    faulty.schedule = at("list", Fault.REFUSED)
    with pytest.raises(UnavailableError):
        watcher.poll()
    assert set(watcher.poll().changed) == {143}


def test_a_change_during_a_poll_is_seen_by_this_poll_or_the_next(store, publisher):
    """Otherwise a change during the LIST would be missed. The poll would remember a root that this change has already
    moved.
    """
    watcher = Watcher(store, prefix=KS)
    watcher.poll()
    publisher.put("a", b"1")
    listing = store.list

    def list_then_change(*args, **kwargs):
        store.list = listing
        page = listing(*args, **kwargs)
        publisher.put("path/to/object", b"1")
        return page

    store.list = list_then_change
    assert set(watcher.poll().changed) == {143}
    assert set(watcher.poll().changed) == {938}


def test_a_slot_signalled_without_its_root_is_found_by_relisting(store):
    """Otherwise a change would be missed if its publisher died between the signal of the slot and the signal of the
    root.
    """
    clock = HandClock()
    watcher = Watcher(store, prefix=KS, clock=clock, relist_seconds=300)
    watcher.poll()
    with pytest.raises(CrashedError):
        Publisher(FaultyStore(store, at("put", Fault.CRASH_BEFORE, key="ks/_")), prefix=KS).put("a", b"1")
    clock.now += 299
    assert not watcher.poll().listed
    clock.now += 1
    assert set(watcher.poll().changed) == {143}
    assert not watcher.poll().listed


def test_relist_can_be_forced_or_forbidden(store):
    """Otherwise a sensor whose process is new each time would list at every poll."""
    watcher = Watcher(store, prefix=KS)
    assert not watcher.poll(relist=False).listed
    assert watcher.poll(relist=True).listed
    assert watcher.poll(relist=True).pages == 1


def test_foreign_objects_do_not_push_slots_off_the_page(store, publisher, caplog):
    """Otherwise slots behind foreign objects would not be seen, or each poll would log a warning."""
    publisher.put("path/to/object", b"1")
    for number in range(1500):
        store.put(f"ks/100-{number}", b"")
    watcher = Watcher(store, prefix=KS)
    with caplog.at_level(logging.WARNING):
        poll = watcher.poll(relist=True)
        watcher.poll(relist=True)
    assert (set(poll.changed), poll.foreign, poll.pages) == ({938}, 1500, 2)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "1500 foreign objects" in caplog.text


def test_foreign_objects_that_sort_after_all_slots_cost_no_page(store, publisher, caplog):
    """Otherwise objects below the keyspace's prefix that sort after all slots would make each poll slower."""
    publisher.put("a", b"1")
    for number in range(1500):
        store.put(f"ks/table/{number}", b"")
    assert Watcher(store, prefix=KS).poll().pages == 1
    assert not caplog.records


@pytest.mark.parametrize("name", ["007", "1000", "-1", "1.0", "x", "1/2", ""])
def test_an_object_that_is_no_signal_is_foreign(store, name):
    """Otherwise a foreign object would be mistaken for the signal of a slot."""
    store.put(f"ks/{name}", b"")
    poll = Watcher(store, prefix=KS).poll()
    assert (poll.foreign, poll.signals) == (1, {})


def test_a_keyspace_with_too_many_foreign_objects_is_refused(store, monkeypatch):
    """Otherwise each poll would list a whole table if the keyspace's prefix contains the table."""
    monkeypatch.setattr(watching, "LIST_PAGES_MAX", 1)
    for number in range(1001):
        store.put(f"ks/1-{number}", b"")
    with pytest.raises(UsageError, match="prefix of its own"):
        Watcher(store, prefix=KS).poll()


def test_a_vanished_signal_is_ignored(store, publisher):
    """Otherwise a signal that somebody deletes would count as a change, or fail the poll."""
    publisher.put("a", b"1")
    watcher = Watcher(store, prefix=KS)
    watcher.poll()
    store.delete("ks/143")
    assert watcher.poll(relist=True).changed == {}


def test_slot_counts_other_than_1000_work(store):
    """Otherwise a state would be accepted although its slot count differs from the slot count of the keyspace."""
    Publisher(store, prefix=KS, slots=7).put("a", b"1")
    assert set(Watcher(store, prefix=KS, slots=7).poll().changed) == {4}
    with pytest.raises(UsageError, match="start with a fresh state"):
        Watcher(store, prefix=KS).observe(WatcherState(slots=7))


# State


def test_a_state_survives_as_a_compact_string(store, publisher):
    """Otherwise a new process would see all slots as changed, or miss changes made meanwhile."""
    publisher.put("a", b"1")
    first = Watcher(store, prefix=KS)
    first.poll()
    text = first.state.dumps()
    assert len(text) < 11_000
    publisher.put("path/to/object", b"1")
    second = Watcher(store, prefix=KS, state=WatcherState.loads(text))
    assert set(second.poll().changed) == {938}
    assert WatcherState.loads(second.state.dumps()) == second.state


def test_slots_that_are_not_advanced_are_seen_again(store, publisher):
    """Otherwise a sensor whose state omits slots in flight would never see these slots again."""
    publisher.publish([Put(key="a", body=b""), Put(key="path/to/object", body=b"")])
    watcher = Watcher(store, prefix=KS)
    poll = watcher.observe(watcher.fresh_state())
    state = watcher.fresh_state().advance([143], poll.signals)
    assert state.changed(poll.signals) == (938,)
    assert set(watcher.observe(state).changed) == {938}
    state = state.advance([938], poll.signals).at_root(poll.root_etag)
    assert not watcher.observe(state, relist=False).listed


def test_digests_of_signals_differ_from_the_digest_of_an_unseen_slot():
    """Otherwise a fresh state would treat a signal as seen."""
    assert len(digest_of(ETag("e"))) == 8
    assert digest_of(ETag("e")) != digest_of(ETag("f"))
    assert WatcherState(slots=3).changed({2: ETag("e"), 0: ETag("f")}) == (0, 2)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"slots": 1000, "root": null, "digests": "AA=="}', WatcherState().dumps()[:-9]],
)
def test_a_corrupt_state_is_an_error_and_no_fresh_start(text):
    """Otherwise a corrupt cursor would make the sensor ingest everything again without an error."""
    with pytest.raises((CorruptError, UsageError)):
        WatcherState.loads(text)


def test_states_refuse_wrong_slots_and_slot_counts():
    with pytest.raises(UsageError):
        WatcherState(slots=7).advance([7], {7: ETag("e")})
    with pytest.raises(UsageError):
        WatcherState(slots=1001)
