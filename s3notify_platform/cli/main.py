"""`s3notify`: the commands, one file each. Each imports what it needs when it runs, so that `--help` is quick."""

from typing import Any

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
from s3notify_platform.cli.printing import printable, say, say_traceback
from s3notify_platform.cli.services import ServiceGroup
from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.kernel.extras import remedy


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
@click.version_option(package_name="s3notify-platform", message="%(version)s")
def main() -> None:
    """Know what changed in a bucket, and turn exactly that into committed tables.

    \b
    Begin with:
      s3notify demo --once          all of it, on a local S3 server
      s3notify doctor SOURCE        can it run on this source's bucket?
      s3notify dev                  watch the sources of defs/*/defs.yaml
      s3notify status               where do the sources stand?
      s3notify explain KEY          what happened to an object?
      s3notify guide                all topics of the guide

    Commands find a source in the YAML of the folder `defs` (or --defs, or S3NOTIFY_DEFS), and need no other option that
    is called required; options on the command line override it. Without YAML, name the source and give its --bucket.
    Credentials are those that the YAML names, else come from the environment, a profile or an instance role.

    Completion: eval "$(_S3NOTIFY_COMPLETE=bash_source s3notify)", in zsh zsh_source, in fish fish_source.

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
    pause.resume,
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
