"""Inlets under faults. All reported events reach every topic's consumer by signals alone, without a second report of
the event.

The simulation runs the real `PullInlet.handle` and `Intake` over a queue that delivers at least once, in any order.
Consumers read the entries of slots whose signal moved, and no others. So an entry would stay if its signal were
missing, or had moved before the entry was written.
"""

from contextlib import suppress

import pytest

from s3notify_platform.channels.inlets.intake import Intake
from s3notify_platform.channels.inlets.pull_inlet import PullInlet
from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.kernel.errors import NotFoundError, UnavailableError, UnknownOutcomeError
from s3notify_platform.kernel.ports import Message
from s3notify_platform.protocols.keyspace import Publisher, Watcher, WatcherState
from s3notify_platform.protocols.notification_queue import (
    Event,
    NotificationQueue,
    Reconciler,
    TopicSettings,
    encode_events,
)
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.faults import Fault
from tests.support.simulation import ROUGH, VirtualTime, run_simulation, simulated

RETRY = (UnavailableError, UnknownOutcomeError)
STALE_SECONDS = 6.0
VISIBILITY_SECONDS = 20
CRASHES = ROUGH | {Fault.CRASH_BEFORE: 0.01, Fault.CRASH_AFTER: 0.01}


class Wire:
    """An SQS queue: it delivers at least once, hides messages for a while, and has no order. Its calls never fail."""

    batch_size = 10

    def __init__(self, bodies, time):
        self.bodies = dict(enumerate(bodies))
        self.visible_at = dict.fromkeys(self.bodies, 0.0)
        self.receives = dict.fromkeys(self.bodies, 0)
        self.time = time

    def receive(self, *, wait_seconds, visibility_seconds, limit):
        ready = [n for n in reversed(self.bodies) if self.visible_at[n] <= self.time.monotonic()][:limit]
        for number in ready:
            self.visible_at[number] = self.time.monotonic() + visibility_seconds
            self.receives[number] += 1
        return tuple(
            Message(id=str(n), body=self.bodies[n], receipt=str(n), receives=self.receives[n]) for n in ready
        )

    def delete(self, messages):
        for message in messages:
            self.bodies.pop(int(message.receipt), None)
        return ()

    def hide(self, messages, seconds):
        for message in messages:
            self.visible_at[int(message.receipt)] = self.time.monotonic() + seconds
        return ()

    def max_receives(self):
        return None


class World:
    """The reported events, and those that each topic's consumer has seen."""

    def __init__(self, events, topics):
        self.time = VirtualTime()
        self.records = MemoryRecordStore()
        self.objects = MemoryObjectStore()
        self.signals = MemoryObjectStore()
        self.stores = {"records": self.records, "objects": self.objects, "signals": self.signals}
        for event in events:
            self.objects.put(event.key, b"x")
        self.events = events
        bodies = [encode_events([event]).decode() for event in events]
        # Some events come twice, and a message may have several events.
        self.wire = Wire([*bodies, *bodies[::3], encode_events(events[1:3]).decode()], self.time)
        queue = NotificationQueue(self.records, parallelism=1, known_seconds=0.0)
        self.wanted = set()
        for name, settings in topics.items():
            queue.topics.create(name, settings)
            self.wanted |= {
                (name, event.key, event.sequencer)
                for event in events
                if event.key.startswith(settings.prefix)
            }
        self.seen = set()
        self.states = dict.fromkeys(topics, WatcherState())

    def queue_of(self, stores, clock):
        return NotificationQueue(stores["records"], clock=clock, parallelism=1, stale_seconds=STALE_SECONDS)

    def over(self):
        return not self.wire.bodies and self.wanted <= self.seen

    def inlet(self, stores, clock):
        """An inlet with an empty memory, as after a restart."""
        publisher = Publisher(stores["signals"], prefix="s/", clock=clock, parallelism=1, queued=True)
        intake = Intake(
            self.queue_of(stores, clock), [Keyspace(prefix="", publisher=publisher)], bucket="b", memory=12
        )
        inlet = PullInlet(
            self.wire,
            intake,
            name="sqs",
            clock=clock,
            visibility_seconds=VISIBILITY_SECONDS,
            gather=4,
            wait_seconds=0,
        )
        while not self.over():
            messages = inlet._receive()
            while messages and (trouble := inlet.handle(messages)) is not None:
                clock.sleep(trouble[1])
            clock.sleep(1.0)

    def consumer(self, topic):
        def run(stores, clock):
            queue = self.queue_of(stores, clock)
            watcher = Watcher(stores["signals"], prefix="s/", clock=clock)
            while not self.over():
                state = self.states[topic]
                with suppress(*RETRY):
                    poll = watcher.observe(state)
                    entries = queue.entries(topic, poll.changed)
                    self.seen |= {(topic, entry.event.key, entry.event.sequencer) for entry in entries}
                    queue.remove(entries)
                    if poll.listed:
                        self.states[topic] = state.advance(poll.changed, poll.signals).at_root(poll.root_etag)
                clock.sleep(0.02)

        return run

    def reconciler(self, topics):
        def run(stores, clock):
            reconciler = Reconciler(self.queue_of(stores, clock), leak_seconds=2.0)
            while not self.over():
                for topic in topics:
                    with suppress(*RETRY, NotFoundError):
                        reconciler.resolve_stale(topic, stores["objects"].head)
                clock.sleep(2.0)

        return run


def reported():
    events = [Event(key=f"raw/{n}", bucket="b", etag=f"e{n}", sequencer=f"{n:04X}") for n in range(5)]
    events += [Event(key="raw/0", bucket="b", op="delete", sequencer=s) for s in ("00FF", "0000A")]
    return [*events, Event(key="csv/1", bucket="b", etag="c", sequencer="01")]


@pytest.mark.parametrize("capacity", [100, 4], ids=["roomy", "tight"])
@simulated
def test_every_reported_event_reaches_every_consumer(seed, capacity):
    """An inlet deletes a message from SQS after its events are queued, and two inlets crash anywhere. If an entry or
    its signal were then missing in a topic, the topic's consumer would never see the event.
    """
    topics = {
        "all": TopicSettings(capacity=100, shards=2),
        "raw": TopicSettings(capacity=capacity, shards=1, bucket="b", prefix="raw/"),
    }
    world = World(reported(), topics)
    actors = [
        world.inlet,
        world.inlet,
        *(world.consumer(topic) for topic in topics),
        world.reconciler(topics),
    ]
    history = run_simulation(
        actors,
        world.stores,
        seed,
        faults=CRASHES,
        restarts=1000,
        clock_rates=[1.0, 1.3, 0.8, 1.0, 1.0],
        time=world.time,
    )
    assert world.wanted <= world.seen, history
    assert world.seen <= world.wanted
    assert not world.wire.bodies


@simulated
def test_no_event_is_queued_twice_without_crashes(seed):
    """SQS delivers some events twice, and the store refuses requests. If the inlet did not remember what it has queued,
    a second entry of an event would take space in the topic.
    """
    topics = {"all": TopicSettings(capacity=100, shards=2)}
    world = World(reported(), topics)
    copies = []
    queue = NotificationQueue(world.records, parallelism=1)

    def inlet(stores, clock):
        publisher = Publisher(stores["signals"], prefix="s/", clock=clock, parallelism=1, queued=True)
        intake = Intake(
            world.queue_of(stores, clock), [Keyspace(prefix="", publisher=publisher)], bucket="b", memory=1000
        )
        inlet = PullInlet(world.wire, intake, name="sqs", clock=clock, wait_seconds=0)
        while world.wire.bodies:
            messages = inlet._receive()
            while messages and (trouble := inlet.handle(messages)) is not None:
                clock.sleep(trouble[1])
            clock.sleep(1.0)
        copies.extend(queue.entries("all", range(1000)))

    run_simulation([inlet], world.stores, seed, faults={Fault.THROTTLED: 0.08}, time=world.time)
    copied = [("all", entry.event.key, entry.event.sequencer) for entry in copies]
    assert sorted(copied) == sorted(world.wanted)
