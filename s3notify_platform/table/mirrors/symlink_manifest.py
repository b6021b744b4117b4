"""A list of the table's Parquet files, for engines that know Hive's symlink format: Athena, Presto, Redshift Spectrum.

`{table}/_symlink_format_manifest/manifest` has the URL of each pack, one a line, like the manifests that Delta Lake's
own `GENERATE symlink_format_manifest` writes. Its first reader sees a version as a whole. Not for tables with deletion
vectors: such engines would show the rows that these hide.

Requests: 1 PUT for each version.
"""

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.table.mirrors import Mirrored


class SymlinkManifest:
    """See `Mirror`."""

    def show(self, table: Mirrored) -> None:
        """See `Mirror.show`. `UsageError`: rows are hidden by deletion vectors."""
        packs = table.snapshot.packs.values()
        if any(pack.vector for pack in packs):
            raise UsageError(
                f"{table.url} has deletion vectors, which a list of files cannot show: compact it"
            )
        prefix = table.layout.prefix
        keys = sorted(table.layout.file(pack.path) for pack in packs)
        lines = (f"{table.url}{key.removeprefix(prefix)}\n" for key in keys)
        table.store.put(table.layout.symlinks, "".join(lines).encode())
