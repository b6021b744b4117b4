"""Second job, first half: splits to rows. Each task fetches its objects and parses them to Arrow.

Splits are dealt by slots, so that a task can seal what it read (`seal.read_sealer`) and no row passes through
the JVM. Where one slot has much more to read than others, or a transform has to see the rows, they are dealt
one by one, and Spark's shuffle brings the rows of a slot together.

A batch of the output holds one kind of record (`_kind`): a slot of the batch (so that a slot with nothing to
read is sealed too), the outcome of one object, a reject, or rows. The driver never sees them.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from s3notify_platform.protocols.source_enumerator import OBJECT_COST_BYTES, ObjectVersion, deal
from s3notify_platform.slots import Slot
from s3notify_platform.spark.fetch import Fetched, fetch
from s3notify_platform.spark.formats import FIXED_SCHEMAS, format_of, parse
from s3notify_platform.spark.inference import in_spark_types, infer
from s3notify_platform.spark.records import Parsed, Wanted, rejected_whole
from s3notify_platform.spark.rescue import Tally, added
from s3notify_platform.spark.source import Source

KIND_SLOT: Final = 0
KIND_OUTCOME: Final = 1
KIND_REJECT: Final = 2
KIND_ROW: Final = 3

LINEAGE_COLUMNS: Final = ("_slot", "_key", "_etag", "_offset")
"""What a transform receives beside the source's columns and has to keep."""

CONTROL_SCHEMA: Final = pa.schema(
    [
        ("_kind", pa.int32()), ("_slot", pa.int32()), ("_key", pa.string()), ("_etag", pa.string()),
        ("_offset", pa.int64()), ("_note", pa.string()), ("_raw", pa.binary()),
    ]
)  # fmt: skip

TASK_BYTES: Final = 64 << 20
SKEW: Final = 1.5
"""How much more than the mean a task may have to read, for each slot to be read in one task."""

SAMPLE_OBJECTS: Final = 64
SAMPLE_BYTES: Final = 32 << 20

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """Who reads what. `together`: all of a slot's versions are read by one task."""

    versions: Sequence[ObjectVersion]
    tasks: int
    slot_tasks: Sequence[int]
    version_tasks: Sequence[int]
    together: bool


def splits_frame(spark: SparkSession, slots: Sequence[Slot], dealt: Dealt) -> DataFrame:
    """The splits as a DataFrame, one Spark partition for each task; a row without a key for each slot."""
    versions, sentinels = dealt.versions, len(slots)
    table = pa.table(
        {
            "task": pa.array([*dealt.slot_tasks, *dealt.version_tasks], pa.int32()),
            "slot": pa.array([*slots, *(v.slot for v in versions)], pa.int32()),
            "key": pa.array([None] * sentinels + [v.key for v in versions], pa.string()),
            "etag": pa.array([None] * sentinels + [v.etag for v in versions], pa.string()),
            "size": pa.array([0] * sentinels + [v.size for v in versions], pa.int64()),
        }
    )
    return spark.createDataFrame(table).repartitionById(dealt.tasks, "task")


def deal_splits(slots: Sequence[Slot], versions: Sequence[ObjectVersion], width: int) -> Dealt:
    """Deal `versions` to tasks: slot by slot if that is about as balanced as one by one. Pure."""
    total = sum(version.size for version in versions)
    tasks = max(1, min(len(slots), max(width, -(-total // TASK_BYTES))))
    costs = dict.fromkeys(slots, 0)
    for version in versions:
        costs[version.slot] += version.size + OBJECT_COST_BYTES
    slot_tasks = deal(list(costs.values()), tasks)
    loads = [0] * tasks
    for cost, task in zip(costs.values(), slot_tasks, strict=True):
        loads[task] += cost
    if max(loads) <= max(TASK_BYTES, SKEW * sum(loads) / tasks):
        task_of = dict(zip(slots, slot_tasks, strict=True))
        version_tasks = [task_of[version.slot] for version in versions]
        return Dealt(
            versions=versions, tasks=tasks, slot_tasks=slot_tasks, version_tasks=version_tasks, together=True
        )
    tasks = min(len(versions), max(width, -(-total // TASK_BYTES)))
    version_tasks = deal([version.size for version in versions], tasks)
    return Dealt(
        versions=versions,
        tasks=tasks,
        slot_tasks=[0] * len(slots),
        version_tasks=version_tasks,
        together=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReader:
    """Reads splits in a task: fetches their objects and parses them with `schema`."""

    source: Source
    schema: pa.Schema
    inferred: bool

    @classmethod
    def of(cls, source: Source, schema: StructType, *, inferred: bool) -> "SplitReader":
        """A reader that gives rows of a Spark schema."""
        data = to_arrow_schema(schema, timezone="UTC", error_on_duplicated_field_names_in_struct=True)
        columns = pa.schema([column.with_nullable(True) for column in data])
        return cls(source=source, schema=columns, inferred=inferred)

    @property
    def output(self) -> pa.Schema:
        """Control columns, then the data's."""
        return pa.schema([*CONTROL_SCHEMA, *self.wanted.output])

    @property
    def wanted(self) -> Wanted:
        """What records are to become."""
        rescue = self.source.misfits == "rescue"
        return Wanted(schema=self.schema, inferred=self.inferred, rescue=rescue)

    def read_frame(self, splits: DataFrame) -> DataFrame:
        """Slots, outcomes, rejects and rows of `splits`."""
        return splits.mapInArrow(self._run, from_arrow_schema(self.output))

    def _run(self, batches: Batches) -> Batches:
        slots, versions = splits_of(batches)
        if slots:
            yield _control(self.output, [(KIND_SLOT, slot, None, None, None, None, None) for slot in slots])
        for window in self.windows(versions):
            yield from window

    def windows(self, versions: Sequence[ObjectVersion]) -> Iterator[list[pa.RecordBatch]]:
        """What was fetched together: outcomes first, then rejects and rows, each batch in order of slots."""
        ordered = sorted(versions, key=lambda version: (version.slot, version.key))
        for window in fetch(self.source.bucket, ordered):
            batches = _parse_window(window, self.source, self.wanted, self.output)
            yield list(batches)[::-1]


def splits_of(batches: Batches) -> tuple[list[Slot], list[ObjectVersion]]:
    """The slots and object versions that a task was dealt."""
    slots: list[Slot] = []
    versions: list[ObjectVersion] = []
    for batch in batches:
        for row in batch.to_pylist():
            if row["key"] is None:
                slots.append(Slot(row["slot"]))
            else:
                version = ObjectVersion(
                    slot=Slot(row["slot"]), key=row["key"], etag=row["etag"], size=row["size"]
                )
                versions.append(version)
    return slots, versions


def _parse_window(window: Sequence[Fetched], source: Source, wanted: Wanted, output: pa.Schema) -> Batches:
    outcomes: list[tuple[object, ...]] = []
    by_format = lambda f: (f.status, format_of(f.version.key, source.format) or "")  # noqa: E731
    for (status, fmt), group in groupby(sorted(window, key=by_format), key=by_format):
        part = list(group)
        rows = np.zeros(len(part), np.int64)
        rejects = np.zeros(len(part), np.int64)
        unnamed: list[Tally] = []
        misfits: list[Tally] = []
        beyond: list[pa.Schema] = []
        if status == "ok":
            for parsed in _parsed(part, fmt, source, wanted):
                unnamed.append(parsed.unnamed)
                misfits.append(parsed.misfits)
                beyond += parsed.beyond
                if len(parsed.index):
                    rows += np.bincount(parsed.index, minlength=len(part))
                    yield from _row_batches(part, parsed, output)
                if parsed.rejects:
                    for reject in parsed.rejects:
                        rejects[reject.index] += 1
                    yield _control(
                        output,
                        [
                            (KIND_REJECT, *_place(part[r.index]), r.offset, r.reason, r.raw)
                            for r in parsed.rejects
                        ],
                    )
        wider = in_spark_types(beyond, fmt)
        new_fields = from_arrow_schema(wider).json() if wider is not None else None
        for number, fetched in enumerate(part):
            others = added(tally[number] for tally in unnamed if number in tally)
            note = {
                "status": status,
                "size": len(fetched.body) if status == "ok" else fetched.version.size,
                "rows": int(rows[number]),
                "rejects": int(rejects[number]),
                "reason": fetched.reason,
                "unknown_field": new_fields if others and wanted.inferred else None,
                "unnamed": others,
                "misfits": added(tally[number] for tally in misfits if number in tally),
            }
            outcomes.append((KIND_OUTCOME, *_place(fetched), None, json.dumps(note), None))
    yield _control(output, outcomes)


def _parsed(part: Sequence[Fetched], fmt: str, source: Source, wanted: Wanted) -> Iterator[Parsed]:
    if fmt:
        bodies = [fetched.body for fetched in part]
        yield from parse(bodies, wanted.schema, fmt, inferred=wanted.inferred, misfits=source.misfits)
        return
    for number, fetched in enumerate(part):
        if fetched.body:
            yield rejected_whole(
                number,
                fetched.body,
                "the key's suffix names no format; set the source's format",
                wanted.output,
            )


def _place(fetched: Fetched) -> tuple[int, str, str]:
    return fetched.version.slot, fetched.version.key, fetched.version.etag


def _row_batches(part: Sequence[Fetched], parsed: Parsed, output: pa.Schema) -> Batches:
    count = len(parsed.index)
    index = pa.array(parsed.index, pa.int64())
    slot, key, etag = (pa.array(column).take(index) for column in zip(*map(_place, part), strict=True))
    columns = [
        pa.array(np.full(count, KIND_ROW), pa.int32()),
        slot.cast(pa.int32()),
        key,
        etag,
        pa.array(parsed.offset, pa.int64()),
        pa.nulls(count, pa.string()),
        pa.nulls(count, pa.binary()),
        *parsed.table.columns,
    ]
    yield from pa.Table.from_arrays(columns, schema=output).combine_chunks().to_batches(max_chunksize=100_000)


def _control(output: pa.Schema, rows: Sequence[tuple[object, ...]]) -> pa.RecordBatch:
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [[] for _ in CONTROL_SCHEMA]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, CONTROL_SCHEMA, strict=True)]
    blank = [pa.nulls(len(rows), field.type) for field in list(output)[len(CONTROL_SCHEMA) :]]
    return pa.RecordBatch.from_arrays([*arrays, *blank], schema=output)


def infer_schema(spark: SparkSession, source: Source, versions: Sequence[ObjectVersion]) -> StructType | None:
    """A schema from a sample of `versions`, read in one task; None if the sample holds no data.

    Up to `SAMPLE_OBJECTS` objects, evenly spread, and `SAMPLE_BYTES`; 1 GET each.
    """
    if source.format in FIXED_SCHEMAS:
        return from_arrow_schema(FIXED_SCHEMAS[source.format])
    candidates = [v for v in versions if v.size and format_of(v.key, source.format)]
    step = max(1, len(candidates) // SAMPLE_OBJECTS)
    sample: list[ObjectVersion] = []
    for version in candidates[::step][:SAMPLE_OBJECTS]:
        if not sample or sum(v.size for v in sample) + version.size <= SAMPLE_BYTES:
            sample.append(version)

    def run(batches: Batches) -> Batches:
        for _ in batches:
            pass
        got = [f for window in fetch(source.bucket, sample) for f in window if f.status == "ok"]
        schema = infer([(format_of(f.version.key, source.format) or "", f.body) for f in got])
        found = schema.serialize().to_pybytes() if schema is not None else None
        yield pa.record_batch({"schema": pa.array([found], pa.binary())})

    if not sample:
        return None
    body = spark.range(0, 1, 1, 1).mapInArrow(run, "schema binary").toArrow()["schema"][0].as_py()
    if body is None:
        return None
    return from_arrow_schema(pa.ipc.read_schema(pa.py_buffer(body)))
