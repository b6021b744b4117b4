"""`s3notify changes NAME`: the rows that a table gained and lost between two versions."""

import click

from s3notify_platform.cli.as_of import slot_option
from s3notify_platform.cli.common import SourcePlace, json_lines_option, limit_option, source_options
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.printing import say_rows
from s3notify_platform.kernel.slots import Slot


@command(short_help="Print rows that a table gained or lost.")
@source_options
@click.option(
    "--since", type=click.IntRange(0), metavar="VERSION", required=True, help="Changes after this version."
)
@click.option(
    "--until",
    type=click.IntRange(0),
    metavar="VERSION",
    help="Changes up to this version; default: the newest.",
)
@slot_option
@limit_option(None, "Print at most this many rows; default: all.")
@json_lines_option
def changes(
    *, place: SourcePlace, since: int, until: int | None, slot: int | None, limit: int | None
) -> None:
    """Print the rows that the table of source NAME lost and gained between two versions, one JSON object a line.

    Each row has its own columns, and `_change_type` (insert or delete), `_commit_version`, `_commit_timestamp` and
    `_reason` (new, overwritten, deleted, backfilled, continued, quarantined, erased, rolled back, retyped). Deleted
    rows come first. A row that was inserted and deleted between the two versions is not printed. For an erased object,
    only a hash of its key is printed. All rows of changed slots are printed as deleted and inserted after a rollback,
    and all rows of the table after a type change that changed values. Numbers that JSON lacks are printed as the texts
    "NaN", "Infinity" and "-Infinity". `s3notify history` lists the table versions; `s3notify vacuum` deletes old
    versions.
    """
    from s3notify_platform.cli.as_of import as_of
    from s3notify_platform.table.arrow_schema import arrow_schema
    from s3notify_platform.table.change_columns import with_changes
    from s3notify_platform.table.row_changes import row_changes

    table = place.table(None)
    found = as_of(table, until, None)
    output = with_changes(arrow_schema(found.metadata.schema))
    shares = row_changes(table.reader, since, found.version).shares(None if slot is None else [Slot(slot)])
    say_rows(
        (rows for share in shares for rows in share.read(table.reader.store, table.layout, output)), limit
    )
