"""A delivery worker sends exactly the requests that its IAM role allows, both with records on the bucket and with
records in DynamoDB."""

from dataclasses import replace

import pytest

from s3notify_platform.channels.delivery.push import Delivered, Rejected
from s3notify_platform.deploy import Tables, policy
from s3notify_platform.protocols.notification_queue import (
    Event,
    NotificationQueue,
    ShardConsumer,
    TopicSettings,
    Worker,
)
from s3notify_platform.protocols.notification_queue.owners import EXPIRY_SECONDS
from s3notify_platform.stores.dynamodb.dynamo_table import DynamoTable
from s3notify_platform.stores.dynamodb.record_store import RECORD_TABLE
from s3notify_platform.stores.dynamodb.table_schema import create_table
from s3notify_platform.stores.open_store import queue_records
from tests.contracts.fault_proxy import FaultProxy
from tests.support.clocks import HandClock
from tests.support.iam import ACCOUNT, needs, places_of, refused, unused
from tests.support.outlets import ENDPOINT, FakePush, SteppedDelivery


@pytest.mark.server
@pytest.mark.parametrize("in_table", [False, True])
def test_outlet_role_allows_exactly_what_is_needed(ministack, in_table):
    """Without a needed permission, a worker on AWS could not deliver, write dead letters, release its shards
    or take over the shards of a killed worker. With an unneeded permission, an intruder in the worker could
    read or change other data of the platform.
    """
    bucket, table = ministack.make_bucket(), None
    if in_table:
        table = ministack.table_config()
        made = DynamoTable(table)
        create_table(made, RECORD_TABLE)
        made.close()
    straight = NotificationQueue(queue_records(ministack.config(bucket), table=table))
    straight.topics.create("t", TopicSettings(shards=2, max_attempts=2, endpoint=ENDPOINT))
    straight.push_many("t", [Event(key=f"k{n}") for n in range(6)])
    with FaultProxy(ministack.endpoint_url) as proxy:
        config = replace(ministack.config(bucket), endpoint_url=proxy.url)
        there = table and replace(table, endpoint_url=proxy.url)
        clock = HandClock()
        queue = NotificationQueue(queue_records(config, table=there), clock=clock)
        killed = Worker(queue)  # its claims count as attempts
        claimed = [entry for lease in killed.balance() for entry in ShardConsumer(killed, lease).take(6)]
        assert len(claimed) == 6

        def answer(entries):
            bad = any(entry.event.key == "k3" for entry in entries)
            return Rejected(error="HTTP 400") if bad else Delivered()

        push = FakePush(answer)
        successor = SteppedDelivery(queue, push)
        successor.step()
        assert not push.sizes
        clock.now += EXPIRY_SECONDS
        for _ in range(3):
            successor.step()
        queue.records.read("workers", "a read after a write in doubt")
        successor.stop()
        wanted = needs(proxy.answered)
    assert push.delivered == {f"k{n}": 1 for n in range(6) if n != 3}
    assert straight.stats("t").dead == 1
    places = places_of(bucket, tables=Tables(records=table.table if table else None), account=ACCOUNT)
    granted = policy("outlet", places)
    assert refused(granted, wanted) == set()
    assert unused(granted, wanted) == set()
