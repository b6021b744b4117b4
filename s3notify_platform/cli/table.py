"""`s3notify table …`: shows, checks and changes a table, and repairs a table that runs refuse."""

from dataclasses import asdict
from datetime import UTC, datetime

import click

from s3notify_platform.cli.as_of import as_of, asset_option, at_option, version_option
from s3notify_platform.cli.common import SourcePlace, json_option, source_options
from s3notify_platform.cli.configured import group
from s3notify_platform.cli.printing import print_json, print_table, say_wrapped, track
from s3notify_platform.cli.tasks import carry_out, dry_run_option
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.slots import SLOT_COUNT


@group(short_help="Show, check, compact, migrate or repair a table.")
def table() -> None:
    """Show, check, compact or migrate a table, go back to an earlier version, or repair a table that runs refuse.

    A table consists of a Delta log, its files, and a record elsewhere. With the record, a loss of the log is detected.
    """


@table.command(short_help="Show URL, version, counts and settings of a table.")
@source_options
@asset_option
@version_option
@at_option
@json_option
def show(
    *, place: SourcePlace, asset: str | None, version: int | None, at: datetime | None, as_json: bool
) -> None:
    """Show the URL, version, counts and settings of the table of source NAME.

    While writers wait for a running command, the field `held_by` names this command.
    """
    table = place.table(asset)
    found = as_of(table, version, at)
    known, _ = table.reader.known.read()
    facts = found.manifest.slots.values()
    sums = {
        name: sum(getattr(each, name) for each in facts)
        for name in ("objects", "rejects", "failing", "pending")
    }
    shown = {
        "url": table.url,
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
        "held_by": known.holder(SYSTEM_CLOCK.wall_ms()) if known else "",
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
    """Check that log, packs and object states of the table of source NAME agree. The command reads all rows.

    Exit code 1 if there are differences, which are printed. Runs may go on meanwhile: the command checks the version
    that is the newest when it starts.
    """
    from s3notify_platform.table.check import check_table

    table = place.table(asset)
    done = check_table(table, as_of(table, None, None), track=track)
    if as_json:
        print_json(asdict(done) | {"ok": done.ok})
    else:
        for problem in done.problems:
            say_wrapped(problem)
        say_wrapped(
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
    """Merge small files of source NAME's table, slot assets, newest rows and clustered rows, or only of --asset.

    Files with many hidden rows are rewritten. Files of clustered rows (cluster_by) are sorted again if the ranges of
    more than 3 of them overlap. The rows do not change. Batches limit the number of small files by themselves.
    Dagster's daily sweep does the same as this command; with `s3notify ingest`, schedule the command. Safe to repeat,
    and safe beside running batches, which have priority. Merged files stay for readers of earlier versions until
    `s3notify vacuum`.

    Exit code 1 if a table could not be compacted. The other tables are compacted nevertheless.
    """
    from s3notify_platform.maintenance.compaction import Compaction

    tables = place.tables(asset, commits=not dry_run)
    carry_out(Compaction(tables=tables), dry_run=dry_run, as_json=as_json)


@table.command(short_help="Return to an earlier version.")
@source_options
@click.option(
    "--to",
    "version",
    type=click.IntRange(0),
    metavar="VERSION",
    help="A version that `s3notify history` lists.",
)
@at_option
@dry_run_option
@json_option
def rollback(
    *, place: SourcePlace, version: int | None, at: datetime | None, dry_run: bool, as_json: bool
) -> None:
    """Give the table of source NAME the rows and the schema of an earlier version, in a new version.

    A rollback is also the remedy after another engine has changed the table. Safe beside running batches. The versions
    in between stay in the history, so that a rollback to them is possible too.

    The next batch that lists the bucket reads all objects that have changed since that version: delete or correct bad
    objects in the bucket first. Bad objects can add columns to the schema again; declare the source's schema to prevent
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


@table.command("put-back", short_help="Restore versions after a lease was overrun.")
@source_options
@asset_option
@dry_run_option
@json_option
def put_back(*, place: SourcePlace, asset: str | None, dry_run: bool, as_json: bool) -> None:
    """Restore versions of the table of source NAME that a writer replaced after its lease had ended.

    Versions can be replaced only in a table whose commits use leases. Runs refuse a table with replaced versions, and
    name this command. Safe to repeat, and safe beside writers. If no version was replaced, the command changes nothing.
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
    """Accept that versions or the record of the table of source NAME are lost. The table continues with the remaining
    versions, under a new id.

    Runs refuse a table whose log ends before the version in the table's record, because history, quarantine and rows of
    deleted objects are lost. If possible, restore the table's objects instead. Otherwise stop the source's runs, and
    run this command. The newest readable version becomes the newest version. The next batch that lists the bucket
    compares all slots with the listing. Cursors and streams start again. Safe to repeat.
    """
    from s3notify_platform.maintenance.loss import ForgetVersions

    location, _, mode = place.committing(damaged=True)
    task = ForgetVersions(location=location, commit=mode, asset=asset)
    carry_out(task, dry_run=dry_run, as_json=as_json)


@table.command(short_help="Confirm the deletion of many objects at once.")
@source_options
@dry_run_option
@json_option
def confirm(*, place: SourcePlace, dry_run: bool, as_json: bool) -> None:
    """Confirm that the rows of all deleted objects leave the table of source NAME, however many objects there are.

    If a listing is compared with 100 or more committed objects, and more than half of them are missing (setting
    withdraw_share), runs refuse to withdraw the rows of the missing objects. The bucket may be the wrong bucket, or may
    have been emptied by mistake. The confirmation is valid for a day, for slots that have not changed since.
    """
    from s3notify_platform.maintenance.loss import ConfirmWithdrawal

    carry_out(ConfirmWithdrawal(location=place.existing()), dry_run=dry_run, as_json=as_json)


@table.command(short_help="Change the prefix or the number of slots.")
@source_options
@click.option("--to-prefix", "new_prefix", help="New prefix of the source, within or around the old prefix.")
@click.option("--to-slots", type=click.IntRange(1, SLOT_COUNT), metavar="N", help="New number of slots.")
@dry_run_option
@json_option
def migrate(
    *, place: SourcePlace, new_prefix: str | None, to_slots: int | None, dry_run: bool, as_json: bool
) -> None:
    """Change the table of source NAME to another prefix, or to another number of slots. Safe to repeat.

    Stop the source's sensor and runs, run this command, change the source's settings, and start the source again.

    With another prefix, the table stays complete; the next batches compare it with the bucket slot by slot. With
    another number of slots, the table and the slot assets are deleted, and the next run reads all objects again. Rows
    of objects that are no longer in the bucket (on_delete: keep) are lost. Writers must then signal with the new number
    of slots.
    """
    from s3notify_platform.maintenance.migration import Migration

    if new_prefix is None and to_slots is None:
        raise click.UsageError("give --to-prefix, --to-slots, or both")
    task = Migration(location=place.location(), prefix=new_prefix, slots=to_slots, track=track)
    carry_out(task, dry_run=dry_run, as_json=as_json)
