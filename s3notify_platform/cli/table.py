"""A source's table: its upkeep, and what to do if it is refused."""

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from s3notify_platform.cli.as_of import as_of, asset_option, at_option, version_option
from s3notify_platform.cli.common import SourcePlace, json_option, source_options
from s3notify_platform.cli.configured import group
from s3notify_platform.cli.printing import print_json, print_table, say, track
from s3notify_platform.kernel.slots import SLOT_COUNT, Slot

if TYPE_CHECKING:
    from s3notify_platform.source.location import Location


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
@click.option("--dry-run", is_flag=True, help="Only print what would be merged.")
@json_option
def compact(*, place: SourcePlace, asset: str | None, dry_run: bool, as_json: bool) -> None:
    """Merge the small files of the source NAME, and those of which much is hidden. Readers see no change.

    Batches keep the number of small files within a bound by themselves. Safe beside running batches, which come first,
    and to repeat. Files that were merged stay until `s3notify vacuum`, for readers of earlier versions.
    """
    from s3notify_platform.maintenance.compaction import compact as run_compact

    table = place.table(asset) if dry_run else place.committing_table(asset)
    report = run_compact(table, dry_run=dry_run)
    if as_json:
        print_json(asdict(report) | {"dry_run": dry_run})
        return
    merged = "would merge" if dry_run else "merged"
    became = "" if dry_run else f" to {report.became}"
    lost = f"; {report.lost} steps were dropped, since batches were first" if report.lost else ""
    say(
        f"{merged} {report.packs} packs, {report.rejects} packs of rejects and {report.state_files} state files, "
        f"{report.bytes} bytes{became}, in {report.versions} versions{lost}"
    )


@table.command(short_help="Go back to an earlier version.")
@source_options
@click.option("--to", "version", type=click.IntRange(0), help="Version, as `history` lists them.")
@at_option
@click.option("--dry-run", is_flag=True, help="Only say what it would change.")
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
    from s3notify_platform.maintenance.rollback import plan_rollback, version_of
    from s3notify_platform.maintenance.rollback import rollback as roll_back
    from s3notify_platform.table.commit import Committed

    if (version is None) == (at is None):
        raise click.UsageError("give --to or --at")
    location, store, _ = place.committing(damaged=True)
    if version is None:
        assert at is not None
        version = version_of(location, at.replace(tzinfo=UTC))
    planned = plan_rollback(location, version)
    if not as_json:
        _say_plan(planned)
    done = None
    if not dry_run:
        done = roll_back(place.source().settle_commit_mode(store), version)
    if as_json:
        shown = {name: value for name, value in asdict(planned).items() if name != "facts"}
        print_json(shown | {"dry_run": dry_run, "became": done.snapshot.version if done else None})
    elif isinstance(done, Committed):
        say(f"went back to version {version}, by version {done.snapshot.version}")
    elif done is not None:
        say(f"the table is as of version {version} already")


def _say_plan(planned: Any) -> None:
    say(
        f"version {planned.version} instead of {planned.newest}: {len(planned.slots)} slots change; "
        f"{planned.rows[1]} rows, now {planned.rows[0]}; {planned.objects[1]} objects, now {planned.objects[0]}"
    )
    if planned.columns:
        say(f"{len(planned.columns)} columns leave: {', '.join(map(repr, planned.columns[:20]))}")
    if planned.again:
        say(
            f"{planned.again} objects have changed since, and are read again if they are in the bucket: "
            f"{', '.join(map(repr, planned.keys))}{', …' if planned.again > len(planned.keys) else ''}"
        )


@table.command("put-back", short_help="Put versions back that an overrun lease replaced.")
@source_options
@asset_option
def put_back(*, place: SourcePlace, asset: str | None) -> None:
    """Put versions of the source NAME back that a writer replaced whose lease had ended.

    Only a table that is committed to under leases can need that; runs refuse it then, and name this command. Safe to
    repeat, and beside writers. It does nothing where nothing was replaced.
    """
    from s3notify_platform.maintenance.put_back import put_back as run_put_back

    done = run_put_back(place.committing_table(asset, damaged=True).committer)
    if not done.put_back and not done.removed:
        say("no version was replaced")
        return
    say(
        f"put back versions {_listed(done.put_back)}; removed those that followed a replaced one: "
        f"{_listed(done.removed)}"
    )


@table.command(short_help="Accept that versions are missing.")
@source_options
@asset_option
def forget(*, place: SourcePlace, asset: str | None) -> None:
    """Accept that versions of a table, or its record, are missing: it goes on with what is left, under a new id.

    Runs refuse a table whose log ends before the version that its record names. To go on would hide that history,
    quarantine, and rows of deleted objects are gone. Restore the table's objects if you can. If not, stop the source's
    runs, and run this: the newest version that can be read is the newest one, all slots are compared with the bucket by
    the next batch that lists, and cursors and streams begin again. Safe to repeat.
    """
    from s3notify_platform.protocols.source_enumerator import RescanBacklog
    from s3notify_platform.table.open_table import forget as run_forget

    location, store, mode = place.committing(damaged=True)
    known, _ = location.known(asset).read()
    if known is not None and known.identity is not None:
        location = replace(location, slots=known.identity.slots)
    if (known is None or known.version > 0) and _is_whole(location, asset):
        say("nothing is missing; nothing to forget")
        return
    settled = location.settle_commit_mode(mode, store, lost=True)

    def backlog() -> None:
        if asset is None:
            RescanBacklog(location.records()).add(location.all_slots())

    done = run_forget(location.table(asset, commit=settled).committer, backlog)
    if not done.table:
        raise location.no_table(asset)
    location.slot_signals().signal_slots([Slot(0)])  # so that there is a next batch
    if done.version < 0:
        say(f"forgot the table; the next run makes another, with the id {done.table}, of all objects")
    else:
        say(
            f"the table goes on with version {done.version} and the id {done.table}; the next batch that lists "
            "compares all of its slots"
        )


def _is_whole(location: "Location", asset: str | None) -> bool:
    """Whether the table is there, and its record agrees."""
    from s3notify_platform.kernel.errors import CorruptError
    from s3notify_platform.table.snapshot import Absent

    try:
        found = location.table(asset).newest()
    except CorruptError:
        return False
    if isinstance(found, Absent):
        raise location.no_table(asset)
    return True


@table.command(short_help="Let many objects leave at once.")
@source_options
def confirm(*, place: SourcePlace) -> None:
    """Confirm that objects which have left the bucket leave the table too, however many.

    A listing that lacks more than half of at least 100 objects (withdraw_share) is refused: it may be a bucket that was
    emptied by mistake, or is not the right one. This lets them leave on top of the version that the table has now.
    """
    from s3notify_platform.table.open_table import confirm as run_confirm

    location = place.existing()
    version = run_confirm(location.table().reader, location.open_table())
    say(f"confirmed for version {version}; the next batch that lists withdraws the objects that have left")


@table.command(short_help="Rewrite a table for another prefix or other slots.")
@source_options
@click.option("--to-prefix", "new_prefix", help="The source's new prefix, within or around the old one.")
@click.option("--to-slots", type=click.IntRange(1, SLOT_COUNT), help="The new number of slots.")
def migrate(*, place: SourcePlace, new_prefix: str | None, to_slots: int | None) -> None:
    """Make the table of a source one of another prefix, or of other slots. Safe to repeat.

    Stop the source's sensor and runs, run this, change the source's settings, and start it again. For another prefix
    the table stays complete, and is compared with the bucket slot by slot. For other slots it is removed, with the slot
    assets, and the next run takes all objects in again, but not those that have left the bucket (on_delete: keep);
    writers must then signal by the new number of slots.
    """
    from s3notify_platform.maintenance.migration import migrate as run_migrate

    if new_prefix is None and to_slots is None:
        raise click.UsageError("give --to-prefix, --to-slots, or both")
    done = run_migrate(place.location(), prefix=new_prefix, slots=to_slots, track=track)
    if not (changes := done.before.differences(done.after)) and not done.removed:
        say("the table is like that already")
        return
    say(
        f"{'; '.join(changes)}: {done.removed} objects of the former table removed. Change the source to match"
    )


def _listed(versions: tuple[int, ...]) -> str:
    return ", ".join(map(str, versions)) or "none"
