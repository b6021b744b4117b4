"""The causal cache: no effect without its cause, and few requests."""

import threading
import time

import pytest

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.kernel.ports import ABSENT, Conflict, IfMatch
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import CausalCache, NotSignalledError, Publisher, Watcher
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.clocks import HandClock
from tests.support.faults import Fault, FaultyStore, at
from tests.support.waiting import until

KS = "ks/"
FOREVER = 1e9


class Hooked(MemoryObjectStore):
    """A store that runs `after_get(key)` after a GET has read the body and before it answers."""

    after_get = staticmethod(lambda _key: None)

    def get(self, key, **kwargs):
        found = super().get(key, **kwargs)
        self.after_get(key)
        return found

    def once_after(self, key, action):
        def hook(got):
            if got == key:
                self.after_get = lambda _: None
                action()

        self.after_get = hook


@pytest.fixture
def store():
    return Hooked()


@pytest.fixture
def publisher(store):
    return Publisher(store, prefix=KS)


def cache_over(store, *, staleness_seconds=FOREVER, clock=None, **kwargs):
    clock = clock or HandClock()
    watcher = Watcher(store, prefix=KS, clock=clock)
    return CausalCache(store, watcher, clock=clock, staleness_seconds=staleness_seconds, **kwargs)


def body(found):
    return found.body if found else None


def test_a_miss_a_hit_and_a_stale_entry_cost_few_requests(store, publisher):
    """Otherwise a hit would cost a request, or an unchanged stale entry would cost more than one conditional GET."""
    publisher.put("a", b"1")
    counting = CountingStore(store)
    cache = cache_over(counting)
    assert body(cache.get("a")) == b"1"
    assert counting.counts == {
        "HEAD": 2,
        "LIST": 1,
        "GET": 1,
    }  # the first poll lists; the second finds no change
    counting.counts.clear()
    assert body(cache.get("a")) == b"1"
    assert not counting.counts
    publisher.signal(["a"])
    cache.refresh()
    counting.counts.clear()
    assert body(cache.get("a")) == b"1"
    assert counting.counts == {"GET": 1}


def test_hits_cause_one_poll_in_each_staleness_time(store, publisher):
    """Otherwise a cached object would be older than `staleness_seconds`, by default one second."""
    clock = HandClock()
    publisher.put("a", b"1")
    cache = CausalCache(store, Watcher(store, prefix=KS, clock=clock), clock=clock)
    cache.get("a")
    publisher.put("a", b"2")
    clock.now += 0.75
    assert body(cache.get("a")) == b"1"
    clock.now += 0.25
    assert body(cache.get("a")) == b"2"


def test_the_poll_begins_after_the_response(store, publisher):
    """Otherwise a reader would see an effect without its cause if both were written during a slow GET."""
    publisher.put("cause", b"1")
    cache = cache_over(store)
    assert body(cache.get("cause")) == b"1"

    class Slow:
        def __getattr__(self, name):
            return getattr(store, name)

        def get(self, key, **kwargs):
            if key == "effect":
                publisher.put("cause", b"2")
                publisher.put("effect", b"2")
            return store.get(key, **kwargs)

    cache._objects = Slow()
    assert body(cache.get("effect")) == b"2"
    assert body(cache.get("cause")) == b"2"


def test_an_absence_is_returned_only_after_a_poll_too(store, publisher):
    """Otherwise a reader that sees a deletion would not see a change that was written before the deletion."""
    publisher.put("cause", b"1")
    cache = cache_over(store)
    cache.get("cause")
    publisher.put("cause", b"2")
    publisher.delete("effect")
    assert cache.get("effect") is None
    assert body(cache.get("cause")) == b"2"


def test_absence_is_cached_and_revalidated(store, publisher):
    """Otherwise each read of an absent key would cost a GET, or an object created later would not be found."""
    counting = CountingStore(store)
    cache = cache_over(counting)
    assert cache.get("a") is None
    assert cache.get("a") is None
    assert counting.counts["GET"] == 1
    publisher.put("a", b"1")
    cache.refresh()
    assert body(cache.get("a")) == b"1"
    publisher.delete("a")
    cache.refresh()
    assert cache.get("a") is None


def test_a_failing_poll_is_retried_while_its_reader_waits(store, publisher):
    """Otherwise a reader would get a body that no poll has checked, or an error at the first failed poll."""
    publisher.put("cause", b"1")
    faulty = FaultyStore(store)
    cache = cache_over(faulty)
    cache.get("cause")
    publisher.put("cause", b"2")
    publisher.put("effect", b"2")
    failures = 0

    def schedule(call):
        nonlocal failures
        if call.method in ("head", "list") and failures < 7:
            failures += 1
            return Fault.REFUSED
        return Fault.NONE

    faulty.schedule = schedule
    assert body(cache.get("effect")) == b"2"
    assert failures == 7
    assert body(cache.get("cause")) == b"2"


def test_a_poll_that_never_succeeds_raises_an_error(store, publisher):
    """Otherwise, after `patience_seconds`, a reader would get a body that no poll has checked, or the cache would keep
    such a body.
    """
    publisher.put("a", b"1")
    faulty = FaultyStore(store)
    cache = cache_over(faulty, patience_seconds=5)
    cache.refresh()
    faulty.schedule = lambda call: Fault.REFUSED if call.method == "head" else Fault.NONE
    with pytest.raises(UnavailableError, match="no poll succeeded"):
        cache.get("a")
    publisher.put("a", b"2")
    faulty.schedule = lambda _: Fault.NONE
    assert body(cache.get("a")) == b"2"


def test_a_change_during_a_get_is_not_forgotten(store, publisher):
    """Otherwise the old body would be cached as valid for ever. During the GET, another reader's poll has already shown
    the change, so no later poll shows it.
    """
    publisher.put("a", b"1")
    cache = cache_over(store)

    def meanwhile():
        publisher.put("a", b"2")
        cache.refresh()

    cache.refresh()
    store.once_after("a", meanwhile)
    cache.get("a")
    assert body(cache.get("a")) == b"2"


def test_errors_of_the_get_leave_no_lock(store, publisher):
    """Otherwise, after an error of a GET, the next reader of the key would wait for ever."""
    publisher.put("a", b"1")
    faulty = FaultyStore(store, lambda call: Fault.REFUSED if call.method == "get" else Fault.NONE)
    cache = cache_over(faulty)
    with pytest.raises(UnavailableError):
        cache.get("a")
    faulty.schedule = lambda _: Fault.NONE
    assert body(cache.get("a")) == b"1"


def test_the_cache_is_bounded_by_entries_and_bytes(store, publisher):
    """Otherwise the cache would grow without a limit, or evict entries that are used."""
    for key in "abc":
        publisher.put(key, key.encode() * 10)
    counting = CountingStore(store)
    cache = cache_over(counting, max_entries=2)
    for key in "abac":
        cache.get(key)
    assert list(cache._entries) == ["a", "c"]
    cache = cache_over(counting, max_bytes=20)
    for key in "abc":
        cache.get(key)
    assert (list(cache._entries), cache._entries.bytes) == (["b", "c"], 20)
    publisher.put("big", b"x" * 21)
    assert len(cache.get("big").body) == 21
    assert (list(cache._entries), cache._entries.bytes) == ([], 0)


def test_concurrent_readers_share_polls_and_gets(store, publisher):
    """Otherwise 40 readers of 10 keys would cost more than 10 GETs, or one poll for each reader."""
    keys = [str(number) for number in range(10)]
    for key in keys:
        publisher.put(key, key.encode())

    class Slow(CountingStore):
        def head(self, key):
            time.sleep(0.02)
            return super().head(key)

    slow = Slow(store)
    cache = cache_over(slow, clock=SYSTEM_CLOCK)
    cache.refresh()
    slow.counts.clear()
    found = []
    readers = [
        threading.Thread(target=lambda key=key: found.append((key, body(cache.get(key))))) for key in keys * 4
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(timeout=30)
    assert sorted(found) == sorted((key, key.encode()) for key in keys * 4)
    assert slow.counts["GET"] == 10
    assert slow.counts["HEAD"] <= 5


def test_a_waiting_reader_takes_over_from_a_reader_that_gave_up(store, publisher):
    """Otherwise a reader would fail because the poll of another reader has failed."""
    publisher.put("a", b"1")
    publisher.put("b", b"1")
    first_fails = threading.Event()
    go = threading.Event()

    class Once(MemoryObjectStore):
        def __getattr__(self, name):
            return getattr(store, name)

        def get(self, key, **kwargs):
            return store.get(key, **kwargs)

        def list(self, *args, **kwargs):
            return store.list(*args, **kwargs)

        def head(self, key):
            if not first_fails.is_set():
                first_fails.set()
                go.wait(10)
                raise UnavailableError("down")
            return store.head(key)

    cache = cache_over(Once(), clock=SYSTEM_CLOCK, patience_seconds=-1)
    errors = []

    def lead():
        try:
            cache.refresh()
        except UnavailableError as error:
            errors.append(error)

    leader = threading.Thread(target=lead)
    leader.start()
    first_fails.wait(10)
    found = []
    follower = threading.Thread(target=lambda: found.append(body(cache.get("a"))))
    follower.start()
    until(lambda: cache._turn._waiters)
    go.set()
    leader.join(10)
    follower.join(10)
    assert (len(errors), found) == (1, [b"1"])


def test_keys_of_one_slot_are_revalidated_together(store, publisher):
    """Otherwise the cache would serve an old body. A signal names only a slot, so each key in the slot may have
    changed.
    """
    other = next(str(n) for n in range(10_000) if slot_of(str(n)) == slot_of("a"))
    publisher.put("a", b"1")
    publisher.put(other, b"1")
    counting = CountingStore(store)
    cache = cache_over(counting)
    cache.get("a")
    cache.get(other)
    publisher.put(other, b"2")
    cache.refresh()
    counting.counts.clear()
    assert body(cache.get("a")) == b"1"
    assert body(cache.get(other)) == b"2"
    assert counting.counts["GET"] == 2


# try_get, evict, put


def test_try_get_sends_no_request():
    """Otherwise `try_get` would cost a request, or return an object that is stale or not checked recently."""
    clock, store = HandClock(), CountingStore(MemoryObjectStore())
    publisher = Publisher(store, prefix=KS, clock=clock)
    publisher.put("k", b"1")
    cache = cache_over(store, staleness_seconds=10, clock=clock)
    assert cache.try_get("k") is None
    assert cache.get("k").body == b"1"
    store.counts.clear()
    assert cache.try_get("k").body == b"1"
    assert cache.try_get("other") is None
    clock.now += 10
    assert cache.try_get("k") is None
    assert store.counts == {}
    publisher.put("k", b"2")
    cache.refresh()
    assert cache.try_get("k") is None
    assert cache.get("k").body == b"2"
    assert cache.try_get("k").body == b"2"


def test_an_evicted_key_is_read_again(store, publisher):
    """Otherwise a user could not make the cache read an object whose change nobody signalled."""
    publisher.put("k", b"1")
    cache = cache_over(store)
    assert cache.get("k").body == b"1"
    store.put("k", b"2")
    assert cache.get("k").body == b"1"
    cache.evict("k")
    cache.evict("never there")
    assert cache.try_get("k") is None
    assert cache.get("k").body == b"2"


def test_evict_waits_for_a_get_of_the_key(store, publisher):
    """Otherwise a GET that began before the eviction would leave an old body in the cache."""
    publisher.put("k", b"1")
    cache = cache_over(store)
    evicted = threading.Thread(target=cache.evict, args=["k"])

    def begins():
        store.put("k", b"2")
        evicted.start()

    store.once_after("k", begins)
    assert cache.get("k").body == b"1"
    evicted.join()
    assert cache.get("k").body == b"2"


def test_a_put_is_read_back_without_a_request():
    """Otherwise a reader would not see its own write at once, or other caches would not see it."""
    clock, store = HandClock(), CountingStore(MemoryObjectStore())
    publisher = Publisher(store, prefix=KS, clock=clock)
    mine = cache_over(store, staleness_seconds=10, clock=clock, publisher=publisher)
    other = cache_over(store, staleness_seconds=10, clock=clock)
    mine.get("k"), other.get("k")
    store.counts.clear()
    written = mine.put("k", b"1", metadata={"a": "b"})
    assert store.counts == {"PUT": 3}
    found = mine.get("k")
    assert (found.body, found.meta.etag, found.meta.size) == (b"1", written.etag, 1)
    assert found.meta.metadata == {"a": "b"}
    assert store.counts == {"PUT": 3}
    assert other.get("k") is None
    clock.now += 10
    assert other.get("k").body == b"1"
    store.put("k", b"2")
    publisher.signal(["k"])
    clock.now += 10
    assert mine.get("k").body == b"2"


def test_a_conflicting_put_makes_the_cache_read_again(store, publisher):
    """Otherwise, after a conflict, the cache would still return the old body."""
    cache = cache_over(store, publisher=publisher)
    cache.refresh()
    first = cache.put("k", b"1", precondition=ABSENT)
    store.put("k", b"another's")
    assert cache.get("k").body == b"1"
    assert cache.put("k", b"2", precondition=IfMatch(etag=first.etag)) == Conflict()
    assert cache.get("k").body == b"another's"


def test_a_put_in_doubt_is_read_from_the_store(store):
    """Otherwise the cache would return the body of a put that may not have been applied or signalled."""
    for fault, key in ((Fault.LOST, "k"), (Fault.THROTTLED, f"{KS}{slot_of('k')}")):
        faulty = FaultyStore(store, at("put", fault, key=key))
        cache = cache_over(store, publisher=Publisher(faulty, prefix=KS, clock=HandClock()))
        store.put("k", b"0")
        assert cache.get("k").body == b"0"
        with pytest.raises((UnavailableError, NotSignalledError)):
            cache.put("k", b"1")
        assert cache.get("k").body == b"1"


def test_a_put_during_a_get_is_not_hidden(store, publisher):
    """Otherwise the late answer of the GET would hide the newer version."""
    publisher.put("k", b"1")
    cache = cache_over(store, publisher=publisher)
    written = threading.Thread(target=cache.put, args=["k", b"2"])
    store.once_after("k", written.start)
    assert cache.get("k").body == b"1"
    written.join()
    assert cache.get("k").body == b"2"


def test_put_needs_a_publisher_of_the_keyspace(store):
    with pytest.raises(UsageError, match="publisher="):
        cache_over(store).put("k", b"1")
    with pytest.raises(UsageError, match="7 slots"):
        cache_over(store, publisher=Publisher(store, prefix=KS, slots=7))
