"""A source's pinned schema: its history, other types for its columns, and back to an earlier one."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import click

from s3notify_platform.cli.common import SourcePlace, json_option, source_options, yes_option
from s3notify_platform.cli.configured import group
from s3notify_platform.cli.printing import print_found, track
from s3notify_platform.cli.tasks import carry_out, dry_run_option

SHOWN: Final = 20

_asset = click.option("--asset", help="A slot asset of the source, instead of the source's own table.")


@group()
def schema() -> None:
    """See how the schema of a table has grown, give columns other types, and go back."""


@schema.command(short_help="Print how the schema has changed.")
@source_options
@_asset
@json_option
def show(*, place: SourcePlace, asset: str | None, as_json: bool) -> None:
    """Print the versions that have changed the schema of the source NAME, the newest first: added columns, other types.

    As far as versions are kept. The columns of one: --json. 1 LIST, and 1 GET for each version.
    """
    from s3notify_platform.maintenance.schema_rollback import schema_history

    location = place.existing(asset)
    found = [
        {
            "version": one.event.version,
            "since": datetime.fromtimestamp(one.event.created_ms / 1000, UTC).isoformat(timespec="seconds"),
            "batch": one.event.body.note.get("batch", ""),
            "inferred": one.schema.inferred,
            "columns": len(json.loads(one.schema.rows).get("fields", [])),
            "added": dict(one.added) if as_json else _short(one.added),
            "changed": dict(one.changed) if as_json else _short(one.changed),
            **({"rows": json.loads(one.schema.rows)} if as_json else {}),
        }
        for one in schema_history(location.table(asset).reader, derived=asset is not None)
    ]
    print_found(found, as_json=as_json, nothing="no schema is pinned: nothing has been committed yet")


@schema.command("set", short_help="Give columns other types.")
@source_options
@click.argument("columns")
@_asset
@click.option("--of-transform", is_flag=True, help="Only the table's columns: a transform makes them.")
@click.option("--read-again", is_flag=True, help="Have all objects that have the columns read again.")
@click.option("--wait", is_flag=True, help="Wait, with a bar, until nothing is left to be read again.")
@yes_option
@dry_run_option
@json_option
def set_types(
    *,
    place: SourcePlace,
    columns: str,
    asset: str | None,
    of_transform: bool,
    read_again: bool,
    wait: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Give columns of the table of the source NAME other types: COLUMNS as DDL, like 'amount decimal(18,2)'.

    It says first what that costs. Readers see the old types or the new ones, in one version. Values that are the same
    in the new type, or texts of them, come from the table's own files, which are written again. Objects that have
    others, or records in quarantine for such a column, are read again by the next batch; until then such a value is
    null. Fields of a struct that are not named stay.

    Set the source's `schema` or `schema_hints` too, if they name the column. Runs may go on: one that has read by the
    old type plans again. Safe to kill, and to repeat.

    \b
    s3notify schema set orders 'amount decimal(18,2)' --dry-run
    """  # noqa: D301 - click's own mark
    from s3notify_platform.maintenance.set_types import SetTypes

    location, _, mode = place.committing()
    task = SetTypes(
        location=location,
        commit=mode,
        columns=columns,
        asset=asset,
        of_transform=of_transform,
        read_again=read_again,
        wait=wait,
        track=track,
    )
    carry_out(task, dry_run=dry_run, as_json=as_json, yes=yes)


@schema.command(short_help="Go back to an earlier schema.")
@source_options
@click.option("--to", "version", type=click.IntRange(1), required=True, help="Version, as `show` lists them.")
@dry_run_option
@json_option
def rollback(*, place: SourcePlace, version: int, dry_run: bool, as_json: bool) -> None:
    """Give the table of the source NAME the schema of an earlier version again: later columns leave the table.

    For columns that bad data has added. Stop the source's runs before. It is refused as long as an object that is in
    the table has a value in such a column; the message names objects: remove or correct them, and let the source take
    that in. Nothing is rewritten, and what comes later can widen an inferred schema again: declare the source's schema
    to prevent that.
    """
    from s3notify_platform.maintenance.schema_rollback import SchemaRollbackTo

    location, _, mode = place.committing()
    task = SchemaRollbackTo(location=location, commit=mode, version=version)
    carry_out(task, dry_run=dry_run, as_json=as_json)


def _short(paths: Iterable[str]) -> str:
    names = list(paths)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more
