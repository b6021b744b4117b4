"""A source's table: read by slot and generation, its Delta Lake view, its vacuum, and slots with missing commits."""

import json
from datetime import UTC, datetime
from itertools import islice

import click

from s3notify_platform.cli.common import (
    BucketPlace,
    SourcePlace,
    bucket_options,
    json_option,
    limit_option,
    named_source_options,
    options_as,
    slots_of,
    source_options,
)
from s3notify_platform.cli.printing import print_json, print_table, say
from s3notify_platform.slots import SLOT_COUNT, Slot

MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S"])


_asset = click.option("--asset", help="A slot asset of the source, instead of the source's own table.")
_slot = click.option(
    "--slot",
    type=click.IntRange(0, SLOT_COUNT - 1),
    required=True,
    help="One slot; `explain` prints a key's slot.",
)


@click.command(short_help="List the generations of a slot.")
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
    if as_json:
        print_json(found)
    elif found:
        print_table(found[0], (line.values() for line in found))
    else:
        say(f"slot {slot} has no commit")


@click.command(short_help="Print the rows of a slot.")
@source_options
@_asset
@_slot
@click.option("--generation", type=click.IntRange(1), help="Read this generation; default: the newest.")
@click.option("--at", type=MOMENT, help="Read as of this time, in UTC, like 2026-01-31T12:00:00.")
@limit_option(None, "Rows at most; default: all.")
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


@click.command(short_help="Bring the Delta Lake view of a source up to date.")
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
    read it; the role `viewer` of `s3notify init --print iam` is enough.

    A version shows whole slots, with `slot` as partition column; a `txn` action of each slot has its generation.
    Columns that only newer files have are null in older ones. Names with spaces or ,;{}()= are column-mapped, which
    Polars 2.1 refuses to read. A column called `slot`, or a type that Delta lacks, is an error that names it. Do not
    run OPTIMIZE or VACUUM on it: this command reverts the one, the other finds nothing to remove.
    """
    location, store, mode = place.committing()
    view = location.view(asset, commit=location.settle_commit_mode(mode, store))
    synced = view.sync(location.all_slots(), repair=repair)
    if synced.version is None:
        raise click.ClickException(f"{asset or place.name}: nothing has been committed yet")
    where = f"s3://{location.platform.bucket}/{location.table_layout(asset).view}"
    say(
        f"{where}: version {synced.version}, {synced.rows} rows; {synced.slots} slots updated, "
        f"{synced.files_added} files added, {synced.files_removed} removed"
    )


@click.command(short_help="Remove old commits, and files that no commit names.")
@options_as(BucketPlace, bucket_options("Bucket that holds the table.", "Region of the bucket"))
@click.option("--table", "prefix", required=True, help="Prefix of the table, like _s3notify/orders/table/.")
@click.option(
    "--days", type=click.FloatRange(min=1), default=7.0, show_default=True, help="Days of history to keep."
)
def vacuum(*, place: BucketPlace, prefix: str, days: float) -> None:
    """Remove commits older than the history to keep, and files that no commit names any more.

    `s3notify rows` and the Delta view can read no further back than that. Files of the view's last version are kept;
    its log is truncated behind a checkpoint of that age.
    """
    from s3notify_platform.table.commit import SlotTable
    from s3notify_platform.table.layout import TableLayout
    from s3notify_platform.table.vacuum import vacuum as run_vacuum

    of_prefix = SlotTable(place.store(), TableLayout(prefix=prefix))
    report = run_vacuum(of_prefix, retention_seconds=days * 86_400)
    say(
        f"removed {report.commits_removed} commits, {report.files_removed} files and {report.log_removed} objects of "
        f"the Delta log, {report.bytes_removed} bytes; "
        f"kept {report.commits_kept} commits and {report.files_kept} files"
    )


@click.group()
def table() -> None:
    """Decide what to do about a source whose table has missing commits."""


@table.command(short_help="Accept that commits of slots are missing.")
@named_source_options
@click.option(
    "--slots",
    "chosen",
    required=True,
    callback=slots_of,
    help="Slots with missing commits, like 3,17,20-29; or: all.",
)
def forget(*, place: SourcePlace, chosen: frozenset[Slot]) -> None:
    """Accept that the commits of slots are missing, so that their objects are taken in again.

    Runs refuse a slot that was committed before and has no commit any more. To take its objects in again would hide
    that its history, its quarantine, and rows of deleted objects are gone. Restore the table's objects if you can. If
    not, this lets the given slots start over; slots that have their commits are not changed.
    """
    from s3notify_platform.table.missing import forget_slots

    location = place.location()
    forgotten = forget_slots(location.table(), location.records(), chosen)
    if not forgotten:
        say("no commits of these slots are missing; nothing to forget")
        return
    say(
        f"forgot {len(forgotten)} slots: {','.join(map(str, sorted(forgotten)))}. The next batch that lists takes "
        "their objects in again; a backfill of these partitions does it now."
    )


def _as_text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
