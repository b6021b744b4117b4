"""Publisher, queue, keyspace, reconciler and consumers together: every change reaches every topic.

No writer repeats a write, and consumers read only the entries of slots whose signal moved.
"""

import io
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.channels.publish.pending_change import Refused
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.channels.reconcile.reconciler_service import ReconcilerService
from s3notify_platform.kernel.errors import (
    NotFoundError,
    QuotaExceededError,
    UnavailableError,
    UnknownOutcomeError,
)
from s3notify_platform.kernel.ports import ABSENT, Conflict, IfMatch, list_all
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import (
    Delete,
    NotSignalledError,
    Publisher,
    Put,
    Watcher,
    WatcherState,
    uploads,
)
from s3notify_platform.protocols.notification_queue import (
    NotificationQueue,
    Reconciler,
    TopicSettings,
    TopicUser,
    marks_of,
)
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support import queue_stores
from tests.support.faults import Fault
from tests.support.queue_stores import records_of
from tests.support.simulation import ROUGH, run_simulation, simulated

KS = "ks/"
SLOTS = 12
RETRY = (UnavailableError, UnknownOutcomeError)
# An actor that dies every ten calls never reaches a timeout. The protocol admits one loss: a writer that sleeps past
# its reservation, and then dies.
CRASHES = ROUGH | {Fault.CRASH_BEFORE: 0.01, Fault.CRASH_AFTER: 0.01, Fault.PAUSE: 0.0}
SLEEPY = ROUGH | {Fault.CRASH_BEFORE: 0.0, Fault.CRASH_AFTER: 0.0, Fault.PAUSE: 0.004}
STALE_SECONDS = 6.0
KNOWN_SECONDS = 0.5
TOPICS = {
    "all": TopicSettings(capacity=10, shards=2, slots=SLOTS),
    "raw": TopicSettings(capacity=5, shards=1, slots=SLOTS, prefix="raw/", bucket="b"),
    "late": TopicSettings(capacity=8, shards=1, slots=SLOTS),
}
"""The topics of the simulation. The consumer of the last topic creates this topic during the run."""


class Bucket(MemoryObjectStore):
    """A bucket that remembers all bodies and versions that were ever written to it."""

    def __init__(self):
        super().__init__()
        self.bodies = set()
        self.versions = set()
        """(key, etag) of each version."""

    def _write(self, meta, body, precondition):
        outcome = super()._write(meta, body, precondition)
        if outcome != Conflict():
            self.bodies.add(body)
            self.versions.add((meta.key, outcome.etag))
        return outcome

    def uploads(self):
        return list(self._uploads)


@dataclass
class World:
    kind: str
    announces: bool = False
    """True if writers repeat failed announcements, and False if the reconciler makes these announcements."""
    pace: float = 1.0
    """All actors wait longer by this factor before their next round."""
    refused: set = field(default_factory=set)
    pending: int = 1
    large: bool = False
    """True: objects that are written singly are uploaded in parts."""
    others: bool = True
    """False: the only topic is `late`."""
    doubts: bool = True
    """True: reconcilers signal long-waiting entries again."""
    root: bool = False
    """True: writers move only the root, and consumers list their topics. Consumers do not list the signals at
    intervals.
    """
    views: dict = field(default_factory=dict)
    """The state of each topic's consumer: its keys, and its cursor."""

    def __post_init__(self):
        self.objects = Bucket()
        kept, self.plain = queue_stores.queue_stores(self.kind)
        self.stores = {"objects": self.objects} | kept
        self.queue = NotificationQueue(self.plain, parallelism=1, known_seconds=0.0)
        for name in TOPICS:
            if name != "late" and self.others:
                self.queue.topics.create(name, self.settings(name))
            self.views[name] = {"known": {}, "cursor": None, "puts": set()}

    def settings(self, topic):
        return replace(TOPICS[topic], signals="root" if self.root else "slots")

    def queue_of(self, stores, clock):
        records = records_of(stores, clock)
        return NotificationQueue(
            records,
            clock=clock,
            parallelism=1,
            stale_seconds=STALE_SECONDS,
            known_seconds=KNOWN_SECONDS,
        )

    def entries(self):
        return [
            record.key
            for name, settings in TOPICS.items()
            for shard in range(settings.shards)
            for record in self.plain.scan(f"queue.{name}", prefix=f"{shard:03d}-")
        ]

    def over(self):
        return self.pending == 0 and not self.entries()

    # Actors

    def writer(self, number):
        """Creates, overwrites and deletes objects, singly and in batches, partly with shared keys. Does each step only
        once.
        """
        steps = [
            lambda b: [Put(key=f"raw/{number}.0", body=b)],
            lambda b: [
                Put(key=f"raw/{number}.1", body=b),
                Put(key=f"else/{number}", body=b),
                Delete(key=f"raw/{number}.0"),
                Put(key="raw/shared", body=b, precondition=ABSENT),
            ],
            lambda b: [Put(key=f"raw/{number}.1", body=b)],
            lambda b: [Delete(key="raw/shared", precondition=self.version("raw/shared"))],
            lambda b: [
                Put(key="raw/shared", body=b),
                Put(key=f"else/{number}", body=b, precondition=self.version(f"else/{number}")),
                Delete(key=f"raw/{number}.1"),
            ],
        ]
        todo = [(number, step, make) for step, make in enumerate(steps)]
        tries = [0]
        self.pending += 1

        def run(stores, clock):
            publisher = Publisher(stores["objects"], prefix=KS, slots=SLOTS, clock=clock, parallelism=1)
            topic = "all" if self.others else "late"
            queued = QueuedPublisher(publisher, self.queue_of(stores, clock), bucket="b", topic=topic)
            while todo:
                _, step, make = todo.pop(0)  # a step is not repeated after a crash
                tries[0] += 1
                self.step(queued, clock, make(f"{number}.{step}.{tries[0]}".encode()), todo, (number, step))
            self.pending -= 1

        return run

    def version(self, key):
        found = self.objects.head(key)
        return IfMatch(etag=found.etag if found else "none")

    def step(self, queued, clock, changes, todo, name):
        try:
            if self.large and len(changes) == 1 and isinstance(change := changes[0], Put):
                stream, size = io.BytesIO(change.body), len(change.body)
                outcomes = [
                    queued.put_stream(change.key, stream, size=size, precondition=change.precondition)
                ]
            else:
                outcomes = queued.publish(changes)
        except RETRY:
            # No write was applied.
            self.refused.update(change.body for change in changes if isinstance(change, Put))
            todo.insert(0, (*name, lambda body: self.force(changes, body)))
            clock.sleep(0.3 * self.pace)
            return
        except NotSignalledError as error:
            outcomes = error.outcomes
            self.announce(queued, clock, error.keys)
        refused = [c for c, outcome in zip(changes, outcomes, strict=True) if isinstance(outcome, Refused)]
        for change in refused:
            if isinstance(change, Put) and len(refused) == len(changes):
                self.refused.add(change.body)
        if refused:
            todo.insert(0, (*name, lambda body: self.force(refused, body)))
            clock.sleep(0.5 * self.pace)

    @staticmethod
    def force(changes, body):
        return [
            Put(key=c.key, body=body, precondition=c.precondition) if isinstance(c, Put) else c
            for c in changes
        ]

    def announce(self, queued, clock, keys):
        while self.announces:
            try:
                queued.announce(keys)
                return
            except (*RETRY, QuotaExceededError, NotSignalledError):
                clock.sleep(0.3 * self.pace)

    def reconciler(self, stores, clock):
        publisher = Publisher(stores["objects"], prefix=KS, slots=SLOTS, clock=clock, parallelism=1)
        reconciler = ReconcilerService(
            self.queue_of(stores, clock),
            stores["objects"],
            [Keyspace(publisher=publisher)],
            bucket="b",
            unsignalled_seconds=1.5 if self.doubts else float("inf"),
            doubtful_seconds=4.0 if self.doubts else float("inf"),
            leak_seconds=2.0,
        )
        while not self.over():
            reconciler.reconcile()
            clock.sleep(1.0 * self.pace)

    def consumer(self, topic, seconds=float("inf")):
        """Reads the entries of moved slots, reads their objects, removes the entries, and then advances its cursor."""
        view = self.views[topic]

        def run(stores, clock):
            queue = self.queue_of(stores, clock)
            state = WatcherState.loads(view["cursor"]) if view["cursor"] else None
            watcher = Watcher(
                stores["objects"],
                prefix=KS,
                slots=SLOTS,
                clock=clock,
                relist_seconds=float("inf") if self.root else 5,
                state=state,
                entries=partial(marks_of, queue.records, topic) if self.root else None,
            )
            ends = clock.monotonic() + seconds
            while not self.over() and clock.monotonic() < ends:
                with suppress(*RETRY, NotFoundError):
                    poll = watcher.observe(watcher.state)
                    if poll.changed:
                        entries = queue.entries(topic, poll.changed)
                        for entry in entries:
                            view["known"][entry.event.key] = _etag(stores["objects"].head(entry.event.key))
                            if entry.event.op == "put":
                                view["puts"].add((entry.event.key, entry.event.etag))
                        queue.remove(entries)
                    watcher.state = poll.taken(watcher.state)
                    view["cursor"] = watcher.state.dumps()
                clock.sleep(0.5 * self.pace)

        return run

    def newcomer(self, stores, clock):
        """Creates its topic, lists the bucket once, and then reads only entries. Lists the bucket once more at the
        end.
        """
        view = self.views["late"]
        for life, seconds in ((1, 4.0 * self.pace), (2, float("inf"))):
            while view.get("life", 0) < life:
                clock.sleep(1.5)
                with suppress(*RETRY):
                    topics = self.queue_of(stores, clock).topics
                    if life == 2 and "deleted" not in view:
                        with suppress(NotFoundError):
                            topics.delete("late")
                        view["deleted"] = True
                    made = topics.find("late") or topics.create("late", self.settings("late"))
                    topics.serve(made, TopicUser(slots=SLOTS))
                    found = list_all(stores["objects"], "")
                    view["known"] = {meta.key: meta.etag for meta in found if not meta.key.startswith(KS)}
                    view["cursor"], view["life"] = WatcherState(slots=SLOTS).dumps(), life
                    self.pending -= life == 2
            self.consumer("late", seconds)(stores, clock)

    def run(self, seed, faults, *, writers=3, restarts=1000):
        actors = [self.writer(number) for number in range(writers)]
        actors += [self.consumer("all"), self.consumer("raw")] if self.others else []
        actors += [self.newcomer, self.reconciler, self.reconciler]
        clock_rates = [1.0, 0.8, 1.3][:writers] + [1.0] * (len(actors) - writers)
        faults = queue_stores.rates(self.kind, faults)
        return run_simulation(
            actors, self.stores, seed, faults=faults, restarts=restarts, clock_rates=clock_rates
        )

    def check(self):
        """Checks that each consumer knows the bucket's state without a LIST, that no put was announced that
        did not happen, and that the queue has no remains.
        """
        there = {meta.key: meta.etag for meta in list_all(self.objects, "") if not meta.key.startswith(KS)}
        for name, settings in TOPICS.items():
            if name != "late" and not self.others:
                continue
            known = {key: etag for key, etag in self.views[name]["known"].items() if etag is not None}
            assert known == {k: e for k, e in there.items() if k.startswith(settings.prefix)}
            assert self.views[name]["puts"] <= self.objects.versions
        assert not self.entries()
        assert not self.objects.uploads()
        assert not self.refused & self.objects.bodies
        reconciler = Reconciler(self.queue, leak_seconds=0.0)
        for name in TOPICS if self.others else ["late"]:
            reconciler.resolve_stale(name, self.objects.head)
            reconciler.resolve_stale(name, self.objects.head)
            assert self.queue.stats(name).counted == 0


def _etag(found):
    return found.etag if found is not None else None


KINDS = pytest.mark.parametrize("kind", queue_stores.KINDS)


@KINDS
@simulated
def test_every_change_reaches_every_topic(kind, seed):
    """Writers, consumers and reconcilers die between any two steps. If nobody announced the change of a dead writer,
    consumers would never learn of the change, because no write is repeated. If a dead writer's reservation stayed, it
    would take quota for ever.
    """
    world = World(kind=kind)
    world.run(seed, CRASHES)
    world.check()


@KINDS
@simulated
def test_every_change_reaches_every_topic_by_the_root_alone(kind, seed):
    """Writers move only the root, so consumers find slots by the names of segments. If the reconciler did not signal
    the slot of a dead writer's change, a consumer would not read the entry of this change until another writer moves
    the root.
    """
    world = World(kind=kind, root=True)
    world.run(seed, CRASHES)
    world.check()


@simulated
def test_root_signals_alone_are_enough(seed):
    """No request has a fault, and the reconciler repeats no signal. If a poll after a root signal missed an entry, the
    consumer would get the change only when the reconciler signals the slot.
    """
    world = World(kind="memory", root=True, doubts=False)
    world.run(seed, {})
    assert [meta.key for meta in list_all(world.objects, KS)] == [f"{KS}_"]
    world.check()


@simulated
def test_first_topic_gets_all_changes_by_the_root_alone(seed):
    """The topic's consumer lists the bucket only at the topic's creation, and queued writers move only the
    root. If nobody announced or signalled a write that began before the creation, the consumer would never
    see the object.
    """
    world = World(kind="memory", announces=True, pace=5.0, others=False, root=True)
    world.run(seed, SLEEPY)
    world.check()


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(uploads, "PART_BYTES", 2)
    monkeypatch.setattr(uploads, "_MIB", 1)


@pytest.mark.parametrize("faults", [CRASHES, SLEEPY], ids=["crashes", "sleepy"])
@simulated
def test_uploads_of_dead_writers_are_aborted(small_parts, faults, seed):
    """Parts of an unfinished upload are invisible, but take space. Without the reconciler's abort, the parts
    of a dead writer would stay in the bucket, and their storage would cost money. If an aborted upload were
    announced, consumers would look for an object that was never written.
    """
    world = World(
        kind="memory", large=True, announces=faults is SLEEPY, pace=5.0 if faults is SLEEPY else 1.0
    )
    world.run(seed, faults)
    world.check()


@simulated
def test_sleeping_writer_announces_its_changes(seed):
    """Writers pause longer than every timeout, so the reconciler may resolve a reservation before its write happens. If
    a writer did not announce its change again after the pause, consumers would never learn of the object.
    """
    world = World(kind="memory", announces=True, pace=5.0)
    world.run(seed, SLEEPY)
    world.check()


@simulated
def test_first_topic_gets_changes_that_its_listing_missed(seed):
    """The topic's consumer lists the bucket only at the topic's creation. A write may begin before the
    creation, and end after the listing. If its writer did not announce the change to the new topic, the
    consumer would never see the object.
    """
    world = World(kind="memory", announces=True, pace=5.0, others=False)
    world.run(seed, SLEEPY)
    world.check()


@simulated
def test_outcome_of_a_write_in_doubt_is_never_guessed(seed):
    """After a lost answer, a writer reads the object, often before its late write is applied. If the writer
    treated the late write as refused, the object would appear later without an entry, and consumers would
    miss it.
    """
    world = World(kind="memory")
    world.run(seed, {Fault.LOST: 0.12, Fault.LATE: 0.12, Fault.THROTTLED: 0.12}, writers=2)
    world.check()


@simulated
def test_refused_write_was_not_applied(seed):
    """While a consumer is away, its topic is full. If a refused write were applied nevertheless, the bucket would have
    an object that its writer believes to be absent, and that no entry announces.
    """
    world = World(kind="memory")
    view = world.consumer("raw")

    def late(stores, clock):
        clock.sleep(8)
        return view(stores, clock)

    world.consumer = lambda topic, *rest, known=world.consumer: (
        late if topic == "raw" else known(topic, *rest)
    )
    world.run(seed, {Fault.LOST: 0.03, Fault.LATE: 0.03, Fault.THROTTLED: 0.03})
    assert world.refused
    world.check()


def test_keys_share_slots():
    """Otherwise no test would cover the case that one writer's signal of a slot hides the missing signal of another
    writer.
    """
    slots = [slot_of(f"raw/{n}.{m}", SLOTS) for n in range(3) for m in range(2)]
    assert len(set(slots)) < len(slots)
