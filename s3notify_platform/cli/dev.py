"""`s3notify dev`: Dagster for the sources of a folder."""

from contextlib import suppress
from pathlib import Path

import click

from s3notify_platform.cli.ending import interrupt_on_signals
from s3notify_platform.cli.printing import say_wrapped
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.source.settings import DEFS_VARIABLE


@click.command(short_help="Run Dagster for the sources in your YAML.")
@click.option(
    "--defs",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    envvar=DEFS_VARIABLE,
    default=Path("defs"),
    show_default=True,
    help="Folder with SOURCE/defs.yaml for each source. Its name must be a valid Python name.",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    default=Path(".s3notify/home"),
    show_default=True,
    help="Folder for Dagster's state and log, the DAGSTER_HOME.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    metavar="PORT",
    default=3000,
    show_default=True,
    help="Port of the Dagster UI on 127.0.0.1.",
)
def dev(defs: Path, home: Path, port: int) -> None:
    """Run Dagster's UI, daemon and sensors for the sources of a folder.

    Errors of a defs.yaml are printed here, and shown in the UI under Deployment: correct the file, and reload there.
    Credentials come from the place that the YAML names, else from the environment, a profile or an instance role.
    """
    from s3notify_platform.local.dagster_dev import DagsterDev, check_installed, definitions_problem

    check_installed()  # without this check, the imports below would raise a less clear error
    from s3notify_platform.local.java import java_environment
    from s3notify_platform.local.project import FIRST_SOURCE, sources_of

    environment = {DEFS_VARIABLE: str(defs.resolve()), **java_environment()}
    try:
        if not sources_of(str(defs)):  # the folder may have components of other types
            say_wrapped(f"{defs}: {FIRST_SOURCE}", err=True)
    except UsageError as error:  # the UI shows the error too, and reloads a corrected file
        say_wrapped(f"Error: {error}", err=True)
    with (
        suppress(KeyboardInterrupt),
        interrupt_on_signals(),
        DagsterDev(home, port=port, environment=environment) as dagster,
    ):
        if problem := definitions_problem(dagster.environment()):
            say_wrapped(f"Error: {problem}", err=True)
        dagster.wait_ready()
        say_wrapped(f"Dagster UI at {dagster.url}, log in {dagster.log}; Ctrl-C ends it")
        dagster.wait()
