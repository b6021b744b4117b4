"""A list of the table's Parquet files, for engines that read Hive's symlink format: Athena, Presto, Redshift Spectrum.

`{table}/_symlink_format_manifest/manifest` has the URLs of all packs, one on each line, as Delta Lake's `GENERATE
symlink_format_manifest` writes them. The user metadata of this object contains the table version. So a slow writer
notices a newer list, and does not replace it. Tables with deletion vectors are refused, because engines would show the
hidden rows.

Cost: 1 HEAD and 1 PUT for each version, and 1 HEAD and 1 PUT more for each competing writer. The body has about 100
bytes for each pack of the table.
"""

from typing import Final

from s3notify_platform.kernel.attempts import attempts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.kernel.ports import ABSENT, IfMatch, ObjectMeta, Written
from s3notify_platform.table.mirrors import Mirrored

TABLE: Final = "s3notify-table"
VERSION: Final = "s3notify-version"


class SymlinkManifest:
    """See `Mirror`."""

    def show(self, table: Mirrored) -> None:
        """See `Mirror.show`. `UsageError`: deletion vectors hide rows."""
        packs, prefix = table.snapshot.packs.values(), table.layout.prefix
        if any(pack.vector for pack in packs):
            raise UsageError(
                f"{table.url} has deletion vectors, which a list of files cannot express: compact the table"
            )
        keys = sorted(table.layout.file(pack.path) for pack in packs)
        body = "".join(f"{table.url}{key.removeprefix(prefix)}\n" for key in keys).encode()
        metadata = {TABLE: table.snapshot.table, VERSION: str(table.snapshot.version)}
        for _ in attempts(SYSTEM_CLOCK):
            found = table.store.head(table.layout.symlinks)
            if found is not None and _is_later(found, table):
                return
            expected = ABSENT if found is None else IfMatch(etag=found.etag)
            written = table.store.put(table.layout.symlinks, body, precondition=expected, metadata=metadata)
            if isinstance(written, Written):
                return
        raise UnavailableError(
            f"{table.layout.symlinks}: other writers change this list all the time; the next version updates it"
        )


def _is_later(found: ObjectMeta, table: Mirrored) -> bool:
    """Returns true if the list already shows this version of the table, or a later version."""
    shown = found.metadata.get(VERSION, "")
    same = found.metadata.get(TABLE) == table.snapshot.table
    return same and shown.isdecimal() and int(shown) >= table.snapshot.version
