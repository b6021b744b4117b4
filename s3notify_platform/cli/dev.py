"""`s3notify dev`: Dagster for the sources of a folder."""

from contextlib import suppress
from pathlib import Path

import click

from s3notify_platform.cli.ending import interrupt_on_signals
from s3notify_platform.cli.printing import say
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.source.settings import DEFS_VARIABLE


@click.command(short_help="Watch your own buckets, in Dagster.")
@click.option(
    "--defs",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar=DEFS_VARIABLE,
    default=Path("defs"),
    show_default=True,
    help="Folder with FOLDER/SOURCE/defs.yaml for each source; named like a Python module.",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    default=Path(".s3notify/home"),
    show_default=True,
    help="Dagster's own state and log, its DAGSTER_HOME.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    default=3000,
    show_default=True,
    help="Port of the Dagster UI, on loopback.",
)
def dev(defs: Path, home: Path, port: int) -> None:
    """Watch your own buckets: Dagster's UI, daemon and sensors for the sources of a folder.

    A defs.yaml that cannot be loaded is said here, and shown in the UI, under Deployment: correct it, and reload there.
    Credentials come from the environment, a profile or an instance role.
    """
    from s3notify_platform.local.dagster_dev import DagsterDev, check_installed, definitions_problem

    check_installed()  # before modules of other extras are missed
    from s3notify_platform.local.java import java_environment
    from s3notify_platform.local.project import FIRST_SOURCE, sources_of

    environment = {DEFS_VARIABLE: str(defs.resolve()), **java_environment()}
    try:
        if not sources_of(str(defs)):  # what Dagster alone loads, a component of another type, may be there
            say(f"{defs}: {FIRST_SOURCE}", err=True)
    except UsageError as error:  # the UI shows it too, and reloads the file when it is correct
        say(f"Error: {error}", err=True)
    with (
        suppress(KeyboardInterrupt),
        interrupt_on_signals(),
        DagsterDev(home, port=port, environment=environment) as dagster,
    ):
        if problem := definitions_problem(dagster.environment()):
            say(f"Error: {problem}", err=True)
        dagster.wait_ready()
        say(f"Dagster UI at {dagster.url}, log in {dagster.log}; Ctrl-C ends it")
        dagster.wait()
