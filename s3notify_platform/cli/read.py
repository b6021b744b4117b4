"""`s3notify history | rows | delta`: a source's table, read by slot and generation, and its Delta Lake view."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from s3notify_platform.cli.common import options_as, print_table, region_option, setting_option
from s3notify_platform.slots import SLOT_COUNT

if TYPE_CHECKING:
    from s3notify_platform.ingest.location import Location
    from s3notify_platform.table.commit import SlotTable

MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace:
    """Where the table of a source, or of one of its slot assets, is."""

    name: str
    bucket: str
    platform_prefix: str
    asset: str | None
    endpoint_url: str | None
    region: str

    def location(self) -> "Location":
        """The location of the table. Credentials come from the environment, a profile or a role. No request."""
        from s3notify_platform.ingest.location import Location
        from s3notify_platform.stores.config import S3Config

        bucket = S3Config(bucket=self.bucket, endpoint_url=self.endpoint_url, region=self.region)
        return Location(name=self.name, platform=bucket, platform_prefix=self.platform_prefix)

    def table(self) -> "SlotTable":
        """The table. No request."""
        location = self.location()
        return location.table(location.table_layout(self.asset))


table_options = options_as(
    TablePlace,
    click.argument("name"),
    click.option("--bucket", required=True, help="Bucket of the platform's own objects."),
    setting_option("platform_prefix"),
    click.option("--asset", help="A slot asset of the source, instead of the source's own table."),
    click.option("--endpoint-url", help="S3 endpoint; AWS if not given."),
    region_option("Region of the bucket"),
)
"""The argument NAME, and options that locate its table; taken as one `place: TablePlace`."""


@click.command(short_help="List the generations of a slot.")
@table_options
@click.option(
    "--slot",
    type=click.IntRange(0, SLOT_COUNT - 1),
    required=True,
    help="One slot; `explain` prints a key's slot.",
)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Generations at most.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, for machines.")
def history(*, place: TablePlace, slot: int, limit: int, as_json: bool) -> None:
    """List the generations of a slot of the source NAME, the newest first.

    As far back as vacuum has kept them. Times are the store's, in UTC. `s3notify rows` reads one of them.
    """
    from itertools import islice

    from s3notify_platform.slots import Slot
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
        for seen in islice(generations(place.table(), Slot(slot)), limit)
    ]
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif found:
        print_table(found[0], (line.values() for line in found))
    else:
        click.echo(f"slot {slot} has no commit")


@click.command(short_help="Print the rows of a slot.")
@table_options
@click.option(
    "--slot",
    type=click.IntRange(0, SLOT_COUNT - 1),
    required=True,
    help="One slot; `explain` prints a key's slot.",
)
@click.option("--generation", type=click.IntRange(1), help="Read this generation; default: the newest.")
@click.option("--at", type=MOMENT, help="Read as of this time, in UTC, like 2026-01-31T12:00:00.")
@click.option("--limit", type=click.IntRange(1), help="Rows at most; default: all.")
def rows(
    *, place: TablePlace, slot: int, generation: int | None, at: datetime | None, limit: int | None
) -> None:
    """Print the rows of a slot of the source NAME, one JSON object a line, with the object that each came from.

    The whole table as it was at a time: `generations_at` of `s3notify_platform.table.history` (1 LIST for each slot),
    then `load_slots` of `spark.load`, or `read_slots` of `table.reader` without Spark.
    """
    from itertools import islice

    from s3notify_platform.slots import Slot
    from s3notify_platform.table.history import generations_at
    from s3notify_platform.table.layout import Generation
    from s3notify_platform.table.reader import read_slots

    if generation and at:
        raise click.UsageError("--generation or --at, not both")
    table, which = place.table(), Slot(slot)
    generations = {which: Generation(generation)} if generation else None
    if at:
        generations = generations_at(table, [which], int(at.replace(tzinfo=UTC).timestamp() * 1000))
    elif not generation and table.head(which) is None:
        click.echo(f"slot {slot} has no commit", err=True)
        return
    parts = read_slots(table, [which], generations=generations)
    for row in islice(_dicts(part.table for part in parts), limit):
        click.echo(json.dumps(row, ensure_ascii=False, default=_as_text))


@click.command(short_help="Bring the Delta Lake view of a source up to date.")
@table_options
@click.option(
    "--slot-count",
    "slots",
    type=click.IntRange(1, SLOT_COUNT),
    default=SLOT_COUNT,
    help="Number of slots of the source; default: 1000.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Compare all files of the view with the table, even if its log is up to date.",
)
def delta(*, place: TablePlace, slots: int, repair: bool) -> None:
    """Bring the Delta Lake view of the source NAME up to date with its table, and print its URL. Safe to repeat.

    The same as the asset NAME_delta, without Dagster. polars.scan_delta, deltalake.DeltaTable and DuckDB's delta_scan
    read it; the role `viewer` of `s3notify init --print iam` is enough.

    A version shows whole slots, with `slot` as partition column; a `txn` action of each slot has its generation.
    Columns that only newer files have are null in older ones. Names with spaces or ,;{}()= are column-mapped, which
    Polars 2.1 refuses to read. A column called `slot`, or a type that Delta lacks, is an error that names it. Do not
    run OPTIMIZE or VACUUM on it: this command reverts the one, the other finds nothing to remove.
    """
    from s3notify_platform.ingest.location import CommitMode
    from s3notify_platform.slots import Slot
    from s3notify_platform.stores.s3.fast import shared_store

    location = place.location()
    mode = location.settle_commit_mode(CommitMode(), shared_store(location.platform))
    synced = location.view(place.asset, commit=mode).sync(map(Slot, range(slots)), repair=repair)
    if synced.version is None:
        raise click.ClickException(f"{place.asset or place.name}: nothing has been committed yet")
    where = f"s3://{place.bucket}/{location.table_layout(place.asset).view}"
    click.echo(
        f"{where}: version {synced.version}, {synced.rows} rows; {synced.slots} slots updated, "
        f"{synced.files_added} files added, {synced.files_removed} removed"
    )


def _dicts(tables: Iterable[Any]) -> Iterable[dict[str, Any]]:
    for table in tables:
        for batch in table.to_batches():
            yield from batch.to_pylist()


def _as_text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
