"""`s3notify schema …`: the columns of a table, the history of its schema, other types for columns, and the way back."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import click

from s3notify_platform.cli.as_of import asset_option
from s3notify_platform.cli.common import SourcePlace, json_option, source_options, yes_option
from s3notify_platform.cli.configured import group
from s3notify_platform.cli.printing import print_json, say_wrapped, track
from s3notify_platform.cli.tasks import carry_out, dry_run_option
from s3notify_platform.kernel.texts import counted

NAMES_SHOWN: Final = 20


@group(short_help="Show, change or roll back the columns of a table.")
def schema() -> None:
    """Show the columns of a table and their history, change their types, or go back to an earlier schema."""


@schema.command(short_help="Print the columns of a table, and the history of its schema.")
@source_options
@asset_option
@json_option
def show(*, place: SourcePlace, asset: str | None, as_json: bool) -> None:
    """Print the columns of the table of source NAME, each with its type as `s3notify schema set` takes it. Then print
    the versions that changed the schema, the newest first: added columns and changed types.

    `--json` prints all columns of each version. `s3notify vacuum` deletes old versions. Cost: 2 LISTs, 1 GET for each
    version, and the GETs for the newest version.
    """
    from s3notify_platform.maintenance.schema_rollback import schema_history
    from s3notify_platform.table.pinned_schema import schema_of
    from s3notify_platform.table.snapshot import Snapshot
    from s3notify_platform.table.type_changes import column_ddl, ddl

    location = place.existing(asset)
    table, derived = location.table(asset), location.is_derived(asset)
    newest = table.newest()
    pinned = schema_of(newest.metadata, derived=derived) if isinstance(newest, Snapshot) else None
    columns = json.loads(pinned.rows).get("fields", []) if pinned else []
    inferred = pinned is not None and pinned.inferred
    history = [
        {
            "version": one.event.version,
            "since": datetime.fromtimestamp(one.event.created_ms / 1000, UTC).isoformat(timespec="seconds"),
            "batch": one.event.body.note.get("batch", ""),
            "inferred": one.schema.inferred,
            "columns": len(json.loads(one.schema.rows).get("fields", [])),
            "added": dict(one.added),
            "changed": dict(one.changed),
            "rows": json.loads(one.schema.rows),
        }
        for one in schema_history(table.reader, derived=derived)
    ]
    if as_json:
        types = {column["name"]: ddl(column["type"]) for column in columns}
        print_json({"columns": types, "inferred": inferred, "history": history})
        return
    if pinned is None:
        say_wrapped("no schema is pinned: nothing has been committed yet")
        return
    say_wrapped(f"{counted(len(columns), 'column')}{', inferred' if inferred else ''}")
    for column in columns:
        say_wrapped(f"    {column_ddl(column['name'], column['type'])}")
    for one in history:
        say_wrapped(_in_words(one))


def _in_words(change: Mapping[str, Any]) -> str:
    batch = f", batch {change['batch']}" if change["batch"] else ""
    added = f", added {_short(map(repr, change['added']))}" if change["added"] else ""
    changed = (f"{path!r} {types}" for path, types in change["changed"].items())
    return (
        f"version {change['version']}, {change['since'][:19].replace('T', ' ')} UTC{batch}: "
        f"{counted(change['columns'], 'column')}{', inferred' if change['inferred'] else ''}{added}"
        + (f", changed {_short(changed)}" if change["changed"] else "")
    )


@schema.command("set", short_help="Change the types of columns.")
@source_options
@click.argument("columns")
@click.option(
    "--asset",
    help="The table of a slot asset, instead of the source's own. NAME_latest and NAME_clustered get their types from "
    "the source's table.",
)
@click.option(
    "--of-transform",
    is_flag=True,
    help="Change only the table's columns; use this option if a transform makes these columns.",
)
@click.option("--read-again", is_flag=True, help="Read all objects with these columns again.")
@click.option(
    "--wait", is_flag=True, help="Wait, with a progress bar, until all requested objects are read again."
)
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
    """Change the types of columns in the table of source NAME. COLUMNS is DDL, like 'amount decimal(18,2)'.

    Without --yes, the command prints the cost and asks. One version changes all types, so that readers see the old
    types or the new ones. Values that the new type can hold are converted in the table's own files, which are
    rewritten. Other values are null until the next batch, which reads the objects of these values again. This batch
    also reads objects with records that are in quarantine because of one of these columns. If COLUMNS does not name a
    field of a struct, the field keeps its type.

    If the source's `schema` or `schema_hints` names the column, change that setting too. Runs may go on: a run that has
    read objects with the old type plans its work again. Safe to repeat, and to kill.

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


@schema.command(short_help="Return to an earlier schema.")
@source_options
@click.option(
    "--to",
    "version",
    type=click.IntRange(1),
    metavar="VERSION",
    required=True,
    help="A version that `s3notify schema show` lists.",
)
@dry_run_option
@json_option
def rollback(*, place: SourcePlace, version: int, dry_run: bool, as_json: bool) -> None:
    """Give the table of source NAME the schema of an earlier version again. Columns that were added later are removed.

    Use this command to remove columns that bad data has added. Stop the source's runs first. The command is refused
    while an object in the table has a value in one of these columns; the message names such objects. Delete or correct
    these objects, and let the source read the change. No file is rewritten. Later objects can add columns to an
    inferred schema again; declare the source's schema to prevent that.
    """
    from s3notify_platform.maintenance.schema_rollback import SchemaRollbackTo

    location, _, mode = place.committing()
    task = SchemaRollbackTo(location=location, commit=mode, version=version)
    carry_out(task, dry_run=dry_run, as_json=as_json)


def _short(parts: Iterable[str]) -> str:
    shown = list(parts)
    more = f" and {len(shown) - NAMES_SHOWN} more" if len(shown) > NAMES_SHOWN else ""
    return ", ".join(shown[:NAMES_SHOWN]) + more
