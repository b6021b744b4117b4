"""Pytest fixtures for a project's own tests. The fixtures run the project's sources on a real S3 server and a real
Spark, on this machine.

    # conftest.py
    pytest_plugins = ["s3notify_platform.testing"]

    # test_orders.py
    def test_cancelled_orders_have_no_amount(s3notify_source):
        orders = s3notify_source("orders")              # configured by defs/orders/defs.yaml
        orders.put("raw/orders/1.jsonl", '{"id": 1, "state": "cancelled", "amount": 5}')
        orders.commit()
        assert orders.rows()["amount"].to_pylist() == [None]

Each call of `s3notify_source` makes a source with a new bucket, so that tests are independent of each other. Server and
Spark are started once for all tests. A mock inside the test process cannot replace the server, because Spark reads in
other processes. The fixtures need the extra `local`.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from s3notify_platform.channels.publish.open_publisher import open_publisher
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, unique_name
from s3notify_platform.kernel.errors import NotFoundError, UsageError
from s3notify_platform.kernel.ports import Written
from s3notify_platform.kernel.setting import named
from s3notify_platform.local.attributes import imported
from s3notify_platform.local.java import java_environment
from s3notify_platform.local.project import sources_of
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.source.build import build
from s3notify_platform.source.settings import SETTINGS, DynamoSettings, S3Settings
from s3notify_platform.source.source import Source
from s3notify_platform.spark.continuous import ContinuousIngest
from s3notify_platform.spark.load import load_slots, newest
from s3notify_platform.spark.session import prepare_environment, session_conf, ship_package
from s3notify_platform.table.arrow_schema import REJECT_SCHEMA, arrow_schema
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.snapshot import Snapshot

if TYPE_CHECKING:
    from s3notify_platform.orchestration.changes_input import Changes

KEY_VARIABLE, SECRET_VARIABLE = "S3NOTIFY_TESTING_KEY", "S3NOTIFY_TESTING_SECRET"
"""Environment variables with the server's credentials, which Spark's processes read."""

_ELSEWHERE: Final = {*named(S3Settings, DynamoSettings), "platform_bucket", "known_bucket", "commit"}
"""Settings that tests replace, because they name a project's stores, buckets, tables and credentials."""

_OF_WRITERS: Final = ("platform_prefix", "keyspace_prefix", "queue_prefix", "slots")
"""Settings that must be the same for a source and its writers."""


@dataclass(frozen=True, kw_only=True)
class SourceInTest:
    """A source of the project, with a bucket of its own on the test server.

    `publisher` writes and announces objects. `transform` is the transform of the source, or None.
    """

    source: Source
    publisher: QueuedPublisher
    spark: SparkSession
    transform: Callable[[DataFrame], DataFrame] | None

    def put(self, key: str, body: bytes | str) -> None:
        """Writes an object and announces it. Raises `AssertionError` if the key does not begin with the source's
        prefix, or if the change was refused, for example because too many changes wait.
        """
        assert key.startswith(self.source.input.prefix), (
            f"{key!r}: keys begin with {self.source.input.prefix!r}"
        )
        done = self.publisher.put(key, body.encode() if isinstance(body, str) else body)
        assert isinstance(done, Written), f"{key!r}: {done}: call `commit` first"

    def delete(self, key: str) -> None:
        """Deletes an object and announces the deletion. Raises `AssertionError` if the change was refused."""
        done = self.publisher.delete(key)
        assert isinstance(done, Written), f"{key!r}: {done}: call `commit` first"

    def commit(self) -> None:
        """Commits all changes until now, and updates the tables of `latest` and `cluster_by`.

        Raises `AssertionError` with the reason if a slot cannot be committed. Malformed records raise no error: see
        `quarantine`.
        """
        said: list[str] = []
        ingest = ContinuousIngest(
            spark=self.spark, source=self.source, transform=self.transform, progress=said.append
        )
        ingest.run(Event(), every_seconds=None)
        reasons = {each.reason for each in ingest.failing.values()}
        assert not ingest.failing, "\n".join(["not committed:", *sorted(reasons), *said])
        assert not ingest.behind, ingest.behind

    def rows(self, asset: str | None = None) -> pa.Table:
        """The rows of the source's table, or of the asset {name}_latest or {name}_clustered, sorted by object key."""
        table = self.source.table(asset)
        found = table.newest()
        if not isinstance(found, Snapshot):
            raise NotFoundError(
                f"table {asset or self.source.name!r}: nothing is committed: call commit() first"
            )
        columns = arrow_schema(found.metadata.schema)
        store, layout = table.reader.store, table.layout
        batches = read_slots(store, layout, found.packs.values(), None, columns)
        rows = pa.Table.from_batches(batches, columns)
        order = [name for name in ("_key", "_offset") if name in columns.names]
        return rows.sort_by([(name, "ascending") for name in order]) if order else rows

    def frame(self) -> DataFrame:
        """The rows of the source's table as a DataFrame, for a slot asset's function or another asset's function."""
        return load_slots(self.spark, self.source, None)

    def changes(self, since: int | None = None) -> "Changes":
        """The changes after the table version `since`, for an asset's function that gets `Changes`.

        If `since` is None, the result has all rows as insertions. The result's `until` is the `since` of the next call.
        """
        from s3notify_platform.orchestration.changes_input import changes_of

        ship_package(self.spark)
        return changes_of(self.source, self.spark, newest(self.source), since=since)

    def quarantine(self) -> list[dict[str, Any]]:
        """The rejected records, each with `_key`, `_offset`, `reason` and `raw`."""
        table = self.source.table()
        found = table.newest()
        rejects = found.manifest.rejects if isinstance(found, Snapshot) else ()
        batches = read_slots(table.reader.store, table.layout, rejects, None, REJECT_SCHEMA)
        rows = [row for batch in batches for row in batch.to_pylist()]
        return sorted(rows, key=lambda row: (row["_key"], row["_offset"] or 0))


@pytest.fixture(scope="session")
def s3notify_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalS3Server]:
    """An S3 server on 127.0.0.1 with its own keys. Its objects are deleted after the tests."""
    with LocalS3Server(tmp_path_factory.mktemp("s3notify")) as server:
        yield server


@pytest.fixture(scope="session")
def s3notify_spark(s3notify_server: LocalS3Server) -> Iterator[SparkSession]:
    """A Spark session on this machine. A project with its own session overrides this fixture."""
    keys = s3notify_server.config("")
    os.environ |= {KEY_VARIABLE: str(keys.access_key_id), SECRET_VARIABLE: str(keys.secret_access_key)}
    os.environ.update(java_environment())
    prepare_environment()
    builder = SparkSession.builder.appName("s3notify tests")
    for name, value in session_conf(master="local[2]").items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    yield spark
    spark.stop()


@pytest.fixture
def s3notify_source(
    s3notify_server: LocalS3Server, s3notify_spark: SparkSession
) -> Callable[..., SourceInTest]:
    """A function that makes a source by its name in the project's YAML. Keyword arguments of the function override
    settings.

    A source that no YAML defines is made from the arguments alone: `s3notify_source("orders", prefix="raw/orders/")`.
    """

    def made(name: str, **settings: Any) -> SourceInTest:
        given, transform = _configured(name)
        bucket = f"{name.replace('_', '-')}-{unique_name(SYSTEM_CLOCK)[:12]}"
        s3notify_server.create_bucket(bucket)
        place: dict[str, Any] = {
            "bucket": bucket,
            "endpoint_url": s3notify_server.endpoint_url,
            "region": s3notify_server.config("").region,
            "access_key_id_env": KEY_VARIABLE,
            "secret_access_key_env": SECRET_VARIABLE,
        }
        source = build({**given, **settings, **place, "name": name})
        location = source.location
        topic = TopicSettings(
            bucket=bucket, prefix=source.input.prefix, slots=location.slots, signals=location.signals
        )
        location.queue().topics.create(name, topic)
        shared = {each: getattr(location, each) for each in _OF_WRITERS}
        return SourceInTest(
            source=source,
            publisher=open_publisher(name, **place, **shared),
            spark=s3notify_spark,
            transform=transform,
        )

    return made


def _configured(name: str) -> tuple[Mapping[str, Any], Callable[[DataFrame], DataFrame] | None]:
    """The settings of a source in the project's YAML, and its transform. The settings are empty if the YAML lacks the
    source.
    """
    configured = [source for source in sources_of() if source.name == name]
    if not configured:
        return {}, None
    if len(configured) > 1:
        raise UsageError(f"source {name!r} is defined twice: {configured[0].file}, {configured[1].file}")
    (found,) = configured
    path = str(found.folder.resolve().parent)
    if path not in sys.path:
        sys.path.insert(0, path)
    transform = found.checked.get("transform")
    values = {n: value for n, value in found.values.items() if n in SETTINGS and n not in _ELSEWHERE}
    return values, imported(transform) if transform else None
