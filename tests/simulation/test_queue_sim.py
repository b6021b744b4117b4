"""The notification queue under faults: nothing lost, nothing twice without a fault, the bound kept, fences hold."""

from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from s3notify_platform.errors import FencedError, UnavailableError, UnknownOutcomeError
from s3notify_platform.ports import Unknown, Written
from s3notify_platform.protocols.notification_queue import (
    Caretaker,
    Committed,
    Drain,
    Event,
    Expired,
    NoRoom,
    NotificationQueue,
    TopicSettings,
    Undecided,
    Worker,
    keys_recur,
)
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from s3notify_platform.stores.records import ObjectRecordStore
from tests.support.faults import CrashedError, Fault, never
from tests.support.simulation import ROUGH, run_simulation, simulated

RETRY = (UnavailableError, UnknownOutcomeError)
# A worker that dies every ten calls would outlive no timeout.
CRASHES = ROUGH | {Fault.CRASH_BEFORE: 0.007, Fault.CRASH_AFTER: 0.007, Fault.PAUSE: 0.0}
STALE_SECONDS = 6.0
GENTLE = {Fault.THROTTLED: 0.05, Fault.REFUSED: 0.0}
"""Faults after which everybody knows where they stand."""


def records_of(stores, clock):
    """The record store of an actor: one of its own, or one over the object store `cells`."""
    if "records" in stores:
        return stores["records"]
    return ObjectRecordStore(stores["cells"], "r/", clock=clock, keys_recur=keys_recur)


def queue_of(stores, clock):
    return NotificationQueue(
        records_of(stores, clock), clock=clock, parallelism=1, stale_seconds=STALE_SECONDS
    )


def persistent(clock, action):
    while True:
        try:
            return action()
        except RETRY:
            clock.sleep(0.1)


@dataclass
class World:
    """What the actors really did, which no actor of the protocol can see."""

    kind: str
    settings: TopicSettings
    seed: int
    written: set = field(default_factory=set)
    """(key, etag) of every object that was put."""
    handed: list = field(default_factory=list)
    """(entry id, key, etag) of every delivery."""
    granted: set = field(default_factory=set)
    """Ids of reservations that a writer was given, until they were seen gone."""
    pending: int = 0

    def __post_init__(self):
        self.objects = MemoryObjectStore()
        self.cells = MemoryObjectStore()
        self.memory = MemoryRecordStore()
        self.stores = {"objects": self.objects}
        self.stores |= {"records": self.memory} if self.kind == "memory" else {"cells": self.cells}
        self.plain = self.memory if self.kind == "memory" else ObjectRecordStore(self.cells, "r/")
        self.queue = NotificationQueue(self.plain, parallelism=1)
        self.queue.topics.create("t", self.settings)

    def rates(self, faults):
        """On objects a call of the protocol is several of the store's."""
        return {fault: rate / (1 if self.kind == "memory" else 3) for fault, rate in faults.items()}

    def ids(self):
        return {
            record.key.partition(".")[2]
            for shard in range(self.settings.shards)
            for record in self.plain.scan(f"queue.t.{shard:03d}")
        }

    def check_bound(self):
        assert len(self.granted & self.ids()) <= self.settings.capacity

    def writer(self, number, keys):
        """Writes its objects, one after another, whatever happens; a new life goes on where the last one died."""
        todo = list(keys)
        self.pending += 1

        def run(stores, clock):
            queue = queue_of(stores, clock)
            while todo:
                key = todo[0]
                body = f"{key} by {number}".encode()
                etag = self.objects.__class__().put("x", body).etag
                try:
                    reservation = queue.reserve("t", Event(key=key, etag=etag, size=len(body)))
                except RETRY:
                    clock.sleep(0.2)
                    continue
                if isinstance(reservation, NoRoom):
                    clock.sleep(reservation.retry_after_seconds)
                    continue
                self.granted.add(reservation.entry.id)
                self.check_bound()
                if not queue.fresh(reservation):
                    queue.abort(reservation)
                    continue
                todo.pop(0)  # once the write is under way a crash is not made good by the writer
                self.put(stores["objects"], clock, key, body)
                self.commit(queue, clock, reservation)
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

    def commit(self, queue, clock, reservation):
        while isinstance(outcome := queue.commit(reservation), Undecided):
            clock.sleep(0.2)
        if isinstance(outcome, Expired):
            while isinstance(persistent(clock, lambda: queue.push("t", reservation.entry.event)), NoRoom):
                clock.sleep(1.0)
        else:
            assert isinstance(outcome, Committed)

    def caretaker(self):
        def run(stores, clock):
            caretaker = Caretaker(queue_of(stores, clock), leak_seconds=2.0)
            while not self.over():
                with suppress(*RETRY):
                    caretaker.resolve_stale("t", stores["objects"].head)
                clock.sleep(1.0)

        return run

    def over(self):
        return self.pending == 0 and not self.ids()

    def deliverer(self, *, fails=never, limit=3):
        """A worker that delivers until everything is delivered. `fails(entry)`: the endpoint refuses."""

        def run(stores, clock):
            worker = Worker(
                queue_of(stores, clock), serves=lambda _: True, lease_seconds=1.5, expiry_seconds=3.0
            )
            drains = {}
            while not self.over():
                try:
                    busy = [drain.lease for drain in drains.values() if drain.busy]
                    leases = worker.balance(busy)
                except RETRY:
                    clock.sleep(0.2)
                    continue
                drains = {
                    lease: drains.get(lease)
                    or Drain(worker, lease, retry_base_seconds=0.2, retry_ceiling_seconds=2)
                    for lease in leases
                }
                for drain in drains.values():
                    try:
                        self.serve(drain, limit, fails)
                    except (*RETRY, FencedError):
                        pass
                clock.sleep(0.4)
            with suppress(*RETRY):
                worker.stop()

        return run

    def serve(self, drain, limit, fails):
        for entry in drain.take(limit):
            self.handed.append((entry.id, entry.event.key, entry.event.etag))
            if fails(entry):
                drain.failed(entry, "503")
            else:
                drain.done([entry])

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

    def finish(self):
        """At the end: every object that was written was delivered or is a dead letter, and no room is lost."""
        told = {(key, etag) for _, key, etag in self.handed}
        told |= {(letter.event.key, letter.event.etag) for letter in self.queue.dead("t")}
        assert self.written <= told
        assert not self.ids()
        caretaker = Caretaker(self.queue, leak_seconds=0.0)
        caretaker.resolve_stale("t", self.objects.head)
        caretaker.resolve_stale("t", self.objects.head)
        stats = self.queue.stats("t")
        assert (stats.depth, stats.counted) == (0, 0)


KINDS = pytest.mark.parametrize("kind", ["memory", "objects"])


@KINDS
@simulated
def test_no_write_goes_untold(kind, seed):
    """Writers, owners and caretakers crash anywhere; every object that was written is delivered in the end."""
    world = World(kind=kind, settings=TopicSettings(capacity=4, shards=2), seed=seed)
    actors = [world.writer(n, [f"k{n}.{i}" for i in range(4)]) for n in range(2)]
    actors += [world.deliverer(), world.deliverer(), world.caretaker()]
    run_simulation(actors, world.stores, seed, faults=world.rates(CRASHES), restarts=1000)
    world.finish()
