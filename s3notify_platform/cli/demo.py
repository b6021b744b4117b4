"""`s3notify demo`: the whole pipeline on a local S3 server."""

import sys
from pathlib import Path
from typing import Final

import click

from s3notify_platform.cli.ending import interrupt_on_signals
from s3notify_platform.cli.printing import say_wrapped

INTERRUPTED: Final = 130
"""The exit code that shells use for a command that Ctrl-C has ended."""


@click.command(short_help="Run the whole pipeline on a local S3 server.")
@click.option(
    "--once", is_flag=True, help="End when everything is committed; exit code 0 only if the table is exact."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    default=Path(".s3notify/demo"),
    show_default=True,
    help="Folder for all data of the demo; delete it to start over.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    metavar="PORT",
    help="Port of the Dagster UI; default: a free port.",
)
@click.option(
    "--objects",
    type=click.IntRange(20, 20_000),
    metavar="N",
    default=120,
    show_default=True,
    help="Number of objects that the demo writes.",
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    default=1,
    show_default=True,
    help="Seed of the random data; the same seed gives the same table.",
)
def demo(*, once: bool, folder: Path, port: int | None, objects: int, seed: int) -> None:
    """Run the whole pipeline on a local S3 server: publish objects, detect changes, commit rows.

    All data stays in one folder; after a kill, the demo continues with this data. Ctrl-C ends the demo cleanly, and
    prints how much is not committed yet. The exit code is then 0, or 130 with --once.
    """
    from s3notify_platform.local.demo_run import Demo

    try:
        with interrupt_on_signals():
            well = Demo(folder, objects=objects, port=port, seed=seed).run(once=once)
    except KeyboardInterrupt:  # with --once, or during the start or the final check
        say_wrapped("stopped; the same command goes on from here")
        sys.exit(INTERRUPTED if once else 0)
    sys.exit(0 if well else 1)
