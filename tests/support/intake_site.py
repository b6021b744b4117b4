"""A queue, a keyspace and an intake in memory, which fail on demand."""

from s3notify_platform.channels.inlets.intake import Intake
from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import Publisher, signal_key
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, TopicSettings
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.clocks import HandClock
from tests.support.faults import Call, Fault, FaultyStore

SIGNALS = "_s/"


class Site:
    """A queue and a keyspace in memory, which fail on demand."""

    def __init__(self, *, memory=100, targets=(("", SIGNALS),), excluded=(), egress=None, **topics):
        self.clock = HandClock()
        self.faults = {"records": Fault.NONE, "signals": Fault.NONE}
        self.records = FaultyStore(MemoryRecordStore(), lambda call: self._fault("records", call))
        self.objects = MemoryObjectStore()
        self.signals = FaultyStore(self.objects, lambda call: self._fault("signals", call))
        self.queue = NotificationQueue(self.records, clock=self.clock, parallelism=1)
        for name, settings in (topics or {"orders": TopicSettings(bucket="b")}).items():
            self.queue.topics.create(name, settings)
        self.intake = Intake(
            self.queue,
            [
                Keyspace(
                    prefix=keys,
                    publisher=Publisher(self.signals, prefix=prefix, parallelism=1, queued=True),
                    topic="".join(topic),
                    skips_hidden=bool(topic),
                )
                for keys, prefix, *topic in targets
            ],
            bucket="b",
            memory=memory,
            excluded=excluded,
            egress=egress,
        )

    def _fault(self, which: str, call: Call) -> Fault:
        return self.faults[which] if call.method in ("put", "create", "add") else Fault.NONE

    def keys(self, topic="orders"):
        return [entry.event.key for entry in self.queue.entries(topic, range(1000))]

    def signal(self, key, prefix=SIGNALS):
        return self.objects.head(signal_key(prefix, slot_of(key)))


def event(key="k", sequencer="01", **fields):
    return Event(key=key, bucket="b", sequencer=sequencer, **fields)
