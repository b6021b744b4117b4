"""`s3notify vacuum NAME`: remove old versions of a table."""

from dataclasses import asdict

import click

from s3notify_platform.cli.as_of import as_of, asset_option
from s3notify_platform.cli.common import SourcePlace, json_option, source_options
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.printing import print_json, say, track


@command(short_help="Remove old versions, and files that none of the others name.")
@source_options
@asset_option
@click.option(
    "--days", type=click.FloatRange(min=1), default=7.0, show_default=True, help="Days of history to keep."
)
@click.option(
    "--dry-run", is_flag=True, help="Only print what would be removed, with the name of each object."
)
@json_option
def vacuum(*, place: SourcePlace, asset: str | None, days: float, dry_run: bool, as_json: bool) -> None:
    """Remove versions of the source NAME older than the history to keep, and files that no kept version names.

    Nobody can read further back than that. A version leaves by a later pass than the one that first finds its
    successors' checkpoint, so run this regularly. Safe beside running batches. Do not let other engines vacuum the
    table: they do not know all of its files.

    With --dry-run nothing is removed but the probe object that tells the store's time: it prints a name a line, then
    counts and bytes.
    """
    from s3notify_platform.maintenance.vacuum import vacuum as run_vacuum

    table = place.table(asset) if dry_run else place.committing_table(asset)
    report = run_vacuum(
        table.committer,
        as_of(table, None, None),
        retention_seconds=days * 86_400,
        clock=table.committer.clock,
        track=track,
        dry_run=dry_run,
    )
    if as_json:
        print_json(asdict(report) | {"dry_run": dry_run})
        return
    for name in report.names if dry_run else ():
        say(name)
    removed, kept = ("would remove", "would keep") if dry_run else ("removed", "kept")
    say(
        f"{removed} {report.versions_removed} versions and {report.files_removed} other objects, "
        f"{report.bytes_removed} bytes; {kept} {report.versions_kept} versions and {report.files_kept} files"
    )
