"""Second job, first half: splits to rows. Each task fetches its objects and parses them to Arrow.

Splits are dealt by slots, so that a task can seal what it read (`stage.read_stager`) and no row passes through
the JVM. Where one slot has much more to read than others, or an object is big, they are dealt one by one: each task
writes its rows to files (`parts.part_writer`), and the slot's sealer is told of them. Only where a transform has to
see the rows does Spark's shuffle bring those of a slot together.

A batch of the output holds one kind of record (`_kind`): a slot of the batch (so that a slot with nothing to
read is sealed too), the outcome of an object or of a part of one, files, a reject, or rows. The driver never sees
them.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from s3notify_platform.errors import ConflictError, NotFoundError, UnavailableError
from s3notify_platform.formats.format import HEAD_SAMPLE_BYTES, Format, SplitEnd
from s3notify_platform.formats.inference import infer, new_fields
from s3notify_platform.formats.object_bytes import BytesInMemory, ObjectBytes
from s3notify_platform.formats.records import Parsed, Target, rejected_whole
from s3notify_platform.formats.registry import FORMATS, fixed_schema, format_of
from s3notify_platform.formats.rescue import Tally, added
from s3notify_platform.ingest.fetch import Fetched, fetch, gets_of
from s3notify_platform.ingest.remote_bytes import RemoteBytes
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.task_chain import TaskChain
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split
from s3notify_platform.slots import Slot
from s3notify_platform.spark.splits import is_big, splits_of
from s3notify_platform.stores.s3.fast import shared_store

KIND_SLOT: Final = 0
KIND_OUTCOME: Final = 1
KIND_FILES: Final = 2
KIND_REJECT: Final = 3
KIND_ROW: Final = 4

LINEAGE_COLUMNS: Final = ("_slot", "_key", "_etag", "_offset")
"""What a transform receives beside the source's columns and has to keep."""

CONTROL_SCHEMA: Final = pa.schema(
    [
        ("_kind", pa.int32()), ("_slot", pa.int32()), ("_key", pa.string()), ("_etag", pa.string()),
        ("_offset", pa.int64()), ("_note", pa.string()), ("_raw", pa.binary()),
    ]
)  # fmt: skip

SAMPLE_OBJECTS: Final = 64
SAMPLE_BYTES: Final = 32 << 20

Batches = Iterator[pa.RecordBatch]


Outcome = dict[str, Any]
"""The note of a `KIND_OUTCOME`: what became of an object, or of a part of it."""


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
        return pa.schema([*CONTROL_SCHEMA, *self.target.output])

    @property
    def target(self) -> Target:
        """What records are to become."""
        rescue = self.source.input.mismatches == "rescue"
        return Target(schema=self.schema, inferred=self.inferred, rescue=rescue)

    def read_frame(self, splits: DataFrame, chain: TaskChain) -> DataFrame:
        """Slots, outcomes, rejects and rows of `splits`; each task says in `chain` that it has read all of its own."""

        def run(batches: Batches) -> Batches:
            work = splits_of(batches)
            yield from self._read(work.slots, work.splits)
            if work.children:
                chain.stamp(work.children, shared_store(self.source.location.platform))

        return splits.mapInArrow(run, from_arrow_schema(self.output))

    def _read(self, slots: Sequence[Slot], splits: Sequence[Split]) -> Batches:
        if slots:
            yield control(self.output, [(KIND_SLOT, slot, None, None, None, None, None) for slot in slots])
        whole, big = self.sorted_out(splits)
        for window in self.windows(whole):
            yield from window
        for split in big:
            yield from self.pieces(split)

    def sorted_out(self, splits: Iterable[Split]) -> tuple[list[Split], list[Split]]:
        """Those of whole objects, which `windows` reads, and those that `pieces` does."""
        found: tuple[list[Split], list[Split]] = ([], [])
        for split in splits:
            found[is_big(split, self.source)].append(split)
        return found

    def windows(self, splits: Sequence[Split]) -> Iterator[list[pa.RecordBatch]]:
        """Whole objects, those that were fetched together at once: outcomes first, then rejects and rows.

        Each batch is in order of slots.
        """
        versions = sorted((s.version for s in splits), key=lambda version: (version.slot, version.key))
        for window in fetch(self.source.input.bucket, versions):
            batches = _parse_window(window, self.source, self.target, self.output)
            yield list(batches)[::-1]

    def pieces(self, split: Split) -> Batches:
        """A part of an object, or a big one, piece by piece: rejects and rows, and at last the outcome."""
        version = split.version
        place = (version.slot, version.key, version.etag)
        note = whole_outcome("ok", version.size) | {"start": split.start}
        form = format_of(version.key, self.source.input.format)
        if form is None:
            yield control(self.output, [(KIND_REJECT, *place, 0, _NO_FORMAT, b"")])
            note |= {"rejects": 1}
            yield control(self.output, [(KIND_OUTCOME, *place, None, json.dumps(note), None)])
            return
        unnamed: list[Tally] = []
        mismatches: list[Tally] = []
        fields: list[pa.Schema] = []
        remote = RemoteBytes(self.source.input.bucket, version)
        for found in form.read(remote, split, self.target, encoding=self.source.input.encoding):
            if isinstance(found, SplitEnd):
                by_record = found.status == "by_record"
                read = by_record and (split.by_record or split.start == 0)
                note |= {"status": "ok" if read else found.status, "by_record": by_record}
                note |= {"offset": found.offset, "reach_end": found.reach_end, "reason": found.reason}
                continue
            note["rows"] += len(found.index)
            note["rejects"] += len(found.rejects)
            unnamed.append(found.unnamed)
            mismatches.append(found.mismatches)
            fields += found.new_fields
            if len(found.index):
                yield from _row_batches([version], found, self.output)
            if found.rejects:
                rejects = [(KIND_REJECT, *place, r.offset, r.reason, r.raw) for r in found.rejects]
                yield control(self.output, rejects)
        note |= {
            "unnamed": added(tally.get(0, {}) for tally in unnamed),
            "new_fields": _new_fields(fields, form),
        }
        note |= {"mismatches": added(tally.get(0, {}) for tally in mismatches), "gets": remote.gets}
        note["bytes"] = min(split.end, version.size) - split.start if note["status"] == "ok" else 0
        yield control(self.output, [(KIND_OUTCOME, *place, None, json.dumps(note), None)])


def whole_outcome(status: str, size: int) -> Outcome:
    """The outcome of an object that was read whole, or not at all."""
    return {
        "status": status, "size": size, "rows": 0, "rejects": 0, "reason": "", "new_fields": [], "start": 0,
        "offset": size, "reach_end": True, "by_record": False, "bytes": size if status == "ok" else 0, "data": [],
        "rejected": [], "failed": "", "unnamed": {}, "mismatches": {}, "gets": 0,
    }  # fmt: skip


def _new_fields(schemas: Sequence[pa.Schema], form: Format | None) -> list[str]:
    """Fields that objects have and an inferred schema lacks, as Spark schema JSON."""
    wider = new_fields(schemas, form)
    return [from_arrow_schema(wider).json()] if wider is not None else []


_NO_FORMAT: Final = "the key's suffix names no format; set the source's format"


def _parse_window(window: Sequence[Fetched], source: Source, target: Target, output: pa.Schema) -> Batches:
    outcomes: list[tuple[object, ...]] = []

    def by_format(fetched: Fetched) -> tuple[str, str]:
        form = format_of(fetched.version.key, source.input.format)
        return fetched.status, form.name if form else ""

    for (status, name), group in groupby(sorted(window, key=by_format), key=by_format):
        part, form = list(group), FORMATS.get(name)
        rows = np.zeros(len(part), np.int64)
        rejects = np.zeros(len(part), np.int64)
        unnamed: list[Tally] = []
        mismatches: list[Tally] = []
        fields: list[pa.Schema] = []
        if status == "ok":
            for parsed in _parsed(part, form, target, source.input.encoding):
                unnamed.append(parsed.unnamed)
                mismatches.append(parsed.mismatches)
                fields += parsed.new_fields
                if len(parsed.index):
                    rows += np.bincount(parsed.index, minlength=len(part))
                    yield from _row_batches([fetched.version for fetched in part], parsed, output)
                if parsed.rejects:
                    for reject in parsed.rejects:
                        rejects[reject.index] += 1
                    yield control(
                        output,
                        [
                            (KIND_REJECT, *_place(part[r.index]), r.offset, r.reason, r.raw)
                            for r in parsed.rejects
                        ],
                    )
        wider = _new_fields(fields, form)
        for number, fetched in enumerate(part):
            others = added(tally[number] for tally in unnamed if number in tally)
            size = len(fetched.body) if status == "ok" else fetched.version.size
            note = whole_outcome(status, size) | {
                "rows": int(rows[number]),
                "rejects": int(rejects[number]),
                "gets": gets_of(fetched.version),
                "reason": fetched.reason,
                "new_fields": wider if others and target.inferred else [],
                "unnamed": others,
                "mismatches": added(tally[number] for tally in mismatches if number in tally),
            }
            outcomes.append((KIND_OUTCOME, *_place(fetched), None, json.dumps(note), None))
    yield control(output, outcomes)


def _parsed(part: Sequence[Fetched], form: Format | None, target: Target, encoding: str) -> Iterator[Parsed]:
    if form is not None:
        yield from form.parse([(f.version.key, f.body) for f in part], target, encoding=encoding)
        return
    for number, fetched in enumerate(part):
        if fetched.body:
            yield rejected_whole(number, fetched.body, _NO_FORMAT, target)


def _place(fetched: Fetched) -> tuple[int, str, str]:
    return fetched.version.slot, fetched.version.key, fetched.version.etag


def _row_batches(part: Sequence[ObjectVersion], parsed: Parsed, output: pa.Schema) -> Batches:
    count = len(parsed.index)
    index = pa.array(parsed.index, pa.int64())
    places = ((version.slot, version.key, version.etag) for version in part)
    slot, key, etag = (pa.array(column).take(index) for column in zip(*places, strict=True))
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


def control(output: pa.Schema, rows: Sequence[tuple[object, ...]]) -> pa.RecordBatch:
    """Records of one kind that are no rows."""
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [[] for _ in CONTROL_SCHEMA]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, CONTROL_SCHEMA, strict=True)]
    blank = [pa.nulls(len(rows), field.type) for field in list(output)[len(CONTROL_SCHEMA) :]]
    return pa.RecordBatch.from_arrays([*arrays, *blank], schema=output)


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


def sample_of(source: Source, versions: Sequence[ObjectVersion]) -> list[ObjectVersion]:
    """Up to `SAMPLE_OBJECTS` of `versions`, evenly spread, and `SAMPLE_BYTES`, that inference looks at. Pure."""
    candidates = [v for v in versions if v.size and format_of(v.key, source.input.format)]
    step = max(1, len(candidates) // SAMPLE_OBJECTS)
    sample: list[ObjectVersion] = []
    for version in candidates[::step][:SAMPLE_OBJECTS]:
        read = min(version.size, HEAD_SAMPLE_BYTES)
        if not sample or sum(min(v.size, HEAD_SAMPLE_BYTES) for v in sample) + read <= SAMPLE_BYTES:
            sample.append(version)
    return sample


def schema_of_sample(source: Source, sample: Sequence[ObjectVersion]) -> pa.Schema | None:
    """What these objects make of the schema, or None. 1 GET each, or more of a large one."""
    return infer(_sampled(source, sample))


def _sampled(source: Source, versions: Sequence[ObjectVersion]) -> Iterator[tuple[Format, pa.Schema]]:
    """What each object that is there suggests."""
    small = [version for version in versions if version.size <= HEAD_SAMPLE_BYTES]
    for window in fetch(source.input.bucket, small):
        for fetched in window:
            if fetched.status == "ok":
                yield from _suggested(source, fetched.version, BytesInMemory(fetched.body))
    for version in versions:
        if version.size > HEAD_SAMPLE_BYTES:
            with suppress(ConflictError, NotFoundError, UnavailableError):
                yield from _suggested(source, version, RemoteBytes(source.input.bucket, version))


def _suggested(
    source: Source, version: ObjectVersion, body: ObjectBytes
) -> Iterator[tuple[Format, pa.Schema]]:
    form = format_of(version.key, source.input.format)
    if form is not None:
        for schema in form.schemas(body, version.key, source.input.encoding):
            yield form, schema
