"""`s3notify rows NAME`: the rows of a table."""

from datetime import datetime

from s3notify_platform.cli.as_of import as_of, asset_option, at_option, slot_option, version_option
from s3notify_platform.cli.common import SourcePlace, json_lines_option, limit_option, source_options
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.printing import say_rows
from s3notify_platform.kernel.slots import Slot


@command(short_help="Print the rows of a table.")
@source_options
@asset_option
@slot_option
@version_option
@at_option
@limit_option(None, "Print at most this many rows; default: all.")
@json_lines_option
def rows(
    *,
    place: SourcePlace,
    asset: str | None,
    slot: int | None,
    version: int | None,
    at: datetime | None,
    limit: int | None,
) -> None:
    """Print the rows of the table of source NAME, one JSON object a line. Each row names its object. Numbers that JSON
    lacks are printed as the texts "NaN", "Infinity" and "-Infinity".

    Every reader of Delta Lake tables can read the table too, also as of an earlier version: polars.scan_delta,
    deltalake.DeltaTable, DuckDB's delta_scan, Spark. `s3notify table show NAME` prints the table's URL, and `s3notify
    init NAME --print iam --role viewer` prints the permissions that a reader needs.
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
