"""Mirrors. After each new version, a mirror shows the table elsewhere: in a catalog, or in another table format.

A new mirror is a folder or a file with a class, and one entry in `MIRRORS`. The entry's name becomes a value of the
setting `mirror`. No other code has to change, because batches, slot assets, compaction, rollback and erasure all commit
through `LogTable.commit`.

The process that has committed calls the mirror afterwards. If the mirror fails, the error is logged, and the version
stays committed. A mirror gets the whole snapshot. So if a mirror misses a version, it is up to date again after the
next version. The calls for two versions may come in any order.
"""

import logging
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Final, Protocol

from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.snapshot import Snapshot

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """The snapshot of a table that a mirror shows. `url`: the URL of the table's prefix, which ends in `/`."""

    url: str
    store: ObjectStore
    layout: TableLayout
    snapshot: Snapshot


class Mirror(Protocol):
    """Shows a table in another catalog or table format."""

    def show(self, table: Mirrored) -> None:
        """Shows this version, unless a later version is already shown. Two calls may have the same version."""
        ...


MIRRORS: Final[dict[str, str]] = {
    "symlink": "s3notify_platform.table.mirrors.symlink_manifest:SymlinkManifest",
}
"""The mirrors by name: the import path of each class (`module:class`)."""


def show(name: str, table: Mirrored) -> None:
    """Makes this mirror show the table. Errors are only logged, because the version is already committed."""
    try:
        mirror: Mirror = resolve_name(MIRRORS[name])()
        mirror.show(table)
    except Exception:  # noqa: BLE001 - any error concerns the mirror alone
        _LOG.exception("mirror %s of %s failed to show version %d", name, table.url, table.snapshot.version)
