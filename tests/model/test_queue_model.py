"""The notification queue as a state machine against a simple model of where each notification is."""

from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from s3notify_platform.kernel.errors import UnavailableError, UnknownOutcomeError
from s3notify_platform.kernel.limits import CLOCK_SKEW, TOPICS_KNOWN_SECONDS
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.notification_queue import (
    DeadLettered,
    EntryCommitted,
    Event,
    Expired,
    Fenced,
    NotificationQueue,
    QuotaExceeded,
    Reconciler,
    ShardConsumer,
    TopicSettings,
    Worker,
    rooms,
)
from s3notify_platform.protocols.notification_queue.entries import shard_capacity
from s3notify_platform.protocols.notification_queue.topic_settings import STALE_SECONDS
from s3notify_platform.stores.dynamodb.record_store import DynamoRecordStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.clocks import HandClock, SlowClock
from tests.support.dynamo import CONFIG, Client, TableInMemory
from tests.support.faults import Fault, FaultyStore, at, never

SETTINGS = TopicSettings(
    capacity=7, shards=2, max_attempts=2, ttl_seconds=None, retry_seconds=0, endpoint="{}"
)
STUMBLES = st.sampled_from([Fault.NONE, Fault.LOST, Fault.REFUSED, Fault.THROTTLED])
LATE_TOO = STUMBLES | st.just(Fault.LATE)
CHOICE = st.integers(0, 1000)
WRITERS = st.sampled_from(["usual", "slow"])
RESERVING = st.sampled_from(["add", "create", "scan"])
SECONDS = st.sampled_from([0.0, 1.0, TOPICS_KNOWN_SECONDS, TOPICS_KNOWN_SECONDS * CLOCK_SKEW])


class QueueMachine(RuleBasedStateMachine):
    """Writers, a reconciler, a puller and owners, one call at a time, each with at most one fault."""

    @initialize()
    def start(self):
        self.clock = HandClock()
        self.records = self.new_records()
        self.objects = MemoryObjectStore()
        self.plain = NotificationQueue(self.records, clock=self.clock, parallelism=1)
        self.reconciler = Reconciler(self.plain, leak_seconds=0)
        self.plain.topics.create("t", SETTINGS)
        self.number = 0
        self.worker = None
        self.forget()
        # Long-lived processes: they rely on topics that they read before, and hold spare quota.
        self.writers = {
            name: NotificationQueue(FaultyStore(self.records), clock=clock, parallelism=1)
            for name, clock in (("usual", self.clock), ("slow", SlowClock(self.clock)))
        }
        self.held = [
            patch.object(rooms, "ROOM_HELD_SHARE", 0.5),
            patch.object(rooms, "ROOM_IDLE_SHARE", 0.75),
        ]
        for held in self.held:
            held.start()

    def teardown(self):
        for held in getattr(self, "held", ()):
            held.stop()

    def new_records(self):
        return MemoryRecordStore()

    def forget(self):
        self.reserved = {}
        """Reservations of writers, by key."""
        self.gone = {}
        self.state = {}
        """The entries in the queue, by key: reserved or committed."""
        self.dead = set()
        self.in_hand = {}
        self.attempts = {}
        self.consumer = None

    def queue(self, method, fault):
        self.faulty = FaultyStore(self.records, at(method, fault))
        return NotificationQueue(self.faulty, clock=self.clock, parallelism=1)

    def pick(self, items, choice):
        return sorted(items)[choice % len(items)]

    # Writers

    def events(self, count):
        self.number += count
        return [Event(key=f"k{number + 1}") for number in range(self.number - count, self.number)]

    def note(self, events, outcomes):
        for event, outcome in zip(events, outcomes, strict=True):
            if isinstance(outcome, QuotaExceeded):
                self.check_full()
            else:
                assert outcome.entry.epoch == self.plain.topics.get("t").epoch
                self.reserved[event.key] = outcome
                self.state[event.key] = "reserved"

    def reserve_by(self, queue, events, schedule):
        queue.records.schedule = schedule
        try:
            return queue.reserve_many("t", events)
        finally:
            queue.records.schedule = never
            queue.records.settle()

    @rule(who=WRITERS, count=st.integers(1, 4), method=RESERVING, fault=STUMBLES)
    def reserve(self, who, count, method, fault):
        events = self.events(count)
        try:
            outcomes = self.reserve_by(self.writers[who], events, at(method, fault))
        except (UnavailableError, UnknownOutcomeError):
            assert fault is not Fault.NONE
            return
        self.note(events, outcomes)

    @rule(seconds=SECONDS)
    def time_passes(self, seconds):
        self.clock.now += seconds

    @rule(
        who=WRITERS,
        count=st.integers(1, 4),
        method=RESERVING,
        what=st.lists(st.sampled_from(["recount", "recreate", "fill", "sleep"]), min_size=1, max_size=3),
        seconds=SECONDS,
    )
    def reserve_while(self, who, count, method, what, seconds):
        """Other processes act right before a call of the writer reaches the store."""
        events, todo = self.events(count), [what]

        def schedule(call):
            if call.method == method and todo:
                for name in todo.pop():
                    getattr(self, f"then_{name}")(seconds)
            return Fault.NONE

        self.note(events, self.reserve_by(self.writers[who], events, schedule))

    def then_recount(self, seconds):
        reconciler = Reconciler(self.plain, leak_seconds=0)
        reconciler.resolve_stale("t", self.objects.head)
        self.clock.now += seconds
        reconciler.resolve_stale("t", self.objects.head)

    def then_recreate(self, _seconds):
        self.delete_and_create()

    def then_fill(self, _seconds):
        events = self.events(SETTINGS.capacity)
        other = NotificationQueue(self.records, clock=self.clock, parallelism=1)
        self.note(events, other.reserve_many("t", events))

    def then_sleep(self, seconds):
        self.clock.now += seconds

    def check_full(self):
        topic = self.plain.topics.get("t")
        for shard in range(SETTINGS.shards):
            counted = self.plain.shards.counted(topic, shard) + topic.quotas[shard].base
            assert counted >= shard_capacity(shard, SETTINGS)

    @precondition(lambda self: self.reserved)
    @rule(choice=CHOICE, fault=LATE_TOO)
    def write_and_commit(self, choice, fault):
        key = self.pick(self.reserved, choice)
        reservation = self.reserved.pop(key)
        etag = self.objects.put(key, key.encode()).etag
        outcome = self.queue("replace", fault).commit(reservation.wrote(etag=etag, size=len(key)))
        self.faulty.settle()
        if key in self.state:
            assert outcome == EntryCommitted()
            self.state[key] = "committed"
        else:
            assert outcome == Expired()

    @precondition(lambda self: self.reserved)
    @rule(choice=CHOICE, fault=LATE_TOO, method=st.sampled_from(["replace", "remove"]))
    def abort(self, choice, fault, method):
        key = self.pick(self.reserved, choice)
        self.queue(method, fault).abort_many([self.reserved.pop(key)])
        self.faulty.settle()
        self.state.pop(key, None)

    @precondition(lambda self: len(self.reserved) > 1)
    @rule(choice=CHOICE, fault=LATE_TOO)
    def settle_together(self, choice, fault):
        """Settles up to four reservations in one call. The objects of some reservations were written; the objects of
        the other reservations were not written. The reservations may be in one segment or in several.
        """
        keys = [self.pick(self.reserved, choice + n) for n in range(min(4, len(self.reserved)))]
        held = [self.reserved.pop(key) for key in keys]
        middle = choice % (len(held) + 1)
        written = []
        for key, reservation in zip(keys[:middle], held[:middle], strict=True):
            etag = self.objects.put(key, key.encode()).etag
            written.append(reservation.wrote(etag=etag, size=len(key)))
        outcomes = self.queue("replace", fault).settle(written, held[middle:])
        self.faulty.settle()
        for key, outcome in zip(keys[:middle], outcomes, strict=True):
            assert outcome == (EntryCommitted() if key in self.state else Expired())
            if key in self.state:
                self.state[key] = "committed"
        for key in keys[middle:]:
            self.state.pop(key, None)

    @precondition(lambda self: self.reserved)
    @rule(choice=CHOICE)
    def writer_dies_after_its_write(self, choice):
        key = self.pick(self.reserved, choice)
        self.reserved.pop(key)
        self.objects.put(key, key.encode())

    # Reconciler

    @rule(fault=LATE_TOO, method=st.sampled_from(["replace", "remove", "add", "scan", "read"]))
    def reconcile(self, fault, method):
        """A reservation older than the timeout is resolved by a HEAD; a younger one stays."""
        self.reconciler.resolve_stale("t", self.objects.head)
        self.clock.now += STALE_SECONDS + 1
        self.reconciler._queue = self.queue(method, fault)
        try:
            self.reconciler.resolve_stale("t", self.objects.head)
        except (UnavailableError, UnknownOutcomeError):
            assert fault is not Fault.NONE
        self.reconciler._queue = self.plain
        self.faulty.settle()
        self.reconciler.resolve_stale("t", self.objects.head)
        for key in [key for key, state in self.state.items() if state == "reserved"]:
            if self.objects.head(key) is not None:
                self.state[key] = "committed"
            else:
                del self.state[key]

    # Pulling consumers

    @rule(
        choice=CHOICE,
        fault=LATE_TOO,
        method=st.sampled_from(["replace", "remove", "read"]),
        low=st.integers(0, 999),
        width=st.integers(0, 999),
    )
    def pull(self, choice, fault, method, low, width):
        slots = range(low, min(1000, low + width + 1))
        found = self.plain.entries("t", slots)
        due = {key for key, state in self.state.items() if state == "committed" and slot_of(key) in slots}
        assert {entry.event.key for entry in found} == due
        free = [entry for entry in found if entry.claim is None][: choice % 4]
        assert {entry.event.key for entry in free}.isdisjoint(self.in_hand)
        self.queue(method, fault).remove(free)
        self.faulty.settle()
        for entry in free:
            del self.state[entry.event.key]

    # Owners

    @rule(limit=st.integers(1, 9), fault=STUMBLES, method=st.sampled_from(["replace", "scan", "read"]))
    def take(self, limit, fault, method):
        if self.worker is None:
            self.worker = Worker(self.plain)
        leases = self.worker.balance(tuple({consumer.lease for _, consumer in self.in_hand.values()}))
        if self.consumer is None:
            self.consumer = {}
        free = {key for key, state in self.state.items() if state == "committed" and key not in self.in_hand}
        taken = []
        for lease in leases:
            if lease not in self.consumer:
                self.consumer[lease] = ShardConsumer(self.worker, lease)
            consumer = self.consumer[lease]
            consumer._queue = self.queue(method, fault)
            try:
                found = consumer.take(limit)
            except UnavailableError:
                found = ()
            consumer._queue = self.plain
            self.faulty.settle()
            taken += found
            for entry in found:
                self.in_hand[entry.event.key] = (entry, consumer)
                self.attempts[entry.event.key] = entry.attempts
        assert {entry.event.key for entry in taken} <= free
        if fault is Fault.NONE and limit == 9 and leases:
            again = [entry for consumer in self.consumer.values() for entry in consumer.take(9)]
            for entry in again:
                self.in_hand[entry.event.key] = (entry, self.consumer[self.lease_of(entry)])
            self.dead_letter_exhausted()
            assert {entry.event.key for entry in [*taken, *again]} == free & self.state.keys()
        self.dead_letter_exhausted()

    def lease_of(self, entry):
        return next(lease for lease in self.consumer if lease.shard == entry.shard)

    def dead_letter_exhausted(self):
        """An attempt counts even if its owner has ended. The next `take` moves an entry without further attempts to the
        dead letters.
        """
        for letter in self.plain.dead("t"):
            key = letter.event.key
            if self.state.get(key) == "committed" and key not in self.in_hand:
                assert letter.attempts >= SETTINGS.max_attempts
                del self.state[key]
                self.dead.add(key)

    @precondition(lambda self: self.in_hand)
    @rule(choice=CHOICE, fault=LATE_TOO, method=st.sampled_from(["replace", "remove"]))
    def deliver(self, choice, fault, method):
        key = self.pick(self.in_hand, choice)
        entry, consumer = self.in_hand.pop(key)
        consumer._queue = self.queue(method, fault)
        removed = consumer.done([entry])
        consumer._queue = self.plain
        self.faulty.settle()
        if key in self.state:
            assert removed == 1 or fault is Fault.LOST
            del self.state[key]

    @precondition(lambda self: self.in_hand)
    @rule(choice=CHOICE)
    def fail(self, choice):
        key = self.pick(self.in_hand, choice)
        entry, consumer = self.in_hand.pop(key)
        # An owner whose lease has expired leaves the dead letter to the next owner.
        last = entry.attempts >= SETTINGS.max_attempts and consumer._worker.valid(consumer.lease)
        outcome = consumer.failed(entry, "no")
        assert not isinstance(outcome, Fenced)
        assert isinstance(outcome, DeadLettered) == last
        if isinstance(outcome, DeadLettered):
            del self.state[key]
            self.dead.add(key)

    @rule()
    def owner_dies(self):
        """A successor finds all entries; the dead owner can no longer remove entries that it was delivering."""
        if self.worker is None:
            return
        hands, self.in_hand = self.in_hand, {}
        held = {consumer.lease.shard for _, consumer in hands.values()}
        successor = Worker(self.plain)
        # The successor gets shards without an owner first, and the dead owner's shards later.
        while not (leases := successor.balance()) or held - {lease.shard for lease in leases}:
            self.clock.now += 2.0
        for entry, consumer in hands.values():
            assert consumer.done([entry]) == 0
        self.worker, self.consumer = successor, None

    @precondition(lambda self: self.dead)
    @rule(choice=CHOICE)
    def redrive(self, choice):
        key = self.pick(self.dead, choice)
        outcome = self.plain.redrive("t", [key])
        if isinstance(outcome, QuotaExceeded):
            self.check_full()
        else:
            assert outcome == (1, ())
            self.dead.remove(key)
            self.state[key] = "committed"

    @rule(renewed=st.booleans())
    def delete_and_create(self, renewed=False):
        if renewed:
            self.plain.topics.renew("t", lambda found: found)
        else:
            self.plain.topics.delete("t")
            self.plain.topics.create("t", SETTINGS)
        # The reservations stay with their writers, and the owner goes on: it finds the new topic by itself.
        reserved = self.reserved
        self.forget()
        self.reserved = reserved

    # Invariants

    @invariant()
    def the_store_agrees(self):
        found = {}
        for shard in range(SETTINGS.shards):
            for segment in self.plain.shards.scan(self.plain.topics.get("t"), shard):
                assert segment.entries
                for entry in segment.entries:
                    assert entry.event.key not in found
                    found[entry.event.key] = entry.state
        assert found == self.state
        assert {letter.event.key for letter in self.plain.dead("t")} == self.dead

    @invariant()
    def the_bound_holds(self):
        topic = self.plain.topics.get("t")
        for shard in range(SETTINGS.shards):
            there = sum(len(segment.entries) for segment in self.plain.shards.scan(topic, shard))
            counted = self.plain.shards.counted(topic, shard) + topic.quotas[shard].base
            assert there <= counted
            # If a recount is interrupted, the counter stays sealed, above the capacity. A sealed shard refuses
            # reservations.
            assert counted <= shard_capacity(shard, SETTINGS) or counted >= rooms.SEALED
            assert there <= shard_capacity(shard, SETTINGS)


class DynamoQueueMachine(QueueMachine):
    """The same machine over DynamoDB records."""

    def new_records(self):
        client = Client(TableInMemory("partition", "key"))
        return DynamoRecordStore(CONFIG, clock=self.clock, client=client)


TestNotificationQueue = QueueMachine.TestCase
TestNotificationQueue.settings = settings(stateful_step_count=30, deadline=None)
TestQueueOnDynamo = DynamoQueueMachine.TestCase
TestQueueOnDynamo.settings = settings(stateful_step_count=30, deadline=None)
