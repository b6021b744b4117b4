"""`s3notify remove NAME`: deletes everything that the platform made for a source."""

import click

from s3notify_platform.cli.common import SourcePlace, json_option, source_options, yes_option
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.tasks import carry_out, dry_run_option


@command(short_help="Delete a source's tables, signals, topic and records.")
@source_options
@yes_option
@click.option("--force", is_flag=True, help="Do it even while a batch is open.")
@dry_run_option
@json_option
def remove(*, place: SourcePlace, yes: bool, force: bool, dry_run: bool, as_json: bool) -> None:
    """Delete the tables, signals, topic and records of source NAME. The objects of the bucket stay.

    The command lists first what it will delete. Before, stop the source's sensor, runs, streams and writers; the
    command is refused while a batch is open. Safe to repeat, and to kill: until the deletion is complete, runs refuse
    the table. Delete the YAML of the source afterwards.
    """
    from s3notify_platform.maintenance.removal import Removal

    task = Removal(location=place.location(), force=force)
    carry_out(task, dry_run=dry_run, as_json=as_json, yes=yes)
