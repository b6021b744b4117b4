"""A lake for tests: a bucket, a source in it, and an independent computation of the rows that the source's table must
have.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from s3notify_platform.engine.values.results import BatchResult
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.source.source import Source
from s3notify_platform.spark.load import load_slots
from s3notify_platform.spark.session import prepare_environment, session_conf
from s3notify_platform.spark.spark_jobs import spark_ingest
from s3notify_platform.stores.config import Access, S3Config
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.arrow_schema import REJECT_SCHEMA
from s3notify_platform.table.pinned_schema import TableSchema, schema_of
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.snapshot import Absent, Snapshot
from s3notify_platform.table.versions import Event, history, snapshot_of
from tests.support.checked import whole
from tests.support.sources import source_of, with_settings
from tests.support.spark_options import named

LINEAGE = ("_slot", "_key", "_etag", "_offset")


def start_spark(*, master: str | None = None, remote: str | None = None, **extra: str) -> SparkSession:
    """A session that the platform makes from configuration alone."""
    prepare_environment()
    builder = SparkSession.builder.appName("s3notify tests")
    for name, value in session_conf(master=master, remote=remote, extra=extra).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _named(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: named(value) if isinstance(value, Access) else value for name, value in settings.items()}


@dataclass(kw_only=True)
class Lake:
    """One source on a real server. `store` writes and reads by boto3, and not by the code under test."""

    spark: SparkSession
    source: Source
    batches: int = field(default=0)

    @classmethod
    def of(cls, spark: SparkSession, bucket: S3Config, **source: Any) -> "Lake":
        fields = {
            "name": "orders",
            "prefix": "raw/",
            "format": "jsonl",
            "slots": 8,
            "platform": bucket,
            "commit": "native",
        } | source
        return cls(spark=spark, source=source_of(bucket=named(bucket), **_named(fields)))

    @cached_property
    def store(self) -> S3ObjectStore:
        return S3ObjectStore(self.source.input.bucket)

    def put_many(self, bodies: Mapping[str, bytes]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda item: self.put(*item), bodies.items()))

    def put(self, key: str, body: bytes | list[Any]) -> str:
        """Writes the object `raw/{key}`: bytes as they are, a list as JSON lines. Returns the whole key."""
        if isinstance(body, list):
            body = b"".join(json.dumps(row).encode() + b"\n" for row in body)
        self.store.put(f"{self.source.input.prefix}{key}", body)
        return f"{self.source.input.prefix}{key}"

    def delete(self, key: str) -> None:
        self.store.delete(f"{self.source.input.prefix}{key}")

    def slot(self, key: str) -> Slot:
        return slot_of(f"{self.source.input.prefix}{key}", self.source.location.slots)

    def with_source(self, **changes: Any) -> "Lake":
        return replace(self, source=with_settings(self.source, **_named(changes)))

    def ingest(
        self,
        slots: list[Slot] | None = None,
        *,
        transform: Callable[[DataFrame], DataFrame] | None = None,
        when_reading: Callable[[], object] = lambda: None,
        **arguments: Any,
    ) -> BatchResult:
        """Does one run over all slots. Calls `when_reading` after the first plan, before the run reads objects."""
        waiting = [when_reading]

        def progress(message: str) -> None:
            if message.startswith("reading") and waiting:
                waiting.pop()()

        self.batches += 1
        ingest = spark_ingest(self.spark, self.source, transform=transform, progress=progress)
        wanted = self.source.location.all_slots() if slots is None else slots
        return ingest.run(wanted, batch=f"batch-{self.batches}", **arguments)

    def load(self, slots: list[Slot] | None = None, **arguments: Any) -> list[dict[str, Any]]:
        """The committed rows, by Spark."""
        wanted = self.source.location.all_slots() if slots is None else slots
        rows = load_slots(self.spark, self.source, wanted, **arguments).toArrow().to_pylist()
        return sorted(rows, key=lambda row: (row["_key"], row["_offset"]))

    def values(self) -> list[dict[str, Any]]:
        """The committed rows without their lineage."""
        return [{name: row[name] for name in row if name not in LINEAGE} for row in self.load()]

    def rejects(self) -> list[dict[str, Any]]:
        """The committed rejects, without Spark."""
        found, layout = self.snapshot(), self.source.location.layout
        batches = read_slots(self.store, layout, found.manifest.rejects, None, REJECT_SCHEMA)
        rows = [row for batch in batches for row in batch.to_pylist()]
        return sorted(rows, key=lambda row: (row["_key"], row["_offset"]))

    def snapshot(self) -> Snapshot:
        """The newest table version, after a check."""
        found = whole(self.source.table())
        assert found is not None
        return found

    def states(self, slot: Slot, *, version: int | None = None) -> dict[str, ObjectState]:
        """The states of a slot's objects, as of the table version `version`; by default the newest."""
        table = self.source.table()
        found = table.newest() if version is None else snapshot_of(table.reader, version)
        if isinstance(found, Absent):
            return {}
        ((_, states),) = table.states.of_slots(found.manifest.states, [slot])
        return states

    def is_committed(self, slot: Slot) -> bool:
        """True if any table version has changed the slot."""
        found = self.source.table().newest()
        return isinstance(found, Snapshot) and found.manifest.slot(slot).generation > 0

    def schema(self) -> TableSchema | None:
        """The pinned schema."""
        found = self.source.table().newest()
        return None if isinstance(found, Absent) else schema_of(found.metadata)

    def history(self, slot: Slot) -> list[Event]:
        """The table versions that changed a slot, oldest first."""
        events = [*history(self.source.table().reader)]
        return [each for each in reversed(events) if slot in each.body.note.get("slots", ())]

    def second_opinion(self) -> Iterator[tuple[int, str, str, int, str]]:
        """The expected rows of a bucket with JSON lines, read and parsed independently of the platform."""
        for meta in list_all(self.store, self.source.input.prefix):
            found = self.store.get(meta.key)
            assert found is not None
            place = 0
            for line in found.body.split(b"\n"):
                try:
                    row = json.loads(line)
                    assert isinstance(row, dict)
                except (ValueError, AssertionError):
                    pass
                else:
                    slot = slot_of(meta.key, self.source.location.slots)
                    yield slot, meta.key, meta.etag, place, json.dumps(row, sort_keys=True)
                place += len(line) + 1

    def check(self) -> None:
        """Checks that the table is consistent, and has exactly the rows of the bucket (JSON Lines)."""
        self.snapshot()
        committed = Counter(
            (
                row["_slot"],
                row["_key"],
                row["_etag"],
                row["_offset"],
                json.dumps(
                    {k: row[k] for k in row if k not in LINEAGE and row[k] is not None}, sort_keys=True
                ),
            )
            for row in self.load()
        )
        assert committed == Counter(self.second_opinion())
