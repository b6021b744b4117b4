"""`s3notify rows NAME`: the rows of a table."""

from datetime import datetime

import click

from s3notify_platform.cli.as_of import as_of, asset_option, at_option, slot_option, version_option
from s3notify_platform.cli.common import SourcePlace, limit_option, source_options
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.printing import say_rows
from s3notify_platform.kernel.slots import Slot


@command(short_help="Print the rows of a table.")
@source_options
@asset_option
@slot_option
@version_option
@at_option
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
    found = as_of(table, version, at)
    parts = read_slots(
        table.reader.store,
        table.layout,
        found.packs.values(),
        None if slot is None else [Slot(slot)],
        arrow_schema(found.metadata.schema),
    )
    say_rows(parts, limit)
