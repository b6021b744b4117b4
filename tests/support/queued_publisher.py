"""A bucket, its queue and a publisher, in memory."""

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import QUEUED, Publisher
from s3notify_platform.protocols.notification_queue import NotificationQueue, Reconciler, TopicSettings
from s3notify_platform.protocols.notification_queue.topic_settings import STALE_SECONDS
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.clocks import HandClock
from tests.support.faults import Fault, FaultyStore, never

KS = "ks/"


class World:
    """A bucket, its queue and a publisher. The stores may fail on schedule."""

    def __init__(self):
        self.clock = HandClock()
        self.objects = MemoryObjectStore()
        self.records = MemoryRecordStore()
        self.queue = NotificationQueue(self.records, clock=self.clock)

    def topic(self, name="t", **settings):
        self.queue.topics.create(name, TopicSettings(**{"capacity": 100, "shards": 2} | settings))

    def publisher(self, objects=never, records=never, queue=None, egress=None):
        self.faulty_objects = FaultyStore(self.objects, objects)
        self.faulty_records = FaultyStore(self.records, records)
        queue = queue or NotificationQueue(self.faulty_records, clock=self.clock, parallelism=1)
        plain = Publisher(self.faulty_objects, prefix=KS, clock=self.clock, parallelism=1)
        return QueuedPublisher(plain, queue, bucket="b", egress=egress)

    def announced(self, topic="t"):
        """(operation, key, etag) of each change that the topic's consumers see."""
        entries = self.queue.entries(topic, range(1000))
        return sorted((e.event.op, e.event.key, e.event.etag) for e in entries)

    def reserved(self, topic="t"):
        return self.queue.stats(topic).reserved

    def mark(self, key):
        """The mark of queued writers in the signal of this key's slot; None if there is no mark or no signal."""
        found = self.objects.head(f"{KS}{slot_of(key)}")
        return found and found.metadata.get(QUEUED)

    def resolve(self, topic="t"):
        reconciler = Reconciler(self.queue)
        reconciler.resolve_stale(topic, self.objects.head)
        self.clock.now += STALE_SECONDS + 1
        return reconciler.resolve_stale(topic, self.objects.head)


def meanwhile(key, act, fault=Fault.NONE):
    """A schedule of faults that calls `act` just before the object with this key is written."""

    def schedule(call):
        if call.method != "put" or call.key != key:
            return Fault.NONE
        act()
        return fault

    return schedule
