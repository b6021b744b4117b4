"""The reconciler announces changes of killed writers to topics that are younger than the reservations."""

import pytest

from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.channels.reconcile.reconciler_service import ReconcilerService
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import QUEUED, NotSignalledError, Publisher
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, Rule, TopicSettings
from s3notify_platform.protocols.notification_queue.topic_settings import STALE_SECONDS
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.clocks import HandClock
from tests.support.faults import CrashedError, Fault, FaultyStore

KS = "ks/"


class World:
    def __init__(self):
        self.clock = HandClock()
        self.objects = FaultyStore(MemoryObjectStore())
        self.records = FaultyStore(MemoryRecordStore())
        self.queue = NotificationQueue(self.records, clock=self.clock, parallelism=1)
        self.publisher = Publisher(self.objects, prefix=KS, clock=self.clock, parallelism=1)
        self.topic("t")

    def topic(self, name, **settings):
        self.queue.topics.create(name, TopicSettings(**{"capacity": 10, "shards": 1} | settings))

    def put(self, key, meanwhile, *, dies=True, metadata=None):
        """Runs a writer that is killed after its write. `meanwhile` is called between the writer's reservations and the
        write.
        """

        def schedule(call):
            if (call.method, call.key) != ("put", key):
                return Fault.NONE
            self.objects.schedule = lambda _: Fault.NONE
            meanwhile()
            return Fault.CRASH_AFTER if dies else Fault.NONE

        self.objects.schedule = schedule
        queue = NotificationQueue(self.records, clock=self.clock, parallelism=1)
        writer = QueuedPublisher(self.publisher, queue, bucket="b")
        if not dies:
            return writer.put(key, b"1", metadata=metadata)
        with pytest.raises(CrashedError):
            writer.put(key, b"1", metadata=metadata)
        return None

    def reconciler(self):
        """Returns a reconciler whose next pass resolves the current reservations."""
        queue = NotificationQueue(self.records, clock=self.clock, parallelism=1)
        reconciler = ReconcilerService(queue, self.objects, [Keyspace(publisher=self.publisher)], bucket="b")
        reconciler.reconcile()
        self.clock.now += STALE_SECONDS + 1
        return reconciler

    def keys(self, topic):
        return [entry.event.key for entry in self.queue.entries(topic, range(1000))]

    def mark(self, key):
        found = self.objects.head(f"{KS}{slot_of(key)}")
        return found and found.metadata.get(QUEUED)


@pytest.fixture
def world():
    return World()


def test_a_younger_topic_gets_the_entry(world):
    """Otherwise the consumer of a new topic would miss the change of a killed writer, or get it twice."""
    world.put("a", lambda: world.topic("late"))
    reconciler = world.reconciler()
    assert (reconciler.reconcile().committed, world.keys("t"), world.keys("late")) == (1, ["a"], ["a"])
    assert world.mark("a") == "1"
    reconciler.reconcile()
    assert world.keys("late") == ["a"]


def test_a_younger_topic_with_a_rule_by_metadata_gets_the_entry(world):
    """Otherwise a rule by metadata would not apply to changes of killed writers. The reconciler reads the metadata with
    its HEAD.
    """

    def meanwhile():
        for team in ("sales", "other"):
            world.topic(team, rules=(Rule(metadata=(("team", team),)),))

    world.put("a", meanwhile, metadata={"team": "sales"})
    assert world.reconciler().reconcile().committed == 1
    assert (world.keys("sales"), world.keys("other")) == (["a"], [])


def test_an_inlets_reservation_is_not_announced_to_other_topics(world):
    """Otherwise a topic would get the change twice, since the inlet receives the message of this change again."""
    world.queue.reserve("t", Event(key="a", bucket="b"))
    world.objects.put("a", b"1")
    world.topic("late")
    assert world.reconciler().reconcile().committed == 1
    assert world.keys("late") == []


def test_a_topic_created_again_gets_the_entry(world):
    """The consumer of the new topic listed the bucket before the write, and the reservation was deleted together with
    the old topic. Without a new entry, this consumer would miss the change.
    """
    world.topic("other")

    def force():
        world.queue.topics.delete("other")
        world.topic("other")

    world.put("a", force)
    assert world.reconciler().reconcile().committed == 1
    assert world.keys("other") == ["a"]


def test_a_topic_created_again_before_the_reservation_gets_one_entry(world):
    """Otherwise the reconciler would wait for space in the topic, although the reservation itself uses this space."""
    queue = NotificationQueue(world.records, clock=world.clock, parallelism=1)
    writer = QueuedPublisher(world.publisher, queue, bucket="b")
    writer.put("warm", b"1")
    world.queue.topics.delete("t")
    world.topic("t", capacity=1)
    world.objects.schedule = lambda call: Fault.CRASH_AFTER if call.key == "a" else Fault.NONE
    with pytest.raises(CrashedError):
        writer.put("a", b"1")
    world.objects.schedule = lambda _: Fault.NONE
    assert world.reconciler().reconcile().committed == 1
    assert world.keys("t") == ["a"]


def test_a_killed_reconciler_leaves_no_deadlock(world):
    """The killed reconciler has reserved all space in the topic `late`. The next reconciler must not wait for this
    space without end.
    """
    world.put("a", lambda: world.topic("late", capacity=1))
    reconciler = world.reconciler()

    world.records.schedule = lambda call: (
        Fault.CRASH_BEFORE if call.method == "replace" and call.key != "late" else Fault.NONE
    )
    with pytest.raises(CrashedError):
        reconciler.reconcile()
    world.records.schedule = lambda _: Fault.NONE
    assert world.queue.stats("late").reserved == 1
    reconciler = world.reconciler()
    reconciler.reconcile()
    assert world.keys("late") == ["a"]
    world.queue.remove(world.queue.entries("late", range(1000)))
    reconciler.reconcile()
    assert world.keys("t") == ["a"]


def test_errors_of_a_pass_name_no_key(world):
    """The upkeep writes the errors to Dagster's log. If an error named a key, the key would stay there after `erase`,
    which cannot remove keys from logs.
    """
    world.put("secret-person", lambda: world.topic("late"))
    reconciler = world.reconciler()
    world.objects.schedule = lambda call: Fault.THROTTLED if call.method == "put" else Fault.NONE
    (error,) = reconciler.reconcile().errors
    assert "1 written keys were not signalled, the first of slot" in error
    assert "secret-person" not in error


def test_a_full_topic_does_not_cause_repeated_entries_in_other_topics(world):
    """Otherwise each pass that finds one topic full would add an entry to the other topics."""

    def make():
        world.topic("early")
        world.topic("full", capacity=1)
        world.queue.push("full", Event(key="x", bucket="b"))

    world.put("a", make)
    reconciler = world.reconciler()
    for _ in range(5):
        assert reconciler.reconcile().waiting == 1
    assert len(world.keys("early")) <= 1
    world.queue.remove(world.queue.entries("full", range(1000)))
    assert reconciler.reconcile().committed == 1
    assert (world.keys("early"), world.keys("full"), world.keys("t")) == (["a"], ["a"], ["a"])


def test_a_topic_with_a_small_event_limit_does_not_block_others(world):
    """Otherwise one event that is too large for a topic would block the reconciler. The topic's consumer must list
    the bucket instead.
    """
    world.put("a" * 300, lambda: world.topic("late", max_event_bytes=300))
    world.put("b", lambda: None)
    reconciler = world.reconciler()
    reconciler.reconcile()
    assert (sorted(world.keys("t")), world.keys("late")) == (["a" * 300, "b"], ["b"])
    assert (world.mark("a" * 300), world.mark("b")) == (None, "1")


def test_a_writer_reports_an_event_that_is_too_large_for_a_new_topic(world):
    """Otherwise the caller would not learn that the new topic does not have the change."""
    with pytest.raises(NotSignalledError) as caught:
        world.put("a" * 300, lambda: world.topic("late", max_event_bytes=300), dies=False)
    assert caught.value.keys == ("a" * 300,)
    assert world.keys("t") == ["a" * 300]
    assert (world.mark("a" * 300), world.objects.head(f"{KS}{slot_of('a' * 300)}") is None) == (None, False)


def test_a_raised_event_limit_takes_effect(world):
    """Otherwise a writer that has refused an event as too large would refuse this event for ever."""
    queue = NotificationQueue(world.records, clock=world.clock, parallelism=1)
    world.queue.topics.update("t", TopicSettings(capacity=10, shards=1, max_event_bytes=300))
    event = Event(key="a" * 300, bucket="b")
    queue.see_topics()
    assert not queue.fits("t", event)
    world.queue.topics.update("t", TopicSettings(capacity=10, shards=1))
    queue.see_topics()
    assert queue.fits("t", event)


def test_a_topic_deleted_during_the_announcement_is_skipped(world):
    """Otherwise the deleted topic would block the resolution of the reservation."""
    world.put("a", lambda: world.topic("late"))
    reconciler = world.reconciler()

    def gone(call):
        if call.method == "add" and call.key.startswith("depth.late/"):
            world.records.schedule = lambda _: Fault.NONE
            world.queue.topics.delete("late")
        return Fault.NONE

    world.records.schedule = gone
    assert reconciler.reconcile().committed == 1
    assert world.keys("t") == ["a"]
