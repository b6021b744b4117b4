"""Splits of a batch: cuts big objects into parts, and assigns splits to tasks.

An object of up to `Source.split_bytes` is read as a whole. A larger object is read in parts by many tasks, if its
format and encoding let a task begin in the middle. A CSV object whose values may be quoted is read by one task. The
reason: a line end inside a quoted value ends no record. Only a task that has read all text before a line end knows
whether the line end is quoted.
"""

from collections.abc import Sequence
from typing import Final

from s3notify_platform.engine.values.row_schema import Batches, Task
from s3notify_platform.engine.values.task_rows import WORK, SplitOfTask
from s3notify_platform.formats.registry import format_for
from s3notify_platform.protocols.source_enumerator import OBJECT_COST_BYTES, Split, parts_of
from s3notify_platform.source.source import Source

TASK_BYTES: Final = 64 << 20

SMALL_TASK_BYTES: Final = 8 << 20
"""Minimum number of bytes for one more task. A task with fewer bytes costs more time than it saves, and writes one more
pack."""


def is_big(split: Split, source: Source) -> bool:
    """True if a split is read piece by piece, not as a whole object. Pure."""
    size = split.version.size
    return split.start > 0 or split.end != size or size > source.input.split_bytes


def may_be_cut(split: Split, source: Source) -> bool:
    """True if a read can start at a later record of the object, according to key and settings. Pure.

    An object that is rejected as a whole is one reject, and so cannot be cut.
    """
    key, form = split.version.key, format_for(split.version.key, source.input)
    cuttable = form is not None and not split.by_record and form.may_be_cut(key, source.input.encoding)
    return cuttable and not source.input.refusal(key)


def cut(split: Split, source: Source) -> list[Split]:
    """Cuts a big object into parts that tasks may read in parallel. Returns any other split unchanged. Pure."""
    form = format_for(split.version.key, source.input)
    quoted = form is not None and form.quoted
    cuttable = is_big(split, source) and may_be_cut(split, source) and not quoted
    return parts_of(split, source.input.split_bytes) if cuttable else [split]


def assign_splits(splits: Sequence[Split], width: int) -> tuple[list[Split], list[int]]:
    """Returns the splits in order of slots and keys, and the number of the task that reads each split. Pure.

    Each task gets a range of slots, and all tasks get about the same number of bytes. So the packs of a task cover few
    slots, and later rounds rewrite few packs. There are up to `width` tasks of at least `SMALL_TASK_BYTES`. More tasks
    are made if a task would otherwise have more than about `TASK_BYTES`.
    """
    ordered = sorted(splits, key=lambda split: (split.version.slot, split.version.key, split.start))
    costs = [split.stored_bytes + OBJECT_COST_BYTES for split in ordered]
    total = sum(costs)
    tasks = max(-(-total // TASK_BYTES), min(width, -(-total // SMALL_TASK_BYTES)))
    tasks = max(1, min(tasks, len(ordered)))
    done, found = 0, []
    for cost in costs:
        found.append(min(tasks - 1, (done + cost // 2) * tasks // max(total, 1)))
        done += cost
    return ordered, found


def work_rows(splits: Sequence[Split], tasks: Sequence[int]) -> list[SplitOfTask]:
    """Returns the rows that assign the splits to tasks. Pure."""
    return [SplitOfTask(task=Task(task), split=split) for split, task in zip(splits, tasks, strict=True)]


def work_of(batches: Batches) -> list[Split]:
    """Returns the splits in the rows that a task receives."""
    return [row.split for row in WORK.read(batches)]
