"""Keyspace: publisher and watcher, request by request."""

import logging
import re
import threading
import time

import pytest

from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.errors import CorruptError, UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.ports import ABSENT, Conflict, ETag, IfMatch, Unknown, Written
from s3notify_platform.protocols.keyspace import (
    NEVER_SEEN,
    QUEUED,
    Delete,
    NotSignalledError,
    Publisher,
    Put,
    Watcher,
    WatcherState,
    changed_slots,
    digest_of,
    root_key,
    signal_body,
    signal_key,
)
from s3notify_platform.protocols.keyspace import watcher as watching
from s3notify_platform.slots import Slot, slot_of
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.clocks import HandClock
from tests.support.faults import CrashedError, Fault, FaultyStore, at

KS = "ks/"


@pytest.fixture
def store():
    return MemoryObjectStore()


@pytest.fixture
def publisher(store):
    return Publisher(store, prefix=KS)


def recorded(store):
    return FaultyStore(store)


def keys_of(faulty, method):
    return [call.key for call, _ in faulty.calls if call.method == method]


# Names and bodies


def test_names_and_bodies_are_those_of_the_crate():
    """`{prefix}{slot}`, `{prefix}_`, and a body of milliseconds and 32 hex digits."""
    assert signal_key("a/b", 7) == "a/b7"
    assert root_key("a/b/") == "a/b/_"
    assert re.fullmatch(rb"\d{13},[0-9a-f]{32}", signal_body(SYSTEM_CLOCK))
    assert signal_body(SYSTEM_CLOCK) != signal_body(SYSTEM_CLOCK)


# Publisher


def test_publish_is_object_then_slot_then_root(store):
    """In that order, three requests."""
    faulty = recorded(store)
    assert isinstance(Publisher(faulty, prefix=KS).put("path/to/object", b"x"), Written)
    assert keys_of(faulty, "put") == ["path/to/object", "ks/938", "ks/_"]


def test_signals_may_live_in_another_bucket(store):
    """Then keys may begin like the keyspace."""
    signals = MemoryObjectStore()
    Publisher(store, signals, prefix=KS).put("ks/5", b"x")
    assert store.head("ks/_") is None
    assert signals.head("ks/_") is not None


def test_a_key_inside_the_keyspace_is_refused_before_anything_is_written(store, publisher):
    """Else a source object would be a signal."""
    with pytest.raises(UsageError, match="lies in the keyspace"):
        publisher.publish([Put(key="a", body=b""), Put(key="ks/1", body=b"")])
    assert not store.list("").objects


def test_a_shared_bucket_needs_a_prefix(store):
    """An empty prefix would claim every key."""
    with pytest.raises(UsageError, match="prefix of its own"):
        Publisher(store, prefix="")


def test_a_key_twice_in_a_batch_is_refused(publisher):
    """Written in parallel, the last one would be undefined."""
    with pytest.raises(UsageError, match="twice"):
        publisher.publish([Put(key="a", body=b"1"), Delete(key="a")])


def test_conditional_writes(publisher, store):
    """Absent and IfMatch pass through; a conflict costs one request and moves no signal."""
    first = publisher.put_if_absent("a", b"1")
    root = store.head("ks/_").etag
    counting = CountingStore(store)
    second = Publisher(counting, prefix=KS)
    assert second.put_if_absent("a", b"2") == Conflict()
    assert second.put_if_match("a", b"2", ETag("other")) == Conflict()
    assert second.delete("a", precondition=IfMatch(etag=ETag("other"))) == Conflict()
    assert counting.counts == {"PUT": 2, "DELETE": 1}
    assert store.head("ks/_").etag == root
    assert isinstance(second.put_if_match("a", b"2", first.etag), Written)
    assert store.head("ks/_").etag != root


def test_delete_moves_the_signal(publisher, store):
    """A deletion is a change like any other."""
    publisher.put("a", b"1")
    watcher = Watcher(store, prefix=KS)
    watcher.poll()
    assert publisher.delete("a") == Written(etag=None)
    assert set(watcher.poll().changed) == {slot_of("a")}


def test_metadata_is_kept(publisher, store):
    """It arrives at the store."""
    publisher.put("a", b"1", metadata={"m": "v"})
    assert store.head("a").metadata == {"m": "v"}


def test_a_batch_moves_every_slot_once_and_the_root_once_after_all_objects(store):
    """n + s + 1 requests."""
    faulty = recorded(store)
    keys = [f"object-{number}" for number in range(300)]
    outcomes = Publisher(faulty, prefix=KS).publish(Put(key=key, body=b"x") for key in keys)
    assert [type(outcome) for outcome in outcomes] == [Written] * 300
    slots = {f"ks/{slot_of(key)}" for key in keys}
    puts = keys_of(faulty, "put")
    assert set(puts[:300]) == set(keys)
    assert sorted(puts[300:-1]) == sorted(slots)
    assert puts[-1] == "ks/_"


def test_an_empty_batch_costs_nothing(store):
    """Not even a root."""
    counting = CountingStore(store)
    assert Publisher(counting, prefix=KS).publish([]) == ()
    assert not counting.counts


def test_a_batch_of_conflicts_moves_nothing(store, publisher):
    """Outcomes stand in the batch's order; slots whose objects all conflicted stay."""
    publisher.put("a", b"1")
    before = store.head(signal_key(KS, slot_of("a"))).etag
    outcomes = publisher.publish(
        [Put(key="a", body=b"2", precondition=ABSENT), Put(key="b", body=b"2"), Delete(key="c")]
    )
    assert [type(outcome) for outcome in outcomes] == [Conflict, Written, Written]
    assert store.head(signal_key(KS, slot_of("a"))).etag == before


def test_batches_run_in_parallel_within_the_bound(store):
    """At most `parallelism` requests are in flight, and more than one is."""
    lock = threading.Lock()
    flight, peak = 0, 0

    class Slow(MemoryObjectStore):
        def put(self, key, body, **kwargs):
            nonlocal flight, peak
            with lock:
                flight += 1
                peak = max(peak, flight)
            time.sleep(0.005)
            with lock:
                flight -= 1
            return super().put(key, body, **kwargs)

    Publisher(Slow(), prefix=KS, parallelism=4).publish(Put(key=str(n), body=b"") for n in range(24))
    assert 1 < peak <= 4
    with pytest.raises(UsageError, match="parallelism=0"):
        Publisher(store, prefix=KS, parallelism=0)


def test_an_unknown_object_write_is_signalled(store):
    """It may have happened; without the signal, nobody would look."""
    faulty = FaultyStore(store, at("put", Fault.LOST, key="a"))
    watcher = Watcher(store, prefix=KS)
    watcher.poll()
    assert isinstance(Publisher(faulty, prefix=KS).put_if_absent("a", b"1"), Unknown)
    assert set(watcher.poll().changed) == {slot_of("a")}


def test_a_plain_write_that_raised_is_signalled_and_raised(store):
    """Its response was lost, but the object is there."""
    faulty = FaultyStore(store, at("put", Fault.LOST, key="a"))
    watcher = Watcher(store, prefix=KS)
    watcher.poll()
    with pytest.raises(UnavailableError):
        Publisher(faulty, prefix=KS).put("a", b"1")
    assert set(watcher.poll().changed) == {slot_of("a")}


def test_in_a_batch_a_write_that_raised_is_unknown_and_the_others_go_on(store):
    """One unavailable object hides nothing of the rest."""
    faulty = FaultyStore(store, at("put", Fault.LOST, key="b"))
    outcomes = Publisher(faulty, prefix=KS).publish([Put(key=key, body=b"") for key in "abc"])
    assert [type(outcome) for outcome in outcomes] == [Written, Unknown, Written]
    assert len(Watcher(store, prefix=KS).poll().signals) == 3


def test_a_refused_change_raises_after_the_others_are_signalled(store, publisher):
    """A key that is too long is the caller's error, and no reason to leave the rest unsignalled."""
    with pytest.raises(UsageError, match="bytes"):
        publisher.publish([Put(key="a", body=b""), Put(key="x" * 1025, body=b"")])
    assert set(Watcher(store, prefix=KS).poll().signals) == {slot_of("a")}


@pytest.mark.parametrize("lost", ["ks/143", "ks/_"])
def test_a_failed_signal_names_the_keys_that_are_written_but_not_signalled(store, lost):
    """So that the caller signals them again, and only them."""
    faulty = FaultyStore(store, at("put", Fault.REFUSED, key=lost))
    publisher = Publisher(faulty, prefix=KS)
    watcher = Watcher(store, prefix=KS)
    watcher.poll()
    with pytest.raises(NotSignalledError) as caught:
        publisher.publish([Put(key="a", body=b""), Put(key="path/to/object", body=b"")])
    assert [type(outcome) for outcome in caught.value.outcomes] == [Written, Written]
    assert set(caught.value.keys) == ({"a"} if lost == "ks/143" else {"a", "path/to/object"})
    if lost == "ks/143":
        # The root moved for the slot that was signalled.
        assert set(watcher.poll().changed) == {938}
    publisher.signal(caught.value.keys)
    assert 143 in watcher.poll().changed


def test_write_and_signal_are_the_halves_of_publish(store, publisher):
    """A queue commits its entries in between."""
    publisher.write([Put(key="a", body=b"")])
    assert store.head("ks/_") is None
    publisher.signal(["a", "a"])
    assert store.head("ks/143") is not None


# Watcher


def test_an_idle_poll_is_one_head(store, publisher):
    """However many objects there are."""
    publisher.put("a", b"1")
    counting = CountingStore(store)
    watcher = Watcher(counting, prefix=KS)
    watcher.poll()
    counting.counts.clear()
    assert not watcher.poll().listed
    assert counting.counts == {"HEAD": 1}


def test_a_changed_poll_is_one_head_and_one_list(store, publisher):
    """Also with a full keyspace: 1000 signals, the root, and nothing of a second page."""
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
    """A failed LIST loses nothing: the next poll lists again, though nobody wrote meanwhile."""
    faulty = FaultyStore(store)
    watcher = Watcher(faulty, prefix=KS)
    watcher.poll()
    publisher.put("a", b"1")
    faulty.schedule = at("list", Fault.REFUSED)
    with pytest.raises(UnavailableError):
        watcher.poll()
    assert set(watcher.poll().changed) == {143}


def test_a_change_during_the_poll_is_seen_by_it_or_by_the_next(store, publisher):
    """The remembered root is the one from before the LIST."""
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
    """A publisher died between the two; time alone brings the change to light."""
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


def test_relist_can_be_asked_for_or_forbidden(store):
    """A sensor whose process is new each time decides by itself."""
    watcher = Watcher(store, prefix=KS)
    assert not watcher.poll(relist=False).listed
    assert watcher.poll(relist=True).listed
    assert watcher.poll(relist=True).pages == 1


def test_foreign_objects_do_not_push_slots_off_the_page(store, publisher, caplog):
    """They are counted, the next page is read, and the operator is told once."""
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


def test_foreign_objects_beyond_the_digits_cost_no_page(store, publisher, caplog):
    """After `9` comes no slot."""
    publisher.put("a", b"1")
    for number in range(1500):
        store.put(f"ks/table/{number}", b"")
    assert Watcher(store, prefix=KS).poll().pages == 1
    assert not caplog.records


@pytest.mark.parametrize("name", ["007", "1000", "-1", "1.0", "x", "1/2", ""])
def test_what_is_no_signal_is_foreign(store, name):
    """Padded numbers, numbers too large, other names."""
    store.put(f"ks/{name}", b"")
    poll = Watcher(store, prefix=KS).poll()
    assert (poll.foreign, poll.signals) == (1, {})


def test_a_keyspace_with_too_many_foreign_objects_is_refused(store, monkeypatch):
    """A table below the keyspace's prefix is a mistake, not a slow poll."""
    monkeypatch.setattr(watching, "PAGES_MAX", 1)
    for number in range(1001):
        store.put(f"ks/1-{number}", b"")
    with pytest.raises(UsageError, match="prefix of its own"):
        Watcher(store, prefix=KS).poll()


def test_a_vanished_signal_is_ignored(store, publisher):
    """Deleted by hand, say: no change, no error."""
    publisher.put("a", b"1")
    watcher = Watcher(store, prefix=KS)
    watcher.poll()
    store.delete("ks/143")
    assert watcher.poll(relist=True).changed == {}


def test_other_slot_counts(store):
    """Seven slots, as long as all parties agree."""
    Publisher(store, prefix=KS, slots=7).put("a", b"1")
    assert set(Watcher(store, prefix=KS, slots=7).poll().changed) == {4}
    with pytest.raises(UsageError, match="start a fresh one"):
        Watcher(store, prefix=KS).observe(WatcherState(slots=7))


# State


def test_state_survives_as_a_compact_string(store, publisher):
    """A new process that loads it sees exactly what changed meanwhile."""
    publisher.put("a", b"1")
    first = Watcher(store, prefix=KS)
    first.poll()
    text = first.state.dumps()
    assert len(text) < 11_000
    publisher.put("path/to/object", b"1")
    second = Watcher(store, prefix=KS, state=WatcherState.loads(text))
    assert set(second.poll().changed) == {938}
    assert WatcherState.loads(second.state.dumps()) == second.state


def test_slots_that_are_not_advanced_are_told_again(store, publisher):
    """A sensor keeps slots in flight out of the vector."""
    publisher.publish([Put(key="a", body=b""), Put(key="path/to/object", body=b"")])
    watcher = Watcher(store, prefix=KS)
    poll = watcher.observe(watcher.fresh_state())
    state = watcher.fresh_state().advance([143], poll.signals)
    assert state.changed(poll.signals) == (938,)
    assert set(watcher.observe(state).changed) == {938}
    state = state.advance_digests({938: digest_of(poll.signals[938])}).at_root(poll.root_etag)
    assert not watcher.observe(state, relist=False).listed


def test_digests():
    """8 bytes, never those of `never seen`; a fresh vector differs from every signal."""
    assert len(digest_of(ETag("e"))) == 8
    assert digest_of(ETag("e")) != digest_of(ETag("f"))
    assert changed_slots(NEVER_SEEN * 3, {2: ETag("e"), 0: ETag("f")}) == (0, 2)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"slots": 1000, "root": null, "digests": "AA=="}', WatcherState().dumps()[:-9]],
)
def test_a_broken_state_is_an_error_not_a_fresh_start(text):
    """A silent fresh start would ingest everything again."""
    with pytest.raises((CorruptError, UsageError)):
        WatcherState.loads(text)


def test_states_refuse_what_does_not_fit():
    """Slots out of range, digests of the wrong length, slot counts out of bounds."""
    with pytest.raises(UsageError):
        WatcherState(slots=7).advance_digests({7: b"12345678"})
    with pytest.raises(UsageError):
        WatcherState(slots=7).advance_digests({1: b"123"})
    with pytest.raises(UsageError):
        WatcherState(slots=1001)


def test_slots_are_signalled_again() -> None:
    """Each moves, and the root, with the mark; one that does not move is said, after the others were tried."""
    store = MemoryObjectStore()
    publisher = Publisher(store, prefix="k/", queued=True)
    publisher.signal_slots([Slot(3), Slot(7), Slot(3)])
    first = {key: store.head(key) for key in ("k/3", "k/7", "k/_")}
    assert all(meta is not None and QUEUED in meta.metadata for meta in first.values())

    class Refusing(CountingStore):
        def put(self, key, body, **arguments):
            return Unknown(cause="lost") if key == "k/3" else super().put(key, body, **arguments)

    with pytest.raises(UnknownOutcomeError, match="signal 3"):
        Publisher(Refusing(store), prefix="k/", queued=True).signal_slots([Slot(3), Slot(7)])
    assert store.head("k/3") == first["k/3"]
    assert store.head("k/7") != first["k/7"]
    assert store.head("k/_") != first["k/_"]
    publisher.signal_slots([])
