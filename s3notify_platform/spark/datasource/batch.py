"""`spark.read.format("s3notify")`: the objects of a bucket, or the committed table, as a DataFrame. Without Dagster.

Guarantees. A query reads exactly the object versions that were listed when it was planned: a task that is repeated,
on another executor or speculatively, gives the same rows, and an object that was overwritten or deleted meanwhile
ends the query with `ConflictError` rather than in a mixture (`read="table"` never does). Bad records are rows of
their own, with `_change` "reject", reason and raw bytes, unless `rejects` says otherwise: nothing is lost in silence.

Rows have `_slot`, `_key`, `_etag`, `_offset` and `_change`, the columns of the data, then `_rejected` and `_raw`.

Requests: 1 LIST for each 1000 objects below the prefix, 1 GET for each object, or for each chunk of a big one. Without
a schema, 1 LIST and up to 64 GETs for a sample. The driver holds the list of what is read, about 500 bytes an object.

Filters are not pushed down: narrow by the options `prefix` and `only`. Spark 4.3 keeps what was pushed for one query
over a DataFrame, and answers the next one over it with too few rows.

Register once a session: `register(spark)`. The streaming reader is in `streaming`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, assert_never

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from s3notify_platform.errors import ConflictError, NotFoundError, UnavailableError, UsageError
from s3notify_platform.formats.registry import check_schema, fixed_schema
from s3notify_platform.formats.rescue import RESCUED
from s3notify_platform.ingest.source import Source
from s3notify_platform.protocols.source_enumerator import (
    OBJECT_COST_BYTES,
    Enumerator,
    Split,
    assign,
    parts_of,
)
from s3notify_platform.spark.datasource.options import Reading, Rejects, reading_of
from s3notify_platform.spark.load import LINEAGE, loader
from s3notify_platform.spark.read import (
    KIND_OUTCOME,
    KIND_REJECT,
    KIND_ROW,
    SplitReader,
    sample_of,
    schema_of_sample,
)
from s3notify_platform.spark.session import parallelism, ship_package
from s3notify_platform.spark.splits import TASK_BYTES, is_big, may_be_cut, may_be_quoted
from s3notify_platform.stores.s3.fast import shared_store
from s3notify_platform.table.layout import Generation

FORMAT: Final = "s3notify"

CHANGE: Final = "_change"
ROW, REJECT, GONE = "row", "reject", "gone"
"""What a row of a stream is: a record, one that could not be read, or a version whose rows no longer hold."""

SPECIAL: Final = (*LINEAGE.names, CHANGE, "_rejected", "_raw")
SLOTS_SCHEMA: Final = "slot int, signal string"

SAMPLED_FROM: Final = 1000
"""Objects, the first ones listed, among which inference takes its sample."""

SMALL_TASK_BYTES: Final = 1 << 20
"""A task that reads less costs more than it gains."""

WIDTH: Final = 4
"""Tasks at once, where nobody has said."""

REQUESTS_IN_FLIGHT: Final = 32

Batches = Iterator[pa.RecordBatch]


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
            case "slots":
                return SLOTS_SCHEMA
            case "table":
                pinned = source.schemas().head()
                if pinned is None:
                    raise NotFoundError(f"the table of source {source.name!r} has no commit yet")
                return StructType(LINEAGE.fields + StructType.fromJson(json.loads(pinned.rows)).fields)
            case "objects":
                if source.schema is not None:
                    rescued = f", {RESCUED.name} string" if source.mismatches == "rescue" else ""
                    return _DDL.format(source.schema + rescued)
                return inferred_schema(reading)
            case _ as unreachable:
                assert_never(unreachable)

    def reader(self, schema: StructType) -> DataSourceReader:
        """See `DataSource.reader`."""
        reading = self.reading
        match reading.read:
            case "slots":
                raise UsageError("read='slots' tells what changes: use readStream")
            case "table":
                return TableReader(reading, schema, self.width)
            case "objects":
                return ObjectsReader(reading, RowReader.of(reading, schema, strict=True), self.width)
            case _ as unreachable:
                assert_never(unreachable)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """See `DataSource.streamReader`."""
        from s3notify_platform.spark.datasource.stream import ChangesReader, SlotsReader

        reading = self.reading
        match reading.read:
            case "slots":
                return SlotsReader(reading)
            case "table":
                raise UsageError("read='table' is of the table as it is: use spark.read")
            case "objects":
                if _is_inferred(schema):
                    raise UsageError("a stream needs a schema that stays: give the option schema")
                return ChangesReader(reading, RowReader.of(reading, schema, strict=False), self.width)
            case _ as unreachable:
                assert_never(unreachable)


# Schemas

_INFERRED: Final = {"s3notify": "inferred"}
_FIRST: Final = StructType([*LINEAGE.fields]).add(CHANGE, "string")
_LAST: Final = StructType().add("_rejected", "string").add("_raw", "binary")
_DDL: Final = (
    "_slot int, _key string, _etag string, _offset bigint, _change string, {}, _rejected string, _raw binary"
)


def whole_schema(data: Iterable[StructField], source: Source) -> StructType:
    """The columns of the data, with ours before and behind them. Pure."""
    rescued = StructType().add(RESCUED.name, "string") if source.mismatches == "rescue" else ()
    return StructType([*_FIRST.fields, *data, *rescued, *_LAST.fields])


def inferred_schema(reading: Reading) -> StructType:
    """Columns from a sample of the first objects listed, marked as inferred. 1 LIST, 1 GET for each of the sample."""
    source = reading.source
    if (fixed := fixed_schema(source.format)) is not None:
        return whole_schema(from_arrow_schema(fixed), source)
    enumerator = Enumerator(shared_store(source.bucket), prefix=source.prefix, slots=source.slots)
    versions = [*islice(enumerator.versions(frozenset(source.all_slots())), SAMPLED_FROM)]
    found = schema_of_sample(source, sample_of(source, versions))
    first, *others = whole_schema(from_arrow_schema(found) if found is not None else (), source)
    return StructType([StructField(first.name, first.dataType, metadata=_INFERRED), *others])


def _is_inferred(schema: StructType) -> bool:
    return any(column.metadata == _INFERRED for column in schema)


# Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """Reads splits in a task, as rows of exactly the columns of `output`.

    `strict`: an object that is not there any more is an error; else it has no rows.
    """

    splits: SplitReader
    output: pa.Schema
    rejects: Rejects
    strict: bool

    @classmethod
    def of(cls, reading: Reading, schema: StructType, *, strict: bool) -> "RowReader":
        """A reader for what Spark wants; `UsageError` if the format cannot give it."""
        data = StructType([column for column in schema if column.name not in (*SPECIAL, RESCUED.name)])
        columns = to_arrow_schema(data, timezone="UTC", error_on_duplicated_field_names_in_struct=True)
        check_schema(columns, reading.source.format)
        if reading.source.mismatches == "rescue" and RESCUED.name not in schema.names:
            raise UsageError(
                f"mismatches='rescue' needs a column {RESCUED.name}, where values go that do not fit"
            )
        rejects = reading.rejects
        if rejects == "column" and "_rejected" not in schema.names:
            rejects = "fail"  # they would look like rows
        return cls(
            splits=SplitReader.of(reading.source, data, inferred=_is_inferred(schema)),
            output=to_arrow_schema(schema, timezone="UTC"),
            rejects=rejects,
            strict=strict,
        )

    def read(self, splits: Sequence[Split]) -> Batches:
        """The rows, and the rejects as `rejects` says.

        `ConflictError`, if `strict`, for an object that is another one now, or gone. `UnavailableError` for one that
        could not be read: the task fails, and Spark tries it again. `UsageError` for a reject, if they are to fail.
        """
        whole, big = self.splits.sorted_out(splits)
        for window in self.splits.windows(whole):
            for batch in window:
                yield from self._rows(batch)
        for split in big:
            for batch in self.splits.pieces(split):
                yield from self._rows(batch)

    def gone(self, versions: Sequence[tuple[int, str, str]]) -> Batches:
        """Rows that say which versions, as `(slot, key, etag)`, no longer hold."""
        if versions:
            columns = dict(zip(("_slot", "_key", "_etag"), zip(*versions, strict=True), strict=True))
            yield self._shaped(len(versions), {**columns, CHANGE: [GONE] * len(versions)})

    def _rows(self, batch: pa.RecordBatch) -> Batches:
        kinds = set(batch.column("_kind").to_pylist()) if batch.num_rows else set()
        assert len(kinds) <= 1, "a batch holds one kind of record"
        for kind in kinds:
            if kind == KIND_OUTCOME:
                for row in batch.select(["_key", "_note"]).to_pylist():
                    self._check(row["_key"], json.loads(row["_note"]))
            elif kind == KIND_ROW or self._keeps(batch):
                given = dict(zip(batch.schema.names, batch.columns, strict=True))
                change = REJECT if kind == KIND_REJECT else ROW
                given |= {CHANGE: [change] * batch.num_rows, "_rejected": given["_note"]}
                yield self._shaped(batch.num_rows, given)

    def _shaped(self, count: int, given: Mapping[str, Any]) -> pa.RecordBatch:
        def column(wanted: pa.Field) -> pa.Array:
            values = given.get(wanted.name)
            if values is None:
                return pa.nulls(count, wanted.type)
            return values.cast(wanted.type) if isinstance(values, pa.Array) else pa.array(values, wanted.type)

        return pa.RecordBatch.from_arrays([*map(column, self.output)], schema=self.output)

    def _check(self, key: str, outcome: Mapping[str, Any]) -> None:
        match outcome["status"]:
            case "failed":
                raise UnavailableError(f"{key!r} could not be read: {outcome['reason']}")
            case "superseded" | "deleted" if self.strict:
                raise ConflictError(
                    f"{key!r} was overwritten or deleted after the query was planned: run it again, or read the "
                    "committed table (read='table')"
                )
            case _:
                pass

    def _keeps(self, rejects: pa.RecordBatch) -> bool:
        if self.rejects == "fail":
            first = rejects.slice(0, 1).to_pylist()[0]
            raise UsageError(
                f"{first['_key']!r} at {first['_offset']}: {first['_note']}; mend it, or read with "
                "rejects='column' (a column _rejected) or 'drop'"
            )
        return self.rejects == "column"


class Work(InputPartition):
    """What one task does: splits to read, and versions that have left."""

    def __init__(self, splits: Sequence[Split], gone: Sequence[tuple[int, str, str]] = ()) -> None:
        self.splits = splits
        self.gone = gone


def work_of(
    source: Source, splits: Iterable[Split], width: int, gone: Sequence[tuple[int, str, str]] = ()
) -> list[Work]:
    """The work, dealt to as many tasks as are worth it, by bytes; big objects in parts. Pure."""
    parts: list[Split] = []
    for split in splits:
        # Where a value is quoted is known only when all before it was read.
        cut = is_big(split, source) and may_be_cut(split, source) and not may_be_quoted(split, source)
        parts += parts_of(split, source.split_bytes) if cut else [split]
    sizes = [split.end - split.start for split in parts]
    cost = sum(sizes) + OBJECT_COST_BYTES * len(parts)
    tasks = max(-(-cost // TASK_BYTES), min(2 * width, -(-cost // SMALL_TASK_BYTES)))
    tasks = max(1, min(tasks, len(parts)))
    assigned: list[list[Split]] = [[] for _ in range(tasks)]
    for split, task in zip(parts, assign(sizes, tasks), strict=True):
        assigned[task].append(split)
    first, *others = assigned
    return [Work(first, gone), *map(Work, others)] if parts or gone else []


# Batch readers


class ObjectsReader(DataSourceReader):
    """The bucket's objects."""

    def __init__(self, reading: Reading, rows: RowReader, width: int) -> None:
        self._reading = reading
        self._rows = rows
        self._width = width

    def partitions(self) -> list[InputPartition]:
        """See `DataSourceReader.partitions`. 1 LIST for each 1000 objects below the prefix."""
        source = self._reading.source
        enumerator = Enumerator(shared_store(source.bucket), prefix=source.prefix, slots=source.slots)
        found = enumerator.versions(frozenset(self._reading.wanted))
        return [*work_of(source, (Split(version=v, start=0, end=v.size) for v in found), self._width)]

    def read(self, partition: InputPartition) -> Batches:
        """See `DataSourceReader.read`."""
        if isinstance(partition, Work):  # one that is none stands for a bucket without objects
            yield from self._rows.read(partition.splits)


class TableReader(DataSourceReader):
    """The committed table: the files of the heads that were there when the query was planned."""

    def __init__(self, reading: Reading, schema: StructType, width: int) -> None:
        self._reading = reading
        self._output = to_arrow_schema(schema, timezone="UTC")
        self._width = width

    def partitions(self) -> list[InputPartition]:
        """See `DataSourceReader.partitions`. 1 LIST and more (`SlotTable.newest`), none for given generations."""
        slots, given = self._reading.wanted, self._reading.generations
        table = self._reading.source.table()
        newest = {**table.newest(set(slots) - given.keys()), **given}
        unknown = [slot for slot, generation in newest.items() if generation is None]
        with ThreadPoolExecutor(REQUESTS_IN_FLIGHT) as pool:
            for slot, head in zip(unknown, pool.map(table.head, unknown), strict=True):
                newest[slot] = Generation(head.generation if head else 0)
        wanted = [(slot, newest[slot]) for slot in slots if newest[slot]]
        tasks = max(1, min(2 * self._width, len(wanted)))
        return [InputPartition(wanted[n::tasks]) for n in range(tasks)]

    def read(self, partition: InputPartition) -> Batches:
        """See `DataSourceReader.read`."""
        slots, generations = zip(*partition.value, strict=True) if partition.value else ((), ())
        batch = pa.record_batch(
            {"slot": pa.array(slots, pa.int32()), "generation": pa.array(generations, pa.int64())}
        )
        yield from loader(self._reading.source, None, self._output)(iter([batch]))
