"""Chooses the schema with which a batch is parsed (declared, pinned or inferred), and finds the columns that a
transform makes.

The table version that commits the first rows pins the schema. If another run has pinned a schema in the meantime, this
run adds its own columns to the pinned columns. If the two runs chose different types for a column, the later run gets a
conflict, and plans again.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from s3notify_platform.engine.read.reader import sample_of, schema_of_sample
from s3notify_platform.engine.run_state import Run
from s3notify_platform.engine.stage.staging import STAGED_COLUMN
from s3notify_platform.engine.values.results import Progress
from s3notify_platform.engine.values.row_schema import Batches
from s3notify_platform.engine.values.slot_plan import SlotPlan
from s3notify_platform.engine.values.task_rows import LINEAGE_COLUMNS
from s3notify_platform.engine.values.unforeseen import trace_of
from s3notify_platform.formats.inference import infer
from s3notify_platform.formats.registry import fixed_schema
from s3notify_platform.formats.rescue import RESCUED
from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.source_enumerator import ObjectVersion
from s3notify_platform.source.source import Source
from s3notify_platform.spark.declared import arrow_schema, hinted, json_schema, object_columns, parse_schema
from s3notify_platform.spark.failures import JOB_ERRORS, in_halves, is_death, own_errors, reason_of
from s3notify_platform.spark.load import LINEAGE
from s3notify_platform.spark.memory_limit import limited
from s3notify_platform.table.column_names import bare_names, object_names
from s3notify_platform.table.pinned_schema import NO_SCHEMA, TableSchema, added_fields, grown, merged
from s3notify_platform.table.schema_change import check_types

Transform = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSchemas:
    """Chooses the schemas of one source's batches, with a Spark session."""

    spark: SparkSession
    source: Source
    transform: Transform | None
    clock: Clock
    progress: Progress

    def choose(self, busy: Sequence[SlotPlan], run: Run, known: TableSchema | None) -> TableSchema:
        """See `Jobs.choose_schema`."""
        none, declared = StructType(), self.source.input
        if declared.schema is not None:
            return self._grown(known, parse_schema(declared.schema, self.source), run, inferred=False)
        if (fixed := fixed_schema(declared.format)) is not None:
            return self._grown(known, from_arrow_schema(fixed), run, inferred=False)
        if known is not None and known.inferred and json.loads(known.source)["fields"]:
            return self._grown(known, self._with_new_hints(known), run, inferred=True)
        self.progress("inferring the schema from a sample")
        started = self.clock.monotonic()
        sample = sample_of(self.source, [s.version for p in busy for s in p.changes.read])
        inferred = infer_schema(self.spark, self.source, sample, self.progress) if sample else none
        run.result.took("infer", self.clock.monotonic() - started)
        return self._grown(known, hinted(inferred, self.source), run, inferred=True)

    def widen(
        self, schema: TableSchema, found: Iterable[str], run: Run, known: TableSchema | None
    ) -> TableSchema:
        """See `Jobs.widen_schema`. If objects have a new field with different types, `infer` joins the types."""
        schemas = (pa.ipc.read_schema(pa.py_buffer(b64decode(one))) for one in sorted(found))
        wider = infer(schemas)
        added = from_arrow_schema(wider) if wider else StructType()
        source = merged(object_names(schema.source), added.json(), strict=False, bounded=True)
        return self._grown(known, json_schema(source), run, inferred=True, named=schema)

    def delivered(self, source: StructType) -> StructType:
        """Returns the columns of rows before the transform.

        Raises `UsageError` if a rule cannot be evaluated on these columns.
        """
        chosen = self.source.input
        if source.fields and chosen.rules:
            chosen.rules.bound(chosen.delivered(arrow_schema(source)))
        rescued = [StructField(RESCUED.name, StringType())] if chosen.mismatches == "rescue" else []
        return StructType([*source.fields, *object_columns(self.source, source), *rescued])

    def _with_new_hints(self, known: TableSchema) -> StructType:
        """Returns the pinned columns and new hinted columns.

        Raises `UsageError` if a hint contradicts a pinned type.
        """
        pinned = json_schema(object_names(known.source))
        if not self.source.input.schema_hints:
            return pinned
        wanted = hinted(pinned, self.source).json()
        named = self.source.input.table_names(wanted, known.source)
        check_types(self.source.name, known.source, named, setting="schema_hints")
        return json_schema(merged(pinned.json(), wanted, strict=True))

    def _grown(
        self,
        known: TableSchema | None,
        found: StructType,
        run: Run,
        *,
        inferred: bool,
        named: TableSchema | None = None,
    ) -> TableSchema:
        """Returns the pinned schema with the additional columns `found`, and the resulting columns of the table's rows.

        `found` has the names that the columns have in objects. `named`: a schema with the known names of these columns
        in the table; by default, the pinned schema.
        """
        held = object_names(known.source) if known is not None and inferred else StructType().json()
        source = merged(held, found.json(), strict=False, bounded=inferred)
        source = self.source.input.table_names(source, (named or known or NO_SCHEMA).source)
        rows = self._check_transform(self.delivered(json_schema(bare_names(source)))).json()
        if known is not None:
            check_types(self.source.name, known.rows, rows, source=source)
        schema = grown(known, source=source, rows=rows, inferred=inferred)
        if known is not None and (added := added_fields(known.rows, schema.rows)):
            run.result.schema_added = {**run.result.schema_added, **added}
        return schema

    def _check_transform(self, source: StructType) -> StructType:
        """Returns the columns of the data files.

        Raises `UsageError` if the transform raises an error or changes a lineage column.
        """
        given = StructType(LINEAGE.fields + source.fields)
        out = given
        if self.transform is not None:
            whose = f"the transform of source {self.source.name!r}"
            try:
                out = self.transform(self.spark.createDataFrame([], given)).schema
            except JOB_ERRORS as error:
                raise UsageError(f"{whose} fails: {reason_of(error)}") from error
            except Exception as error:
                self.progress(trace_of(error))
                raise UsageError(f"{whose} raised {type(error).__name__}: {error}") from error
            for column in LINEAGE:
                kept = [f for f in out if f.name == column.name]
                if len(kept) != 1 or kept[0].dataType != column.dataType:
                    raise UsageError(
                        f"{whose} drops or changes the lineage column {column.name!r}: keep "
                        f"{', '.join(LINEAGE_COLUMNS)} unchanged (use withColumn, or add them to select)"
                    )
            names = [f.name for f in out]
            if clash := [name for name in names if name == STAGED_COLUMN or names.count(name) > 1]:
                raise UsageError(f"{whose} makes a duplicate or reserved column {clash[0]!r}: rename it")
        return StructType(
            [
                StructField(f.name, f.dataType, nullable=True, metadata=_comment(f))
                for f in out
                if f.name not in LINEAGE_COLUMNS
            ]
        )


def _comment(field: StructField) -> dict[str, Any]:
    return {name: value for name, value in field.metadata.items() if name == "comment"}


def infer_schema(
    spark: SparkSession, source: Source, sample: Sequence[ObjectVersion], progress: Progress = lambda _: None
) -> StructType:
    """Infers the schema of a sample (`reader.sample_of`), within limits, in one task.

    The schema has no columns if the sample has no data. Cost: 1 GET for each object. Only the beginning of an object
    larger than `HEAD_SAMPLE_BYTES` is read, and only the footer of a Parquet file. If the task dies, the job is
    repeated with each half of its objects. An object that makes the task die even without other objects is left out.
    """
    deadly: set[ObjectVersion] = set()

    def died(part: Sequence[ObjectVersion], _: Exception) -> StructType:
        deadly.update(part)
        return StructType()

    *_, found = in_halves(
        [sample],
        partial(_inferred, spark, source),
        died,
        errors=(_TaskDiedError,),
        what="inference",
        units="objects",
        progress=progress,
    )
    rest = [version for version in sample if version not in deadly]
    return _inferred(spark, source, rest) if deadly and rest else found


class _TaskDiedError(Exception):
    """A process of the inference task has died."""


def _inferred(spark: SparkSession, source: Source, sample: Sequence[ObjectVersion]) -> StructType:
    def run(batches: Batches) -> Batches:
        for _ in batches:
            pass
        schema = schema_of_sample(source, sample)
        found = schema.serialize().to_pybytes() if schema is not None else None
        yield pa.record_batch({"schema": pa.array([found], pa.binary())})

    try:
        with own_errors():
            body = (
                spark.range(0, 1, 1, 1)
                .mapInArrow(limited(run), "schema binary")
                .toArrow()["schema"][0]
                .as_py()
            )
    except JOB_ERRORS as error:
        if is_death(error):
            raise _TaskDiedError(reason_of(error)) from error
        raise
    if body is None:
        return StructType()
    found = from_arrow_schema(pa.ipc.read_schema(pa.py_buffer(body)))
    return json_schema(merged("{}", found.json(), strict=False, bounded=True))
