"""Commands that read versions of a table: its history, and its rows as of one of them."""

import json
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from s3notify_platform.cli.common import SourcePlace, json_option, limit_option, source_options
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.printing import print_found, say
from s3notify_platform.kernel.errors import NotFoundError
from s3notify_platform.kernel.slots import SLOT_COUNT, Slot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from s3notify_platform.table.delta.actions import LogVersion
    from s3notify_platform.table.log_table import LogTable
    from s3notify_platform.table.snapshot import LogReader, Snapshot

MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S"])
COUNTS = ("objects", "rows", "rejects", "gone")

asset_option = click.option("--asset", help="A slot asset of the source, instead of the source's own table.")
at_option = click.option("--at", type=MOMENT, help="As of this time, in UTC, like 2026-01-31T12:00:00.")
version_option = click.option(
    "--version", type=click.IntRange(0), help="As of this version; default: the newest."
)
_slot = click.option(
    "--slot", type=click.IntRange(0, SLOT_COUNT - 1), help="Only one slot, as `explain` prints it."
)


@command(short_help="List the versions of a table.")
@source_options
@asset_option
@_slot
@limit_option(20, "Versions at most.")
@json_option
def history(*, place: SourcePlace, asset: str | None, slot: int | None, limit: int, as_json: bool) -> None:
    """List the versions of the table of the source NAME, the newest first: when, by which batch, with what counts.

    As far back as vacuum has kept them. Times are the store's, in UTC. `s3notify rows` reads one of them, and
    `s3notify table rollback` goes back to one. With --slot: the versions that changed the slot, with its counts then.
    1 GET for each version, with --slot 2.
    """
    from s3notify_platform.table.versions import history as versions

    reader = place.table(asset).reader
    found: Iterator[dict[str, Any]] = (
        {"version": event.version, "created": _time(event.created_ms), **shown}
        for event in versions(reader)
        if (shown := _of_table(event.body) if slot is None else _of_slot(reader, event.body, Slot(slot)))
    )
    nothing = (
        "no version has been committed yet"
        if slot is None
        else f"no version that is kept changed slot {slot}"
    )
    print_found([*islice(found, limit)], as_json=as_json, nothing=nothing)


def _of_table(version: "LogVersion") -> dict[str, Any]:
    notes = version.note.get("together", (version.note,))
    return {
        "operation": version.operation,
        "slots": len({slot for note in notes for slot in note.get("slots", ())}),
        **{name: sum(note.get(name, 0) for note in notes) for name in COUNTS},
        "packs_added": len(version.adds),
        "packs_removed": len(version.removes),
        "batch": ", ".join(dict.fromkeys(note["batch"] for note in notes if note.get("batch"))),
        "run": ", ".join(dict.fromkeys(note["run"] for note in notes if note.get("run"))),
    }


def _of_slot(reader: "LogReader", version: "LogVersion", slot: Slot) -> dict[str, Any]:
    """The slot's counts, if the version changed it."""
    from s3notify_platform.table.versions import note_of

    if version.foreign:
        return {}
    manifest = reader.manifest(version.number)
    facts, note = manifest.slot(slot), note_of(version, slot)
    if not facts.generation or facts.generation != manifest.version:
        return {}
    counts = {name: getattr(facts, name) for name in ("objects", "rows", "rejects", "failing", "pending")}
    return {
        "operation": version.operation,
        **counts,
        "batch": note.get("batch", ""),
        "run": note.get("run", ""),
    }


@command(short_help="Print the rows of a table.")
@source_options
@asset_option
@_slot
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
    for row in islice((row for batch in parts for row in batch.to_pylist()), limit):
        say(json.dumps(row, ensure_ascii=False, default=_as_text))


def as_of(table: "LogTable", version: int | None, at: datetime | None) -> "Snapshot":
    """The table as of a version or a time; the newest version without both. `NotFoundError`: it is not kept."""
    from s3notify_platform.table.snapshot import Absent
    from s3notify_platform.table.versions import snapshot_of, version_at

    if version is not None and at is not None:
        raise click.UsageError("--version or --at, not both")
    if at is not None:
        version = version_at(table.reader, _ms(at))
    if version is not None:
        return snapshot_of(table.reader, version)
    found = table.newest()
    if isinstance(found, Absent):
        raise NotFoundError(f"there is no table below {table.layout.prefix!r}")
    return found


def _ms(at: datetime) -> int:
    return round(at.replace(tzinfo=UTC).timestamp() * 1000)


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def _as_text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
