"""The causal cache in the background: readers find what is used often without waiting, and still no effect alone."""

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
    """Runs `during(key)` between taking a body and answering with it: what happens while a GET is on its way."""

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


def test_what_changed_is_there_after_the_next_tick(cache, publisher, counting):
    """`try_get` answers; an idle tick is 1 HEAD, one that finds a change reads it, and polls once more for it."""
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


def test_an_entry_that_is_unchanged_needs_no_second_poll(cache, publisher, counting):
    """Another key of its slot has changed."""
    publisher.put("a", b"1")
    cache.get("a")
    publisher.signal(["a"])
    counting.counts.clear()
    cache.tick()
    assert counting.counts == {"HEAD": 1, "LIST": 1, "GET": 1}
    assert body(cache.try_get("a")) == b"1"


def test_absence_is_read_again_too(cache, publisher):
    """An object that came, and one that went."""
    publisher.put("there", b"1")
    assert (cache.get("none"), body(cache.get("there"))) == (None, b"1")
    publisher.put("none", b"2")
    publisher.delete("there")
    cache.tick()
    assert body(cache.try_get("none")) == b"2"
    assert cache.get("there") is None


def test_stale_is_served_while_it_is_read_again(cache, store, publisher):
    """Of all entries what they were, up to the moment when all are new."""
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


def test_not_longer_than_the_limit(cache, clock, store, publisher):
    """Then what has moved is not served any more, although its GET is still on its way; the rest is."""
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


def test_while_polls_fail_hits_are_served_up_to_the_limit(make, clock, store, publisher):
    """Then readers poll for themselves, and get the error."""
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
def test_what_cannot_be_read_again_is_not_served(make, store, publisher, method):
    """Neither as it was, since it has changed, nor as it is now without the second poll; the next tick has it."""
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
    """It was written after the poll that had it read again, and so was its cause: one more poll shows that."""
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
def test_what_happens_meanwhile_is_not_undone(make, store, publisher, how):
    """An answer that was on its way does not come after it."""
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


def test_only_what_is_used_is_read_again(make, clock, counting, publisher):
    """Lately; at most so many, the most recently used first. The others wait for their readers."""
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


def test_idle_entries_leave(make, clock, counting, publisher):
    """With the first poll after their time; what is used stays."""
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


def test_idle_entries_leave_without_the_background_too(clock, store, publisher):
    watcher = Watcher(store, prefix=KS, clock=clock)
    cache = CausalCache(store, watcher, clock=clock, idle_seconds=60)
    publisher.put("a", b"1")
    cache.get("a")
    clock.now += 60
    cache.get("b")
    assert [*cache._entries] == ["b"]


def test_another_thread_ends_what_hangs(make, store, publisher):
    """A reader that waits for a poll does not wait for an entry that is read again and does not come."""
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


def test_the_thread(store, publisher):
    """It polls until the cache is closed, and is gone then; the cache is used on, by its readers' own polls."""
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


def test_the_thread_outlives_what_fails(store, publisher, caplog):
    """One warning for one outage."""
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
def test_times_that_cannot_be(make, store, given):
    with pytest.raises(UsageError, match="serve_stale_seconds"):
        make(store, **given)


def test_keys_of_one_slot(cache, publisher):
    """Each of those that are used is read again."""
    other = next(str(n) for n in range(10_000) if slot_of(str(n)) == slot_of("a"))
    for key in ("a", other):
        publisher.put(key, b"1")
        cache.get(key)
    publisher.put(other, b"2")
    cache.tick()
    assert [body(cache.try_get(key)) for key in ("a", other)] == [b"1", b"2"]
