"""A delivery worker sends exactly the requests that its IAM role allows, both with records on the bucket and with
records in DynamoDB."""

from dataclasses import replace

import pytest

from s3notify_platform.channels.delivery.push import Delivered, Rejected
from s3notify_platform.deploy import Tables, policy
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, TopicSettings
from s3notify_platform.stores.dynamodb.dynamo_table import DynamoTable
from s3notify_platform.stores.dynamodb.record_store import RECORD_TABLE
from s3notify_platform.stores.dynamodb.table_schema import create_table
from s3notify_platform.stores.open_store import queue_records
from tests.contracts.fault_proxy import FaultProxy
from tests.support.iam import ACCOUNT, needs, places_of, refused, unused
from tests.support.outlets import ENDPOINT, FakePush, SteppedDelivery


@pytest.mark.server
@pytest.mark.parametrize("in_table", [False, True])
def test_outlet_role_allows_exactly_what_is_needed(ministack, in_table):
    """Without a needed permission, a worker on AWS could not deliver, write dead letters or release its shards. With
    an unneeded permission, an intruder in the worker could read or change other data of the platform.
    """
    bucket, table = ministack.make_bucket(), None
    if in_table:
        table = ministack.table_config()
        made = DynamoTable(table)
        create_table(made, RECORD_TABLE)
        made.close()
    straight = NotificationQueue(queue_records(ministack.config(bucket), table=table))
    straight.topics.create("t", TopicSettings(shards=2, max_attempts=1, endpoint=ENDPOINT))
    straight.push_many("t", [Event(key=f"k{n}") for n in range(6)])
    with FaultProxy(ministack.endpoint_url) as proxy:
        config = replace(ministack.config(bucket), endpoint_url=proxy.url)
        there = table and replace(table, endpoint_url=proxy.url)
        queue = NotificationQueue(queue_records(config, table=there))

        def answer(entries):
            bad = any(entry.event.key == "k3" for entry in entries)
            return Rejected(error="HTTP 400") if bad else Delivered()

        first = SteppedDelivery(queue, FakePush(answer))
        for _ in range(3):
            first.step()
        queue.records.read("workers", "a read after a write in doubt")
        first.stop()
        wanted = needs(proxy.answered)
    assert straight.stats("t").dead == 1
    places = places_of(bucket, tables=Tables(records=table.table if table else None), account=ACCOUNT)
    granted = policy("outlet", places)
    assert refused(granted, wanted) == set()
    assert unused(granted, wanted) == set()
