"""A publisher relies on the topics that it knows, but no topic misses a change, even if topics change meanwhile.

Each topic has a consumer, which lists the bucket once when it begins, and later reads only entries.
"""

from dataclasses import replace

import pytest

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.ports import Written
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings, TopicUser
from tests.support.clocks import SlowClock
from tests.support.faults import CrashedError, Fault, FaultyStore, at
from tests.support.queued_publisher import KS, meanwhile

USER = TopicUser(slots=1000)


class Consumers:
    """The processes that change topics, and the consumer of the topic `late`."""

    def __init__(self, world):
        self.world = world
        self.listed = set()

    def dying(self, method, fault=Fault.CRASH_AFTER):
        """Returns the topics of a process that is killed at its first call of `method`."""
        records = FaultyStore(self.world.records, at(method, fault))
        return NotificationQueue(records, clock=self.world.clock).topics

    def begin(self):
        topics = self.world.queue.topics
        topics.serve(topics.get("late"), USER)
        self.listed |= {meta.key for meta in self.world.objects.list("").objects}

    def know(self, key):
        return key in self.listed or key in {key for _, key, _ in self.world.announced("late")}

    # Changes of topics that may happen while an object is written.

    def created(self):
        self.world.topic("late")
        self.begin()

    def created_by_a_dead_process(self):
        with pytest.raises(CrashedError):
            self.dying("create").create("late", TopicSettings(capacity=100, shards=2))
        self.begin()

    def created_while_the_other_is_deleted(self):
        with pytest.raises(CrashedError):
            self.dying("replace").delete("t")
        self.created()

    def created_after_the_other_takes_less(self):
        topics = self.world.queue.topics
        settings = topics.get("t").settings
        topics.update("t", replace(settings, prefix="else/"))
        self.world.topic("late", prefix="a")
        self.begin()

    def created_while_the_other_is_to_take_less(self):
        settings = self.world.queue.topics.get("t").settings
        with pytest.raises(CrashedError):
            self.dying("replace").update("t", replace(settings, prefix="else/"))
        self.world.topic("late", prefix="a")
        self.begin()

    def deleted_and_created(self):
        self.world.queue.topics.delete("late")
        self.created()


CHANGES = [
    "created",
    "created_by_a_dead_process",
    "created_while_the_other_is_deleted",
    "created_after_the_other_takes_less",
    "created_while_the_other_is_to_take_less",
]


def writer(world, act):
    """Returns a publisher that knows the topics. While the publisher writes `a`, `act` is called. The publisher's clock
    is as slow as allowed.
    """
    clock = SlowClock(world.clock)
    objects = FaultyStore(world.objects, meanwhile("a", act))
    queue = NotificationQueue(world.records, clock=clock, parallelism=1)
    publisher = QueuedPublisher(Publisher(objects, prefix=KS, clock=clock, parallelism=1), queue, bucket="b")
    publisher.put("warm", b"1")
    return publisher


@pytest.mark.parametrize("change", CHANGES)
def test_an_object_is_found_if_a_topic_is_created_during_its_write(world, change):
    """Otherwise the new topic's consumer would find the object neither by a listing nor by an entry."""
    consumers = Consumers(world)
    publisher = writer(world, getattr(consumers, change))
    assert isinstance(publisher.put("a", b"1"), Written)
    assert consumers.know("a")


def test_an_object_is_found_if_a_topic_is_created_again_during_its_write(world):
    """The writer's reservation is in the former topic. Without an entry in the new topic, the new topic's consumer
    would miss the object.
    """
    world.topic("late")
    consumers = Consumers(world)
    publisher = writer(world, consumers.deleted_and_created)
    assert isinstance(publisher.put("a", b"1"), Written)
    assert consumers.know("a")


@pytest.mark.parametrize("change", CHANGES)
def test_known_topics_are_as_old_as_the_start_of_their_read(world, change):
    """Otherwise a topic that was created during the read of the topics would miss the object, because the answer may
    show the topics as they were at the request.
    """
    consumers = Consumers(world)
    acts = [getattr(consumers, change)]

    class Slow(FaultyStore):
        def scan(self, partition, **kwargs):
            found = list(self.store.scan(partition, **kwargs))
            if partition == "topics" and acts:
                acts.pop()()
            return iter(found)

    clock = SlowClock(world.clock)
    queue = NotificationQueue(Slow(world.records), clock=clock, parallelism=1)
    publisher = QueuedPublisher(
        Publisher(world.objects, prefix=KS, clock=clock, parallelism=1), queue, bucket="b"
    )
    assert isinstance(publisher.put("a", b"1"), Written)
    assert consumers.know("a")


def test_an_object_is_found_if_the_first_topic_of_a_bucket_is_created_during_its_write(world):
    """Otherwise a writer that knew no topic would not announce its object to the first topic, or would have to wait."""
    world.queue.topics.delete("t")
    consumers = Consumers(world)
    publisher = writer(world, consumers.created)
    before = world.clock.now
    assert isinstance(publisher.put("a", b"1"), Written)
    assert world.clock.now == before
    assert consumers.know("a")


def test_objects_in_flight_are_announced_to_a_topic_whose_prefix_is_widened_meanwhile(world):
    """Otherwise the topic would miss an object if the object's write began before the command that updated the topic
    had returned.
    """
    world.topic("late", prefix="else/")
    settings = world.queue.topics.get("late").settings
    publisher = writer(
        world,
        lambda: world.queue.topics.update("late", replace(settings, prefix="")),
    )
    assert isinstance(publisher.put("a", b"1"), Written)
    assert [key for _, key, _ in world.announced("late")] == ["a"]


def test_the_topics_are_read_again_after_a_slow_reservation(world):
    """Otherwise a topic that was created while the reservation was delayed would miss the object."""
    consumers, slept = Consumers(world), []

    def asleep(call):
        if call.method == "create" and not slept:
            slept.append(call)
            consumers.created()
        return Fault.NONE

    publisher = world.publisher(records=asleep)
    assert isinstance(publisher.put("a", b"1"), Written)
    assert slept
    assert consumers.know("a")
