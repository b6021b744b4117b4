"""`s3notify vacuum NAME`: remove old versions of a table."""

import click

from s3notify_platform.cli.as_of import as_of, asset_option
from s3notify_platform.cli.common import SourcePlace, json_option, source_options
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.printing import track
from s3notify_platform.cli.tasks import carry_out, dry_run_option


@command(short_help="Remove old versions, and files that none of the others name.")
@source_options
@asset_option
@click.option(
    "--days", type=click.FloatRange(min=1), default=7.0, show_default=True, help="Days of history to keep."
)
@dry_run_option
@json_option
def vacuum(*, place: SourcePlace, asset: str | None, days: float, dry_run: bool, as_json: bool) -> None:
    """Remove versions of the source NAME older than the history to keep, and files that no kept version names.

    Nobody can read further back than that. A version leaves by a later pass than the one that first finds its
    successors' checkpoint, so run this regularly. Safe beside running batches. Do not let other engines vacuum the
    table: they do not know all of its files.

    With --dry-run nothing is removed but the probe object that tells the store's time: it prints a name a line, then
    counts and bytes.
    """
    from s3notify_platform.maintenance.vacuum import Vacuum

    table = place.table(asset) if dry_run else place.committing_table(asset)
    task = Vacuum(
        committer=table.committer,
        snapshot=as_of(table, None, None),
        retention_seconds=days * 86_400,
        track=track,
    )
    carry_out(task, dry_run=dry_run, as_json=as_json)
