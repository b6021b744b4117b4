"""`s3notify history NAME`: the versions of a table."""

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from s3notify_platform.cli.as_of import asset_option, slot_option
from s3notify_platform.cli.common import SourcePlace, json_option, limit_option, source_options
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.printing import print_found
from s3notify_platform.kernel.slots import Slot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from s3notify_platform.table.delta.actions import LogVersion
    from s3notify_platform.table.snapshot import LogReader

MAKER = "run or operation"
MAKER_WIDTH = len(MAKER)
SHOWN = ("version", "created", "slots", "objects", "rows", MAKER)
"""The columns for people: a row fits into a line of 80 characters."""

RUN_ID = 36
"""The length of a run id of Dagster, which Dagster's pages show by its first 8 characters, too."""

COUNTS = ("objects", "rows", "rejects", "gone")


@command(short_help="List the versions of a table.")
@source_options
@asset_option
@slot_option
@limit_option(20, "Print at most this many versions.")
@json_option
def history(*, place: SourcePlace, asset: str | None, slot: int | None, limit: int, as_json: bool) -> None:
    """List the versions of the table of source NAME, the newest first, with time, changed slots, counts and run.

    Long names of runs are cut, and Dagster's run ids have their first 8 characters. If no run made a version, its
    operation is printed. With --json, runs are printed completely, and also operation, batch and other counts. With
    --slot, only versions that changed the slot are listed, with the counts of the slot. Times are the store's, in UTC.
    `s3notify vacuum` deletes old versions, `s3notify rows` reads a version, and `s3notify table rollback` goes back to
    a version. Cost: 1 GET for each version; with --slot, 2 GETs.
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
        else f"no version in the history changed slot {slot}"
    )
    listed = [*islice(found, limit)]
    if not as_json:  # without the zone, a row fits into a line
        listed = [
            {**each, "created": each["created"][:19].replace("T", " "), MAKER: _maker(each)}
            for each in listed
        ]
    columns = {name: name for name in SHOWN if slot is None or name != "slots"}
    print_found(listed, columns, as_json=as_json, nothing=nothing)


def _maker(version: "Mapping[str, Any]") -> str:
    """The first run, with the number of further runs, or the operation. At most `MAKER_WIDTH` characters."""
    first, *others = version["run"].split(", ")
    if len(first) == RUN_ID:
        first = first[:8]
    text = (f"{first} +{len(others)}" if others else first) or version["operation"]
    return text if len(text) <= MAKER_WIDTH else f"…{text[1 - MAKER_WIDTH :]}"


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
    """The counts of the slot in this version; empty if the version did not change the slot."""
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


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
