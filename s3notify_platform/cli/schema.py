"""A source's pinned schema, and how it has grown."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

import click

from s3notify_platform.cli.common import SourcePlace, json_option, source_options
from s3notify_platform.cli.configured import group
from s3notify_platform.cli.printing import print_found

SHOWN: Final = 20

_asset = click.option("--asset", help="A slot asset of the source, instead of the source's own table.")


@group()
def schema() -> None:
    """See how the schema of a table has grown. `s3notify table rollback` goes back, with all of the table."""


@schema.command(short_help="Print the versions that changed the schema.")
@source_options
@_asset
@json_option
def show(*, place: SourcePlace, asset: str | None, as_json: bool) -> None:
    """Print the versions that changed the pinned schema of the source NAME, the newest first, and what each has added.

    As far back as vacuum has kept them; the oldest line is the schema of the oldest version that is kept. The columns
    of one: --json. 1 GET for each version.
    """
    from s3notify_platform.table.history import history, snapshot_of
    from s3notify_platform.table.schema import NO_SCHEMA, added_fields, schema_of

    reader = place.table(asset).reader
    events = [*history(reader)]
    changed = [(event, event.body.metadata) for event in events if event.body.metadata is not None]
    if events and events[-1].body.metadata is None:
        changed.append((events[-1], snapshot_of(reader, events[-1].version).metadata))
    schemas = [schema_of(metadata, derived=asset is not None) or NO_SCHEMA for _, metadata in changed]
    found = [
        {
            "version": event.version,
            "since": datetime.fromtimestamp(event.created_ms / 1000, UTC).isoformat(timespec="seconds"),
            "batch": event.body.note.get("batch", ""),
            "inferred": now.inferred,
            "columns": len(json.loads(now.rows).get("fields", [])),
            "added": added if as_json else _short(added),
            "removed": removed if as_json else _short(removed),
            **({"rows": json.loads(now.rows)} if as_json else {}),
        }
        for (event, _), (now, before) in zip(changed, pairwise([*schemas, NO_SCHEMA]), strict=True)
        if (added := added_fields(before.rows, now.rows)) | (removed := added_fields(now.rows, before.rows))
    ]
    print_found(found, as_json=as_json, nothing="no schema is pinned: nothing has been committed yet")


def _short(paths: Iterable[str]) -> str:
    names = list(paths)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more
