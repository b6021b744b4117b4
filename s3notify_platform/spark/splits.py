"""Splits of a batch: how big objects are cut into parts, which task reads what, and how a task is told.

An object of up to `Source.split_bytes` is read whole, with all others of its slot that one task can take. A larger one
is read in parts by many tasks, if its format and encoding let it begin in the middle.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from s3notify_platform.errors import S3NotifyError
from s3notify_platform.formats.csv_splits import Scout, scout, starts_in_quotes
from s3notify_platform.formats.registry import format_of
from s3notify_platform.ingest.remote_bytes import RemoteBytes
from s3notify_platform.ingest.source import Source
from s3notify_platform.protocols.source_enumerator import (
    OBJECT_COST_BYTES,
    ObjectVersion,
    Split,
    assign,
    parts_of,
)
from s3notify_platform.slots import Slot
from s3notify_platform.spark.session import parallelism

TASK_BYTES: Final = 64 << 20
SKEW: Final = 1.5
"""How much more than the mean a task may have to read, for each slot to be read in one task."""

_SCOUTED: Final = "number bigint, quotes bigint, outside boolean, inside boolean"

Batches = Iterator[pa.RecordBatch]


def is_big(split: Split, source: Source) -> bool:
    """Whether a split is read piece by piece, not as a whole object. Pure."""
    size = split.version.size
    return split.start > 0 or split.end != size or size > source.input.split_bytes


def may_be_cut(split: Split, source: Source) -> bool:
    """Whether an object can be read from the middle, going by its name and the source's settings. Pure."""
    form = format_of(split.version.key, source.input.format)
    return (
        form is not None and not split.by_record and form.may_be_cut(split.version.key, source.input.encoding)
    )


def may_be_quoted(split: Split, source: Source) -> bool:
    """Whether a split may begin in a quoted value, which only what stands before it tells. Pure."""
    form = format_of(split.version.key, source.input.format)
    return form is not None and form.quoted


def cut(split: Split, source: Source) -> list[Split]:
    """The parts of a big object that tasks may read at once; any other split as it is. Pure."""
    cuttable = is_big(split, source) and may_be_cut(split, source)
    return parts_of(split, source.input.split_bytes) if cuttable else [split]


def in_parts(spark: SparkSession, source: Source, splits: Sequence[Split]) -> list[Split]:
    """The splits, big ones in parts that tasks read at once: all parts of an object in order (`cut`).

    Where values may be quoted, one more job looks at each part first: one may be open where it begins. 1 GET for each
    chunk of such objects (`csv_splits.scout`).
    """
    result: list[Split] = []
    quoted: list[Split] = []
    for split in splits:
        parts = cut(split, source)
        (quoted if len(parts) > 1 and may_be_quoted(split, source) else result).extend(parts)
    return result + (_scouted(spark, source, quoted) if quoted else [])


def _scouted(spark: SparkSession, source: Source, parts: Sequence[Split]) -> list[Split]:
    """Parts that know how they begin; those of an object that has quotes out of place are one again."""
    tasks = max(1, min(len(parts), parallelism(spark)))
    assigned = Assigned(
        splits=parts,
        tasks=tasks,
        slot_tasks=[],
        split_tasks=[n % tasks for n in range(len(parts))],
        together=False,
    )
    places = {(p.version.key, p.start): n for n, p in enumerate(parts)}

    def run(batches: Batches) -> Batches:
        for part in splits_of(batches).splits:
            try:
                found = scout(RemoteBytes(source.input.bucket, part.version), part)
            except S3NotifyError:
                # Whatever it is, the read will find it too, and tell.
                found = Scout(quotes=1, well_formed=(False, False))
            yield pa.record_batch(
                {
                    "number": pa.array([places[part.version.key, part.start]], pa.int64()),
                    "quotes": pa.array([found.quotes], pa.int64()),
                    "outside": pa.array([found.well_formed[0]]),
                    "inside": pa.array([found.well_formed[1]]),
                }
            )

    rows = splits_frame(spark, [], assigned).mapInArrow(run, _SCOUTED).toArrow().to_pylist()
    scouts = {
        row["number"]: Scout(quotes=row["quotes"], well_formed=(row["outside"], row["inside"]))
        for row in rows
    }
    result: list[Split] = []
    for _, group in groupby(range(len(parts)), key=lambda n: parts[n].version):
        numbers = list(group)
        starts = starts_in_quotes([scouts[n] for n in numbers])
        if starts is None:
            result.append(replace(parts[numbers[0]], end=parts[numbers[-1]].end))
        else:
            result += [replace(parts[n], in_quotes=inside) for n, inside in zip(numbers, starts, strict=True)]
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Who reads what. `together`: all splits of a slot are read by one task."""

    splits: Sequence[Split]
    tasks: int
    slot_tasks: Sequence[int]
    split_tasks: Sequence[int]
    together: bool


def assign_splits(
    slots: Sequence[Slot], splits: Sequence[Split], width: int, *, big: Callable[[Split], bool]
) -> Assigned:
    """Deal `splits` to tasks: slot by slot if that is about as balanced as one by one, and none is `big`. Pure."""
    sizes = [split.end - split.start for split in splits]
    tasks = max(1, min(len(slots), max(width, -(-sum(sizes) // TASK_BYTES))))
    costs = dict.fromkeys(slots, 0)
    for split, size in zip(splits, sizes, strict=True):
        costs[split.version.slot] += size + OBJECT_COST_BYTES
    slot_tasks = assign(list(costs.values()), tasks)
    loads = [0] * tasks
    for cost, task in zip(costs.values(), slot_tasks, strict=True):
        loads[task] += cost
    if max(loads) <= max(TASK_BYTES, SKEW * sum(loads) / tasks) and not any(map(big, splits)):
        task_of = dict(zip(slots, slot_tasks, strict=True))
        split_tasks = [task_of[split.version.slot] for split in splits]
        return Assigned(
            splits=splits, tasks=tasks, slot_tasks=slot_tasks, split_tasks=split_tasks, together=True
        )
    tasks = max(1, min(len(splits), max(width, -(-sum(sizes) // TASK_BYTES))))
    return Assigned(
        splits=splits,
        tasks=tasks,
        slot_tasks=[0] * len(slots),
        split_tasks=assign(sizes, tasks),
        together=False,
    )


def splits_frame(
    spark: SparkSession, slots: Sequence[Slot], assigned: Assigned, children: Sequence[str] = ()
) -> DataFrame:
    """The splits as a DataFrame, one Spark partition for each task; a row without a key for each slot.

    `children`: what each split is called in the job's chain (`TaskChain.cut`), if it is named there.
    """
    splits, none = assigned.splits, [None] * len(slots)
    named: Sequence[str | None] = children or [None] * len(splits)
    table = pa.table(
        {
            "task": pa.array([*assigned.slot_tasks, *assigned.split_tasks], pa.int32()),
            "slot": pa.array([*slots, *(s.version.slot for s in splits)], pa.int32()),
            "key": pa.array([*none, *(s.version.key for s in splits)], pa.string()),
            "etag": pa.array([*none, *(s.version.etag for s in splits)], pa.string()),
            "size": pa.array([*none, *(s.version.size for s in splits)], pa.int64()),
            "start": pa.array([*none, *(s.start for s in splits)], pa.int64()),
            "end": pa.array([*none, *(s.end for s in splits)], pa.int64()),
            "by_record": pa.array([*none, *(s.by_record for s in splits)], pa.bool_()),
            "in_quotes": pa.array([*none, *(s.in_quotes for s in splits)], pa.bool_()),
            "limit_bytes": pa.array([*none, *(s.limit_bytes for s in splits)], pa.int64()),
            "child": pa.array([*none, *named], pa.string()),
        }
    )
    return spark.createDataFrame(table).repartitionById(assigned.tasks, "task")


class Work(NamedTuple):
    """What a task was dealt. `children`: what its splits are called in the job's chain, if they are named there."""

    slots: list[Slot]
    splits: list[Split]
    children: list[str]


def splits_of(batches: Batches) -> Work:
    """The slots and splits that a task was dealt."""
    work = Work([], [], [])
    for batch in batches:
        for row in batch.to_pylist():
            slot = Slot(row["slot"])
            if row["key"] is None:
                work.slots.append(slot)
                continue
            version = ObjectVersion(slot=slot, key=row["key"], etag=row["etag"], size=row["size"])
            names = ("start", "end", "by_record", "in_quotes", "limit_bytes")
            work.splits.append(Split(version=version, **{name: row[name] for name in names}))
            if row["child"] is not None:
                work.children.append(row["child"])
    return work
