"""Pytest fixtures for a project's own tests: its sources, on a real S3 server on this machine, with a real Spark.

    # conftest.py
    pytest_plugins = ["s3notify_platform.testing"]

    # test_orders.py
    def test_cancelled_orders_have_no_amount(s3notify_source):
        orders = s3notify_source("orders")              # as defs/orders/defs.yaml has it
        orders.put("raw/orders/1.jsonl", '{"id": 1, "state": "cancelled", "amount": 5}')
        orders.commit()
        assert orders.rows()["amount"].to_pylist() == [None]

Each call makes a source with a bucket of its own, so that tests know nothing of each other. Server and Spark are
started once for all tests. Mocks in the test's own process do not do for this: Spark reads in other processes. Needs
the extra `local`.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from s3notify_platform.channels.publish.open_publisher import open_publisher
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, unique_name
from s3notify_platform.kernel.errors import NotFoundError, UsageError
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
from s3notify_platform.spark.session import prepare_environment, session_conf
from s3notify_platform.table.arrow_schema import REJECT_SCHEMA, arrow_schema
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.snapshot import Snapshot

KEY_VARIABLE, SECRET_VARIABLE = "S3NOTIFY_TESTING_KEY", "S3NOTIFY_TESTING_SECRET"
"""Environment variables with the server's credentials, which Spark's processes read."""

_ELSEWHERE: Final = {*named(S3Settings, DynamoSettings), "platform_bucket", "known_bucket", "commit"}
"""Settings that say where a project's buckets and tables are, and how they are reached: not in a test."""

_OF_WRITERS: Final = ("platform_prefix", "keyspace_prefix", "queue_prefix", "slots")
"""Settings that a source's writers have in common with it."""


@dataclass(frozen=True, kw_only=True)
class SourceInTest:
    """A source of the project, with a bucket of its own on the test server.

    `publisher` writes and announces objects; `transform`: the source's own, or None.
    """

    source: Source
    publisher: QueuedPublisher
    spark: SparkSession
    transform: Callable[[DataFrame], DataFrame] | None

    def put(self, key: str, body: bytes | str) -> None:
        """Write an object, and announce it. `AssertionError`: no key of the source's, below its prefix."""
        assert key.startswith(self.source.input.prefix), (
            f"{key!r}: keys begin with {self.source.input.prefix!r}"
        )
        self.publisher.put(key, body.encode() if isinstance(body, str) else body)

    def delete(self, key: str) -> None:
        """Delete an object, and announce that."""
        self.publisher.delete(key)

    def commit(self) -> None:
        """Commit everything that changed until now; the tables of `latest` and `cluster_by` follow.

        `AssertionError`: a slot could not be committed, with the reason. Malformed records are no failure: see
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
        """The rows of the table, or of the one of this name: {name}_latest, {name}_clustered. In order of keys."""
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

    def quarantine(self) -> list[dict[str, Any]]:
        """The records that were rejected: `_key`, `_offset`, `reason` and `raw` of each."""
        table = self.source.table()
        found = table.newest()
        rejects = found.manifest.rejects if isinstance(found, Snapshot) else ()
        batches = read_slots(table.reader.store, table.layout, rejects, None, REJECT_SCHEMA)
        rows = [row for batch in batches for row in batch.to_pylist()]
        return sorted(rows, key=lambda row: (row["_key"], row["_offset"] or 0))


@pytest.fixture(scope="session")
def s3notify_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalS3Server]:
    """An S3 server on 127.0.0.1, with keys of its own; its objects go with the tests."""
    with LocalS3Server(tmp_path_factory.mktemp("s3notify")) as server:
        yield server


@pytest.fixture(scope="session")
def s3notify_spark(s3notify_server: LocalS3Server) -> Iterator[SparkSession]:
    """A Spark session on this machine. A project with a session of its own overrides this fixture."""
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
    """Makes sources: by the name that the project's YAML has, with other settings where they are given.

    Or of settings alone, where no YAML has the name: `s3notify_source("orders", prefix="raw/orders/")`.
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
    """The settings that the project's YAML has for a source, and its transform; none if there is no such source."""
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
