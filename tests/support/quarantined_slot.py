"""A slot with quarantined objects, for tests without Spark."""

from s3notify_platform.protocols.keyspace import Publisher, signal_key
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.quarantined import Choice, retry
from tests.support.slot_rounds import SLOT, Place

EVERYTHING = Choice()


class Quarantine(Place):
    """A slot whose unreadable objects are in quarantine."""

    def __init__(self, **bodies):
        super().__init__(CountingStore(MemoryObjectStore()), **bodies)

    def quarantine(self, **unreadable):
        self.unreadable = unreadable
        self.committed(last_attempt=True)

    def retry(self, choice=EVERYTHING, table=None, **options):
        signals = Publisher(self.store, prefix="signals/", queued=True)
        return retry(table or self.table, [SLOT], signals, choice, **options)

    def send_again(self):
        """Makes all objects readable, retries the objects in quarantine, and runs a batch."""
        self.unreadable = {}
        self.retry()
        return self.run()

    @property
    def failing(self):
        return self.writer.failing

    @property
    def pending(self):
        return self.writer.pending

    def state(self, key):
        return self.writer.states[key]

    def signal(self):
        return self.store.head(signal_key("signals/", SLOT))
