"""`spark.read.format("s3notify")`: the objects of a bucket, the committed table, or its changes, as a DataFrame.

Guarantees. A query reads exactly the object versions that were listed when it was planned. So a task that is repeated
(on another executor, or speculatively) returns the same rows. If an object was overwritten or deleted after planning,
the query fails with `ConflictError`: it never mixes object versions. With `read="table"`, a query reads one table
version: the newest, or the table version that the option `version` or `at` chooses. With `read="changes"`, a query
reads the changes after table version `since` (`table.row_changes`). These changes end with the table version that
`read="table"` would read. Bad records are returned as rows with `_change` "reject", reason and raw bytes, unless the
option `rejects` has another value: no record is lost silently.

Rows of objects have `_slot`, `_key`, `_etag`, `_offset` and `_change`, the columns of the data, the columns of
`partition_columns` and `metadata_columns`, then `_rejected` and `_raw`. Rows of the table have the table's columns.
Rows of changes have the table's columns and `_change_type` (insert, delete), `_commit_version`, `_commit_timestamp` and
`_reason`.

Cost: 1 LIST for each 1000 objects below the prefix, and 1 GET for each object, or for each chunk of a big object.
Without a schema, a sample costs 1 LIST and up to 64 GETs. Memory of the driver: the list of objects to read, about 500
bytes for each object.

Filters are not pushed down: use the options `prefix` and `only` to read less. If filters were pushed down, Spark 4.3
would also apply one query's filters to the next query over the same DataFrame, and that query would return too few
rows.

Register the format once for each session: `register(spark)`. The module `stream` has the streaming reader. The module
`read_rows` has the code that runs in tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, assert_never

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from s3notify_platform.engine.read.reader import sample_of, schema_of_sample
from s3notify_platform.engine.values.row_schema import Batches
from s3notify_platform.formats.registry import fixed_schema
from s3notify_platform.formats.rescue import RESCUED
from s3notify_platform.kernel.errors import NotFoundError, UsageError
from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.source.source import Source
from s3notify_platform.spark.datasource.options import Reading, reading_of
from s3notify_platform.spark.datasource.read_rows import (
    INFERRED,
    RowReader,
    Work,
    whole_schema,
    work_of,
)
from s3notify_platform.spark.declared import hinted, json_schema, object_columns
from s3notify_platform.spark.load import columns_of, columns_of_changes, newest
from s3notify_platform.spark.session import parallelism, ship_package
from s3notify_platform.spark.spark_versions import to_arrow_schema
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.row_changes import Share, all_rows, row_changes
from s3notify_platform.table.snapshot import Snapshot
from s3notify_platform.table.versions import snapshot_of, version_at

FORMAT: Final = "s3notify"

SAMPLED_FROM: Final = 1000
"""Inference takes its sample from this number of objects at the beginning of the listing."""

WIDTH: Final = 4
"""The default number of concurrent tasks."""


def register(spark: SparkSession) -> None:
    """Registers the format with this session, and sends the package to the session's workers.

    The call may be repeated.
    """
    ship_package(spark)
    tasks = parallelism(spark)

    class Registered(S3NotifyDataSource):
        # Spark plans queries in a process without access to the session.
        width = tasks

    spark.dataSource.register(Registered)


class S3NotifyDataSource(DataSource):
    """Spark's entry point to the format. The module `options` has the options."""

    width: int = WIDTH

    @classmethod
    def name(cls) -> str:
        """See `DataSource.name`."""
        return FORMAT

    @property
    def reading(self) -> Reading:
        """The options, after a check."""
        return reading_of(self.options)

    def schema(self) -> StructType | str:
        """See `DataSource.schema`: declared, pinned (if the table exists), or inferred from a sample.

        A table that does not exist yet has the columns that the settings fix (`fixed_columns`), so that a stream can
        wait for it. Such a stream lacks the columns that a transform adds. Raises `NotFoundError` if the settings do
        not fix the columns.
        """
        reading = self.reading
        source = reading.source
        match reading.read:
            case "table" | "changes":
                changes = reading.read == "changes"
                try:
                    columns = columns_of(source, snapshot_for(reading))
                except NotFoundError as error:
                    if reading.version is not None or reading.at_ms is not None:
                        raise
                    if not (fixed := fixed_columns(source)) or source.input.column_names == "safe":
                        raise NotFoundError(
                            f"{error}; or give the option schema, without column_names=safe, and start a stream, "
                            "which waits for the table"
                        ) from error
                    return (_CHANGES_DDL if changes else _TABLE_DDL).format(fixed)
                return columns_of_changes(columns) if changes else columns
            case "objects":
                if source.input.schema is not None:
                    return _DDL.format(fixed_columns(source))
                return inferred_schema(reading)
            case _ as unreachable:
                assert_never(unreachable)

    def reader(self, schema: StructType) -> DataSourceReader:
        """See `DataSource.reader`."""
        reading = self.reading
        match reading.read:
            case "table" | "changes":
                return TableReader(reading, to_arrow_schema(schema), self.width)
            case "objects":
                return ObjectsReader(reading, RowReader.of(reading, schema), self.width)
            case _ as unreachable:
                assert_never(unreachable)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """See `DataSource.streamReader`. Raises `UsageError` if PySpark is older than 4.2, and so cannot start a stream
        at an offset.
        """
        try:
            from s3notify_platform.spark.datasource.stream import ChangesReader
        except ModuleNotFoundError as error:
            raise UsageError(
                f"streams need PySpark 4.2 or newer, and this is {pyspark.__version__}: upgrade it, or use "
                "`s3notify ingest` or Dagster"
            ) from error

        reading = self.reading
        match reading.read:
            case "table" | "changes":
                if reading.version is not None or reading.at_ms is not None:
                    raise UsageError(
                        "the options version and at are only for spark.read: use the option since for a stream"
                    )
                return ChangesReader(reading, to_arrow_schema(schema), self.width)
            case "objects":
                raise UsageError(
                    "a stream reads the committed table: ingest its source (`s3notify ingest`, or Dagster), and "
                    "give read='table'"
                )
            case _ as unreachable:
                assert_never(unreachable)


# Schemas

_DDL: Final = (
    "_slot int, _key string, _etag string, _offset bigint, _change string, {}, _rejected string, _raw binary"
)


_TABLE_DDL: Final = "_slot int, _key string, _etag string, _offset bigint, {}"

_CHANGES_DDL: Final = (
    f"{_TABLE_DDL}, _change_type string, _commit_version bigint, _commit_timestamp timestamp, _reason string"
)


def fixed_columns(source: Source) -> str:
    """Returns, as DDL, the columns of a source's rows before a transform, without the lineage columns. Returns "" if
    neither the setting `schema` nor the format fixes these columns. Pure.

    There is no session here that could parse the setting, so Spark parses the DDL.
    """
    declared, fixed = source.input.schema, fixed_schema(source.input.format)
    if declared is None and fixed is None:
        return ""
    data = from_arrow_schema(fixed) if declared is None else ()
    rescued = from_arrow_schema(pa.schema([RESCUED])) if source.input.mismatches == "rescue" else ()
    texts = (
        f"`{c.name.replace('`', '``')}` {c.dataType.simpleString()}"
        for c in (*data, *object_columns(source, data), *rescued)
    )
    return ", ".join([declared, *texts] if declared is not None else texts)


def inferred_schema(reading: Reading) -> StructType:
    """Infers the columns from a sample of the first objects in the listing, and marks the schema as inferred.

    Cost: 1 LIST, and 1 GET for each object of the sample.
    """
    source = reading.source
    if (fixed := fixed_schema(source.input.format)) is not None:
        return whole_schema(from_arrow_schema(fixed), source)
    listed = source.enumerator().versions(frozenset(source.location.all_slots()))
    versions = [*islice(listed, SAMPLED_FROM)]
    found = schema_of_sample(source, sample_of(source, versions))
    columns = hinted(from_arrow_schema(found), source) if found is not None else ()
    named = json_schema(source.input.table_names(StructType([*columns]).json()))
    first, *others = whole_schema(named, source)
    return StructType([StructField(first.name, first.dataType, metadata=INFERRED), *others])


# Batch readers


@dataclass
class ObjectsReader(DataSourceReader):
    """Reads the bucket's objects."""

    reading: Reading
    rows: RowReader
    width: int

    def partitions(self) -> list[InputPartition]:
        """See `DataSourceReader.partitions`. Cost: 1 LIST for each 1000 objects below the prefix."""
        source = self.reading.source
        found = source.enumerator().versions(frozenset(self.reading.wanted))
        return [*work_of(source, (Split(version=v, start=0, end=v.size) for v in found), self.width)]

    def read(self, partition: InputPartition) -> Batches:
        """See `DataSourceReader.read`."""
        if isinstance(partition, Work):  # a plain InputPartition means a bucket without objects
            yield from self.rows.read(partition.splits)


@dataclass
class TableReader(DataSourceReader):
    """Reads the table version that the options choose. The default is the table version that is the newest when the
    query is planned.

    With `read="changes"`, reads the changes after table version `since`, up to the chosen table version.
    """

    reading: Reading
    output: pa.Schema
    width: int

    def partitions(self) -> list[InputPartition]:
        """See `DataSourceReader.partitions`.

        Cost: the requests of `snapshot_for`. A read of changes also costs the requests of `row_changes`.
        """
        # A partition with None means a table without matching rows.
        return [*map(InputPartition, self._shares())] or [InputPartition(None)]

    def _shares(self) -> Sequence[Share]:
        reading, tasks = self.reading, 2 * self.width
        slots = None if reading.only is None else reading.wanted
        if reading.read == "table":
            return all_rows(snapshot_for(reading), slots, tasks=tasks)
        if not isinstance(reading.since, int):
            raise UsageError(
                "read='changes' needs the option since: the version after which the changes begin, like 17; "
                "`s3notify history` shows them"
            )
        reader = reading.source.location.table().reader
        found = row_changes(reader, reading.since, snapshot_for(reading).version)
        return found.shares(slots, tasks=tasks)

    def read(self, partition: InputPartition) -> Batches:
        """See `DataSourceReader.read`."""
        if partition.value is not None:
            place = self.reading.source.location
            yield from partition.value.read(open_store(place.platform), place.layout, self.output)


def snapshot_for(reading: Reading) -> Snapshot:
    """Returns the table snapshot that a query reads.

    Raises `NotFoundError` if the table does not exist, or if the table version is no longer stored. Cost: the requests
    of `LogTable.newest` or of `snapshot_of`, and 1 more LIST for the option `at`.
    """
    reader, version = reading.source.location.table().reader, reading.version
    if reading.at_ms is not None:
        version = version_at(reader, reading.at_ms)
    return newest(reading.source) if version is None else snapshot_of(reader, version)
