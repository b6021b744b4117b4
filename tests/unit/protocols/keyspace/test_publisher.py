"""The publisher: its requests, their order and their errors."""

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


def test_names_and_bodies_match_the_crate():
    """Otherwise a watcher of the vnotify crate would not find our signals."""
    assert signal_key("a/b", 7) == "a/b7"
    assert root_key("a/b/") == "a/b/_"
    assert re.fullmatch(rb"\d{13},[0-9a-f]{32}", signal_body(SYSTEM_CLOCK))
    assert signal_body(SYSTEM_CLOCK) != signal_body(SYSTEM_CLOCK)


# Publisher


def test_a_put_writes_object_then_slot_then_root(store):
    """Otherwise a watcher would see the signal before the object, and miss the change."""
    faulty = recorded(store)
    assert isinstance(Publisher(faulty, prefix=KS).put("path/to/object", b"x"), Written)
    assert keys_of(faulty, "put") == ["path/to/object", "ks/938", "ks/_"]


def test_signals_may_be_in_another_bucket(store):
    """Otherwise signals would be written into the bucket of the objects, or object keys below the keyspace's prefix
    would be refused.
    """
    signals = MemoryObjectStore()
    Publisher(store, signals, prefix=KS).put("ks/5", b"x")
    assert store.head("ks/_") is None
    assert signals.head("ks/_") is not None


def test_a_key_inside_the_keyspace_is_refused_before_anything_is_written(store, publisher):
    """Otherwise an object of the source would overwrite a signal."""
    with pytest.raises(UsageError, match="among the platform's own"):
        publisher.publish([Put(key="a", body=b""), Put(key="ks/1", body=b"")])
    assert not store.list("").objects


def test_a_keyspace_in_the_objects_bucket_needs_a_prefix(store):
    """Otherwise every object would be mistaken for a signal."""
    with pytest.raises(UsageError, match="prefix of its own"):
        Publisher(store, prefix="")


def test_a_batch_with_a_key_twice_is_refused(publisher):
    """Otherwise chance would decide which change of the key is written last."""
    with pytest.raises(UsageError, match="twice"):
        publisher.publish([Put(key="a", body=b"1"), Delete(key="a")])


def test_a_conditional_write_that_fails_moves_no_signal(publisher, store):
    """Otherwise a conflict would overwrite an object, or wake up all watchers."""
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


def test_a_delete_moves_the_signal(publisher, store):
    """Otherwise watchers would not learn of a deletion."""
    publisher.put("a", b"1")
    watcher = Watcher(store, prefix=KS)
    watcher.poll()
    assert publisher.delete("a") == Written(etag=None)
    assert set(watcher.poll().changed) == {slot_of("a")}


def test_metadata_reaches_the_store(publisher, store):
    publisher.put("a", b"1", metadata={"m": "v"})
    assert store.head("a").metadata == {"m": "v"}


def test_a_batch_moves_every_slot_and_the_root_once_after_all_objects(store):
    """Otherwise a batch would cost more than n + s + 1 requests, or signal objects that are not yet written."""
    faulty = recorded(store)
    keys = [f"object-{number}" for number in range(300)]
    outcomes = Publisher(faulty, prefix=KS).publish(Put(key=key, body=b"x") for key in keys)
    assert [type(outcome) for outcome in outcomes] == [Written] * 300
    slots = {f"ks/{slot_of(key)}" for key in keys}
    puts = keys_of(faulty, "put")
    assert set(puts[:300]) == set(keys)
    assert sorted(puts[300:-1]) == sorted(slots)
    assert puts[-1] == "ks/_"


def test_an_empty_batch_costs_no_request(store):
    counting = CountingStore(store)
    assert Publisher(counting, prefix=KS).publish([]) == ()
    assert not counting.counts


def test_a_batch_does_not_move_a_slot_in_which_all_changes_conflict(store, publisher):
    """Otherwise watchers would read a slot in which nothing was written, or the outcomes would be in another order
    than the changes.
    """
    publisher.put("a", b"1")
    before = store.head(signal_key(KS, slot_of("a"))).etag
    outcomes = publisher.publish(
        [Put(key="a", body=b"2", precondition=ABSENT), Put(key="b", body=b"2"), Delete(key="c")]
    )
    assert [type(outcome) for outcome in outcomes] == [Conflict, Written, Written]
    assert store.head(signal_key(KS, slot_of("a"))).etag == before


def test_batches_run_in_parallel_within_the_bound(store):
    """Otherwise a batch would send its requests one by one, or more than `parallelism` at a time."""
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


def test_a_write_in_doubt_is_signalled(store):
    """Otherwise nobody would look at an object that may have been written."""
    faulty = FaultyStore(store, at("put", Fault.LOST, key="a"))
    watcher = Watcher(store, prefix=KS)
    watcher.poll()
    assert isinstance(Publisher(faulty, prefix=KS).put_if_absent("a", b"1"), Unknown)
    assert set(watcher.poll().changed) == {slot_of("a")}


def test_a_plain_write_that_failed_is_signalled_and_its_error_is_raised(store):
    """Otherwise nobody would look at an object that was written although its response was lost."""
    faulty = FaultyStore(store, at("put", Fault.LOST, key="a"))
    watcher = Watcher(store, prefix=KS)
    watcher.poll()
    with pytest.raises(UnavailableError):
        Publisher(faulty, prefix=KS).put("a", b"1")
    assert set(watcher.poll().changed) == {slot_of("a")}


def test_a_failed_write_in_a_batch_is_unknown_and_stops_no_other_write(store):
    """Otherwise one unavailable object would hide the outcomes or signals of the other objects."""
    faulty = FaultyStore(store, at("put", Fault.LOST, key="b"))
    outcomes = Publisher(faulty, prefix=KS).publish([Put(key=key, body=b"") for key in "abc"])
    assert [type(outcome) for outcome in outcomes] == [Written, Unknown, Written]
    assert len(Watcher(store, prefix=KS).poll().signals) == 3


def test_a_refused_change_raises_an_error_after_the_others_are_signalled(store, publisher):
    """Otherwise other objects of a batch would stay unsignalled because one key is too long."""
    with pytest.raises(UsageError, match="bytes"):
        publisher.publish([Put(key="a", body=b""), Put(key="x" * 1025, body=b"")])
    assert set(Watcher(store, prefix=KS).poll().signals) == {slot_of("a")}


@pytest.mark.parametrize("lost", ["ks/143", "ks/_"])
def test_a_failed_signal_names_the_written_but_unsignalled_keys(store, lost):
    """Otherwise the caller could not signal exactly the missing keys again."""
    faulty = FaultyStore(store, at("put", Fault.REFUSED, key=lost))
    publisher = Publisher(faulty, prefix=KS)
    watcher = Watcher(store, prefix=KS)
    watcher.poll()
    with pytest.raises(NotSignalledError) as caught:
        publisher.publish([Put(key="a", body=b""), Put(key="path/to/object", body=b"")])
    assert [type(outcome) for outcome in caught.value.outcomes] == [Written, Written]
    assert set(caught.value.keys) == ({"a"} if lost == "ks/143" else {"a", "path/to/object"})
    if lost == "ks/143":
        # The root has moved for the slot that was signalled.
        assert set(watcher.poll().changed) == {938}
    publisher.signal(caught.value.keys)
    assert 143 in watcher.poll().changed


def test_write_and_signal_are_the_halves_of_publish(store, publisher):
    """Otherwise a queue could not commit its entries between the objects and the signals."""
    publisher.write([Put(key="a", body=b"")])
    assert store.head("ks/_") is None
    publisher.signal(["a", "a"])
    assert store.head("ks/143") is not None


def test_signal_slots_moves_each_slot_and_the_root() -> None:
    """Otherwise a slot that must be read again would stay unread, or an error in one slot would stop the signals of
    other slots.
    """
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
