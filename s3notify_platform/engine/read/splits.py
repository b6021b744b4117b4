"""Splits of a batch: how big objects are cut into parts, and which task reads what.

An object of up to `Source.split_bytes` is read whole. A larger one is read in parts by many tasks, if its format and
encoding let it begin in the middle.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain, groupby
from typing import Final

from s3notify_platform.engine.read.remote_bytes import RemoteBytes
from s3notify_platform.engine.values.row_schema import Batches, Task, numbers_of
from s3notify_platform.engine.values.rows import SCOUTED, WORK, Scouted, SplitOfTask
from s3notify_platform.formats.csv.csv_format import Csv
from s3notify_platform.formats.csv.csv_splits import Scout, scout, starts_in_quotes
from s3notify_platform.formats.registry import format_for
from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.protocols.source_enumerator import OBJECT_COST_BYTES, Split, parts_of
from s3notify_platform.source.source import Source

TASK_BYTES: Final = 64 << 20

SMALL_TASK_BYTES: Final = 8 << 20
"""A task that reads less costs more than it gains, and each writes a pack of its own."""


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
    return cuttable and not source.input.mismatch(key)


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


def assign_splits(splits: Sequence[Split], width: int) -> tuple[list[Split], list[int]]:
    """The splits in order of slots and keys, and the task that reads each of them. Pure.

    Each task has a range of slots, of about as many bytes as the others. So its packs cover few slots, and later
    rounds rewrite few of them. There are up to `width` tasks of at least `SMALL_TASK_BYTES`; more where they would have
    more than `TASK_BYTES`.
    """
    ordered = sorted(splits, key=lambda split: (split.version.slot, split.version.key, split.start))
    costs = [split.end - split.start + OBJECT_COST_BYTES for split in ordered]
    total = sum(costs)
    tasks = max(-(-total // TASK_BYTES), min(width, -(-total // SMALL_TASK_BYTES)))
    tasks = max(1, min(tasks, len(ordered)))
    done, found = 0, []
    for cost in costs:
        found.append(min(tasks - 1, (done + cost // 2) * tasks // max(total, 1)))
        done += cost
    return ordered, found


def work_rows(splits: Sequence[Split], tasks: Sequence[int]) -> list[SplitOfTask]:
    """The rows by which tasks learn their splits. Pure."""
    return [SplitOfTask(task=Task(task), split=split) for split, task in zip(splits, tasks, strict=True)]


def work_of(batches: Batches) -> list[Split]:
    """The splits of the rows that reach a task."""
    return [row.split for row in WORK.read(batches)]
