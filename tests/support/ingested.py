"""A source on a real server, which is ingested in this process, without Spark."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from s3notify_platform.engine.driver import Ingest
from s3notify_platform.engine.loop import Round
from s3notify_platform.engine.values.results import BatchResult
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.ports import ObjectStore, list_all
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.source.location import Location
from s3notify_platform.source.source import Source
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.arrow_schema import REJECT_SCHEMA, arrow_schema
from s3notify_platform.table.check import check_table
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.derived_round import NewSlot, Replacement
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.open_table import Forgotten, forget, open_table
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.pinned_schema import NO_SCHEMA, described, grown, schema_of
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.snapshot import Absent, Snapshot
from s3notify_platform.table.versions import kept_versions
from tests.support.checked import whole
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server
from tests.support.sources import source_of, with_settings
from tests.support.waiting import until


def rows_of(
    source: Source | Location, *, rejects: bool = False, store: ObjectStore | None = None
) -> list[dict[str, Any]]:
    """All rows, or all rejects, of the newest table version, in order. The table version is checked, too."""
    location = source if isinstance(source, Location) else source.location
    table = location.table(store=store)
    found = table.newest()
    if isinstance(found, Absent):
        return []
    return rows_at(table, found, rejects=rejects)


def rows_at(table: LogTable, found: Snapshot, *, rejects: bool = False) -> list[dict[str, Any]]:
    """All rows, or all rejects, of a table version, in order. The table version is checked, too."""
    assert not check_table(table, found).problems
    packs = found.manifest.rejects if rejects else found.packs.values()
    schema = REJECT_SCHEMA if rejects else arrow_schema(found.metadata.schema)
    rows = [
        row
        for batch in read_slots(table.reader.store, table.layout, packs, None, schema)
        for row in batch.to_pylist()
    ]
    return sorted(rows, key=lambda row: (row["_key"], row["_offset"]))


def keys_of(source: Source) -> Counter[str]:
    """The number of rows of each object."""
    return Counter(row["_key"] for row in rows_of(source))


class Place:
    """A source with 4 slots in a new bucket."""

    def __init__(self, server: S3Server, **settings: Any) -> None:
        config = server.config(server.make_bucket())
        given = {"name": "orders", "prefix": "raw/", "format": "jsonl", "slots": 4, "commit": "native"}
        self.source = source_of(bucket=config, platform=config, **(given | settings))
        self.store = S3ObjectStore(config)

    def put(self, key: str, *values: int) -> None:
        self.store.put(f"raw/{key}", b"".join(b'{"a":%d}\n' % value for value in values))

    def ingest(self, clock: Clock = SYSTEM_CLOCK) -> Ingest:
        return Ingest(jobs=LocalJobs(source=self.source), source=self.source, clock=clock)

    def rounds(self, **arguments: Any) -> Iterator[Round]:
        return self.ingest().rounds(self.source.location.all_slots(), batch="b", **arguments)

    def snapshot(self) -> Snapshot:
        """The newest table version, after a check."""
        found = whole(self.source.table())
        assert found is not None
        return found

    def moment(self) -> datetime:
        """A moment after the newest version, by the store's clock, in whole seconds. A version that is committed after
        this call has a later time.
        """
        reader = self.source.table().reader
        made_ms = kept_versions(reader)[self.snapshot().version].modified_ms
        moment = -(-made_ms // 1000)

        def is_over() -> bool:
            self.store.put("clock", b"")
            found = self.store.head("clock")
            return found is not None and found.modified_ms > moment * 1000

        until(is_over)
        return datetime.fromtimestamp(moment, UTC)

    def generations(self) -> dict[Slot, int]:
        """The table version that last changed each slot."""
        found = self.source.table().newest()
        if isinstance(found, Absent):
            return {}
        return {slot: facts.generation for slot, facts in found.manifest.slots.items() if facts.generation}

    def run(self, batch: str, *, code: str = "", **settings: Any) -> BatchResult:
        """Does one run over all slots, with these settings of the source.

        `code`: the code version, if the source does not declare it.
        """
        source = with_settings(self.source, **settings)
        engine = Ingest(jobs=LocalJobs(source=source), source=source, code_version=code)
        return engine.run(source.location.all_slots(), batch=batch)

    def empty(self, prefix: str) -> None:
        for meta in list(list_all(self.store, prefix)):
            self.store.delete(meta.key)

    def forget(self) -> Forgotten:
        backlog = RescanBacklog(self.source.location.records())
        return forget(self.source.table().committer, lambda: backlog.add(self.source.location.all_slots()))

    def objects(self) -> dict[str, str]:
        """All objects of the bucket, with their ETags."""
        return {meta.key: meta.etag for meta in list_all(self.store, "")}

    def rows(self, *, rejects: bool = False) -> list[dict[str, Any]]:
        return rows_of(self.source, rejects=rejects)

    def values(self) -> Counter[int]:
        return Counter(row["a"] for row in self.rows())


def derive(source: Source, asset: str, rows: pa.Table, slots: dict[Slot, int], *, code: str = "") -> Snapshot:
    """Builds slots of a slot asset. `rows`: the new rows, with `_slot`.

    `slots`: for each slot, the version of the source's table from which the rows are made. `code`: the code version.
    """
    table = source.table(asset)
    first = described(NO_SCHEMA, created_ms=table.reader.clock.wall_ms(), derived=True)
    base = open_table(table, source.location.table_name, source.identity, create=first, derived=True).snapshot
    assert base is not None
    columns = from_arrow_schema(rows.schema.remove(0)).json()
    schema = grown(schema_of(base.metadata, derived=True), source="{}", rows=columns, inferred=False)
    metadata, protocol = described(
        schema, created_ms=base.metadata.created_ms, table=base.table, derived=True
    )
    packs, files = table.data.staged(write([rows], table.data.sizes), label=base.version + 1)
    for key, body in files.items():
        table.reader.store.put(key, body)
    counts = Counter(rows["_slot"].to_pylist())
    made = {
        slot: NewSlot(rows=counts[slot], source=version, code_version=code) for slot, version in slots.items()
    }
    change = Replacement(
        base=base,
        slots=made,
        table=table,
        rows=packs,
        metadata=metadata,
        protocol=protocol,
        note={"batch": "b"},
    )
    done = table.commit(change, base)
    assert isinstance(done, Committed)
    return done.snapshot
