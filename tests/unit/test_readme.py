"""The README's blocks exist and run unchanged, if they need no Spark, no Dagster and no shell.

The other blocks are tested in `e2e/test_readme.py`.
"""

from collections.abc import Iterator

import pytest

from s3notify_platform.kernel.ports import Written
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.ack_chain import AckChains, Acked, AlreadyAcked, new_stamp, xor
from s3notify_platform.protocols.ack_chain.shared import SharedChains
from s3notify_platform.protocols.keyspace import CausalCache, Publisher, Put, Watcher
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.stores.dynamodb.xor_ack_table import XorAckTable
from s3notify_platform.stores.open_store import open_store, queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.readme import BUCKET, PARTS, Place, block, blocks
from tests.support.servers import running_ministack


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A separate server, because the README uses fixed names."""
    with running_ministack(tmp_path_factory.mktemp("server")) as server:
        yield Place.of(server, tmp_path_factory.mktemp("here"))


@pytest.fixture
def place(landing: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """This process uses the server's environment and its folder."""
    for name, value in landing.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(landing.folder)
    return landing


@pytest.mark.parametrize("part", PARTS)
def test_readme_has_each_block(part: str) -> None:
    assert block(part)


def test_each_block_of_the_readme_is_tested() -> None:
    """Otherwise a new block would be untested: add it to `tests/support/readme.py`."""
    known = [block(part) for part in PARTS]
    assert [
        body for language, body in blocks() if language in ("python", "sh", "yaml") and body not in known
    ] == []


@pytest.mark.server
def test_protocols_work_without_a_table(place: Place) -> None:
    """Otherwise the README's examples of ack chains, of the npm package's table, and of the cache would fail."""
    place.client("dynamodb").create_table(
        TableName="acks",
        KeySchema=[{"AttributeName": "tagID", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "tagID", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    publisher = Publisher(S3ObjectStore(S3Config(bucket=BUCKET)), prefix="_s3notify/orders/keyspace/")
    publisher.publish([Put(key="raw/orders/1.jsonl", body=b"{}")])
    given = (
        *(AckChains, CausalCache, DynamoConfig, S3Config, SharedChains, Watcher, XorAckTable),
        *(open_store, queue_records, xor),
    )
    names = {one.__name__: one for one in given} | {"a": new_stamp(), "b": new_stamp()}
    exec(block("protocols"), names)
    assert names["cache"].try_get("raw/orders/1.jsonl").body == b"{}"
    assert isinstance(names["chains"].stamp_children(names["chain"], ["report"]), AlreadyAcked)
    assert isinstance(names["shared"].stamp("job", names["b"]), Acked)


@pytest.mark.server
def test_publishing_writes_objects_and_moves_signals(place: Place) -> None:
    """Otherwise the README's example would leave objects that no slot announces."""
    (place.folder / "big.parquet").write_bytes(b"large" * 1000)
    names: dict[str, object] = {}
    exec(block("publishing"), names)
    assert isinstance(names["outcome"], Written)
    written = place.keys("raw/orders/")
    assert sorted(written) == sorted(
        ["raw/orders/big.parquet", *(f"raw/orders/{number}.jsonl" for number in range(1, 99))]
    )
    signalled = place.keys("_s3notify/orders/keyspace/")
    assert set(signalled) == {f"_s3notify/orders/keyspace/{name}" for name in ("_", *map(slot_of, written))}
