"""`s3notify`: the commands. Each imports what it needs when it runs, so that `--help` is quick."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from s3notify_platform.cli import (
    doctor,
    erase,
    explain,
    history,
    ingest,
    init,
    inlet,
    quarantine,
    reconcile,
    remove,
    schema,
    status,
    table,
    tag,
    topics,
    units,
    warm,
)
from s3notify_platform.cli.common import SourcePlace, key_with
from s3notify_platform.cli.configured import configured
from s3notify_platform.cli.ending import interrupt_on_signals, leave
from s3notify_platform.cli.printing import printable, say, say_traceback, shown
from s3notify_platform.cli.services import ServiceGroup
from s3notify_platform.kernel.errors import S3NotifyError, UsageError
from s3notify_platform.kernel.extras import remedy
from s3notify_platform.source.settings import DEFS_VARIABLE


class _Commands(ServiceGroup):
    """All commands. Errors of this package end them with their message, and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Group`."""
        try:
            return super().invoke(ctx)
        except S3NotifyError as error:
            raise click.ClickException(printable(error)) from error
        except ModuleNotFoundError as error:
            if (text := remedy(error)) is None:
                raise
            raise click.ClickException(text) from error
        except click.ClickException as error:
            vars(error)["message"] = printable(error.message)  # of the same class, which says how it is shown
            raise


@click.group(cls=_Commands, direction="outlet", context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Know what changed in a bucket, and turn exactly that into committed tables.

    \b
    Begin with:
      s3notify demo --once          all of it, on a local S3 server
      s3notify doctor SOURCE        can it run on this source's bucket?
      s3notify dev                  watch the sources of defs/*/defs.yaml
      s3notify status               where do the sources stand?
      s3notify explain KEY          what happened to an object?

    Commands find a source in the YAML of the folder `defs` (or --defs, or S3NOTIFY_DEFS), and need no other option that
    is called required; options on the command line override it. Without YAML, name the source and give its --bucket.
    Credentials are those that the YAML names, else come from the environment, a profile or an instance role.

    Exit code 0: done. 1: an error, whose message says what to do, or the answer is no. 2: the command line is wrong.
    """  # noqa: D301 - click's own mark


def run() -> None:
    """The commands as a program: `main`, which then ends the process."""
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    except OSError as error:  # the machine's: a full disk, a folder that may not be written
        say(f"Error: {error}", err=True)
        code = 1
    except BaseException as error:  # noqa: BLE001 - shown as Python would
        say_traceback(error)
        code = 1
    leave(code if isinstance(code, int) else int(code is not None))


@main.command(short_help="Run a demo on a local S3 server.")
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


@main.command(short_help="Watch your own buckets, in Dagster.")
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


@main.command(short_help="Signal objects that others wrote.")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@key_with("prefix")
def signal(keys: tuple[str, ...], *, place: SourcePlace) -> None:
    """Signal objects KEY…, written by a program that does not signal: 1 PUT for each touched slot, 1 for the root.

    Before that, a GET, and a HEAD if there is no table: keys outside of the source's prefix are refused, and so is a
    source that has neither a table nor signals, unless it is in the YAML.

    \b
    s3notify signal raw/orders/2.jsonl
    s3notify signal raw/orders/2.jsonl --bucket acme-landing --name orders
    """  # noqa: D301 - click's own mark
    from s3notify_platform.kernel.slots import slot_of

    location = place.location()
    identity = location.identity()
    if identity is None and not configured() and not location.is_begun():
        location.check_exists()
    wanted = identity.prefix if identity else place.settings["prefix"]
    if outside := [key for key in keys if not key.startswith(wanted)]:
        raise click.UsageError(f"{shown(outside[0])}: source {place.name!r} reads keys below {wanted!r}")
    publisher = location.slot_signals()
    publisher.signal(keys, queued=())
    slots = sorted({slot_of(key, location.slots) for key in keys})
    say(f"signalled {len({*keys})} objects: the root and slots {','.join(map(str, slots))} of {place.name!r}")


for _command in (
    doctor.doctor,
    init.init,
    topics.topics,
    inlet.inlet,
    reconcile.reconcile,
    quarantine.backfill,
    explain.explain,
    erase.erase,
    status.status,
    ingest.ingest,
    history.history,
    history.rows,
    table.vacuum,
    quarantine.quarantine,
    table.table,
    remove.remove,
    schema.schema,
    tag.tag,
    warm.warm,
    warm.archive,
    units.units,
):
    main.add_command(_command)
