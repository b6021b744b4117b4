"""`spark.read.format("s3notify")`: the objects of a bucket, or the committed table, as a DataFrame. Without Dagster.

Guarantees. A query reads exactly the object versions that were listed when it was planned: a task that is repeated,
on another executor or speculatively, gives the same rows, and an object that was overwritten or deleted meanwhile
ends the query with `ConflictError` rather than in a mixture (`read="table"` never does). Bad records are rows of
their own, with `_change` "reject", reason and raw bytes, unless `rejects` says otherwise: nothing is lost in silence.

Rows have `_slot`, `_key`, `_etag`, `_offset` and `_change`, the columns of the data, those of `partition_columns` and
`metadata_columns`, then `_rejected` and `_raw`.

Requests: 1 LIST for each 1000 objects below the prefix, 1 GET for each object, or for each chunk of a big one. Without
a schema, 1 LIST and up to 64 GETs for a sample. The driver holds the list of what is read, about 500 bytes an object.

Filters are not pushed down: narrow by the options `prefix` and `only`. Spark 4.3 keeps what was pushed for one query
over a DataFrame, and answers the next one over it with too few rows.

Register once a session: `register(spark)`. The streaming readers are in `stream`, what tasks do in `rows`.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Final, assert_never

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from s3notify_platform.errors import UsageError
from s3notify_platform.formats.registry import fixed_schema
from s3notify_platform.formats.rescue import RESCUED
from s3notify_platform.ingest.reader import sample_of, schema_of_sample
from s3notify_platform.ingest.row_schema import Batches
from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.spark.datasource.options import Reading, reading_of
from s3notify_platform.spark.datasource.rows import (
    INFERRED,
    RowReader,
    Work,
    is_inferred,
    whole_schema,
    work_of,
)
from s3notify_platform.spark.declared import hinted, origin_columns
from s3notify_platform.spark.load import read_slots, table_schema
from s3notify_platform.spark.session import parallelism, ship_package
from s3notify_platform.spark.versions import to_arrow_schema
from s3notify_platform.table.commit import HEADS_IN_FLIGHT
from s3notify_platform.table.layout import Generation

FORMAT: Final = "s3notify"

SAMPLED_FROM: Final = 1000
"""Objects, the first ones listed, among which inference takes its sample."""

WIDTH: Final = 4
"""Tasks at once, where nobody has said."""


def register(spark: SparkSession) -> None:
    """Make the format known to this session, and send the package to its workers. Safe to repeat."""
    ship_package(spark)
    tasks = parallelism(spark)

    class Registered(S3NotifyDataSource):
        # Plans are made in a process that cannot see the session.
        width = tasks

    spark.dataSource.register(Registered)


class S3NotifyDataSource(DataSource):
    """What Spark knows of the format. Options: see `options`."""

    width: int = WIDTH

    @classmethod
    def name(cls) -> str:
        """See `DataSource.name`."""
        return FORMAT

    @property
    def reading(self) -> Reading:
        """The options, checked."""
        return reading_of(self.options)

    def schema(self) -> StructType | str:
        """See `DataSource.schema`: as declared, as pinned (table), or inferred from a sample."""
        reading = self.reading
        source = reading.source
        match reading.read:
            case "table":
                return table_schema(source)
            case "objects":
                if source.input.schema is not None:
                    # Spark parses it: where this runs there is no session that could.
                    more = "".join(
                        f", `{c.name.replace('`', '``')}` {c.dataType.simpleString()}"
                        for c in origin_columns(source, ())
                    )
                    rescued = f", {RESCUED.name} string" if source.input.mismatches == "rescue" else ""
                    return _DDL.format(source.input.schema + more + rescued)
                return inferred_schema(reading)
            case _ as unreachable:
                assert_never(unreachable)

    def reader(self, schema: StructType) -> DataSourceReader:
        """See `DataSource.reader`."""
        reading = self.reading
        match reading.read:
            case "table":
                return TableReader(reading, to_arrow_schema(schema), self.width)
            case "objects":
                return ObjectsReader(reading, RowReader.of(reading, schema, strict=True), self.width)
            case _ as unreachable:
                assert_never(unreachable)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """See `DataSource.streamReader`. `UsageError` before PySpark 4.2, whose streams know no start offset."""
        try:
            from s3notify_platform.spark.datasource.stream import ChangesReader
        except ModuleNotFoundError as error:
            raise UsageError(
                f"streams need PySpark 4.2 or newer, and this is {pyspark.__version__}: upgrade it, or use "
                "`s3notify ingest` or Dagster"
            ) from error

        reading = self.reading
        match reading.read:
            case "table":
                raise UsageError("read='table' is of the table as it is: use spark.read")
            case "objects":
                if is_inferred(schema):
                    raise UsageError("a stream needs a schema that stays: give the option schema")
                return ChangesReader(reading, RowReader.of(reading, schema, strict=False), self.width)
            case _ as unreachable:
                assert_never(unreachable)


# Schemas

_DDL: Final = (
    "_slot int, _key string, _etag string, _offset bigint, _change string, {}, _rejected string, _raw binary"
)


def inferred_schema(reading: Reading) -> StructType:
    """Columns from a sample of the first objects listed, marked as inferred. 1 LIST, 1 GET for each of the sample."""
    source = reading.source
    if (fixed := fixed_schema(source.input.format)) is not None:
        return whole_schema(from_arrow_schema(fixed), source)
    listed = source.enumerator().versions(frozenset(source.location.all_slots()))
    versions = [*islice(listed, SAMPLED_FROM)]
    found = schema_of_sample(source, sample_of(source, versions))
    columns = hinted(from_arrow_schema(found), source) if found is not None else ()
    first, *others = whole_schema(columns, source)
    return StructType([StructField(first.name, first.dataType, metadata=INFERRED), *others])


# Batch readers


@dataclass
class ObjectsReader(DataSourceReader):
    """The bucket's objects."""

    reading: Reading
    rows: RowReader
    width: int

    def partitions(self) -> list[InputPartition]:
        """See `DataSourceReader.partitions`. 1 LIST for each 1000 objects below the prefix."""
        source = self.reading.source
        found = source.enumerator().versions(frozenset(self.reading.wanted))
        return [*work_of(source, (Split(version=v, start=0, end=v.size) for v in found), self.width)]

    def read(self, partition: InputPartition) -> Batches:
        """See `DataSourceReader.read`."""
        if isinstance(partition, Work):  # one that is none stands for a bucket without objects
            yield from self.rows.read(partition.splits)


@dataclass
class TableReader(DataSourceReader):
    """The committed table: the files of the heads that were there when the query was planned."""

    reading: Reading
    output: pa.Schema
    width: int

    def partitions(self) -> list[InputPartition]:
        """See `DataSourceReader.partitions`. 1 LIST and more (`SlotTable.newest`), none for given generations."""
        slots, given = self.reading.wanted, self.reading.generations
        table = self.reading.source.table()
        newest = {**table.newest(set(slots) - given.keys()), **given}
        unknown = [slot for slot, generation in newest.items() if generation is None]
        with ThreadPoolExecutor(HEADS_IN_FLIGHT) as pool:
            for slot, head in zip(unknown, pool.map(table.head, unknown), strict=True):
                newest[slot] = Generation(head.generation if head else 0)
        wanted = [(slot, newest[slot]) for slot in slots if newest[slot]]
        tasks = max(1, min(2 * self.width, len(wanted)))
        return [InputPartition(wanted[n::tasks]) for n in range(tasks)]

    def read(self, partition: InputPartition) -> Batches:
        """See `DataSourceReader.read`."""
        yield from read_slots(self.reading.source.table(), partition.value, self.output)
