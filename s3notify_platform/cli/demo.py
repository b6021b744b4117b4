"""`s3notify demo`: a whole pipeline on a local S3 server."""

import sys
from pathlib import Path

import click

from s3notify_platform.cli.ending import interrupt_on_signals
from s3notify_platform.cli.printing import say


@click.command(short_help="Run a demo on a local S3 server.")
@click.option(
    "--once", is_flag=True, help="End when everything is committed; exit 0 only if the table is exact."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(".s3notify/demo"),
    show_default=True,
    help="Folder of all its data; delete it to start over.",
)
@click.option(
    "--port", type=click.IntRange(1, 65_535), help="Port of the Dagster UI; a free one if not given."
)
@click.option(
    "--objects",
    type=click.IntRange(20, 20_000),
    default=120,
    show_default=True,
    help="Objects that it writes.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed ends in the same table.")
def demo(*, once: bool, folder: Path, port: int | None, objects: int, seed: int) -> None:
    """Run a whole pipeline on the embedded S3 server: publish objects, detect changes, commit them.

    All data stays in the folder, and a demo that was killed continues from there. Ctrl-C ends it cleanly, with exit
    code 0: it says what is not committed yet.
    """
    from s3notify_platform.local.demo import Demo

    try:
        with interrupt_on_signals():
            well = Demo(folder, objects=objects, port=port, seed=seed).run(once=once)
    except KeyboardInterrupt:  # while it started, or checked
        say("stopped; the same command goes on from here")
        well = not once
    sys.exit(0 if well else 1)
