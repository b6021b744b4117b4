"""`s3notify warm`: the supervisor of warm runs."""

import os
import sys
import threading
from pathlib import Path

import click

from s3notify_platform.cli.ending import stop_on_signals
from s3notify_platform.cli.printing import say


@click.command(short_help="Keep workers ready for Dagster's runs.")
@click.option(
    "--home",
    envvar="DAGSTER_HOME",
    required=True,
    type=click.Path(path_type=Path),
    help="Dagster's home.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Workers at most, each with a Spark of its own.",
)
@click.option(
    "--runs",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="Runs after which a worker is replaced.",
)
@click.option(
    "--megabytes",
    type=click.IntRange(1),
    default=2048,
    show_default=True,
    help="Memory beyond which a worker is replaced, without Java's.",
)
@click.option("--until-input-ends", is_flag=True, hidden=True)
def warm(home: Path, *, workers: int, runs: int, megabytes: int, until_input_ends: bool) -> None:
    """Keep workers ready for the runs of slot assets, so that none waits for Python and Spark to start.

    Start it where the code server runs, with the same environment, and again when that changes. For runs, set
    DAGSTER_EVENT_BATCH_SIZE=1000. In dagster.yaml (`s3notify dev` and `s3notify units` write more, see theirs):

    \b
    run_launcher: {module: s3notify_platform.orchestration.warm, class: WarmRunLauncher}
    run_coordinator: {module: s3notify_platform.orchestration.warm, class: PromptRunCoordinator}
    sensors: {use_threads: true, num_workers: 8}

    The coordinator is Dagster's queue, with its settings, which a warm run passes by if nothing waits. Threads let
    ticks watch side by side. Without this command, and while all workers are busy, each run has a process of its own.
    """  # noqa: D301 - click's own mark
    from dagster import DagsterInstance

    from s3notify_platform.orchestration.warm.supervisor import Limits, Supervisor

    if not (home := home.expanduser()).is_dir():
        raise click.BadParameter(f"{str(home)!r} does not exist", param_hint="--home")
    limits = Limits(workers=workers, runs=runs, bytes=megabytes << 20)
    os.environ["DAGSTER_HOME"] = str(home.resolve())
    with stop_on_signals("warm") as stop, DagsterInstance.get() as instance:
        if until_input_ends:
            threading.Thread(target=_stop_at_end_of_input, args=[stop], daemon=True).start()
        Supervisor(instance, limits=limits, say=lambda text: say(f"warm: {text}", err=True)).run(stop)


def _stop_at_end_of_input(stop: threading.Event) -> None:
    sys.stdin.buffer.read()
    stop.set()
