"""The keyspace under faults: every published change is found, and causes come before effects."""

from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.kernel.ports import Conflict, Unknown, list_all
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import (
    CausalCache,
    Delete,
    NotSignalledError,
    Publisher,
    Put,
    Watcher,
    WatcherState,
    digest_of,
)
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.faults import Fault
from tests.support.simulation import ROUGH, run_simulation, simulated

KS = "ks/"
SLOTS = 20
NO_CRASH = {fault: rate for fault, rate in ROUGH.items() if "crash" not in fault.value}


def persistently(clock, action, publisher):
    """Acts as a careful writer: retries until it has an answer, and signals again until the signals have moved."""
    while True:
        try:
            return action()
        except NotSignalledError as error:
            keys = error.keys
            while keys:
                try:
                    publisher.signal(keys)
                    keys = ()
                except NotSignalledError as again:
                    keys = again.keys
                    clock.sleep(0.01)
            if not any(isinstance(outcome, Unknown) for outcome in error.outcomes):
                return error.outcomes
        except UnavailableError:
            clock.sleep(0.01)


def writer(number, log):
    """Publishes a few objects, singly and in batches. After a crash, continues at the same place."""

    def run(store, clock):
        publisher = Publisher(store, prefix=KS, slots=SLOTS, clock=clock, parallelism=1)
        while log[number] < 4:
            step = log[number]
            body = f"{number}.{step}".encode()
            if step % 2:
                batch = [Put(key=f"data/{number}-{n}", body=body) for n in range(3)]
                batch.append(Delete(key=f"data/{number}-single"))
                persistently(clock, lambda batch=batch: publisher.publish(batch), publisher)
            else:
                key = f"data/{number}-single"
                persistently(clock, lambda key=key, body=body: publisher.put(key, body), publisher)
            log[number] += 1

    return run


def consumer(saved):
    """Polls, reads the changes, and only then saves its cursor. A crash repeats work, and loses nothing."""

    def run(store, clock):
        while saved["polls"] < 6 or not saved["quiet"]:
            saved["polls"] += 1
            writers_ended = saved["stop"]()
            state = WatcherState.loads(saved["cursor"]) if saved["cursor"] else None
            watcher = Watcher(store, prefix=KS, slots=SLOTS, clock=clock, state=state)
            try:
                poll = watcher.observe(watcher.state, relist=False)
                if poll.changed:
                    here = {
                        meta.key: meta.etag
                        for meta in list_all(store, "data/")
                        if slot_of(meta.key, SLOTS) in poll.changed
                    }
                    gone = {key for key in saved["view"] if slot_of(key, SLOTS) in poll.changed} - here.keys()
                    saved["view"] = {key: v for key, v in saved["view"].items() if key not in gone} | here
                saved["cursor"] = (
                    watcher.state.advance(poll.changed, poll.signals).at_root(poll.root_etag).dumps()
                )
                saved["quiet"] = writers_ended
            except UnavailableError:
                pass
            clock.sleep(0.05)

    return run


@simulated
def test_every_published_change_reaches_every_consumer(seed):
    """Writers and consumers crash, and a poll lists the keyspace only if the root has changed. If the root moved before
    the signal of a slot, a consumer could remember the new root without the change. The consumer's view would then stay
    old.
    """
    store = MemoryObjectStore()
    log = [0, 0, 0]
    views = [
        {"cursor": "", "view": {}, "polls": 0, "quiet": False, "stop": lambda: min(log) == 4}
        for _ in range(2)
    ]
    run_simulation(
        [*(writer(number, log) for number in range(3)), *(consumer(saved) for saved in views)],
        store,
        seed,
        faults=ROUGH,
        restarts=1000,
    )
    bucket = {meta.key: meta.etag for meta in list_all(store, "data/")}
    for saved in views:
        assert saved["view"] == bucket
        state = WatcherState.loads(saved["cursor"])
        for meta in list_all(store, KS):
            if not meta.key.endswith("_"):
                slot = int(meta.key.removeprefix(KS))
                assert state.seen(slot) == digest_of(meta.etag)


def effects_seen(seed):
    """A writer increases `cause` to n, and then writes `effect-n`. A reader that sees `effect-n` must find n or more in
    `cause`.

    Returns the number of readers that saw an effect.
    """
    store = MemoryObjectStore()
    last, effects = 40, []

    def write(faulty, clock):
        publisher = Publisher(faulty, prefix=KS, slots=SLOTS, clock=clock, parallelism=1)
        for number in range(1, last + 1):
            for key in ("cause", f"effect-{number}"):
                body = b"%d" % number
                persistently(clock, lambda key=key, body=body: publisher.put(key, body), publisher)

    def read(faulty, clock):
        watcher = Watcher(faulty, prefix=KS, slots=SLOTS, clock=clock)
        # The cache polls only if `refresh` is called, or if a new version needs a poll.
        cache = CausalCache(faulty, watcher, clock=clock, staleness_seconds=1e9, patience_seconds=1e6)
        seen = 0
        while seen < last:
            try:
                cache.refresh()
                cause = _number(cache.get("cause"))
                assert cause >= seen
                seen = cause
                following = f"effect-{cause + 1}"
                for times in range(15):  # the cache has the cause, which becomes too old
                    if store.head(following) is not None:
                        break
                    clock.sleep(0.005 * 2**times)
                effect = _number(cache.get(following))
                effects.append(effect)
                assert _number(cache.get("cause")) >= effect
            except UnavailableError:
                clock.sleep(0.01)

    # There are no crashes, because a writer that stays dead could leave a cause without a signal. Only the queue can
    # announce such a cause.
    readers = [read] * (1 + seed % 2)
    run_simulation([write, *readers], store, seed, faults=NO_CRASH, clock_rates=[1.0, 0.5, 2.0])
    return sum(map(bool, effects))


@simulated
def test_reader_never_sees_an_effect_without_its_cause(seed):
    effects_seen(seed)


def test_readers_see_effects_while_the_cause_is_cached():
    """Readers see effects in most runs of the test above. Without effects, the test would prove nothing."""
    assert sum(effects_seen(seed) > 0 for seed in range(10)) >= 8


def _number(found):
    return int(found.body) if found else 0


def pairs_seen(seed):
    """A writer repeatedly increases `cause`, and then `effect`. Readers refresh both objects in the background.

    A reader of an effect must have seen its cause. Returns the number of effects that were seen without a request.
    """
    store = MemoryObjectStore()
    last, seen = 30, []

    def write(faulty, clock):
        publisher = Publisher(faulty, prefix=KS, slots=SLOTS, clock=clock, parallelism=1)
        for number in range(1, last + 1):
            for key in ("cause", "effect"):
                body = b"%d" % number
                persistently(clock, lambda key=key, body=body: publisher.put(key, body), publisher)

    def read(faulty, clock):
        watcher = Watcher(faulty, prefix=KS, slots=SLOTS, clock=clock)
        cache = CausalCache(
            faulty, watcher, clock=clock, patience_seconds=1e6, serve_stale_seconds=1e6, parallelism=1
        )
        cache.start(own_thread=False)
        effect = newest = 0
        while effect < last:
            try:
                cache.tick()
                found = cache.try_get("effect")
                effect = _number(found if found is not None else cache.get("effect"))
                cause = cache.try_get("cause")
                assert _number(cause if cause is not None else cache.get("cause")) >= effect >= newest
                newest = effect
                seen.append(found)
            except UnavailableError:
                clock.sleep(0.01)

    run_simulation([write, read, read], store, seed, faults=NO_CRASH, clock_rates=[1.0, 0.5, 2.0])
    return len({found.body for found in seen if found is not None})


@simulated
def test_background_refresh_never_shows_an_effect_without_its_cause(seed):
    pairs_seen(seed)


def test_background_refresh_reads_effects():
    """Readers of the test above see effects. Without effects, the test would prove nothing."""
    assert sum(pairs_seen(seed) for seed in range(5)) > 10


@simulated
def test_one_of_many_conditional_publishers_wins(seed):
    """If two calls of `put_if_absent` returned `Written`, the earlier writer would not notice that another writer has
    replaced the object.
    """
    store = MemoryObjectStore()
    outcomes = {}

    def contend(number):
        def run(faulty, clock):
            publisher = Publisher(faulty, prefix=KS, slots=SLOTS, clock=clock, parallelism=1)
            try:
                outcomes[number] = publisher.put_if_absent("data/x", b"%d" % number)
            except NotSignalledError as error:
                outcomes[number] = error.outcomes[0]

        return run

    run_simulation([contend(n) for n in range(4)], store, seed, faults={Fault.LOST: 0.2, Fault.LATE: 0.2})
    winners = [n for n, outcome in outcomes.items() if not isinstance(outcome, Unknown | Conflict)]
    assert len(winners) <= 1
    found = store.get("data/x")
    assert found is not None
    assert not winners or found.body == b"%d" % winners[0]
