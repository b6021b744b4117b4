"""Publisher, queue, keyspace, reconciler and consumers together: every change that happened reaches every topic.

Nobody ever writes again what he wrote, and consumers look at nothing but the entries of slots that moved.
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
# Who dies every ten calls outlives no timeout; who sleeps past his reservation, and then dies, is the one loss that
# the protocol admits.
CRASHES = ROUGH | {Fault.CRASH_BEFORE: 0.01, Fault.CRASH_AFTER: 0.01, Fault.PAUSE: 0.0}
SLEEPY = ROUGH | {Fault.CRASH_BEFORE: 0.0, Fault.CRASH_AFTER: 0.0, Fault.PAUSE: 0.004}
STALE_SECONDS = 6.0
KNOWN_SECONDS = 0.5
TOPICS = {
    "all": TopicSettings(capacity=10, shards=2, slots=SLOTS),
    "raw": TopicSettings(capacity=5, shards=1, slots=SLOTS, prefix="raw/", bucket="b"),
    "late": TopicSettings(capacity=8, shards=1, slots=SLOTS),
}
"""The last one is made by its consumer, in the midst of it all."""


class Bucket(MemoryObjectStore):
    """A bucket that knows which bodies it was ever given."""

    def __init__(self):
        super().__init__()
        self.bodies = set()

    def _write(self, meta, body, precondition):
        outcome = super()._write(meta, body, precondition)
        if outcome != Conflict():
            self.bodies.add(body)
        return outcome

    def uploads(self):
        return list(self._uploads)


@dataclass
class World:
    kind: str
    announces: bool = False
    """Writers announce again what they know to be unannounced; otherwise they leave it to the reconciler."""
    pace: float = 1.0
    """How much longer everybody waits before the next round."""
    refused: set = field(default_factory=set)
    pending: int = 1
    large: bool = False
    """What is written alone is uploaded by parts."""
    others: bool = True
    """Other topics than the late one."""
    doubts: bool = True
    """Reconcilers signal again what waits for long."""
    root: bool = False
    """Writers move the root alone, and consumers list their topics; they never list the signals for the time's sake."""
    views: dict = field(default_factory=dict)
    """What the consumer of each topic knows of its keys, and its cursor."""

    def __post_init__(self):
        self.objects = Bucket()
        kept, self.plain = queue_stores.queue_stores(self.kind)
        self.stores = {"objects": self.objects} | kept
        self.queue = NotificationQueue(self.plain, parallelism=1, known_seconds=0.0)
        for name in TOPICS:
            if name != "late" and self.others:
                self.queue.topics.create(name, self.settings(name))
            self.views[name] = {"known": {}, "cursor": None}

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
        """Creates, overwrites, deletes, alone and in batches, some of it where others write; each step once."""
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
                _, step, make = todo.pop(0)  # who dies does not write it again
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
            # Nothing was written.
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
        """Reads the entries of slots that moved, looks at their objects, removes them; then advances its cursor."""
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
                        queue.remove(entries)
                    watcher.state = poll.taken(watcher.state)
                    view["cursor"] = watcher.state.dumps()
                clock.sleep(0.5 * self.pace)

        return run

    def newcomer(self, stores, clock):
        """Makes its topic, lists the bucket once, and looks at nothing but entries then; and once more, again."""
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
        """Each consumer knows the bucket as it is, without ever having listed it; and nothing is left over."""
        there = {meta.key: meta.etag for meta in list_all(self.objects, "") if not meta.key.startswith(KS)}
        for name, settings in TOPICS.items():
            if name != "late" and not self.others:
                continue
            known = {key: etag for key, etag in self.views[name]["known"].items() if etag is not None}
            assert known == {k: e for k, e in there.items() if k.startswith(settings.prefix)}
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
    """Writers, consumers and reconcilers die between any two steps; nobody writes anything twice."""
    world = World(kind=kind)
    world.run(seed, CRASHES)
    world.check()


@KINDS
@simulated
def test_every_change_reaches_every_topic_where_the_root_moves_alone(kind, seed):
    """The same, where the topics' segments name the slots, and the reconciler alone signals some."""
    world = World(kind=kind, root=True)
    world.run(seed, CRASHES)
    world.check()


@simulated
def test_roots_that_move_alone_suffice(seed):
    """Nothing fails, and nobody signals again what waits: each change is found by a root that came after it."""
    world = World(kind="memory", root=True, doubts=False)
    world.run(seed, {})
    assert [meta.key for meta in list_all(world.objects, KS)] == [f"{KS}_"]
    world.check()


@simulated
def test_the_first_topic_hears_of_all_where_the_root_moves_alone(seed):
    """Writers that began when there was none signal slots; nobody dies."""
    world = World(kind="memory", announces=True, pace=5.0, others=False, root=True)
    world.run(seed, SLEEPY)
    world.check()


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(uploads, "PART_BYTES", 2)
    monkeypatch.setattr(uploads, "_MIB", 1)


@pytest.mark.parametrize("faults", [CRASHES, SLEEPY], ids=["crashes", "sleepy"])
@simulated
def test_uploads_of_the_dead_are_aborted(small_parts, faults, seed):
    """The same for objects of many parts; none is announced, or left over, that was not completed."""
    world = World(
        kind="memory", large=True, announces=faults is SLEEPY, pace=5.0 if faults is SLEEPY else 1.0
    )
    world.run(seed, faults)
    world.check()


@simulated
def test_a_writer_that_sleeps_tells_all_the_same(seed):
    """Pauses longer than every timeout, at any call; nobody dies, and each announces what it has to."""
    world = World(kind="memory", announces=True, pace=5.0)
    world.run(seed, SLEEPY)
    world.check()


@simulated
def test_the_first_topic_hears_of_what_its_listing_missed(seed):
    """Writers that began when there was none tell it; nobody dies, since there is nothing to resolve."""
    world = World(kind="memory", announces=True, pace=5.0, others=False)
    world.run(seed, SLEEPY)
    world.check()


@simulated
def test_writes_in_doubt_are_never_guessed(seed):
    """Every eighth answer is lost, every eighth write lands late, and so often it cannot be looked up at once."""
    world = World(kind="memory")
    world.run(seed, {Fault.LOST: 0.12, Fault.LATE: 0.12, Fault.THROTTLED: 0.12}, writers=2)
    world.check()


@simulated
def test_what_is_refused_was_not_written(seed):
    """A consumer that is away: writers are refused, and try until it is back."""
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


def test_slots_are_shared():
    """The keys above do meet in slots, so that one writer's signal may hide that another's is missing."""
    slots = [slot_of(f"raw/{n}.{m}", SLOTS) for n in range(3) for m in range(2)]
    assert len(set(slots)) < len(slots)
