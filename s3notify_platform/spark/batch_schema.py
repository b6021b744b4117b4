"""What a batch is parsed with: the schema as declared, as pinned, or inferred, and what a transform makes of it.

Pinned in the table before anything is read with it, so that all runs parse alike; another run's fields stand,
and this one's are added to them.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from s3notify_platform.clock import Clock
from s3notify_platform.errors import ConflictError, CorruptError, UsageError
from s3notify_platform.formats.inference import new_fields
from s3notify_platform.formats.registry import FORMATS, fixed_schema
from s3notify_platform.formats.rescue import RESCUED
from s3notify_platform.ingest.plan import SlotPlan
from s3notify_platform.ingest.reader import sample_of, schema_of_sample
from s3notify_platform.ingest.row_schema import Batches
from s3notify_platform.ingest.run_state import Progress, Run
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.wire import LINEAGE_COLUMNS, READ
from s3notify_platform.protocols.source_enumerator import ObjectVersion
from s3notify_platform.spark.declared import parse_schema
from s3notify_platform.spark.failures import JOB_ERRORS, raise_own, reason_of
from s3notify_platform.spark.load import LINEAGE
from s3notify_platform.table.schema import PIN_ATTEMPTS, TableSchema, merged

Transform = Callable[[DataFrame], DataFrame]


class BatchSchemas:
    """The schemas of one source's batches. Holds a Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        source: Source,
        *,
        transform: Transform | None,
        clock: Clock,
        progress: Progress,
    ) -> None:
        self._spark = spark
        self._source = source
        self._transform = transform
        self._clock = clock
        self._progress = progress

    def choose(self, busy: Sequence[SlotPlan], state: Run) -> TableSchema:
        """What this batch is parsed with: as declared, as pinned, or inferred from a sample of it."""
        none = StructType()
        if state.known and self._source.schemas().head() is None:
            own = self._source.location
            raise CorruptError(
                f"{own.layout.schemas}: the schema of a table with commits is gone; restore it, or accept the "
                f"loss of the whole table: remove what is left below {own.layout.prefix!r}, then run "
                f"`s3notify table forget --bucket {own.platform.bucket} --name {own.name} --platform-prefix "
                f"{own.platform_prefix} --slots all`"
            )
        if self._source.input.schema is not None:
            return self._pinned(
                none, parse_schema(self._source.input.schema, self._source), state, inferred=False
            )
        if (fixed := fixed_schema(self._source.input.format)) is not None:
            return self._pinned(none, from_arrow_schema(fixed), state, inferred=False)
        head = self._source.schemas().head()
        if head is not None and head.inferred and json.loads(head.source)["fields"]:
            return self._pinned(none, json_schema(head.source), state, inferred=True)
        self._progress("inferring the schema from a sample")
        return self._pinned(
            none,
            self._inferred([s.version for p in busy for s in p.changes.read], state),
            state,
            inferred=True,
        )

    def widen(self, schema: TableSchema, new_fields: Iterable[str], state: Run) -> TableSchema:
        """The schema with the new fields that tasks have found."""
        return self._pinned(
            json_schema(schema.source),
            _together(new_fields, self._source.input.format),
            state,
            inferred=True,
        )

    def delivered(self, source: StructType) -> StructType:
        """The columns that rows have as they are read."""
        rescue = self._source.input.mismatches == "rescue"
        return StructType([*source.fields, StructField(RESCUED.name, StringType())]) if rescue else source

    def _inferred(self, versions: Sequence[ObjectVersion], state: Run) -> StructType:
        started = self._clock.monotonic()
        try:
            found = infer_schema(self._spark, self._source, versions)
        except JOB_ERRORS as error:
            raise_own(error)
            raise
        state.spent.took("infer", self._clock.monotonic() - started)
        return found or StructType()

    def _pinned(self, known: StructType, found: StructType, state: Run, *, inferred: bool) -> TableSchema:
        """The schema `known`, with what only `found` has, pinned with the columns of the rows it leads to."""
        registry = self._source.schemas()
        source = merged(known.json(), found.json(), strict=False)
        for _ in range(PIN_ATTEMPTS):
            parsing = json_schema(source)
            rows = self._check_transform(self.delivered(parsing)).json()
            pinned = registry.pin(source=source, rows=rows, inferred=inferred, batch=state.batch)
            if pinned is not None:
                if pinned.batch == state.batch:
                    state.schema_added |= pinned.added
                return pinned
            # Another run was first to infer: what it found stands, and ours adds to it.
            head = registry.head()
            source = merged(head.source, source, strict=False) if head is not None else source
        raise ConflictError("the table's schema kept changing; try again")

    def _check_transform(self, source: StructType) -> StructType:
        """The columns that data files will have; `UsageError` if the transform raises or loses lineage."""
        given = StructType(LINEAGE.fields + source.fields)
        out = given
        if self._transform is not None:
            whose = f"the transform of source {self._source.name!r}"
            try:
                out = self._transform(self._spark.createDataFrame([], given)).schema
            except JOB_ERRORS as error:
                raise UsageError(f"{whose} fails: {reason_of(error)}") from error
            except Exception as error:
                raise UsageError(f"{whose} raised {type(error).__name__}: {error}") from error
            for column in LINEAGE:
                kept = [f for f in out if f.name == column.name]
                if len(kept) != 1 or kept[0].dataType != column.dataType:
                    raise UsageError(
                        f"{whose} drops or changes the lineage column {column.name!r}: keep "
                        f"{', '.join(LINEAGE_COLUMNS)} as they are (use withColumn, or add them to select)"
                    )
            taken = {*READ.schema.names} - {*LINEAGE_COLUMNS}
            names = [f.name for f in out]
            if clash := [name for name in names if name in taken or names.count(name) > 1]:
                raise UsageError(f"{whose} makes a column {clash[0]!r}, twice or reserved: rename it")
        return StructType(
            [StructField(f.name, f.dataType, nullable=True) for f in out if f.name not in LINEAGE_COLUMNS]
        )


def json_schema(text: str) -> StructType:
    """A Spark schema from its JSON."""
    return StructType.fromJson(json.loads(text))


def infer_schema(spark: SparkSession, source: Source, versions: Sequence[ObjectVersion]) -> StructType | None:
    """A schema from a sample of `versions`, read in one task; None if the sample holds no data.

    Up to `SAMPLE_OBJECTS` objects, evenly spread, and `SAMPLE_BYTES`; 1 GET each. Of those larger than
    `HEAD_SAMPLE_BYTES` only the beginning is read, and of Parquet the footer.
    """
    if (fixed := fixed_schema(source.input.format)) is not None:
        return from_arrow_schema(fixed)
    sample = sample_of(source, versions)

    def run(batches: Batches) -> Batches:
        for _ in batches:
            pass
        schema = schema_of_sample(source, sample)
        found = schema.serialize().to_pybytes() if schema is not None else None
        yield pa.record_batch({"schema": pa.array([found], pa.binary())})

    if not sample:
        return None
    body = spark.range(0, 1, 1, 1).mapInArrow(run, "schema binary").toArrow()["schema"][0].as_py()
    if body is None:
        return None
    return from_arrow_schema(pa.ipc.read_schema(pa.py_buffer(body)))


def _together(found: Iterable[str], setting: str) -> StructType:
    """The new fields that tasks have found, as one schema: of types that differ, the widest."""
    schemas = [pa.ipc.read_schema(pa.py_buffer(b64decode(one))) for one in sorted(found)]
    wider = new_fields(schemas, FORMATS.get(setting))
    return from_arrow_schema(wider) if wider is not None else StructType()
