"""The work of the data source's tasks: they read splits, and return rows with exactly the columns that Spark
requires.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructField, StructType

from s3notify_platform.engine.read.counted import Rejected
from s3notify_platform.engine.read.reader import SplitReader
from s3notify_platform.engine.read.splits import TASK_BYTES, cut
from s3notify_platform.engine.values.object_read import Outcome
from s3notify_platform.engine.values.row_schema import Batches
from s3notify_platform.engine.values.task_rows import ReadObject
from s3notify_platform.formats.registry import check_schema
from s3notify_platform.formats.rescue import RESCUED
from s3notify_platform.kernel.errors import ConflictError, UnavailableError, UsageError
from s3notify_platform.protocols.source_enumerator import OBJECT_COST_BYTES, Split, assign
from s3notify_platform.source.source import Source
from s3notify_platform.spark.datasource.options import Reading, Rejects
from s3notify_platform.spark.declared import arrow_schema, json_schema, object_columns
from s3notify_platform.spark.load import LINEAGE
from s3notify_platform.spark.spark_versions import to_arrow_schema
from s3notify_platform.table.column_names import bare_names, object_names
from s3notify_platform.table.reading import shaped

CHANGE: Final = "_change"
ROW, REJECT = "row", "reject"
"""Values of the column `CHANGE`: `ROW` marks a record that was read, and `REJECT` a record that could not be read."""

SPECIAL: Final = (*LINEAGE.names, CHANGE, "_rejected", "_raw")

SMALL_READ_TASK_BYTES: Final = 1 << 20
"""Minimum number of bytes for one more task: a smaller task costs more time than it saves."""

# Schemas

INFERRED: Final = {"s3notify": "inferred"}
"""Metadata of the first column of an inferred schema."""

_FIRST: Final = StructType([*LINEAGE.fields]).add(CHANGE, "string")
_LAST: Final = StructType().add("_rejected", "string").add("_raw", "binary")


def whole_schema(data: Iterable[StructField], source: Source) -> StructType:
    """Returns the data columns, with the data source's columns before and behind them. Pure."""
    data = [*data]
    rescued = StructType().add(RESCUED.name, "string") if source.input.mismatches == "rescue" else ()
    return StructType([*_FIRST.fields, *data, *object_columns(source, data), *rescued, *_LAST.fields])


def is_inferred(schema: StructType) -> bool:
    """True if this schema was inferred, not declared. Pure."""
    return any(column.metadata == INFERRED for column in schema)


# Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """Reads splits in a task, and returns rows with exactly the columns of `output`."""

    splits: SplitReader
    output: pa.Schema
    rejects: Rejects

    @classmethod
    def of(cls, reading: Reading, schema: StructType) -> "RowReader":
        """Returns a reader for the schema that Spark requires.

        Raises `UsageError` if the format does not support these columns, or if a rule does not fit them.
        """
        others = (*SPECIAL, RESCUED.name, *reading.source.input.object_columns.schema.names)
        data = StructType([column for column in schema if column.name not in others])
        columns = arrow_schema(json_schema(object_names(data.json())))
        named = arrow_schema(json_schema(bare_names(data.json())))
        check_schema(columns, reading.source.input.format)
        if named:  # without columns there is nothing to read
            reading.source.input.rules.bound(reading.source.input.delivered(named))
        if reading.source.input.mismatches == "rescue" and RESCUED.name not in schema.names:
            raise UsageError(
                f"mismatches='rescue' needs a column {RESCUED.name} for values that do not fit: add it to the schema"
            )
        rejects = reading.rejects
        if rejects == "column" and "_rejected" not in schema.names:
            rejects = "fail"  # without this column, rejects cannot be distinguished from rows
        return cls(
            splits=SplitReader(
                source=reading.source, schema=columns, named=named, inferred=is_inferred(schema)
            ),
            output=to_arrow_schema(schema),
            rejects=rejects,
        )

    def read(self, splits: Sequence[Split]) -> Batches:
        """Yields the rows, and treats rejects according to `rejects`.

        Raises `ConflictError` if an object was overwritten or deleted. Raises `UnavailableError` if an object could not
        be read; then the task fails, and Spark repeats the task. Raises `UsageError` for a reject if `rejects` is
        `fail`.
        """
        for found in self.splits.read(splits):
            match found:
                case ReadObject():
                    self._check(found.key, found.outcome)
                case Rejected(batch) if self._keeps(batch):
                    more = {"_rejected": batch.column("reason"), "_raw": batch.column("raw")}
                    # The data may have columns with the names reason and raw, too.
                    yield self._shaped(batch.select(LINEAGE.names), REJECT, more)
                case pa.RecordBatch():
                    yield self._shaped(found, ROW, {})

    def _shaped(self, batch: pa.RecordBatch, change: str, more: dict[str, Any]) -> pa.RecordBatch:
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        return shaped(
            self.output, batch.num_rows, {**given, CHANGE: pa.array([change] * batch.num_rows), **more}
        )

    def _check(self, key: str, outcome: Outcome) -> None:
        match outcome.status:
            case "failed":
                raise UnavailableError(f"{key!r} could not be read: {outcome.trace or outcome.reason}")
            case "superseded" | "deleted":
                raise ConflictError(
                    f"{key!r} was overwritten or deleted after the query was planned: run the query again, or read the "
                    "committed table (read='table')"
                )
            case _:
                pass

    def _keeps(self, rejects: pa.RecordBatch) -> bool:
        if self.rejects == "fail":
            first = rejects.slice(0, 1).to_pylist()[0]
            raise UsageError(
                f"{first['_key']!r} at {first['_offset']}: {first['reason']}; correct the record, or read with "
                "rejects='column' (a column _rejected) or 'drop'"
            )
        return self.rejects == "column"


@dataclass
class Work(InputPartition):
    """The splits that one task reads."""

    splits: Sequence[Split]


def work_of(source: Source, splits: Iterable[Split], width: int) -> list[Work]:
    """Distributes splits by bytes over a suitable number of tasks. Big objects are cut into parts. Pure."""
    parts = [part for split in splits for part in cut(split, source)]
    sizes = [split.end - split.start for split in parts]
    cost = sum(sizes) + OBJECT_COST_BYTES * len(parts)
    tasks = max(-(-cost // TASK_BYTES), min(2 * width, -(-cost // SMALL_READ_TASK_BYTES)))
    tasks = max(1, min(tasks, len(parts)))
    assigned: list[list[Split]] = [[] for _ in range(tasks)]
    for split, task in zip(parts, assign(sizes, tasks), strict=True):
        assigned[task].append(split)
    return [*map(Work, assigned)] if parts else []
