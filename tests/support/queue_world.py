"""Actors and a model of the notification queue, for simulations of the queue and of delivery under faults."""

from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from s3notify_platform.kernel.errors import FencedError, NotFoundError, UnavailableError, UnknownOutcomeError
from s3notify_platform.kernel.ports import Unknown, Written
from s3notify_platform.protocols.notification_queue import (
    EntryCommitted,
    Event,
    Expired,
    NotificationQueue,
    QuotaExceeded,
    Reconciler,
    ShardConsumer,
    TopicSettings,
    Undecided,
    Worker,
)
from s3notify_platform.protocols.notification_queue.segments import decode_segment
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support import queue_stores
from tests.support.faults import CrashedError, Fault
from tests.support.queue_stores import records_of
from tests.support.simulation import ROUGH

RETRY = (UnavailableError, UnknownOutcomeError, NotFoundError)
"""`NotFoundError` is retried only while a topic is deleted and created again."""
# A worker that dies every ten calls would never reach a timeout.
CRASHES = ROUGH | {Fault.CRASH_BEFORE: 0.007, Fault.CRASH_AFTER: 0.007, Fault.PAUSE: 0.0}
STALE_SECONDS = 6.0
KNOWN_SECONDS = 0.5
GENTLE = {Fault.THROTTLED: 0.05, Fault.REFUSED: 0.05}
"""With these faults, no write is applied without its caller's knowledge."""

SLEEPY = {Fault.PAUSE: 0.02, Fault.THROTTLED: 0.02, Fault.REFUSED: 0.02}
LOSSY = {Fault.LOST: 0.06, Fault.LATE: 0.03, Fault.REFUSED: 0.04, Fault.THROTTLED: 0.03}


def queue_of(stores, clock):
    return NotificationQueue(
        records_of(stores, clock),
        clock=clock,
        parallelism=1,
        stale_seconds=STALE_SECONDS,
        known_seconds=KNOWN_SECONDS,
    )


def persistent(clock, action):
    while True:
        try:
            return action()
        except RETRY:
            clock.sleep(0.1)


@dataclass
class World:
    """The actions that really happened, which the actors do not see."""

    kind: str
    settings: TopicSettings
    seed: int
    written: set = field(default_factory=set)
    """(key, etag) of every object that was written."""
    handed: list = field(default_factory=list)
    """(entry id, key, etag) of every delivery."""
    granted: set = field(default_factory=set)
    """Ids of all reservations that writers got. A reservation counts as long as the queue has its entry."""
    pending: int = 0
    generations: dict = field(default_factory=dict)
    """By shard, the newest lease that a worker got."""
    watch_fences: bool = False

    def __post_init__(self):
        self.objects = MemoryObjectStore()
        kept, self.plain = queue_stores.queue_stores(self.kind)
        self.stores = {"objects": self.objects} | kept
        self.queue = NotificationQueue(self.plain, parallelism=1, known_seconds=0.0)
        self.settings = replace(self.settings, retry_seconds=0.2, retry_max_seconds=2)
        self.queue.topics.create("t", self.settings)

    def rates(self, faults):
        return queue_stores.rates(self.kind, faults)

    def ids(self):
        return {
            entry.id
            for shard in range(self.settings.shards)
            for record in self.plain.scan("queue.t", prefix=f"{shard:03d}-")
            for entry in decode_segment("t", record).entries
        }

    def check_bound(self):
        assert len(self.granted & self.ids()) <= self.settings.capacity

    def writer(self, number, keys, *, together=2):
        """Writes the objects `keys`, and reserves the entries of up to `together` objects in each call. After a crash,
        the writer continues.
        """
        todo = list(keys)
        self.pending += 1

        def event(key):
            body = f"{key} by {number}".encode()
            return Event(key=key, etag=self.objects.__class__().put("x", body).etag, size=len(body))

        def run(stores, clock):
            queue = queue_of(stores, clock)
            while todo:
                try:
                    outcomes = queue.reserve_many("t", [event(key) for key in todo[:together]])
                except RETRY:
                    clock.sleep(0.2)
                    continue
                held = [outcome for outcome in outcomes if not isinstance(outcome, QuotaExceeded)]
                self.granted |= {reservation.entry.id for reservation in held}
                self.check_bound()
                written = []
                for reservation in held:
                    if not queue.fresh_since(reservation.since):
                        break
                    key = reservation.entry.event.key
                    todo.remove(key)  # if the writer crashes during the write, it does not repeat the write
                    self.put(stores["objects"], clock, key, f"{key} by {number}".encode())
                    written.append(reservation)
                self.commit(queue, clock, written, held[len(written) :])
                if not held:
                    clock.sleep(outcomes[0].retry_after_seconds)
            self.pending -= 1

        return run

    def put(self, objects, clock, key, body):
        def note():
            found = self.objects.head(key)
            if found is not None:
                self.written.add((key, found.etag))

        while True:
            try:
                outcome = objects.put(key, body)
            except UnavailableError:
                clock.sleep(0.1)
                continue
            except CrashedError:
                note()
                raise
            assert isinstance(outcome, Written | Unknown)
            note()
            return

    def commit(self, queue, clock, written, unwritten):
        while written or unwritten:
            outcomes = queue.settle(written, unwritten)
            again = []
            for reservation, outcome in zip(written, outcomes, strict=True):
                if isinstance(outcome, Undecided):
                    again.append(reservation)
                elif isinstance(outcome, Expired):
                    self.push(queue, clock, reservation.entry.event)
                else:
                    assert isinstance(outcome, EntryCommitted)
            if again:
                clock.sleep(0.2)
            written, unwritten = again, ()

    def push(self, queue, clock, event):
        while isinstance(persistent(clock, lambda: queue.push("t", event)), QuotaExceeded):
            clock.sleep(1.0)

    def reconciler(self):
        def run(stores, clock):
            reconciler = Reconciler(queue_of(stores, clock), leak_seconds=2.0)
            while not self.over():
                with suppress(*RETRY):
                    reconciler.resolve_stale("t", stores["objects"].head)
                clock.sleep(1.0)

        return run

    def over(self):
        return self.pending == 0 and not self.ids()

    def deliverer(self, *, fails=lambda _: False, limit=3, lease_seconds=1.5, expiry_seconds=3.0):
        """A worker that works until everything is delivered. `fails(entry)`: True if the endpoint refuses the entry."""

        def run(stores, clock):
            queue = queue_of(stores, clock)
            if self.watch_fences:
                queue.shards.edit = self.watched(queue.shards.edit)
            worker = Worker(
                queue,
                serves=lambda _: True,
                lease_seconds=lease_seconds,
                expiry_seconds=expiry_seconds,
            )
            consumers = {}
            while not self.over():
                try:
                    busy = [consumer.lease for consumer in consumers.values() if consumer.busy]
                    leases = worker.balance(busy)
                    self.note_leases(leases)
                except RETRY:
                    clock.sleep(0.2)
                    continue
                consumers = {lease: consumers.get(lease) or ShardConsumer(worker, lease) for lease in leases}
                for consumer in consumers.values():
                    try:
                        self.serve(consumer, limit, fails)
                    except (*RETRY, FencedError):
                        pass
                clock.sleep(0.4)
            with suppress(*RETRY):
                worker.stop()

        return run

    def note_leases(self, leases):
        for lease in leases:
            if lease.generation > self.generations.get(lease.shard, 0):
                self.generations[lease.shard] = lease.generation

    def watched(self, edit_segment):
        def watch(place, edit, **known):
            taken = []

            def watched_edit(segment):
                after, result = edit(segment)
                left = {entry.n for entry in after.entries}
                taken[:] = [entry for entry in segment.entries if entry.n not in left]
                return after, result

            edited = edit_segment(place, watched_edit, **known)
            for entry in taken if edited is not None else ():
                # No other actor has run since the removal was applied, so this owner had no successor yet.
                assert self.generations[entry.shard] <= entry.claim.generation
            return edited

        return watch

    def serve(self, consumer, limit, fails):
        for entry in consumer.take(limit):
            self.handed.append((entry.id, entry.event.key, entry.event.etag))
            if fails(entry):
                consumer.failed(entry, "503")
            else:
                consumer.done([entry])

    def puller(self, slots):
        def run(stores, clock):
            queue = queue_of(stores, clock)
            while not self.over():
                try:
                    entries = queue.entries("t", slots)
                    self.handed.extend((e.id, e.event.key, e.event.etag) for e in entries)
                    queue.remove(entries)
                except RETRY:
                    pass
                clock.sleep(1.0)

        return run

    def recount(self):
        """Frees all quota that belongs to no entry. After the last write, no running process holds quota without an
        entry.
        """
        reconciler = Reconciler(self.queue, leak_seconds=0.0)
        reconciler.resolve_stale("t", self.objects.head)
        reconciler.resolve_stale("t", self.objects.head)

    def finish(self):
        """Checks at the end that every object was delivered or is a dead letter, and that no quota is lost."""
        known = {(key, etag) for _, key, etag in self.handed}
        known |= {(letter.event.key, letter.event.etag) for letter in self.queue.dead("t")}
        assert self.written
        assert self.written <= known
        assert not self.ids()
        self.recount()
        stats = self.queue.stats("t")
        assert (stats.depth, stats.counted) == (0, 0)


KINDS = pytest.mark.parametrize("kind", queue_stores.KINDS)
