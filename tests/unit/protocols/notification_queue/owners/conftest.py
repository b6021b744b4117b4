"""A fixture: a topic in memory that is pushed to an endpoint, with one shard."""

import pytest

from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.unit.protocols.notification_queue.owners.helpers import PUSHED


@pytest.fixture
def records():
    return MemoryRecordStore()


@pytest.fixture
def queue(records, clock):
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("t", PUSHED)
    return queue
