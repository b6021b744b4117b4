"""The publisher, request by request."""

import re
import threading

import pytest

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.kernel.ports import ABSENT, Conflict, ETag, IfMatch, Unknown, Written
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.protocols.keyspace import (
    QUEUED,
    Delete,
    NotSignalledError,
    Publisher,
    Put,
    Watcher,
    root_key,
    signal_body,
    signal_key,
)
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.faults import Fault, FaultyStore, at

KS = "ks/"


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
    with pytest.raises(UsageError, match="among the platform's own"):
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
    together = threading.Event()

    class Slow(MemoryObjectStore):
        def put(self, key, body, **kwargs):
            nonlocal flight, peak
            with lock:
                flight += 1
                peak = max(peak, flight)
            if peak > 1:
                together.set()
            assert together.wait(10)
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
