"""`s3notify changes NAME`: the rows that came to a table, and those that left it."""

import click

from s3notify_platform.cli.as_of import slot_option
from s3notify_platform.cli.common import SourcePlace, limit_option, source_options
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.printing import say_rows
from s3notify_platform.kernel.slots import Slot


@command(short_help="Print the rows that came to a table, or left it.")
@source_options
@click.option("--since", type=click.IntRange(0), required=True, help="After this version.")
@click.option("--until", type=click.IntRange(0), help="Up to this version; default: the newest.")
@slot_option
@limit_option(None, "Rows at most; default: all.")
@click.option(
    "--json", is_flag=True, expose_value=False, help="No effect: the output is lines of JSON anyway."
)
def changes(
    *, place: SourcePlace, since: int, until: int | None, slot: int | None, limit: int | None
) -> None:
    """Print the rows that came to the source NAME between two versions, and those that left it, one JSON object a line.

    Each row has `_change_type` (insert or delete), `_commit_version`, `_commit_timestamp` and `_reason` (new,
    overwritten, deleted, backfilled, continued, quarantined, erased) besides its own columns; those that left come
    first. A row that came and left again in between is not printed. Of an erased object there is a hash of its key
    alone. As far back as vacuum has kept versions: `s3notify history` lists them.
    """
    from s3notify_platform.cli.as_of import as_of
    from s3notify_platform.table.arrow_schema import arrow_schema
    from s3notify_platform.table.row_changes import row_changes, with_changes

    table = place.table(None)
    found = as_of(table, until, None)
    output = with_changes(arrow_schema(found.metadata.schema))
    shares = row_changes(table.reader, since, found.version).shares(None if slot is None else [Slot(slot)])
    say_rows(
        (rows for share in shares for rows in share.read(table.reader.store, table.layout, output)), limit
    )
