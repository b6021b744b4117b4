"""README's Python does what it says."""

import re

import pytest

from s3notify_platform.protocols.ack_chain import AckChains, Acked, AlreadyAcked, new_stamp, xor
from s3notify_platform.protocols.ack_chain.shared import SharedChains
from s3notify_platform.protocols.keyspace import CausalCache, Publisher, Put, Watcher
from s3notify_platform.stores.dynamodb.xor_ack_table import XorAckTable
from s3notify_platform.stores.queue_records import queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.benchmarks.report import README
from tests.support.xor_ack_peer import make_table

BLOCK = re.compile(r"<!-- protocols -->\n```python\n(.*?)```", re.DOTALL)


@pytest.mark.server
def test_protocols_work_alone(ministack):
    """Ack chains, those of the npm package's table, and the cache: the lines as they stand there."""
    config, acks = ministack.config(ministack.make_bucket()), make_table(ministack.endpoint_url)
    publisher = Publisher(S3ObjectStore(config), prefix="_s3notify/orders/keyspace/")
    publisher.publish([Put(key="raw/orders/1.jsonl", body=b"{}")])
    classes = (AckChains, CausalCache, S3ObjectStore, SharedChains, Watcher, XorAckTable)
    names = {one.__name__: one for one in classes} | {
        "DynamoConfig": lambda table: acks,
        "S3Config": lambda bucket: config,
        "a": new_stamp(),
        "b": new_stamp(),
        "queue_records": queue_records,
        "xor": xor,
    }
    found = BLOCK.search(README.read_text())
    assert found
    exec(found[1], names)
    assert names["cache"].try_get("raw/orders/1.jsonl").body == b"{}"
    assert isinstance(names["chains"].stamp_children(names["chain"], ["report"]), AlreadyAcked)
    assert isinstance(names["shared"].stamp("job", names["b"]), Acked)
