"""`s3notify vacuum NAME`: deletes old versions of the tables of a source."""

import click

from s3notify_platform.cli.as_of import asset_option
from s3notify_platform.cli.common import SourcePlace, json_option, source_options
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.printing import track
from s3notify_platform.cli.tasks import carry_out, dry_run_option


@command(short_help="Delete old versions of tables, and unused files.")
@source_options
@asset_option
@click.option(
    "--days",
    type=click.FloatRange(min=1),
    metavar="DAYS",
    default=7.0,
    show_default=True,
    help="Days of history to keep.",
)
@dry_run_option
@json_option
def vacuum(*, place: SourcePlace, asset: str | None, days: float, dry_run: bool, as_json: bool) -> None:
    """Delete versions that are older than --days, and files that no other version needs.

    The command vacuums the table of source NAME, its slot assets, newest rows and clustered rows; with --asset, only
    the table of that asset.

    Deleted versions can no longer be read. A vacuum deletes a version only if an earlier vacuum has found the
    checkpoint after that version, so run this command regularly. Safe beside running batches. Do not vacuum the table
    with another engine, which does not know all of its files.

    --dry-run prints each name on a line, then counts and bytes. A dry run writes and deletes only a probe object, which
    gives the store's time.

    Exit code 1 if a table could not be vacuumed. The other tables are vacuumed nevertheless.
    """
    from s3notify_platform.maintenance.vacuuming import Vacuum

    tables = place.tables(asset, commits=not dry_run)
    task = Vacuum(tables=tables, retention_seconds=days * 86_400, track=track)
    carry_out(task, dry_run=dry_run, as_json=as_json)
