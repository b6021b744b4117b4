"""The printed IAM policy of a reader allows each request of a poll of the signals."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.cli.main import main
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.source.location import Location
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.contracts.fault_proxy import FaultProxy
from tests.support.iam import ACCOUNT, needs, refused
from tests.support.servers import S3Server
from tests.support.tables import create_record_table

pytestmark = pytest.mark.server


@pytest.mark.parametrize("signals", ["slots", "root"])
@pytest.mark.parametrize("in_table", [False, True], ids=["bucket alone", "table"])
def test_the_role_of_a_reader_covers_each_request_of_a_poll(
    ministack: S3Server, in_table: bool, signals: str
) -> None:
    """Otherwise a reader with the printed policy would be refused as soon as a writer moves the root alone, because
    then only the queue names the changed slots.
    """
    config = ministack.config(ministack.make_bucket())
    table = ministack.table_config() if in_table else None
    if table is not None:
        create_record_table(table)
    location = Location(name="orders", platform=config, records_table=table, signals=signals)  # type: ignore[arg-type]
    queue = location.queue()
    queue.topics.create("orders", TopicSettings(shards=1, signals=signals))  # type: ignore[arg-type]
    keys = [f"raw/{number}" for number in range(20)]  # too many slots for the key of a segment
    plain = Publisher(S3ObjectStore(config), prefix=location.keyspace_prefix)
    QueuedPublisher(plain, queue, bucket=config.bucket, topic="orders").announce(keys)
    with FaultProxy(ministack.endpoint_url) as proxy:
        reader = replace(
            location,
            platform=replace(config, endpoint_url=proxy.url),
            records_table=table and replace(table, endpoint_url=proxy.url),
        )
        changed = reader.watcher().poll().changed
        wanted = needs(proxy.answered)
    assert {*changed} == {slot_of(key, location.slots) for key in keys}
    command = ["init", "orders", "--print", "iam", "--role", "reader", "--bucket", config.bucket]
    command += ["--prefix", "raw/", "--region", "us-east-1", "--account", ACCOUNT, "--signals", signals]
    command += ["--records-table", table.table] if table else []
    ran = CliRunner().invoke(main, command)
    assert ran.exit_code == 0, ran.output
    assert refused(json.loads(ran.stdout), wanted) == set()
    assert ("queue" in ran.stdout) == (signals == "root")
