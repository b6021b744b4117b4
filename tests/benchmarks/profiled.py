"""The time of a run's tasks, by Python function. The tasks run in this process, under a profiler.

A profiler slows down calls of Python functions, but not the work of libraries. So the measured shares are only
approximate.
"""

import cProfile
import pstats
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Final

from s3notify_platform.engine.commit.staged import Base
from s3notify_platform.engine.read.reader import SplitReader
from s3notify_platform.engine.read.splits import assign_splits, cut, work_rows
from s3notify_platform.engine.stage.staging import staging_task
from s3notify_platform.engine.values.slot_plan import Plan
from s3notify_platform.engine.values.task_rows import WORK
from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.source.source import Source
from s3notify_platform.table.snapshot import Snapshot
from tests.benchmarks.lake import SCHEMA
from tests.benchmarks.slow_proxy import ROUND_TRIP_MS
from tests.contracts.fault_proxy import FaultProxy, in_sequence
from tests.support.local_jobs import LocalJobs
from tests.support.sources import with_settings

PARTS: Final = 8
"""The number of functions that the result names. The result adds up the shares of all other functions."""

SMALL_OBJECTS, BIG_PARTS = 4_000, 4
"""The profiled task reads this number of small objects, or this number of parts of big objects."""


def shares(source: Source) -> tuple[str, str]:
    """The functions that take most time, with their shares of the time.

    The first text describes the plan of all objects. The second text describes one task that reads and stages some
    objects.
    """
    base, plan, planning = _planned(source)
    splits = _splits(source, plan)
    splits = splits[: BIG_PARTS if len(splits) < SMALL_OBJECTS else SMALL_OBJECTS]
    stage = _task(source, base, splits)
    stage(1)  # warm-up for imports and connections
    _, staging = _profiled(lambda: stage(len(splits)))
    return planning, staging


def round_trips(source: Source, cores: int) -> str:
    """The requests of the first task that reads and stages objects in a session with this number of cores.

    A proxy counts the requests, and adds a round trip to each.
    """
    with FaultProxy(str(source.input.bucket.endpoint_url)) as proxy:
        bucket = replace(source.input.bucket, endpoint_url=proxy.url)
        source = with_settings(source, bucket=bucket, platform=bucket)
        base, plan, _ = _planned(source)
        ordered, tasks = assign_splits(_splits(source, plan), cores)
        splits = ordered[: tasks.count(0)]
        stage = _task(source, base, splits)
        stage(1)
        proxy.answered.clear()
        proxy.before = lambda *_: time.sleep(ROUND_TRIP_MS / 1000)
        stage(len(splits))
        spent = f"{len(proxy.answered):,} requests, {in_sequence(proxy.answered)} in sequence"
        return f"the first of {max(tasks) + 1} tasks, {len(splits):,} objects: {spent}"


def _planned(source: Source) -> tuple[Base, Plan, str]:
    table = source.table()
    opened = source.open_table()
    snapshot = opened.snapshot or table.newest()
    assert isinstance(snapshot, Snapshot)
    base = Base(table=table, snapshot=snapshot)
    slots = source.location.all_slots()
    plan, planning = _profiled(lambda: LocalJobs(source=source).plan(slots, base))
    assert isinstance(plan, Plan)
    return base, plan, planning


def _splits(source: Source, plan: Plan) -> list[Split]:
    found = [
        part for each in plan.slots.values() for split in each.changes.read for part in cut(split, source)
    ]
    assert found, "the table is read already"
    return found


def _task(source: Source, base: Base, splits: Sequence[Split]) -> Callable[[int], Any]:
    """Returns a function that reads and stages the first `count` of these splits, as a task does."""
    reader = SplitReader(source=source, schema=SCHEMA, inferred=False)
    task = staging_task(source, reader, base.label)

    def stage(count: int) -> Any:
        return [*task(iter([WORK.batch(work_rows(splits[:count], [0] * count))]))]

    return stage


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
