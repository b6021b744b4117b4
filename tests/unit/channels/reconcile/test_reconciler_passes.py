"""The reconciler's passes over a bucket's queue: what dead writers left behind is signalled, once, and cheaply."""

from threading import Event as Flag
from threading import Thread

import pytest

from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.channels.reconcile.reconciler_service import ReconcilerService
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import QUEUED, Publisher
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, TopicSettings, keys_recur
from s3notify_platform.protocols.notification_queue.reconciler import SCAN_EVERY
from s3notify_platform.protocols.notification_queue.topic_settings import STALE_SECONDS
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.clocks import HandClock
from tests.support.faults import Fault, FaultyStore

KS = "ks/"


class World:
    def __init__(self, records=None):
        self.clock = HandClock()
        self.objects = FaultyStore(MemoryObjectStore())
        self.counting = CountingStore(self.objects)
        self.records = FaultyStore(records or MemoryRecordStore())
        self.queue = NotificationQueue(self.records, clock=self.clock, parallelism=1)
        self.publisher = Publisher(self.counting, prefix=KS, clock=self.clock, parallelism=1)

    def topic(self, name="t", **settings):
        self.queue.topics.create(name, TopicSettings(**{"capacity": 100, "shards": 2} | settings))

    def reconciler(self, *keyspaces):
        spaces = keyspaces or (Keyspace(publisher=self.publisher),)
        return ReconcilerService(
            self.queue, self.counting, spaces, bucket="b", unsignalled_seconds=30, doubtful_seconds=300
        )

    def push(self, key, topic="t", **fields):
        self.queue.push(topic, Event(key=key, bucket="b", **fields))

    def signal(self, key, prefix=KS):
        return self.objects.head(f"{prefix}{slot_of(key)}")


@pytest.fixture
def world():
    world = World()
    world.topic()
    return world


def passes(world, reconciler, *waits):
    """How many slots each pass signals, each so many seconds after the one before."""
    signalled = []
    for seconds in waits:
        world.clock.now += seconds
        signalled.append(reconciler.reconcile().signalled)
    return signalled


def test_what_was_resolved_is_signalled(world):
    """In the pass that resolves it, and marked: the entry is there."""
    world.queue.reserve_many("t", [Event(key="written", bucket="b"), Event(key="not", bucket="b")])
    world.objects.put("written", b"1")
    reconciler = world.reconciler()
    assert (reconciler.reconcile().waiting, reconciler.reconcile().signalled) == (2, 0)
    world.clock.now += STALE_SECONDS
    reconciled = reconciler.reconcile()
    assert (reconciled.committed, reconciled.aborted, reconciled.signalled) == (1, 1, 1)
    assert world.signal("written").metadata == {QUEUED: "1"}
    assert world.signal("not") is None
    assert passes(world, reconciler, 299, 2) == [0, 1]


def test_what_nobody_signalled(world):
    """Its writer died after the commit: signalled after a while, and again while it stays."""
    reconciler = world.reconciler()
    reconciler.reconcile()
    world.push("a")
    assert reconciler.reconcile().signalled == 0
    assert passes(world, reconciler, 29, 2) == [0, 1]
    assert world.signal("a").metadata == {QUEUED: "1"}
    assert passes(world, reconciler, 299, 2) == [0, 1]


def test_what_is_waiting_but_signalled_is_left_alone(world):
    """A slow consumer is not asked again and again; after long, once, since another's signal may have come before."""
    reconciler = world.reconciler()
    reconciler.reconcile()
    world.push("a")
    world.publisher.signal(["a"])
    reconciler.reconcile()
    assert passes(world, reconciler, 299, 2, 299, 2) == [0, 1, 0, 1]


def test_a_new_process_waits_for_long(world):
    """It cannot know what was signalled before it came."""
    world.push("a")
    reconciler = world.reconciler()
    reconciler.reconcile()
    assert passes(world, reconciler, 299, 2) == [0, 1]


def test_a_late_commit_counts_from_when_it_was_seen(world):
    """Reserved for long, its slot signalled by another meanwhile; then committed by a writer that died."""
    reconciler = world.reconciler()
    reservation = world.queue.reserve("t", Event(key="a", bucket="b"))
    reconciler.reconcile()
    world.publisher.signal(["a"])
    reconciler.reconcile()
    world.queue.commit(reservation)
    reconciler.reconcile()
    world.clock.now += 31
    assert reconciler.reconcile().signalled == 1


def test_pushed_topics_need_no_signal(world):
    """Their owners look for themselves."""
    world.topic("pushed", endpoint="{}")
    reconciler = world.reconciler()
    reconciler.reconcile()
    world.push("a", "pushed")
    for _ in range(3):
        world.clock.now += 400
        assert reconciler.reconcile().signalled == 0


def test_other_buckets_are_left_alone(world):
    """Neither topics of another bucket, nor reservations for one in a topic of all."""
    world.topic("other", bucket="c")
    world.queue.reserve("t", Event(key="a", bucket="c"))
    world.queue.reserve("other", Event(key="a", bucket="c"))
    reconciler = world.reconciler()
    reconciler.reconcile()
    world.clock.now += 1000
    reconciled = reconciler.reconcile()
    assert (reconciled.topics, reconciled.aborted, reconciled.waiting) == (1, 0, 1)


def test_each_keyspace_hears_of_its_own_keys(world):
    """Two sources on one bucket, with signals of their own."""
    other = Publisher(world.counting, prefix="other/", clock=world.clock, parallelism=1)
    reconciler = world.reconciler(
        Keyspace(publisher=world.publisher, prefix="raw/"), Keyspace(publisher=other)
    )
    reconciler.reconcile()
    world.push("raw/a")
    world.push("b")
    reconciler.reconcile()
    world.clock.now += 31
    assert reconciler.reconcile().signalled == 3
    assert world.signal("raw/a")
    assert world.signal("b") is None
    assert world.signal("raw/a", "other/")
    assert world.signal("b", "other/")


def test_a_signal_that_failed_is_moved_by_the_next_pass(world):
    """And what failed is reported."""
    world.queue.reserve("t", Event(key="a", bucket="b"))
    world.objects.put("a", b"1")
    reconciler = world.reconciler()
    reconciler.reconcile()
    world.clock.now += STALE_SECONDS
    world.objects.schedule = lambda call: Fault.THROTTLED if call.method == "put" else Fault.NONE
    reconciled = reconciler.reconcile()
    assert (reconciled.committed, reconciled.signalled) == (1, 0)
    assert "signals" in reconciled.errors[0]
    world.objects.schedule = lambda _: Fault.NONE
    assert reconciler.reconcile().signalled == 1
    assert reconciler.counts()["failed"] == 1


def test_one_topic_in_trouble_does_not_keep_the_others(world):
    """Nor does an outage of everything end the service; a wrong configuration does."""
    world.topic("a-bad")
    world.records.store.create("queue.a-bad", "000-x", b"text")
    world.queue.reserve("t", Event(key="a", bucket="b"))
    reconciler = world.reconciler()
    reconciler.reconcile()
    world.clock.now += STALE_SECONDS
    reconciled = reconciler.reconcile()
    assert reconciled.aborted == 1
    assert "a-bad: CorruptError" in reconciled.errors[0]
    world.records.schedule = lambda _: Fault.THROTTLED
    assert reconciler.reconcile().topics == 0
    world.objects.head = lambda _: (_ for _ in ()).throw(UsageError("no such bucket"))
    with pytest.raises(UsageError):
        reconciler.reconcile()


def test_a_topic_that_is_gone_is_forgotten(world):
    """With all that was remembered of it."""
    world.push("a")
    reconciler = world.reconciler()
    reconciler.reconcile()
    world.queue.topics.delete("t")
    reconciler.reconcile()
    assert not reconciler._pending
    assert not reconciler._reconciler._shards


def test_passes_from_a_sensor(world):
    """Called in every tick, it passes when the time has come, and never twice at once."""
    reconciler = world.reconciler()
    assert reconciler.reconcile_when_due() is not None
    assert reconciler.reconcile_when_due() is None
    world.clock.now += 15
    with reconciler._turn:
        assert reconciler.reconcile_when_due() is None
    assert reconciler.reconcile_when_due() is not None
    assert reconciler.counts()["passes"] == 2


def test_a_keyspace_that_is_included_later(world):
    """Its signals are moved too, also for entries that waited before."""
    world.push("a")
    reconciler = world.reconciler()
    assert passes(world, reconciler, 0, 15) == [0, 0]
    other = Publisher(world.counting, prefix="other/", clock=world.clock, parallelism=1)
    reconciler.include(Keyspace(publisher=other, prefix="a"))
    reconciler.include(Keyspace(publisher=other, prefix="b"))
    assert passes(world, reconciler, 0, 300) == [0, 2]
    assert world.signal("a") is not None
    assert world.signal("a", "other/") is not None


def test_as_a_service():
    """It passes until it is stopped, and reports what it did."""
    world = World()
    world.topic()
    world.push("a")
    stop, passed, reports = Flag(), Flag(), []
    reconciler = ReconcilerService(
        NotificationQueue(world.records, parallelism=1),
        world.counting,
        [Keyspace(publisher=world.publisher)],
        bucket="b",
        doubtful_seconds=0,
        pass_seconds=0.01,
    )

    def progress(line):
        reports.append(line)
        passed.set()

    thread = Thread(target=reconciler.run, args=(stop, progress))
    thread.start()
    assert passed.wait(10)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert reports == ["1 signalled"]
    assert reconciler.name == "reconcile"


# Costs


def test_requests_on_a_bucket_alone():
    """Nothing there: reads only. Entries that wait are read once, and listed then."""
    cells = CountingStore(MemoryObjectStore())
    world = World(ObjectRecordStore(cells, "r/", keys_recur=keys_recur))
    world.topic(shards=2)
    reconciler = world.reconciler()

    def cost():
        cells.counts.clear()
        world.counting.counts.clear()
        reconciler.reconcile()
        return dict(cells.counts), dict(world.counting.counts)

    cost()
    idle = {"LIST": 1, "GET": 1 + 1 + 2}
    for _ in range(SCAN_EVERY - 1):
        assert cost() == (idle, {"HEAD": 1})
    for number in range(50):
        world.push(f"k{number}")
    cost()
    counters = {"GET": 1 + 1 + 2}
    assert cost()[0] == {"LIST": 1 + 2} | counters
    world.push("another")
    assert cost()[0] == {"LIST": 1 + 2, "GET": 5}
