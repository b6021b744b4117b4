"""`s3notify warm`: the supervisor of warm workers."""

import os
import sys
import threading
from pathlib import Path

import click

from s3notify_platform.cli.ending import stop_on_signals
from s3notify_platform.cli.printing import say_wrapped


@click.command(short_help="Keep workers ready for Dagster's runs.")
@click.option(
    "--home",
    envvar="DAGSTER_HOME",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Dagster's home; default: DAGSTER_HOME.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    default=4,
    show_default=True,
    help="Largest number of workers, each with its own Spark.",
)
@click.option(
    "--runs",
    type=click.IntRange(1),
    metavar="N",
    default=200,
    show_default=True,
    help="Replace a worker after this many runs.",
)
@click.option(
    "--megabytes",
    type=click.IntRange(1),
    metavar="N",
    default=2048,
    show_default=True,
    help="Replace a worker that uses more memory than this, not counting Java's memory.",
)
@click.option("--until-input-ends", is_flag=True, hidden=True)
def warm(home: Path, *, workers: int, runs: int, megabytes: int, until_input_ends: bool) -> None:
    """Keep workers ready for Dagster's runs, so that no run waits for the start of Python and Spark.

    Start this command where the code server runs, in the same environment, and restart it when the environment changes.
    Set DAGSTER_EVENT_BATCH_SIZE=1000 for runs. Add to dagster.yaml:

    \b
    run_launcher:
      module: s3notify_platform.orchestration.warm
      class: WarmRunLauncher
    run_coordinator:
      module: s3notify_platform.orchestration.warm
      class: PromptRunCoordinator
    sensors: {use_threads: true, num_workers: 8}

    `s3notify dev` and `s3notify units` write a complete dagster.yaml. The coordinator is Dagster's queue, with the same
    settings; if no run waits, a warm run starts without the queue. Threads let sensors tick in parallel. If this
    command does not run, or if all workers are busy, a run starts its own process.
    """  # noqa: D301 - click's own mark
    from dagster import DagsterInstance

    from s3notify_platform.orchestration.warm.supervisor import Limits, Supervisor

    if not (home := home.expanduser()).is_dir():
        raise click.BadParameter(f"{str(home)!r} does not exist: name Dagster's home", param_hint="--home")
    limits = Limits(workers=workers, runs=runs, bytes=megabytes << 20)
    os.environ["DAGSTER_HOME"] = str(home.resolve())
    with stop_on_signals("warm") as stop, DagsterInstance.get() as instance:
        if until_input_ends:
            threading.Thread(target=_stop_at_end_of_input, args=[stop], daemon=True).start()
        Supervisor(instance, limits=limits, say=lambda text: say_wrapped(f"warm: {text}", err=True)).run(stop)


def _stop_at_end_of_input(stop: threading.Event) -> None:
    sys.stdin.buffer.read()
    stop.set()
