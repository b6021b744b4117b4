"""A source's table: its upkeep, and what to do if it is refused."""

from dataclasses import asdict
from datetime import UTC, datetime

import click

from s3notify_platform.cli.as_of import as_of, asset_option, at_option, version_option
from s3notify_platform.cli.common import SourcePlace, json_option, source_options
from s3notify_platform.cli.configured import group
from s3notify_platform.cli.printing import print_json, print_table, say, track
from s3notify_platform.cli.tasks import carry_out, dry_run_option
from s3notify_platform.kernel.slots import SLOT_COUNT


@group(short_help="See a table, keep it in order, resolve what runs refuse.")
def table() -> None:
    """See a table and check it, bring it in order, go back, and resolve what runs refuse.

    A table is a Delta log, its files, and a record elsewhere by which a loss is noticed.
    """


@table.command(short_help="Print where a table stands.")
@source_options
@asset_option
@version_option
@at_option
@json_option
def show(
    *, place: SourcePlace, asset: str | None, version: int | None, at: datetime | None, as_json: bool
) -> None:
    """Print where the table of the source NAME stands: its URL, version, counts, settings, and who works on it."""
    table = place.table(asset)
    found = as_of(table, version, at)
    known, _ = table.reader.known.read()
    facts = found.manifest.slots.values()
    sums = {
        name: sum(getattr(each, name) for each in facts)
        for name in ("objects", "rejects", "failing", "pending")
    }
    shown = {
        "url": f"s3://{place.platform().bucket}/{table.layout.prefix}",
        "version": found.version,
        "id": found.table,
        "slots": sum(1 for each in facts if each.generation),
        "rows": found.rows,
        **sums,
        "packs": len(found.packs),
        "bytes": sum(pack.size for pack in found.packs.values()),
        "state_files": len(found.manifest.states.files),
        "made_from": asdict(known.identity) if known and known.identity else None,
        "sensor": known.sensor if known else "",
        "former": list(known.former) if known else [],
        "confirmed": known.confirmed if known else -1,
        "held_by": known.held if known else "",
    }
    if as_json:
        print_json(shown)
    else:
        print_table(("", "Value"), ((name.replace("_", " "), value) for name, value in shown.items()))


@table.command(short_help="Check a table against its log.")
@source_options
@asset_option
@json_option
def check(*, place: SourcePlace, asset: str | None, as_json: bool) -> None:
    """Check that the log, the packs and the object states of the source NAME say the same; reads all of its rows.

    Exit code 1 if they do not, with what differs. Runs may go on: the newest version is checked as it is.
    """
    from s3notify_platform.table.check import check_table

    table = place.table(asset)
    done = check_table(table, as_of(table, None, None), track=track)
    if as_json:
        print_json(asdict(done) | {"ok": done.ok})
    else:
        for problem in done.problems:
            say(problem)
        say(
            f"version {done.version}: {done.packs} packs, {done.rows} rows and {done.objects} objects checked, "
            f"{done.found} problems"
        )
    if not done.ok:
        raise click.exceptions.Exit(1)


@table.command(short_help="Merge small files.")
@source_options
@asset_option
@dry_run_option
@json_option
def compact(*, place: SourcePlace, asset: str | None, dry_run: bool, as_json: bool) -> None:
    """Merge the small files of the source NAME, and those of which much is hidden. Readers see no change.

    Batches keep the number of small files within a bound by themselves. Safe beside running batches, which come first,
    and to repeat. Files that were merged stay until `s3notify vacuum`, for readers of earlier versions.
    """
    from s3notify_platform.maintenance.compaction import Compaction

    table = place.table(asset) if dry_run else place.committing_table(asset)
    carry_out(Compaction(table=table), dry_run=dry_run, as_json=as_json)


@table.command(short_help="Go back to an earlier version.")
@source_options
@click.option("--to", "version", type=click.IntRange(0), help="Version, as `history` lists them.")
@at_option
@dry_run_option
@json_option
def rollback(
    *, place: SourcePlace, version: int | None, at: datetime | None, dry_run: bool, as_json: bool
) -> None:
    """Make the table of the source NAME what it was as of an earlier version, schema included, by a new version.

    Also the remedy after another engine has changed the table. Safe beside running batches; the versions in between
    stay in the history, and one can go back to them too.

    Objects that have changed since are read again by the next batch that lists: remove or correct those in the bucket
    that should not come in. What came in with a wider schema widens it again: declare the source's schema to prevent
    that.
    """
    from s3notify_platform.maintenance.rollback import RollbackTo, version_of

    if (version is None) == (at is None):
        raise click.UsageError("give --to or --at")
    location, _, _ = place.committing(damaged=True)
    if version is None:
        assert at is not None
        version = version_of(location, at.replace(tzinfo=UTC))
    carry_out(RollbackTo(source=place.source(), version=version), dry_run=dry_run, as_json=as_json)


@table.command("put-back", short_help="Put versions back that an overrun lease replaced.")
@source_options
@asset_option
@dry_run_option
@json_option
def put_back(*, place: SourcePlace, asset: str | None, dry_run: bool, as_json: bool) -> None:
    """Put versions of the source NAME back that a writer replaced whose lease had ended.

    Only a table that is committed to under leases can need that; runs refuse it then, and name this command. Safe to
    repeat, and beside writers. It does nothing where nothing was replaced.
    """
    from s3notify_platform.maintenance.put_back import PutBackReplaced

    table = place.location().table(asset) if dry_run else place.committing_table(asset, damaged=True)
    carry_out(PutBackReplaced(committer=table.committer), dry_run=dry_run, as_json=as_json)


@table.command(short_help="Accept that versions are missing.")
@source_options
@asset_option
@dry_run_option
@json_option
def forget(*, place: SourcePlace, asset: str | None, dry_run: bool, as_json: bool) -> None:
    """Accept that versions of a table, or its record, are missing: it goes on with what is left, under a new id.

    Runs refuse a table whose log ends before the version that its record names. To go on would hide that history,
    quarantine, and rows of deleted objects are gone. Restore the table's objects if you can. If not, stop the source's
    runs, and run this: the newest version that can be read is the newest one, all slots are compared with the bucket by
    the next batch that lists, and cursors and streams begin again. Safe to repeat.
    """
    from s3notify_platform.maintenance.loss import ForgetVersions

    location, _, mode = place.committing(damaged=True)
    task = ForgetVersions(location=location, commit=mode, asset=asset)
    carry_out(task, dry_run=dry_run, as_json=as_json)


@table.command(short_help="Let many objects leave at once.")
@source_options
@dry_run_option
@json_option
def confirm(*, place: SourcePlace, dry_run: bool, as_json: bool) -> None:
    """Confirm that objects which have left the bucket leave the table too, however many.

    A listing that lacks more than half of at least 100 objects (withdraw_share) is refused: it may be a bucket that was
    emptied by mistake, or is not the right one. This lets them leave on top of the version that the table has now.
    """
    from s3notify_platform.maintenance.loss import ConfirmWithdrawal

    carry_out(ConfirmWithdrawal(location=place.existing()), dry_run=dry_run, as_json=as_json)


@table.command(short_help="Rewrite a table for another prefix or other slots.")
@source_options
@click.option("--to-prefix", "new_prefix", help="The source's new prefix, within or around the old one.")
@click.option("--to-slots", type=click.IntRange(1, SLOT_COUNT), help="The new number of slots.")
@dry_run_option
@json_option
def migrate(
    *, place: SourcePlace, new_prefix: str | None, to_slots: int | None, dry_run: bool, as_json: bool
) -> None:
    """Make the table of a source one of another prefix, or of other slots. Safe to repeat.

    Stop the source's sensor and runs, run this, change the source's settings, and start it again. For another prefix
    the table stays complete, and is compared with the bucket slot by slot. For other slots it is removed, with the slot
    assets, and the next run takes all objects in again, but not those that have left the bucket (on_delete: keep);
    writers must then signal by the new number of slots.
    """
    from s3notify_platform.maintenance.migration import Migration

    if new_prefix is None and to_slots is None:
        raise click.UsageError("give --to-prefix, --to-slots, or both")
    task = Migration(location=place.location(), prefix=new_prefix, slots=to_slots, track=track)
    carry_out(task, dry_run=dry_run, as_json=as_json)
