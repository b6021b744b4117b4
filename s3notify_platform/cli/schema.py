"""A source's pinned schema: its history, and back to an earlier one."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import click

from s3notify_platform.cli.common import SourcePlace, json_option, source_options
from s3notify_platform.cli.configured import group
from s3notify_platform.cli.printing import print_found, say

SHOWN: Final = 20

_asset = click.option("--asset", help="A slot asset of the source, instead of the source's own table.")


@group()
def schema() -> None:
    """See how the schema of a table has grown, and go back."""


@schema.command(short_help="Print the generations of the schema.")
@source_options
@_asset
@json_option
def show(*, place: SourcePlace, asset: str | None, as_json: bool) -> None:
    """Print the generations of the pinned schema of the source NAME, the newest first, and what each has added.

    The columns of one: --json. 1 LIST, and 1 GET for each generation.
    """
    location = place.existing(asset)
    found = [
        {
            "generation": one.generation,
            "since": datetime.fromtimestamp(one.created_ms / 1000, UTC).isoformat(timespec="seconds"),
            "batch": one.batch,
            "inferred": one.inferred,
            "columns": len(json.loads(one.rows).get("fields", [])),
            "added": dict(one.added) if as_json else _short(one.added),
            **({"rows": json.loads(one.rows)} if as_json else {}),
        }
        for one in location.schemas(location.table_layout(asset)).history()
    ]
    print_found(found, as_json=as_json, nothing="no schema is pinned: nothing has been committed yet")


@schema.command(short_help="Go back to an earlier schema.")
@source_options
@click.option(
    "--to", "generation", type=click.IntRange(1), required=True, help="Generation, as `show` lists them."
)
@click.option("--dry-run", is_flag=True, help="Only say what it would do.")
def rollback(*, place: SourcePlace, generation: int, dry_run: bool) -> None:
    """Pin an earlier schema of the source NAME again, as the next generation: later columns leave the table.

    For columns that bad data has added. Stop the source's runs before. It is refused as long as an object that is in
    the table has a value in such a column; the message names objects: remove or correct them, and let the source take
    that in. Nothing is rewritten, and what comes later can widen an inferred schema again: declare the source's schema
    to prevent that.
    """
    from s3notify_platform.ingest.rollback import plan_rollback, roll_back

    location, store, mode = place.committing()
    settled = location.settle_commit_mode(mode, store)
    schemas = location.schemas(commit=settled)
    planned = plan_rollback(location.table(), schemas, location.all_slots(), generation)
    say(
        f"generation {generation} lacks {len(planned.columns)} columns of today's"
        + (f": {_short(planned.columns)}" if planned.columns else "")
    )
    for path, keys in planned.in_use.items():
        say(f"{path!r} has values from {', '.join(map(repr, keys))}")
    if not dry_run:
        done = roll_back(schemas, planned)
        say(f"pinned as generation {done.generation}; these columns are gone from the table")


def _short(paths: Iterable[str]) -> str:
    names = list(paths)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more
