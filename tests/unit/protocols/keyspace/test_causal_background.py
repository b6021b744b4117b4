"""The causal cache in the background: readers find hot objects without waiting, and never an effect without its
cause."""

import threading

import pytest

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import CausalCache, Publisher, Watcher
from s3notify_platform.protocols.keyspace.causal import HOT_SECONDS
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.clocks import HandClock
from tests.support.faults import Fault, FaultyStore
from tests.support.waiting import until

KS = "ks/"
STUCK_SECONDS = 30


class Hooked(MemoryObjectStore):
    """A store that runs `during(key)` after a GET has read the body and before it answers."""

    during = staticmethod(lambda _key: None)

    def get(self, key, **kwargs):
        found = super().get(key, **kwargs)
        self.during(key)
        return found


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def store():
    return Hooked()


@pytest.fixture
def publisher(store):
    return Publisher(store, prefix=KS, clock=HandClock("publisher"))


@pytest.fixture
def counting(store):
    return CountingStore(store)


@pytest.fixture
def make(clock):
    def made(store, **given):
        watcher = Watcher(store, prefix=KS, clock=clock, relist_seconds=1e9)
        cache = CausalCache(store, watcher, clock=clock, **{"parallelism": 1} | given)
        cache.start(own_thread=False)
        return cache

    return made


@pytest.fixture
def cache(make, counting):
    return make(counting)


def body(found):
    return found.body if found else None


def test_a_change_is_visible_after_the_next_tick(cache, publisher, counting):
    """Otherwise `try_get` would not return a changed object after a tick, or an idle tick would cost more
    than 1 HEAD.
    """
    publisher.put("a", b"1")
    cache.tick()
    assert cache.try_get("a") is None
    assert body(cache.get("a")) == b"1"
    counting.counts.clear()
    cache.tick()
    assert counting.counts == {"HEAD": 1}
    publisher.put("a", b"2")
    assert body(cache.try_get("a")) == b"1"
    cache.tick()
    assert counting.counts == {"HEAD": 3, "LIST": 1, "GET": 1}
    assert body(cache.try_get("a")) == b"2"


def test_an_unchanged_entry_needs_no_second_poll(cache, publisher, counting):
    """Otherwise a change of another key in the slot would cost a second poll."""
    publisher.put("a", b"1")
    cache.get("a")
    publisher.signal(["a"])
    counting.counts.clear()
    cache.tick()
    assert counting.counts == {"HEAD": 1, "LIST": 1, "GET": 1}
    assert body(cache.try_get("a")) == b"1"


def test_absent_keys_are_read_again_too(cache, publisher):
    """Otherwise the cache would keep an absence after a put, or an object after its deletion."""
    publisher.put("there", b"1")
    assert (cache.get("none"), body(cache.get("there"))) == (None, b"1")
    publisher.put("none", b"2")
    publisher.delete("there")
    cache.tick()
    assert body(cache.try_get("none")) == b"2"
    assert cache.get("there") is None


def test_stale_entries_are_served_while_they_are_read_again(cache, store, publisher):
    """Otherwise a reader would see new entries next to old ones, or would have to wait."""
    for key in "ab":
        publisher.put(key, b"1")
        cache.get(key)
    cache.tick()
    for key in "ab":
        publisher.put(key, b"2")
    seen = []
    store.during = lambda _: seen.append([body(cache.try_get(key)) for key in "ab"] + [body(cache.get("a"))])
    cache.tick()
    assert seen == [[b"1", b"1", b"1"]] * 2
    assert [body(cache.try_get(key)) for key in "ab"] == [b"2", b"2"]


def test_stale_entries_are_served_only_up_to_the_limit(cache, clock, store, publisher):
    """Otherwise a changed object would be served beyond `serve_stale_seconds` because its GET is slow."""
    for key in ("slow", "other"):
        publisher.put(key, b"1")
        cache.get(key)
    publisher.put("slow", b"2")
    seen = []

    def slow(key):
        store.during = lambda _: None
        clock.now += 9
        seen.append(body(cache.try_get("slow")))
        clock.now += 0.5
        cache.tick()
        clock.now += 0.5
        seen.extend([body(cache.try_get("slow")), body(cache.get("other")), body(cache.get("slow"))])

    clock.now += 0.5
    store.during = slow
    cache.tick()
    assert seen == [b"1", None, b"1", b"2"]
    assert body(cache.try_get("slow")) == b"2"


def test_hits_are_served_up_to_the_limit_while_polls_fail(make, clock, store, publisher):
    """Otherwise readers would get an error at the first failed poll, or old objects for ever."""
    faulty = FaultyStore(store)
    cache = make(faulty, patience_seconds=5)
    publisher.put("a", b"1")
    cache.get("a")
    faulty.schedule = lambda call: Fault.REFUSED if call.method == "head" else Fault.NONE
    for _ in range(9):
        clock.now += 1
        with pytest.raises(UnavailableError):
            cache.tick()
        assert body(cache.try_get("a")) == b"1"
    clock.now += 1
    assert cache.try_get("a") is None
    with pytest.raises(UnavailableError, match="no poll succeeded"):
        cache.get("a")
    faulty.schedule = lambda _: Fault.NONE
    cache.tick()
    assert body(cache.try_get("a")) == b"1"


@pytest.mark.parametrize("method", ["get", "head"])
def test_an_entry_that_could_not_be_read_again_is_not_served(make, store, publisher, method):
    """Otherwise a reader would get an object version that was replaced, or a new object version that no second poll
    has checked.
    """
    faulty = FaultyStore(store)
    cache = make(faulty)
    publisher.put("a", b"1")
    cache.get("a")
    publisher.put("a", b"2")
    calls = []

    def fails(call):
        calls.append(call.method)
        return Fault.REFUSED if calls.count(method) == (2 if method == "head" else 1) else Fault.NONE

    faulty.schedule = fails
    cache.tick()
    assert cache.try_get("a") is None
    faulty.schedule = lambda _: Fault.NONE
    cache.tick()
    assert body(cache.try_get("a")) == b"2"


def test_an_effect_that_is_read_again_shows_its_cause(cache, store, publisher):
    """Otherwise a reader would see the new effect next to the old cause if both are written after the poll."""
    for key in ("cause", "effect"):
        publisher.put(key, b"1")
        cache.get(key)
    publisher.put("effect", b"2")

    def meanwhile(key):
        store.during = lambda _: None
        publisher.put("cause", b"3")
        publisher.put("effect", b"3")

    real = store.get

    def get(key, **kwargs):
        store.during(key)
        return real(key, **kwargs)

    store.get, store.during = get, meanwhile
    cache.tick()
    assert cache.try_get("cause") is None
    assert body(cache.get("effect")) == b"3"
    assert body(cache.get("cause")) == b"3"


@pytest.mark.parametrize("how", ["evicted", "written"])
def test_an_eviction_or_a_put_during_a_tick_is_not_undone(make, store, publisher, how):
    """Otherwise a late answer would replace a newer version in the cache."""
    cache = make(store, publisher=publisher)
    cache.put("a", b"1")
    cache.tick()
    publisher.put("a", b"2")

    def meanwhile(_key):
        store.during = lambda _: None
        if how == "evicted":
            cache.evict("a")
            store.put("a", b"3")
        else:
            cache.put("a", b"3")

    store.during = meanwhile
    cache.tick()
    assert body(cache.get("a")) == b"3"


def test_only_hot_entries_are_read_again(make, clock, counting, publisher):
    """Otherwise the background thread would read entries that nobody uses, or more than `revalidate_max` of them."""
    cache = make(counting, revalidate_max=2, serve_stale_seconds=1000)
    for key in "abcd":
        publisher.put(key, b"1")
        cache.get(key)
    clock.now += HOT_SECONDS
    for key in "bac":
        cache.try_get(key)
    clock.now += 1
    for key in "abcd":
        publisher.put(key, b"2")
    counting.counts.clear()
    cache.tick()
    assert counting.counts["GET"] == 2
    assert [body(cache.try_get(key)) for key in "abcd"] == [b"2", None, b"2", None]
    assert body(cache.get("d")) == b"2"


def test_idle_entries_are_evicted(make, clock, counting, publisher):
    """Otherwise entries that nobody uses would fill the memory, or used entries would be evicted."""
    cache = make(counting, idle_seconds=60, serve_stale_seconds=1000)
    for key in "abc":
        publisher.put(key, b"12345")
        cache.get(key)
    clock.now += 40
    cache.try_get("b")
    clock.now += 20
    assert len([*cache._entries]) == 3
    cache.tick()
    assert ([*cache._entries], cache._entries.bytes) == (["b"], 5)
    clock.now += 60
    cache.refresh()
    assert [*cache._entries] == []


def test_idle_entries_are_also_evicted_without_a_background_thread(clock, store, publisher):
    watcher = Watcher(store, prefix=KS, clock=clock)
    cache = CausalCache(store, watcher, clock=clock, idle_seconds=60)
    publisher.put("a", b"1")
    cache.get("a")
    clock.now += 60
    cache.get("b")
    assert [*cache._entries] == ["b"]


def test_a_hanging_revalidation_does_not_delay_readers_of_other_keys(make, store, publisher):
    """Otherwise a reader would wait for a hanging GET of another key."""
    cache = make(store, staleness_seconds=0.01, serve_stale_seconds=0.05)
    publisher.put("hangs", b"1")
    cache.get("hangs")
    publisher.put("hangs", b"2")
    hangs, go = threading.Event(), threading.Event()

    def during(key):
        if key == "hangs":
            hangs.set()
            assert go.wait(STUCK_SECONDS)

    store.during = during
    ticking = threading.Thread(target=cache.tick)
    ticking.start()
    assert hangs.wait(STUCK_SECONDS)
    assert cache.get("new") is None
    go.set()
    ticking.join(STUCK_SECONDS)
    store.during = lambda _: None
    assert body(cache.get("hangs")) == b"2"


def test_the_thread_polls_until_the_cache_is_closed(store, publisher):
    """Otherwise the thread would outlive the cache, or the cache would be unusable afterwards."""
    counting = CountingStore(store)
    watcher = Watcher(counting, prefix=KS)
    publisher.put("a", b"0")
    with CausalCache(counting, watcher, clock=SYSTEM_CLOCK, staleness_seconds=0.001) as cache:
        (thread,) = (each for each in threading.enumerate() if each.name == "causal cache")
        cache.start()
        assert body(cache.get("a")) == b"0"
        for number in range(3):
            publisher.put("a", b"%d" % number)
            wanted = b"%d" % number
            until(lambda wanted=wanted: body(cache.try_get("a")) == wanted)
    assert not thread.is_alive()
    counting.counts.clear()
    publisher.put("a", b"9")
    until(lambda: body(cache.get("a")) == b"9")
    cache.close()
    with cache:
        publisher.put("a", b"10")
        until(lambda: body(cache.try_get("a")) == b"10")


def test_the_thread_survives_an_outage(store, publisher, caplog):
    """Otherwise the background thread would end at the first error, or log a warning for each failed poll."""
    failed = [0]

    def fails(call):
        failed[0] += call.method == "head"
        return Fault.REFUSED if call.method == "head" else Fault.NONE

    faulty = FaultyStore(store, fails)
    publisher.put("a", b"1")
    with CausalCache(faulty, Watcher(faulty, prefix=KS), staleness_seconds=0.001) as cache:
        until(lambda: failed[0] > 3)
        faulty.schedule = lambda _: Fault.NONE
        assert body(cache.get("a")) == b"1"
        publisher.put("a", b"2")
        until(lambda: body(cache.try_get("a")) == b"2")
    (warning,) = caplog.messages
    assert "the cache is not refreshed" in warning


@pytest.mark.parametrize(
    "given", [{"staleness_seconds": 0}, {"staleness_seconds": 10.0}, {"serve_stale_seconds": 0.5}]
)
def test_impossible_times_are_refused(make, store, given):
    with pytest.raises(UsageError, match="serve_stale_seconds"):
        make(store, **given)


def test_all_hot_keys_of_a_slot_are_read_again(cache, publisher):
    """Otherwise only one of two hot keys in a changed slot would be read again."""
    other = next(str(n) for n in range(10_000) if slot_of(str(n)) == slot_of("a"))
    for key in ("a", other):
        publisher.put(key, b"1")
        cache.get(key)
    publisher.put(other, b"2")
    cache.tick()
    assert [body(cache.try_get(key)) for key in ("a", other)] == [b"1", b"2"]
