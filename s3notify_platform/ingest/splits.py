"""Splits of a batch: how big objects are cut into parts, and which task reads what.

An object of up to `Source.split_bytes` is read whole, with all others of its slot that one task can take. A larger one
is read in parts by many tasks, if its format and encoding let it begin in the middle.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Final, NamedTuple, assert_never

from s3notify_platform.errors import S3NotifyError
from s3notify_platform.formats.csv import Csv
from s3notify_platform.formats.csv_splits import Scout, scout, starts_in_quotes
from s3notify_platform.formats.registry import format_for
from s3notify_platform.ingest.remote_bytes import RemoteBytes
from s3notify_platform.ingest.row_schema import Batches, Task, numbers_of
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.wire import SCOUTED, WORK, Scouted, SlotOfTask, SplitOfTask, Work
from s3notify_platform.protocols.source_enumerator import OBJECT_COST_BYTES, Split, assign, parts_of
from s3notify_platform.slots import Slot

TASK_BYTES: Final = 64 << 20
SKEW: Final = 1.5
"""How much more than the mean a task may have to read, for each slot to be read in one task."""


def is_big(split: Split, source: Source) -> bool:
    """Whether a split is read piece by piece, not as a whole object. Pure."""
    size = split.version.size
    return split.start > 0 or split.end != size or size > source.input.split_bytes


def may_be_cut(split: Split, source: Source) -> bool:
    """Whether an object can be read from the middle, going by its name and the source's settings. Pure.

    One that is a reject as a whole cannot: it is one reject.
    """
    key, form = split.version.key, format_for(split.version.key, source.input)
    cuttable = form is not None and not split.by_record and form.may_be_cut(key, source.input.encoding)
    return cuttable and not source.input.misfit(key)


def may_be_quoted(split: Split, source: Source) -> bool:
    """Whether a split may begin in a quoted value, which only what stands before it tells. Pure."""
    form = format_for(split.version.key, source.input)
    return form is not None and form.quoted


def cut(split: Split, source: Source, *, quoted: bool = True) -> list[Split]:
    """The parts of a big object that tasks may read at once; any other split as it is. Pure.

    `quoted`: also if they may begin in a quoted value (`may_be_quoted`).
    """
    cuttable = is_big(split, source) and may_be_cut(split, source)
    cuttable = cuttable and (quoted or not may_be_quoted(split, source))
    return parts_of(split, source.input.split_bytes) if cuttable else [split]


def cut_all(splits: Sequence[Split], source: Source) -> tuple[list[Split], list[Split]]:
    """The splits, big ones in parts (`cut`); and apart, the parts of which a quoted value may be open at the start."""
    result: list[Split] = []
    quoted: list[Split] = []
    for split in splits:
        parts = cut(split, source)
        (quoted if len(parts) > 1 and may_be_quoted(split, source) else result).extend(parts)
    return result, quoted


def scouter(source: Source, parts: Sequence[Split], tasks: int) -> Callable[[Batches], Batches]:
    """The function of one of `tasks` tasks, that looks at its share of the parts: 1 GET for each chunk of each."""

    def run(batches: Batches) -> Batches:
        for number in chain.from_iterable(range(task, len(parts), tasks) for task in numbers_of(batches)):
            part = parts[number]
            try:
                form = format_for(part.version.key, source.input)
                assert isinstance(form, Csv), "the only format with quoted values"
                found = scout(RemoteBytes(source.input.bucket, part.version), part, dialect=form.dialect)
            except S3NotifyError:
                # Whatever it is, the read will find it too, and say so.
                found = Scout(quotes=1, well_formed=(False, False))
            yield SCOUTED.batch([Scouted(number=number, scout=found)])

    return run


def begun(parts: Sequence[Split], rows: Iterable[Scouted]) -> list[Split]:
    """The parts, which now know how they begin; those of an object that has quotes out of place are one. Pure."""
    scouts = {row.number: row.scout for row in rows}
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


def assign_splits(slots: Sequence[Slot], splits: Sequence[Split], width: int, source: Source) -> Assigned:
    """Assign `splits` to tasks: slot by slot if that is about as balanced as one by one, and none is big. Pure."""
    sizes = [split.end - split.start for split in splits]
    tasks = max(1, min(len(slots), max(width, -(-sum(sizes) // TASK_BYTES))))
    costs = dict.fromkeys(slots, 0)
    for split, size in zip(splits, sizes, strict=True):
        costs[split.version.slot] += size + OBJECT_COST_BYTES
    slot_tasks = assign(list(costs.values()), tasks)
    loads = [0] * tasks
    for cost, task in zip(costs.values(), slot_tasks, strict=True):
        loads[task] += cost
    balanced = max(loads) <= max(TASK_BYTES, SKEW * sum(loads) / tasks)
    if together := balanced and not any(is_big(split, source) for split in splits):
        task_of = dict(zip(slots, slot_tasks, strict=True))
        split_tasks = [task_of[split.version.slot] for split in splits]
    else:
        tasks = max(1, min(len(splits), max(width, -(-sum(sizes) // TASK_BYTES))))
        slot_tasks, split_tasks = [0] * len(slots), assign(sizes, tasks)
    return Assigned(
        splits=splits, tasks=tasks, slot_tasks=slot_tasks, split_tasks=split_tasks, together=together
    )


def work_rows(slots: Sequence[Slot], assigned: Assigned, children: Sequence[str] = ()) -> list[Work]:
    """What each task is to do. Pure.

    `children`: what each split is called in the job's chain (`TaskChain.cut`), if it is named there.
    """
    rows: list[Work] = [
        SlotOfTask(task=Task(task), slot=slot) for task, slot in zip(assigned.slot_tasks, slots, strict=True)
    ]
    names: Sequence[str | None] = children or [None] * len(assigned.splits)
    rows += [
        SplitOfTask(task=Task(task), split=split, child=child)
        for task, split, child in zip(assigned.split_tasks, assigned.splits, names, strict=True)
    ]
    return rows


class TaskWork(NamedTuple):
    """What a task has to do. `children`: what its splits are called in the job's chain, if they are named there."""

    slots: list[Slot]
    splits: list[Split]
    children: list[str]


def work_of(batches: Batches) -> TaskWork:
    """What the rows that reach a task say it has to do."""
    work = TaskWork([], [], [])
    for row in WORK.read(batches):
        match row:
            case SlotOfTask():
                work.slots.append(row.slot)
            case SplitOfTask():
                work.splits.append(row.split)
                if row.child is not None:
                    work.children.append(row.child)
            case _ as unreachable:
                assert_never(unreachable)
    return work
