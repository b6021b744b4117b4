"""The delivery worker under faults of its store and its endpoints. No event is lost. No event is delivered twice
without a cause.
"""

import random
from contextlib import suppress

from s3notify_platform.channels.delivery.push import Delivered, Down, Rejected
from s3notify_platform.protocols.notification_queue import TopicSettings
from tests.support.outlets import ENDPOINT, FakePush, SteppedDelivery
from tests.support.queue_world import CRASHES, GENTLE, KINDS, RETRY, SLEEPY, World, queue_of
from tests.support.simulation import run_simulation, simulated


def settings(**fields):
    return TopicSettings(**{"capacity": 16, "shards": 2, "endpoint": ENDPOINT} | fields)


def outlet(world, answer, *, lease_seconds=1.5, expiry_seconds=3.0):
    """A delivery worker that works step by step. `answer(entries, seconds)` gives the endpoint's answer."""

    def run(stores, clock):
        def answered(entries):
            found = answer(entries, clock.monotonic())
            if found == Delivered():
                world.handed.extend((entry.id, entry.event.key, entry.event.etag) for entry in entries)
            return found

        queue = queue_of(stores, clock)
        delivery = SteppedDelivery(
            queue,
            FakePush(answered, before=lambda: clock.sleep(0.05)),
            lease_seconds=lease_seconds,
            expiry_seconds=expiry_seconds,
        )
        while not world.over():
            with suppress(*RETRY):
                delivery.step()
            clock.sleep(0.4)
        delivery.stop()

    return run


def moody(seed, *, until):
    """An endpoint with random phases of 4 s. In a phase it accepts nothing or some events, or sends no answer. In the
    end it works.
    """
    dice = random.Random(f"mood {seed}")
    moods = [dice.choice(["well", "refusing", "gone", "busy", "silent", "odd"]) for _ in range(100)]

    def answer(entries, seconds):
        mood = "well" if seconds > until else moods[int(seconds / 4)]
        if mood == "odd":
            mood = dice.choice(["well", "refusing", "gone", "silent"])
        match mood:
            case "well":
                return Delivered()
            case "refusing":
                return Rejected(error="HTTP 500")
            case "gone":
                return Down(error="refused", reached=False)
            case "busy":
                return Down(error="HTTP 429", reached=False, retry_after_seconds=3.0)
            case _:
                return Down(error="timed out", reached=True)

    return answer


@KINDS
@simulated
def test_bad_store_and_bad_endpoint_lose_nothing(kind, seed):
    """Workers and writers crash anywhere, and the endpoint refuses events or sends no answer. If an entry or
    a dead letter were lost, the endpoint would not learn of the object, not even after a redrive.
    """
    world = World(kind=kind, settings=settings(max_attempts=3), seed=seed)
    actors = [world.writer(n, [f"k{n}.{i}" for i in range(6)]) for n in range(2)]
    answer = moody(seed, until=40)
    actors += [outlet(world, answer), outlet(world, answer), world.reconciler()]
    run_simulation(actors, world.stores, seed, faults=world.rates(CRASHES), restarts=1000)
    world.finish()
    world.queue.redrive("t")
    works = outlet(world, lambda *_: Delivered())
    run_simulation([works, world.reconciler()], world.stores, seed, faults=world.rates(GENTLE))
    assert world.queue.dead("t") == ()
    world.finish()


@simulated
def test_events_are_delivered_once_if_no_answer_is_lost(seed):
    """The store may refuse requests, but no answer of the store is lost. If two of the three workers delivered the same
    entry, the endpoint would process an event twice.
    """
    world = World(kind="memory", settings=settings(shards=4, max_attempts=99), seed=seed)
    actors = [world.writer(n, [f"k{n}.{i}" for i in range(6)]) for n in range(2)]
    answer = moody(seed, until=20)
    actors += [outlet(world, answer, lease_seconds=40, expiry_seconds=60) for _ in range(3)]
    actors.append(world.reconciler())
    run_simulation(actors, world.stores, seed, faults=GENTLE)
    ids = [entry_id for entry_id, *_ in world.handed]
    assert len(ids) == len(set(ids)) == 12
    assert not world.queue.dead("t")
    world.finish()


@simulated
def test_refused_event_becomes_the_only_dead_letter(seed):
    """The endpoint refuses every batch that contains a certain event. If such a batch failed as a whole, its other
    events would become dead letters, too, and the endpoint would never get them.
    """
    world = World(kind="memory", settings=settings(max_attempts=3), seed=seed)
    keys = [f"k{i}" for i in range(12)]
    poison = {"k3", "k7"}

    def answer(entries, _):
        bad = any(entry.event.key in poison for entry in entries)
        return Rejected(error="HTTP 400") if bad else Delivered()

    actors = [world.writer(n, keys[n::2]) for n in range(2)]
    actors += [outlet(world, answer, lease_seconds=40, expiry_seconds=60) for _ in range(2)]
    actors.append(world.reconciler())
    run_simulation(actors, world.stores, seed, faults=GENTLE)
    assert {letter.event.key for letter in world.queue.dead("t")} == poison
    assert sorted(key for _, key, _ in world.handed) == sorted({*keys} - poison)
    world.finish()


@simulated
def test_sleeping_workers_deliver_everything_at_least_once(seed):
    """Workers sleep past their leases while entries are in flight. If the claims of a sleeping worker stayed, no other
    worker could deliver the claimed entries, and the endpoint would not get these events.
    """
    world = World(kind="memory", settings=settings(), seed=seed, watch_fences=False)
    actors = [world.writer(0, [f"k{i}" for i in range(12)])]
    actors += [outlet(world, moody(seed, until=15)) for _ in range(3)]
    actors.append(world.reconciler())
    run_simulation(actors, world.stores, seed, faults=SLEEPY, clock_rates=[1.0, 0.7, 1.0, 1.4, 1.0])
    world.finish()
