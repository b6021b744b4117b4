"""`s3notify remove NAME`: remove a source, with all that was made for it."""

import click

from s3notify_platform.cli.common import SourcePlace, json_option, source_options, yes_option
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.tasks import carry_out, dry_run_option


@command(short_help="Remove a source, and what was made for it.")
@source_options
@yes_option
@click.option("--force", is_flag=True, help="Also while a batch is open.")
@dry_run_option
@json_option
def remove(*, place: SourcePlace, yes: bool, force: bool, dry_run: bool, as_json: bool) -> None:
    """Remove the source NAME: its tables, signals, topic and records. Its objects stay.

    What it would remove is shown first. Stop the source's sensor, runs, streams and writers before: while a batch is
    open, it is refused. Safe to repeat, and to kill: until it is done, runs refuse the table. Then remove its YAML.
    """
    from s3notify_platform.maintenance.removal import Removal

    task = Removal(location=place.location(), force=force)
    carry_out(task, dry_run=dry_run, as_json=as_json, yes=yes)
