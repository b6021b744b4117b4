"""The earlier versions of a table: the changes that each version made, and the table as of a version.

Versions are kept for the retention time of vacuum. A version's time is the modification time of its object, by the
store's clock. S3 gives this time in whole seconds.

Each function except `created_ms` and `note_of` costs 1 LIST for each 1000 versions that are kept. `history` costs 1 GET
for each version that it yields. `snapshot_of` costs 1 GET of a checkpoint, 1 GET for each version after the checkpoint,
and 1 GET of a manifest.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from s3notify_platform.kernel.errors import NotFoundError
from s3notify_platform.kernel.ports import ObjectMeta, list_all
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.delta.actions import LogVersion
from s3notify_platform.table.snapshot import LogReader, Snapshot

ROLLBACK: Final = "rollback"
"""Field of a version's note: the version that a rollback restored."""

RETYPED: Final = "retyped"
"""Field of a version's note: the columns that got another type, by name, with the old and the new type."""

VALUES: Final = "values"
"""Field of a version's note, next to `RETYPED`: true if readers see other values than before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A version, and the time when it was created, by the store's clock."""

    version: int
    created_ms: int
    body: LogVersion


def history(reader: LogReader) -> Iterator[Event]:
    """Yields the versions that are kept, newest first. Versions that vacuum removes meanwhile are left out."""
    found = kept_versions(reader)
    for version in sorted(found, reverse=True):
        body = reader.version(version)
        if body is not None:
            yield Event(version=version, created_ms=found[version].modified_ms, body=body)


def kept_versions(reader: LogReader) -> dict[int, ObjectMeta]:
    """Returns the versions that are kept, with their objects. Versions that `erase` has emptied are left out."""
    layout = reader.layout
    listed = (meta for meta in list_all(reader.store, layout.log) if meta.size)
    return {version: meta for meta in listed if (version := layout.version_of(meta.key)) is not None}


def changed_at(reader: LogReader, snapshot: Snapshot) -> dict[Slot, int]:
    """Returns the time of the last change of each slot, in Unix milliseconds, or 0 if the version of this change is no
    longer kept.
    """
    kept = kept_versions(reader)
    return {
        slot: kept[facts.generation].modified_ms if facts.generation in kept else 0
        for slot, facts in snapshot.manifest.slots.items()
        if facts.generation
    }


def created_ms(reader: LogReader, version: int) -> int:
    """Returns the time when a version was created, by its writer's clock, or 0 if the version is not kept. Cost: 1
    GET.
    """
    found = reader.version(version)
    return found.created_ms if found is not None else 0


def version_at(reader: LogReader, at_ms: int) -> int:
    """Returns the version that was the newest version at the time `at_ms` (Unix milliseconds).

    `NotFoundError`: all kept versions are newer.
    """
    found = kept_versions(reader)
    if not (earlier := [version for version, meta in found.items() if meta.modified_ms <= at_ms]):
        oldest = min(found, default=None)
        kept = "there is no table" if oldest is None else f"the oldest version that is kept is {oldest}"
        raise NotFoundError(
            f"the table below {reader.layout.prefix!r} had no version at {at_ms} (Unix ms): {kept}"
        )
    return max(earlier)


def snapshot_of(reader: LogReader, version: int) -> Snapshot:
    """Returns the table as of this version. `NotFoundError`: the version is not kept, or does not exist yet."""
    found = reader.as_of(version)
    if found is None:
        kept = sorted(kept_versions(reader))
        there = f"versions {kept[0]} to {kept[-1]} are kept" if kept else "there is no table"
        raise NotFoundError(f"version {version} of the table below {reader.layout.prefix!r}: {there}")
    return found


def note_of(version: LogVersion, slot: Slot) -> Mapping[str, Any]:
    """Returns the note of the change that concerned this slot, or an empty note. A version may have several changes
    with notes.

    Pure.
    """
    notes = version.note.get("together", (version.note,))
    return next((note for note in reversed(notes) if slot in note.get("slots", ())), {})
