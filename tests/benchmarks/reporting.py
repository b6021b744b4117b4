"""(22) The time to store a run's materializations in a development home.

The run materializes 1,000 slots, as after a first load. The alternative is Dagster's own SQLite storage, with batches
of the same size (`DAGSTER_EVENT_BATCH_SIZE`).
"""

import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import dagster as dg

from s3notify_platform.kernel.slots import SLOT_COUNT
from s3notify_platform.local.dagster_dev import storage
from s3notify_platform.orchestration.dagster_internals import DATA_VERSION_TAG, log_events
from tests.benchmarks.figures import Figure, Seconds, seconds, short, times

BATCH = 1000


def run(folder: Path, *, small: bool) -> list[Figure]:
    slots = 20 if small else SLOT_COUNT
    ours = _took(folder / "ours", storage, slots)
    instead = _took(folder / "dagster", lambda _: "", slots)
    return [
        Figure(
            what=f"{slots:,} materializations of one run, in a development home",
            ours=short(ours),
            instead=f"Dagster's SQLite storage: {short(instead)}",
            ratio=times(instead, ours),
        )
    ]


def _took(home: Path, settings: Callable[[Path], str], slots: int) -> Seconds:
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text(settings(home))
    taken: list[Seconds] = []

    @dg.op(out=dg.Out(is_required=False))
    def report(context: dg.OpExecutionContext) -> None:
        events = [
            dg.AssetMaterialization("orders", partition=str(slot), tags={DATA_VERSION_TAG: "1"})
            for slot in range(slots)
        ]
        with seconds() as took:
            log_events(context, events)
        taken.append(took())

    @dg.job
    def reporting() -> None:
        report()

    with (
        patch.dict(os.environ, {"DAGSTER_EVENT_BATCH_SIZE": str(BATCH)}),
        dg.DagsterInstance.from_config(str(home)) as instance,
    ):
        assert reporting.execute_in_process(instance=instance).success
    return taken[0]
