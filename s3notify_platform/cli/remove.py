"""`s3notify remove NAME`: remove a source, with all that was made for it."""

import click

from s3notify_platform.cli.common import SourcePlace, source_options, yes_option
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.printing import print_table, say


@command(short_help="Remove a source, and what was made for it.")
@source_options
@yes_option
@click.option("--force", is_flag=True, help="Also while a batch is open.")
def remove(*, place: SourcePlace, yes: bool, force: bool) -> None:
    """Remove the source NAME: its tables, signals, topic and records. Its objects stay.

    What it would remove is shown first. Stop the source's sensor, runs, streams and writers before: while a batch is
    open, it is refused. Safe to repeat, and to kill: until it is done, runs refuse the table. Then remove its YAML.
    """
    from s3notify_platform.maintenance.removal import FOREIGN, held, open_batches
    from s3notify_platform.maintenance.removal import remove as remove_source

    location = place.location()
    if not (found := held(location)):
        say(f"nothing is there of source {place.name!r} in {location.platform.place}")
        return
    lines = [(one.what, one.count, "" if one.bytes is None else f"{one.bytes:,}") for one in found]
    print_table(("What", "Number", "Bytes"), lines, title=f"{location.platform.place}: {place.name}")
    if (batches := open_batches(location)) and not force:
        raise click.ClickException(
            f"batch {batches[0]} is open: wait until its runs have ended, or, if they are gone, use --force"
        )
    if not yes:
        click.confirm(f"Remove all of it, except what is {FOREIGN}?", abort=True)
    say(f"removed {remove_source(location)} objects of source {place.name!r}; its own objects are untouched")
