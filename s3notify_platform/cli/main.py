"""`s3notify`: one file for each command, one for each group of commands, and `services`, which makes the commands of
services from the registry.

Each command imports its modules when it runs, so that `--help` is fast.
"""

from collections.abc import Mapping
from typing import Any, Final

import click

from s3notify_platform.cli import (
    backfill,
    changes,
    demo,
    dev,
    doctor,
    erase,
    explain,
    guide,
    history,
    ingest,
    init,
    inlet,
    pause,
    quarantine,
    reconcile,
    remove,
    resume,
    rows,
    schema,
    signal,
    status,
    table,
    tag,
    topics,
    units,
    vacuum,
    warm,
)
from s3notify_platform.cli.ending import leave
from s3notify_platform.cli.help_pages import write_commands
from s3notify_platform.cli.printing import say_traceback, say_wrapped, wrapped
from s3notify_platform.cli.services import ServiceGroup
from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.kernel.extras import remedy

SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Start": ("demo", "guide", "doctor", "init"),
    "Run": ("dev", "ingest", "inlet", "signal", "pause", "resume", "warm", "units"),
    "Look": ("status", "explain", "rows", "changes", "history"),
    "Repair": ("quarantine", "backfill", "reconcile"),
    "Change a table": ("table", "schema", "tag"),
    "Delete": ("vacuum", "erase", "remove"),
    "Pass changes on to others": ("topics", "deliver", "serve-notifications"),
}
"""The commands by the headings of the help page. A command without a heading is shown under `Other`."""


class _Commands(ServiceGroup):
    """All commands. An error of this package ends a command with its message and exit code 1."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Group`."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        write_commands(formatter, SECTIONS, {name: command for name, command in found.items() if command})

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Group`."""
        try:
            return super().invoke(ctx)
        except S3NotifyError as error:
            raise _readable(click.ClickException(str(error))) from error
        except ModuleNotFoundError as error:
            if (text := remedy(error)) is None:
                raise
            raise _readable(click.ClickException(text)) from error
        except click.ClickException as error:
            raise _readable(error) from error.__cause__


def _readable(error: click.ClickException) -> click.ClickException:
    """The error with a wrapped message. The error keeps its class, which decides how click shows the error."""
    text = wrapped(error.format_message(), err=True, before="Error: ")
    vars(error)["format_message"] = lambda: text
    return error


@click.group(cls=_Commands, direction="outlet", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="s3notify-platform", message="%(version)s")
def main() -> None:
    """Keep tables up to date with the objects of S3 buckets.

    \b
    First steps:
      s3notify demo --once          run the whole pipeline on a local S3 server
      s3notify doctor SOURCE        check the bucket and the permissions
      s3notify dev                  run Dagster for the sources in your YAML
      s3notify status               show the state of all sources
      s3notify explain KEY          explain what happened to one object
      s3notify guide                list the topics of the guide

    A source is defined in defs/SOURCE/defs.yaml; --defs or the variable S3NOTIFY_DEFS names another folder than defs. A
    command takes its options from the source's defs.yaml. Options on the command line override the YAML. Without YAML,
    give the name of the source and --bucket. Credentials come from the place that the YAML names, else from the
    environment, a profile or an instance role.

    Completion for bash: eval "$(_S3NOTIFY_COMPLETE=bash_source s3notify)". For zsh and fish, write zsh_source or
    fish_source.

    Exit code 0: done. Exit code 1: an error, or the answer is no; the message names the remedy. Exit code 2: the
    command line is wrong.
    """  # noqa: D301 - click's own mark


def run() -> None:
    """Run `main`, and end the process."""
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    except OSError as error:  # an error of this machine: a full disk, or a folder that is not writable
        say_wrapped(f"Error: {error}", err=True)
        code = 1
    except BaseException as error:  # noqa: BLE001 - shown as Python would show it
        say_traceback(error)
        code = 1
    leave(code if isinstance(code, int) else int(code is not None))


for _command in (
    demo.demo,
    dev.dev,
    signal.signal,
    doctor.doctor,
    init.init,
    topics.topics,
    inlet.inlet,
    reconcile.reconcile,
    backfill.backfill,
    explain.explain,
    erase.erase,
    status.status,
    pause.pause,
    resume.resume,
    ingest.ingest,
    guide.guide,
    history.history,
    rows.rows,
    changes.changes,
    vacuum.vacuum,
    quarantine.quarantine,
    table.table,
    remove.remove,
    schema.schema,
    tag.tag,
    warm.warm,
    units.units,
):
    main.add_command(_command)
