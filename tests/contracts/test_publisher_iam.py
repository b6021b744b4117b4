"""A publisher sends exactly the requests that its IAM role allows, both with a queue on the bucket and with a queue in
DynamoDB."""

from dataclasses import replace

import pytest

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.deploy import Tables, policy
from s3notify_platform.kernel.ports import Written
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings
from s3notify_platform.stores.open_store import queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.contracts.fault_proxy import FaultProxy
from tests.support.iam import ACCOUNT, needs, places_of, refused
from tests.support.servers import S3Server
from tests.support.tables import create_record_table

pytestmark = pytest.mark.server


@pytest.mark.parametrize("in_table", [False, True], ids=["bucket alone", "table"])
@pytest.mark.parametrize("apart", [False, True], ids=["one bucket", "platform apart"])
def test_the_role_of_a_publisher_covers_each_of_its_requests(
    ministack: S3Server, in_table: bool, apart: bool
) -> None:
    """Otherwise a publisher with the printed policy would be refused. If the publisher has no permission to list its
    bucket, S3 does not say that a key is deleted, so the deletion could not be announced again.
    """
    source = ministack.make_bucket()
    platform = ministack.make_bucket() if apart else source
    table = ministack.table_config() if in_table else None
    if table is not None:
        create_record_table(table)
    straight = NotificationQueue(queue_records(ministack.config(platform), table=table))
    straight.topics.create("orders", TopicSettings(bucket=source, prefix="raw/"))
    with FaultProxy(ministack.endpoint_url) as proxy:
        bucket, config = (
            replace(ministack.config(name), endpoint_url=proxy.url) for name in (source, platform)
        )
        there = table and replace(table, endpoint_url=proxy.url)
        signals = Publisher(S3ObjectStore(bucket), S3ObjectStore(config), prefix="_s3notify/orders/keyspace/")
        publisher = QueuedPublisher(
            signals, NotificationQueue(queue_records(config, table=there)), bucket=source
        )
        written = publisher.put_if_absent("raw/a", b"1")
        assert isinstance(written, Written)
        assert written.etag is not None
        publisher.put_if_match("raw/a", b"2", written.etag)
        publisher.put("raw/b", b"1")
        publisher.delete("raw/a")
        publisher.announce(["raw/a", "raw/b", "raw/never"])
        wanted = needs(proxy.answered)
    assert ("delete", "raw/never") in {
        (entry.event.op, entry.event.key) for entry in straight.pending("orders")
    }
    places = places_of(platform, tables=Tables(records=table.table if table else None), account=ACCOUNT)
    assert refused(policy("publisher", replace(places, bucket=source)), wanted) == set()
