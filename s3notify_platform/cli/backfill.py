"""`s3notify backfill`: have slots of a source read again, although they have not changed."""

import json
from dataclasses import asdict

import click

from s3notify_platform.cli.common import SourcePlace, setting_option, slots_of, source_options
from s3notify_platform.slots import Slot


@click.command(short_help="Have unchanged slots read again.")
@click.argument("name")
@source_options
@setting_option("lease_table")
@click.option("--slots", "chosen", callback=slots_of, help="These slots, like 3,17,40-60.")
@click.option("--all", "everything", is_flag=True, help="All slots.")
@click.option("--dry-run", is_flag=True, help="Only print how much would be read again.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, for machines.")
def backfill(
    name: str,
    *,
    place: SourcePlace,
    lease_table: str | None,
    chosen: frozenset[Slot] | None,
    everything: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Have the next batches read all objects of slots of source NAME again, although they have not changed.

    Use it after a change of a transform, a schema or a parser. The commits that hold a slot's new rows replace its old
    ones; until then readers see the old ones. Objects that could not be read stay in quarantine: see
    `s3notify quarantine retry`. (With a changed `code_version`, slots are also read again as they change.) Safe to
    repeat, and to kill at any time.

    \b
    s3notify backfill orders --slots 3,17,40-60 --bucket acme-landing --dry-run
    """  # noqa: D301 - click's own mark
    from s3notify_platform.ingest import retry_choice as reread
    from s3notify_platform.slots import slot_from_partition_key

    if (chosen is None) == (not everything):
        raise click.UsageError("give either --slots or --all")
    location, store, mode = place.table_of(name, lease_table)
    slots = (
        [slot_from_partition_key(str(slot), location.slots) for slot in sorted(chosen)]
        if chosen
        else location.all_slots()
    )
    if not dry_run:
        mode = location.settle_commit_mode(mode, store)
    found = reread.backfill(location, store, mode, slots, dry_run=dry_run)
    if as_json:
        click.echo(json.dumps(asdict(found) | {"dry_run": dry_run}, indent=2))
        return
    done = "would be" if dry_run else "are"
    click.echo(
        f"{found.objects} objects with {found.rows} rows, in {len(found.slots)} slots, {done} read again"
    )
