"""The reconciler's passes over a bucket's queue: changes of killed writers are signalled, once, at low cost."""

import re
from threading import Event as Flag
from threading import Thread

import pytest

from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.channels.reconcile.reconciler_service import ReconcilerService
from s3notify_platform.kernel.errors import RefusedError, UsageError
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

    def refuse(self, prefix, *methods):
        """Refuses calls of these methods for keys below the prefix. Returns a function that ends the refusal."""
        before = {method: getattr(self.objects, method) for method in methods}

        def refusing(method):
            def call(key, **arguments):
                if key.startswith(prefix):
                    raise RefusedError("bucket 'b' refused access (AccessDenied)")
                return before[method](key, **arguments)

            return call

        for method in methods:
            setattr(self.objects, method, refusing(method))
        return lambda: [delattr(self.objects, method) for method in methods]

    def signal(self, key, prefix=KS):
        return self.objects.head(f"{prefix}{slot_of(key)}")


@pytest.fixture
def world():
    world = World()
    world.topic()
    return world


def passes(world, reconciler, *waits):
    """Returns the number of slots that each pass signals. `waits` has the seconds before each pass."""
    signalled = []
    for seconds in waits:
        world.clock.now += seconds
        signalled.append(reconciler.reconcile().signalled)
    return signalled


def test_a_resolved_reservation_is_signalled(world):
    """Otherwise the entry of a killed writer would be committed without a signal, or its signal would not be marked as
    queued.
    """
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


def test_an_unsignalled_entry_is_signalled_later(world):
    """Otherwise the entry of a writer that was killed after its commit would wait for ever."""
    reconciler = world.reconciler()
    reconciler.reconcile()
    world.push("a")
    assert reconciler.reconcile().signalled == 0
    assert passes(world, reconciler, 29, 2) == [0, 1]
    assert world.signal("a").metadata == {QUEUED: "1"}
    assert passes(world, reconciler, 299, 2) == [0, 1]


def test_a_signalled_entry_is_not_signalled_again_soon(world):
    """Otherwise a slow consumer would get a signal in each pass. One more signal is sent after 300 s, in case the
    consumer missed the first signal.
    """
    reconciler = world.reconciler()
    reconciler.reconcile()
    world.push("a")
    world.publisher.signal(["a"])
    reconciler.reconcile()
    assert passes(world, reconciler, 299, 2, 299, 2) == [0, 1, 0, 1]


def test_a_new_process_waits_300_s_before_it_signals_older_entries(world):
    """Otherwise a new process would signal all waiting entries, since it does not know former signals."""
    world.push("a")
    reconciler = world.reconciler()
    reconciler.reconcile()
    assert passes(world, reconciler, 299, 2) == [0, 1]


def test_the_wait_for_a_signal_begins_with_the_pass_that_first_sees_the_commit(world):
    """Otherwise a signal from before the commit would count as the entry's signal, although the entry's writer was
    killed after the commit.
    """
    reconciler = world.reconciler()
    reservation = world.queue.reserve("t", Event(key="a", bucket="b"))
    reconciler.reconcile()
    world.publisher.signal(["a"])
    reconciler.reconcile()
    world.queue.commit(reservation)
    reconciler.reconcile()
    world.clock.now += 31
    assert reconciler.reconcile().signalled == 1


def test_entries_of_pushed_topics_are_not_signalled(world):
    """The owner of a pushed topic scans its shards. If the reconciler signalled entries of pushed topics, each entry
    would cause needless signals.
    """
    world.topic("pushed", endpoint="{}")
    reconciler = world.reconciler()
    reconciler.reconcile()
    world.push("a", "pushed")
    for _ in range(3):
        world.clock.now += 400
        assert reconciler.reconcile().signalled == 0


def test_reservations_of_other_buckets_are_not_resolved(world):
    """Otherwise a HEAD in the wrong bucket would abort reservations of changes that did happen."""
    world.topic("other", bucket="c")
    world.queue.reserve("t", Event(key="a", bucket="c"))
    world.queue.reserve("other", Event(key="a", bucket="c"))
    reconciler = world.reconciler()
    reconciler.reconcile()
    world.clock.now += 1000
    reconciled = reconciler.reconcile()
    assert (reconciled.topics, reconciled.aborted, reconciled.waiting) == (1, 0, 1)


def test_each_keyspace_is_signalled_for_its_own_keys(world):
    """Otherwise one of two sources on a bucket would miss its changes, or would be signalled for changes of the other
    source.
    """
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


def test_a_failed_signal_is_repeated_by_the_next_pass(world):
    """Otherwise the change would have an entry and no signal, and nobody would be informed."""
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


def test_a_corrupt_topic_does_not_block_others(world):
    """Otherwise one corrupt topic, or an outage, would end the service. A wrong configuration, however, must end the
    service.
    """
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


def test_a_refused_head_does_not_block_others(world):
    """Otherwise one killed writer below another prefix would stop the work for all topics. The reconciler handles all
    topics of a bucket, but may have rights only below the prefix of its own source.
    """
    world.topic("a-foreign")
    for topic, key in (("a-foreign", "theirs/1"), ("a-foreign", "theirs/2"), ("t", "a")):
        world.queue.reserve(topic, Event(key=key, bucket="b"))
    world.objects.put("a", b"1")
    allow = world.refuse("theirs/", "head", "list")
    reconciler = world.reconciler()
    reconciler.reconcile()
    world.clock.now += STALE_SECONDS
    for committed in (1, 0):
        reconciled = reconciler.reconcile()
        assert (reconciled.committed, reconciled.signalled, reconciled.waiting) == (committed, committed, 2)
        (error,) = reconciled.errors
        assert re.search(r"^a-foreign: 2 .* of slot \d+, .*AccessDenied.*s3:ListBucket", error)
        assert "theirs" not in error
    allow()
    assert reconciler.reconcile().aborted == 2


def test_a_reservation_whose_head_is_refused_is_resolved_by_a_listing(world):
    """Otherwise, if the bucket's policy forbids all reads of a key, the key's reservation would occupy space in the
    topic for ever.
    """
    for event in (
        Event(key="theirs/put", bucket="b"),
        Event(key="theirs/not", bucket="b"),
        Event(key="theirs/deleted", op="delete", bucket="b"),
    ):
        world.queue.reserve("t", event)
    etag = world.objects.put("theirs/put", b"1").etag
    world.objects.put("theirs/not-this", b"1")
    world.refuse("theirs/", "head")
    reconciler = world.reconciler()
    reconciler.reconcile()
    world.clock.now += STALE_SECONDS
    reconciled = reconciler.reconcile()
    assert (reconciled.committed, reconciled.aborted, reconciled.waiting) == (2, 1, 0)
    assert reconciled.errors == ()
    found = {entry.event.key: entry.event.etag for entry in world.queue.entries("t", range(1000))}
    assert found == {"theirs/put": etag, "theirs/deleted": None}


def test_a_deleted_topic_is_forgotten(world):
    """Otherwise the memory of a long-lived reconciler would grow with each deleted topic."""
    world.push("a")
    reconciler = world.reconciler()
    reconciler.reconcile()
    world.queue.topics.delete("t")
    reconciler.reconcile()
    assert not reconciler._pending
    assert not reconciler._reconciler._shards


def test_a_sensor_makes_a_pass_only_when_it_is_due(world):
    """Otherwise each tick of a sensor would cost a pass, or two threads would run a pass at the same time."""
    reconciler = world.reconciler()
    assert reconciler.reconcile_when_due() is not None
    assert reconciler.reconcile_when_due() is None
    world.clock.now += 15
    with reconciler._turn:
        assert reconciler.reconcile_when_due() is None
    assert reconciler.reconcile_when_due() is not None
    assert reconciler.counts()["passes"] == 2


def test_a_keyspace_included_later_is_signalled(world):
    """Otherwise entries that waited before the reconciler included the keyspace would not be signalled."""
    world.push("a")
    reconciler = world.reconciler()
    assert passes(world, reconciler, 0, 15) == [0, 0]
    other = Publisher(world.counting, prefix="other/", clock=world.clock, parallelism=1)
    reconciler.include(Keyspace(publisher=other, prefix="a"))
    reconciler.include(Keyspace(publisher=other, prefix="b"))
    assert passes(world, reconciler, 0, 300) == [0, 2]
    assert world.signal("a") is not None
    assert world.signal("a", "other/") is not None


def test_the_service_reconciles_until_it_is_stopped():
    """Otherwise `s3notify reconcile` would not stop, or not report its work."""
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


def test_requests_of_a_pass_on_a_bucket():
    """Otherwise a pass could cost unnecessary requests. Without entries, a pass only reads. A waiting entry is read
    once, and later passes only list the entry.
    """
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
