"""A source's table: read by slot and generation, its Delta Lake view, its vacuum, and what to do if it is refused."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice

import click

from s3notify_platform.cli.common import (
    SourcePlace,
    json_option,
    limit_option,
    slots_of,
    source_options,
)
from s3notify_platform.cli.configured import command, group
from s3notify_platform.cli.printing import print_found, print_json, say, track
from s3notify_platform.slots import SLOT_COUNT, Slot

MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S"])


_asset = click.option("--asset", help="A slot asset of the source, instead of the source's own table.")
_slot = click.option(
    "--slot",
    type=click.IntRange(0, SLOT_COUNT - 1),
    required=True,
    help="One slot; `explain` prints a key's slot.",
)


@command(short_help="List the generations of a slot.")
@source_options
@_asset
@_slot
@limit_option(20, "Generations at most.")
@json_option
def history(*, place: SourcePlace, asset: str | None, slot: int, limit: int, as_json: bool) -> None:
    """List the generations of a slot of the source NAME, the newest first.

    As far back as vacuum has kept them. Times are the store's, in UTC. `s3notify rows` reads one of them.
    """
    from s3notify_platform.table.history import history as generations

    found = [
        {
            "generation": seen.commit.generation,
            "visible_since": datetime.fromtimestamp(seen.since_ms / 1000, UTC).isoformat(timespec="seconds"),
            "rows": seen.commit.rows,
            "rejects": sum(file.rows for file in seen.commit.rejects),
            "files": len(seen.commit.files),
            "bytes": sum(file.bytes for file in seen.commit.files),
            "batch": seen.commit.batch,
        }
        for seen in islice(generations(place.table(asset), Slot(slot)), limit)
    ]
    print_found(found, as_json=as_json, nothing=f"slot {slot} has no commit")


@command(short_help="Print the rows of a slot.")
@source_options
@_asset
@_slot
@click.option("--generation", type=click.IntRange(1), help="Read this generation; default: the newest.")
@click.option("--at", type=MOMENT, help="Read as of this time, in UTC, like 2026-01-31T12:00:00.")
@limit_option(None, "Rows at most; default: all.")
@click.option(
    "--json", is_flag=True, expose_value=False, help="No effect: the output is lines of JSON anyway."
)
def rows(
    *,
    place: SourcePlace,
    asset: str | None,
    slot: int,
    generation: int | None,
    at: datetime | None,
    limit: int | None,
) -> None:
    """Print the rows of a slot of the source NAME, one JSON object a line, with the object that each came from.

    The whole table as it was at a time: `generations_at` of `s3notify_platform.table.history` (1 LIST for each slot),
    then `load_slots` of `spark.load`, or `read_slots` of `table.reader` without Spark.
    """
    from s3notify_platform.table.history import generations_at
    from s3notify_platform.table.layout import Generation
    from s3notify_platform.table.reader import read_slots

    if generation and at:
        raise click.UsageError("--generation or --at, not both")
    table, which = place.table(asset), Slot(slot)
    generations = {which: Generation(generation)} if generation else None
    if at:
        generations = generations_at(table, [which], int(at.replace(tzinfo=UTC).timestamp() * 1000))
    elif not generation and table.head(which) is None:
        say(f"slot {slot} has no commit", err=True)
        return
    parts = read_slots(table, [which], generations=generations)
    found = (row for part in parts for batch in part.table.to_batches() for row in batch.to_pylist())
    for row in islice(found, limit):
        say(json.dumps(row, ensure_ascii=False, default=_as_text))


@command(short_help="Bring the Delta Lake view of a source up to date.")
@source_options
@_asset
@click.option(
    "--repair",
    is_flag=True,
    help="Compare all files of the view with the table, even if its log is up to date.",
)
def delta(*, place: SourcePlace, asset: str | None, repair: bool) -> None:
    """Bring the Delta Lake view of the source NAME up to date with its table, and print its URL. Safe to repeat.

    The same as the asset NAME_delta, without Dagster. polars.scan_delta, deltalake.DeltaTable and DuckDB's delta_scan
    read it; the role `viewer` of `s3notify init --print iam` is enough. At an endpoint of your own, the first two take
    storage_options={"AWS_ENDPOINT_URL": "http://HOST:PORT", "AWS_ALLOW_HTTP": "true"}, DuckDB a secret with
    ENDPOINT 'HOST:PORT', USE_SSL false, URL_STYLE 'path'.

    A version shows whole slots, with `slot` as partition column; a `txn` action of each slot has its generation.
    Columns that only newer files have are null in older ones. Names with spaces or ,;{}()= are column-mapped, which
    Polars 2.1 refuses to read. A column called `slot`, or a type that Delta lacks, is an error that names it. Do not
    run OPTIMIZE or VACUUM on it: this command reverts the one, the other finds nothing to remove.
    """
    location, store, mode = place.committing()
    location.check_exists(asset)
    location.open_table(store)
    view = location.view(asset, commit=location.settle_commit_mode(mode, store))
    synced = view.sync(location.all_slots(), repair=repair)
    if synced.version is None:
        raise click.ClickException(f"{asset or place.name}: nothing has been committed yet")
    where = f"s3://{location.platform.bucket}/{location.table_layout(asset).view}"
    say(
        f"{where}: version {synced.version}, {synced.rows} rows; {synced.slots} slots updated, "
        f"{synced.files_added} files added, {synced.files_removed} removed"
    )


@command(short_help="Remove old commits, and files that no commit names.")
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
    """Remove commits of the source NAME older than the history to keep, and files that no commit names any more.

    `s3notify rows` and the Delta view can read no further back than that. Files of the view's last version are kept;
    its log is truncated behind a checkpoint of that age. Nothing of a slot with missing commits is touched.

    With --dry-run nothing is removed but the probe object that tells the store's time: it prints a name a line, then
    counts and bytes.
    """
    from s3notify_platform.table.known import open_table
    from s3notify_platform.table.vacuum import vacuum as run_vacuum

    opened = open_table(place.existing(asset).sides(), None, create=False)
    known = opened.heads if opened.id and not asset else None
    report = run_vacuum(
        place.table(asset), retention_seconds=days * 86_400, known=known, track=track, dry_run=dry_run
    )
    if as_json:
        print_json(asdict(report) | {"dry_run": dry_run})
        return
    if report.slots_skipped:
        skipped = ",".join(map(str, report.slots_skipped))
        say(f"left as they are, since commits of them are missing: slots {skipped}", err=True)
    for name in report.names if dry_run else ():
        say(name)
    removed, kept = ("would remove", "would keep") if dry_run else ("removed", "kept")
    say(
        f"{removed} {report.commits_removed} commits, {report.files_removed} files and {report.log_removed} objects of "
        f"the Delta log, {report.bytes_removed} bytes; "
        f"{kept} {report.commits_kept} commits and {report.files_kept} files"
    )


@group(short_help="Resolve what runs refuse: a loss, other settings.")
def table() -> None:
    """What to do about a table that runs refuse: a loss, other settings, or most objects gone at once.

    A table has two parts: its own objects, and what is known of it elsewhere, by which a loss is noticed.
    """


@table.command(short_help="Accept that commits of slots are missing.")
@source_options
@click.option(
    "--slots",
    "chosen",
    required=True,
    callback=slots_of,
    help="Slots with missing commits, like 3,17,20-29; or: all.",
)
def forget(*, place: SourcePlace, chosen: frozenset[Slot]) -> None:
    """Accept that commits of slots are missing, so that their objects are taken in again.

    Runs refuse a slot whose newest commit is older than it was. To take its objects in again would hide that its
    history, its quarantine, and rows of deleted objects are gone. Restore the table's objects if you can. If not, this
    lets the given slots go on from what is left of them; slots that have their commits are not changed.

    With --slots all also a missing part of the table is made again from what is left. If there is no commit at all,
    both sides are removed, and another table begins.
    """
    from s3notify_platform.ingest.tagging import tag_again
    from s3notify_platform.protocols.source_enumerator import RescanBacklog
    from s3notify_platform.table.missing import forget_slots

    location = place.existing()
    tag_again(location, chosen)  # their generations begin again
    done = forget_slots(
        location.sides(), location.table(), RescanBacklog(location.records()), chosen, every=location.slots
    )
    if done.table or done.slots:
        location.signals().signal_slots([min(done.slots, default=Slot(0))])  # so that there is a next batch
    again = "The next batch that lists takes their objects in again; a backfill of these slots does it now."
    if done.table:
        say(f"forgot the table; the next run makes another, with the id {done.table}, of all objects")
    elif done.slots:
        say(f"forgot {len(done.slots)} slots: {','.join(map(str, sorted(done.slots)))}. {again}")
    elif done.restored:
        say("no commits are missing; the side of the table that was missing was made again from them")
    else:
        say("no commits of these slots are missing; nothing to forget")


@table.command(short_help="Let many objects leave at once.")
@source_options
def confirm(*, place: SourcePlace) -> None:
    """Confirm that objects which have left the bucket leave the table too, however many.

    A listing that lacks more than half of at least 100 objects (withdraw_share) is refused: it may be a bucket that was
    emptied by mistake, or is not the right one. This lets them leave the commits that the slots have now.
    """
    from s3notify_platform.table.known import open_table

    slots = open_table(place.existing().sides(), None, create=False).confirm()
    say(f"confirmed for {slots} slots; the next batch that lists withdraws the objects that have left")


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
    done = run_migrate(place.existing(), prefix=new_prefix, slots=to_slots, track=track)
    if not (changes := done.before.differences(done.after)) and not done.removed:
        say("the table is like that already")
        return
    say(
        f"{'; '.join(changes)}: {done.removed} objects of the former table removed. Change the source to match"
    )


def _as_text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
