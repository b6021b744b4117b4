"""Options that select a table and one of its versions."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from s3notify_platform.kernel.errors import NotFoundError
from s3notify_platform.kernel.slots import SLOT_COUNT

if TYPE_CHECKING:
    from s3notify_platform.table.log_table import LogTable
    from s3notify_platform.table.snapshot import Snapshot

MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S"])
asset_option = click.option(
    "--asset",
    help="Another table of the source, instead of its own: a slot asset, NAME_latest or NAME_clustered.",
)
at_option = click.option(
    "--at", type=MOMENT, metavar="TIME", help="As of this time in UTC, like 2026-01-31T12:00:00."
)
version_option = click.option(
    "--version", type=click.IntRange(0), metavar="VERSION", help="As of this version; default: the newest."
)
slot_option = click.option(
    "--slot",
    type=click.IntRange(0, SLOT_COUNT - 1),
    metavar="SLOT",
    help="Only this slot; `s3notify explain KEY` prints the slot of an object.",
)


def as_of(table: "LogTable", version: int | None, at: datetime | None) -> "Snapshot":
    """The table as of a version or a time; default: the newest version. `NotFoundError` if the version is not kept."""
    from s3notify_platform.table.snapshot import Absent
    from s3notify_platform.table.versions import snapshot_of, version_at

    if version is not None and at is not None:
        raise click.UsageError("give --version or --at, not both")
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
