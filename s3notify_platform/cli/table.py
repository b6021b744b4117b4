"""A source's table: its history, rows as of a version, its upkeep, and what to do if it is refused."""

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from s3notify_platform.cli.common import SourcePlace, json_option, limit_option, source_options
from s3notify_platform.cli.configured import command, group
from s3notify_platform.cli.printing import print_found, print_json, print_table, say, track
from s3notify_platform.errors import NotFoundError
from s3notify_platform.slots import SLOT_COUNT, Slot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from s3notify_platform.ingest.location import Location
    from s3notify_platform.table.actions import LogVersion
    from s3notify_platform.table.snapshot import LogReader, Snapshot
    from s3notify_platform.table.table import LogTable

MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S"])
COUNTS = ("objects", "rows", "rejects", "gone")

_asset = click.option("--asset", help="A slot asset of the source, instead of the source's own table.")
_slot = click.option(
    "--slot", type=click.IntRange(0, SLOT_COUNT - 1), help="Only one slot, as `explain` prints it."
)
_at = click.option("--at", type=MOMENT, help="As of this time, in UTC, like 2026-01-31T12:00:00.")
_version = click.option("--version", type=click.IntRange(0), help="As of this version; default: the newest.")


@command(short_help="List the versions of a table.")
@source_options
@_asset
@_slot
@limit_option(20, "Versions at most.")
@json_option
def history(*, place: SourcePlace, asset: str | None, slot: int | None, limit: int, as_json: bool) -> None:
    """List the versions of the table of the source NAME, the newest first: when, by which batch, with what counts.

    As far back as vacuum has kept them. Times are the store's, in UTC. `s3notify rows` reads one of them, and
    `s3notify table rollback` goes back to one. With --slot: the versions that changed the slot, with its counts then.
    1 GET for each version, with --slot 2.
    """
    from s3notify_platform.table.history import history as versions

    reader = place.table(asset).reader
    found: Iterator[dict[str, Any]] = (
        {"version": event.version, "created": _time(event.created_ms), **shown}
        for event in versions(reader)
        if (shown := _of_table(event.body) if slot is None else _of_slot(reader, event.body, Slot(slot)))
    )
    nothing = (
        "no version has been committed yet"
        if slot is None
        else f"no version that is kept changed slot {slot}"
    )
    print_found([*islice(found, limit)], as_json=as_json, nothing=nothing)


def _of_table(version: "LogVersion") -> dict[str, Any]:
    notes = version.note.get("together", (version.note,))
    return {
        "operation": version.operation,
        "slots": len({slot for note in notes for slot in note.get("slots", ())}),
        **{name: sum(note.get(name, 0) for note in notes) for name in COUNTS},
        "packs_added": len(version.adds),
        "packs_removed": len(version.removes),
        "batch": ", ".join(dict.fromkeys(note["batch"] for note in notes if note.get("batch"))),
        "run": ", ".join(dict.fromkeys(note["run"] for note in notes if note.get("run"))),
    }


def _of_slot(reader: "LogReader", version: "LogVersion", slot: Slot) -> dict[str, Any]:
    """The slot's counts, if the version changed it."""
    from s3notify_platform.table.history import note_of

    if version.foreign:
        return {}
    manifest = reader.manifest(version.number)
    facts, note = manifest.slot(slot), note_of(version, slot)
    if not facts.generation or facts.generation != manifest.version:
        return {}
    counts = {name: getattr(facts, name) for name in ("objects", "rows", "rejects", "failing", "pending")}
    return {
        "operation": version.operation,
        **counts,
        "batch": note.get("batch", ""),
        "run": note.get("run", ""),
    }


@command(short_help="Print the rows of a table.")
@source_options
@_asset
@_slot
@_version
@_at
@limit_option(None, "Rows at most; default: all.")
@click.option(
    "--json", is_flag=True, expose_value=False, help="No effect: the output is lines of JSON anyway."
)
def rows(
    *,
    place: SourcePlace,
    asset: str | None,
    slot: int | None,
    version: int | None,
    at: datetime | None,
    limit: int | None,
) -> None:
    """Print the rows of the source NAME, or of a slot, one JSON object a line, with the object that each came from.

    Any reader of Delta Lake tables reads the same, also at an earlier version: polars.scan_delta, deltalake.DeltaTable,
    DuckDB's delta_scan, Spark. The role `viewer` of `s3notify init --print iam` is enough for that. `s3notify table
    show` prints the table's URL.
    """
    from s3notify_platform.table.arrow_schema import arrow_schema
    from s3notify_platform.table.reading import read_slots

    table = place.table(asset)
    found = _as_of(table, version, at)
    parts = read_slots(
        table.reader.store,
        table.layout,
        found.packs.values(),
        None if slot is None else [Slot(slot)],
        arrow_schema(found.metadata.schema),
    )
    for row in islice((row for batch in parts for row in batch.to_pylist()), limit):
        say(json.dumps(row, ensure_ascii=False, default=_as_text))


def _as_of(table: "LogTable", version: int | None, at: datetime | None) -> "Snapshot":
    """The table as of a version or a time; the newest version without both. `NotFoundError`: it is not kept."""
    from s3notify_platform.table.history import snapshot_of, version_at
    from s3notify_platform.table.snapshot import Absent

    if version is not None and at is not None:
        raise click.UsageError("--version or --at, not both")
    if at is not None:
        version = version_at(table.reader, _ms(at))
    if version is not None:
        return snapshot_of(table.reader, version)
    found = table.newest()
    if isinstance(found, Absent):
        raise NotFoundError(f"there is no table below {table.layout.prefix!r}")
    return found


@command(short_help="Remove old versions, and files that none of the others name.")
@source_options
@_asset
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
    from s3notify_platform.table.vacuum import vacuum as run_vacuum

    table = place.table(asset) if dry_run else _committing(place, asset)
    report = run_vacuum(
        table.committer,
        _as_of(table, None, None),
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


@group(short_help="See a table, keep it in order, resolve what runs refuse.")
def table() -> None:
    """See a table and check it, bring it in order, go back, and resolve what runs refuse.

    A table is a Delta log, its files, and a record elsewhere by which a loss is noticed.
    """


@table.command(short_help="Print where a table stands.")
@source_options
@_asset
@_version
@_at
@json_option
def show(
    *, place: SourcePlace, asset: str | None, version: int | None, at: datetime | None, as_json: bool
) -> None:
    """Print where the table of the source NAME stands: its URL, version, counts, settings, and who works on it."""
    table = place.table(asset)
    found = _as_of(table, version, at)
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
@_asset
@json_option
def check(*, place: SourcePlace, asset: str | None, as_json: bool) -> None:
    """Check that the log, the packs and the object states of the source NAME say the same; reads all of its rows.

    Exit code 1 if they do not, with what differs. Runs may go on: the newest version is checked as it is.
    """
    from s3notify_platform.table.check import check_table

    table = place.table(asset)
    done = check_table(table, _as_of(table, None, None), track=track)
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
@_asset
@click.option("--dry-run", is_flag=True, help="Only print what would be merged.")
@json_option
def compact(*, place: SourcePlace, asset: str | None, dry_run: bool, as_json: bool) -> None:
    """Merge the small files of the source NAME, and those of which much is hidden. Readers see no change.

    Batches keep the number of small files within a bound by themselves. Safe beside running batches, which come first,
    and to repeat. Files that were merged stay until `s3notify vacuum`, for readers of earlier versions.
    """
    from s3notify_platform.table.compact import compact as run_compact

    table = place.table(asset) if dry_run else _committing(place, asset)
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
@_at
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
    from s3notify_platform.ingest.rollback import plan_rollback, version_of
    from s3notify_platform.ingest.rollback import rollback as roll_back
    from s3notify_platform.ingest.source import Input, Source
    from s3notify_platform.table.commit import Committed

    if (version is None) == (at is None):
        raise click.UsageError("give --to or --at")
    location, store, mode = place.committing(damaged=True)
    if version is None:
        assert at is not None
        version = version_of(location, at.replace(tzinfo=UTC))
    planned = plan_rollback(location, version)
    if not as_json:
        _say_plan(planned)
    done = None
    if not dry_run:
        source = Source(location=location, input=Input(bucket=place.s3(), prefix=""), commit=mode)
        done = roll_back(source.settle_commit_mode(store), version)
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
@_asset
def put_back(*, place: SourcePlace, asset: str | None) -> None:
    """Put versions of the source NAME back that a writer replaced whose lease had ended.

    Only a table that is committed to under leases can need that; runs refuse it then, and name this command. Safe to
    repeat, and beside writers. It does nothing where nothing was replaced.
    """
    from s3notify_platform.table.put_back import put_back as run_put_back

    done = run_put_back(_committing(place, asset, damaged=True).committer)
    if not done.put_back and not done.removed:
        say("no version was replaced")
        return
    say(
        f"put back versions {_listed(done.put_back)}; removed those that followed a replaced one: "
        f"{_listed(done.removed)}"
    )


@table.command(short_help="Accept that versions are missing.")
@source_options
@_asset
def forget(*, place: SourcePlace, asset: str | None) -> None:
    """Accept that versions of a table, or its record, are missing: it goes on with what is left, under a new id.

    Runs refuse a table whose log ends before the version that its record names. To go on would hide that history,
    quarantine, and rows of deleted objects are gone. Restore the table's objects if you can. If not, stop the source's
    runs, and run this: the newest version that can be read is the newest one, all slots are compared with the bucket by
    the next batch that lists, and cursors and streams begin again. Safe to repeat.
    """
    from s3notify_platform.protocols.source_enumerator import RescanBacklog
    from s3notify_platform.table.opening import forget as run_forget

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
    location.signals().signal_slots([Slot(0)])  # so that there is a next batch
    if done.version < 0:
        say(f"forgot the table; the next run makes another, with the id {done.table}, of all objects")
    else:
        say(
            f"the table goes on with version {done.version} and the id {done.table}; the next batch that lists "
            "compares all of its slots"
        )


def _is_whole(location: "Location", asset: str | None) -> bool:
    """Whether the table is there, and its record agrees."""
    from s3notify_platform.errors import CorruptError
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
    from s3notify_platform.table.opening import confirm as run_confirm

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
    from s3notify_platform.ingest.migrate import migrate as run_migrate

    if new_prefix is None and to_slots is None:
        raise click.UsageError("give --to-prefix, --to-slots, or both")
    done = run_migrate(place.location(), prefix=new_prefix, slots=to_slots, track=track)
    if not (changes := done.before.differences(done.after)) and not done.removed:
        say("the table is like that already")
        return
    say(
        f"{'; '.join(changes)}: {done.removed} objects of the former table removed. Change the source to match"
    )


def _committing(place: SourcePlace, asset: str | None, *, damaged: bool = False) -> "LogTable":
    """The table, to be committed to. `damaged`: also one that is refused. Requests as `SourcePlace.committing`."""
    location, store, mode = place.committing(damaged=damaged)
    if asset is not None and not damaged:
        location.check_exists(asset)
    return location.table(asset, store=store, commit=location.settle_commit_mode(mode, store, lost=damaged))


def _ms(at: datetime) -> int:
    return round(at.replace(tzinfo=UTC).timestamp() * 1000)


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def _listed(versions: tuple[int, ...]) -> str:
    return ", ".join(map(str, versions)) or "none"


def _as_text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
