"""A fixture: a topic with one shard, on each kind of record store."""

import pytest

from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.stores.dynamodb.record_store import DynamoRecordStore
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.support.dynamo import CONFIG, Client, TableInMemory
from tests.unit.protocols.notification_queue.helpers import ONE_SHARD


@pytest.fixture(params=["memory", "dynamo"])
def records(request, clock):
    if request.param == "memory":
        return MemoryRecordStore()
    return DynamoRecordStore(CONFIG, clock=clock, client=Client(TableInMemory("partition", "key")))


@pytest.fixture
def queue(records, clock):
    queue = NotificationQueue(records, clock=clock)
    queue.topics.create("t", ONE_SHARD)
    return queue
