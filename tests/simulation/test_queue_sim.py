"""The notification queue under faults. No entry is lost. An entry is doubled only because of a fault. No quota is
exceeded, and fenced owners change nothing.
"""

import pytest

from s3notify_platform.protocols.notification_queue import (
    TopicSettings,
    rooms,
)
from tests.support.faults import Fault
from tests.support.queue_world import CRASHES, GENTLE, KINDS, LOSSY, SLEEPY, World, persistent, queue_of
from tests.support.simulation import run_simulation, simulated


@pytest.fixture
def holding(monkeypatch):
    """Lets each writer hold half of a shard's quota as spare quota. Writers take spare quota only while at most three
    quarters of the shard are filled.
    """
    monkeypatch.setattr(rooms, "ROOM_HELD_SHARE", 0.5)
    monkeypatch.setattr(rooms, "ROOM_IDLE_SHARE", 0.75)


@KINDS
@simulated
def test_every_write_is_announced(kind, seed):
    """Writers, owners and reconcilers crash anywhere. If a crash between two steps lost an entry, the endpoint would
    never learn of the object, because no write is repeated.
    """
    # A crash of an owner counts as an attempt.
    world = World(kind=kind, settings=TopicSettings(capacity=4, shards=2, max_attempts=99), seed=seed)
    actors = [world.writer(n, [f"k{n}.{i}" for i in range(4)]) for n in range(2)]
    actors += [world.deliverer(), world.deliverer(), world.reconciler()]
    run_simulation(actors, world.stores, seed, faults=world.rates(CRASHES), restarts=1000)
    assert world.queue.dead("t") == ()
    world.finish()


@simulated
def test_pulled_entries_stay_until_they_are_removed(seed):
    """Consumers and writers crash. If an entry disappeared before its consumer removed it, a restarted consumer would
    miss the change. If an entry stayed after its removal, it would take quota for ever.
    """
    world = World(kind="memory", settings=TopicSettings(capacity=6, shards=3), seed=seed)
    actors = [world.writer(n, [f"k{n}.{i}" for i in range(4)]) for n in range(2)]
    actors += [world.puller(range(1000)), world.puller(range(200, 900)), world.reconciler()]
    run_simulation(actors, world.stores, seed, faults=CRASHES, restarts=1000)
    world.finish()


@KINDS
@simulated
def test_entries_are_delivered_once_if_no_answer_is_lost(kind, seed):
    """The store refuses requests, the endpoint fails, and three workers are busy. If two workers delivered the same
    entry, or a worker repeated a successful delivery, the endpoint would process an event twice.
    """
    world = World(kind=kind, settings=TopicSettings(capacity=8, shards=4), seed=seed)
    keys = [f"k{n}" for n in range(8)]
    refused = {}

    def fails(entry):
        refused[entry.id] = refused.get(entry.id, 0) + 1
        return entry.event.key.endswith(("1", "3")) and refused[entry.id] < 3

    actors = [world.writer(n, keys[n::2]) for n in range(2)]
    actors += [world.deliverer(fails=fails, lease_seconds=40, expiry_seconds=60) for _ in range(3)]
    actors.append(world.reconciler())
    run_simulation(actors, world.stores, seed, faults=world.rates(GENTLE))
    assert set(refused) == {entry_id for entry_id, *_ in world.handed}
    for entry_id, key, _ in world.handed:
        assert refused[entry_id] == (3 if key.endswith(("1", "3")) else 1)
    assert {key for _, key, _ in world.handed} == set(keys)
    assert len(refused) == len(keys)
    world.finish()


@simulated
def test_owner_removes_nothing_after_its_successor_has_begun(seed):
    """Owners sleep past their leases at any call, and their clocks run at different rates. If a former owner still
    removed an entry, the successor could not store the result of its own delivery of this entry.
    """
    world = World(kind="memory", settings=TopicSettings(capacity=12, shards=2), seed=seed, watch_fences=True)
    actors = [world.writer(0, [f"k{i}" for i in range(12)])]
    actors += [world.deliverer(limit=2) for _ in range(3)]
    actors.append(world.reconciler())
    rates = [1.0, 0.7, 1.0, 1.4, 1.0]
    run_simulation(actors, world.stores, seed, faults=SLEEPY, clock_rates=rates)
    world.finish()


@KINDS
@simulated
def test_quota_holds_with_sleeping_writers(kind, seed):
    """Entries are counted again while writers sleep, crash and lose answers. If a recount freed the room of a sleeping
    writer, the topic would exceed its capacity. If the room of a dead writer stayed in use, the topic would refuse
    writes for ever.
    """
    world = World(kind=kind, settings=TopicSettings(capacity=2, shards=1), seed=seed)
    actors = [world.writer(n, [f"k{n}.{i}" for i in range(3)]) for n in range(4)]
    actors += [world.puller(range(1000)), world.reconciler(), world.reconciler()]
    faults = world.rates(CRASHES | {Fault.PAUSE: 0.02})
    rates = [1.0, 1.5, 0.7, 1.0, 1.0, 2.0, 0.5]
    run_simulation(actors, world.stores, seed, faults=faults, restarts=1000, clock_rates=rates)
    # A change is lost in only one case: its writer slept past the reservation, and then died.
    assert not world.ids()
    world.recount()
    assert world.queue.stats("t").counted == 0


@pytest.mark.parametrize("crashes", [True, False], ids=["crashes", "sleepy"])
@KINDS
@simulated
def test_quota_holds_with_writers_that_reserve_too_much(holding, kind, crashes, seed):
    """Writers hold spare room, and are killed, or sleep, before they use it. If a writer used its spare room after a
    recount, the topic would exceed its capacity. If the spare room of a dead writer stayed in use, other writers would
    be refused for ever.
    """
    world = World(kind=kind, settings=TopicSettings(capacity=8, shards=1), seed=seed)
    actors = [world.writer(n, [f"k{n}.{i}" for i in range(9)], together=1) for n in range(3)]
    actors += [world.puller(range(1000)), world.reconciler(), world.reconciler()]
    faults = world.rates(CRASHES if crashes else SLEEPY)
    run_simulation(
        actors, world.stores, seed, faults=faults, restarts=1000, clock_rates=[1.0, 1.5, 0.7, 1.0, 2.0, 1.0]
    )
    assert not world.ids()
    world.recount()
    assert world.queue.stats("t").counted == 0


@simulated
def test_sleeping_writer_announces_its_changes_again(seed):
    """Writers pause, so the reconciler may remove the reservation of a write that happens later. If the writer did not
    announce the change again, consumers would never learn of the object.
    """
    world = World(kind="memory", settings=TopicSettings(capacity=4, shards=1), seed=seed)
    actors = [world.writer(n, [f"k{n}.{i}" for i in range(4)]) for n in range(3)]
    actors += [world.puller(range(1000)), world.reconciler()]
    faults = LOSSY | {Fault.PAUSE: 0.03}
    run_simulation(actors, world.stores, seed, faults=faults, clock_rates=[1.0, 1.3, 0.8, 1.0, 1.0])
    world.finish()


@simulated
@pytest.mark.parametrize("how", ["deleted and created", "renewed"])
def test_recreated_topic_delivers_later_writes(how, seed):
    """A write may have a reservation from the time before the topic was created again. If the writer did not notice
    that this reservation is lost, the new topic's consumer would never learn of the object.
    """
    world = World(kind="memory", settings=TopicSettings(capacity=6, shards=2), seed=seed)
    before, during = set(), []

    def recreate(stores, clock):
        queue = queue_of(stores, clock)
        clock.sleep(0.05)
        if how == "renewed":
            persistent(clock, lambda: queue.topics.renew("t", lambda found: found))
        else:
            persistent(clock, lambda: queue.topics.delete("t"))
            persistent(clock, lambda: queue.topics.create("t", world.settings))
        before.update(world.written)
        during.append(True)

    def over():
        return during and World.over(world)

    world.over = over
    actors = [world.writer(n, [f"k{n}.{i}" for i in range(4)]) for n in range(2)]
    actors += [world.puller(range(1000)), world.reconciler(), recreate]
    run_simulation(actors, world.stores, seed, faults=LOSSY | {Fault.PAUSE: 0.02})
    known = {(key, etag) for _, key, etag in world.handed}
    assert world.written - before <= known
    assert not world.ids()


@simulated
def test_permanently_refused_entry_becomes_a_dead_letter(seed):
    """Without dead letters, workers would try a refused entry for ever, and the entry would take quota. Without a
    redrive, an operator could not deliver the event after the endpoint was repaired.
    """
    settings = TopicSettings(capacity=24, shards=2, max_attempts=2)
    world = World(kind="memory", settings=settings, seed=seed)
    keys = [f"k{i}" for i in range(6)]
    actors = [world.writer(0, keys)]
    actors += [world.deliverer(fails=lambda entry: entry.event.key in keys[::2]) for _ in range(2)]
    actors.append(world.reconciler())
    run_simulation(actors, world.stores, seed, faults=CRASHES, restarts=1000)
    dead = world.queue.dead("t")
    written = {key for key, _ in world.written}
    # A crash of an owner counts as an attempt, so other entries may be dead letters, too.
    assert {letter.event.key for letter in dead} >= written & set(keys[::2])
    assert all("2 attempts" in letter.reason for letter in dead)
    world.finish()
    first = len(world.handed)
    assert world.queue.redrive("t") == (len(dead), ())
    assert world.queue.dead("t") == ()
    # Without crashes, no attempt is lost, so no entry becomes a dead letter again.
    run_simulation([world.deliverer(), world.reconciler()], world.stores, seed, faults=GENTLE)
    assert {(key, etag) for _, key, etag in world.handed[first:]} == {
        (letter.event.key, letter.event.etag) for letter in dead
    }
    assert world.queue.dead("t") == ()
    world.finish()
