"""The time of a run's tasks, by Python function. The tasks run in this process, under a profiler.

A profiler slows down calls of Python functions, but not the work of libraries. So the measured shares are only
approximate.
"""

import cProfile
import pstats
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Final

from s3notify_platform.engine.commit.staged import Base
from s3notify_platform.engine.read.reader import SplitReader
from s3notify_platform.engine.read.splits import cut, work_rows
from s3notify_platform.engine.stage.staging import staging_task
from s3notify_platform.engine.values.slot_plan import Plan
from s3notify_platform.engine.values.task_rows import WORK
from s3notify_platform.source.source import Source
from s3notify_platform.table.snapshot import Snapshot
from tests.benchmarks.lake import SCHEMA
from tests.support.local_jobs import LocalJobs

PARTS: Final = 8
"""The number of functions that the result names. All other functions are one share."""

SMALL_OBJECTS, BIG_PARTS = 4_000, 4
"""The part of a round that one task reads here."""


def shares(source: Source) -> tuple[str, str]:
    """The functions that take most time, with their shares of the time.

    The first text describes the plan of all objects. The second text describes one task that reads and stages some
    objects.
    """
    table = source.table()
    opened = source.open_table()
    snapshot = opened.snapshot or table.newest()
    assert isinstance(snapshot, Snapshot)
    base = Base(table=table, snapshot=snapshot)
    slots = source.location.all_slots()
    plan, planning = _profiled(lambda: LocalJobs(source=source).plan(slots, base))
    assert isinstance(plan, Plan)
    splits = [
        part for each in plan.slots.values() for split in each.changes.read for part in cut(split, source)
    ]
    splits = splits[: BIG_PARTS if len(splits) < SMALL_OBJECTS else SMALL_OBJECTS]
    assert splits, "the table is read already"
    reader = SplitReader(source=source, schema=SCHEMA, inferred=False)
    task = staging_task(source, reader, base.label)

    def stage(count: int) -> Any:
        return [*task(iter([WORK.batch(work_rows(splits[:count], [0] * count))]))]

    stage(1)  # warm-up for imports and connections
    _, staging = _profiled(lambda: stage(len(splits)))
    return planning, staging


def _profiled(work: Callable[[], Any]) -> tuple[Any, str]:
    profile = cProfile.Profile()
    found = profile.runcall(work)
    stats: Any = pstats.Stats(profile)
    own = sorted(((of[2], _name(*at)) for at, of in stats.stats.items()), reverse=True)
    total = sum(seconds for seconds, _ in own) or 1.0
    named = [f"{name} {seconds / total:.0%}" for seconds, name in own[:PARTS]]
    others = sum(seconds for seconds, _ in own[PARTS:]) / total
    return found, ", ".join([*named, f"{len(own) - PARTS} others {others:.0%}"])


def _name(file: str, line: int, function: str) -> str:
    if file == "~":
        return "waiting" if "lock" in function else function.strip("{}").removeprefix("built-in ")
    return f"`{PurePath(file).stem}.{function}`"
