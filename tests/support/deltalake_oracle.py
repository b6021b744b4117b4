"""Reads a table in memory by `deltalake`, which knows nothing of the project: an oracle for tests of the log."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import deltalake
import pyarrow as pa

from s3notify_platform.kernel.ports import ObjectStore, StoredObject, list_all
from s3notify_platform.maintenance.vacuuming import named_by
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.snapshot import LogReader, Snapshot
from tests.support.folder_log import Row, normal


@contextmanager
def in_folder(store: ObjectStore, layout: TableLayout) -> Iterator[deltalake.DeltaTable]:
    """The newest version of a table, from a copy of its objects in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="s3notify-oracle-") as name:
        for meta in [*list_all(store, layout.prefix)]:
            found = store.get(meta.key)
            assert isinstance(found, StoredObject)
            target = Path(name) / meta.key.removeprefix(layout.prefix)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(found.body)
        yield deltalake.DeltaTable(name)


def agrees(table: deltalake.DeltaTable, reader: LogReader, snapshot: Snapshot, rows: list[Row]) -> None:
    """Checks that `deltalake` finds this version and these rows, and that its vacuum would remove no file that the
    version needs.
    """
    assert table.version() == snapshot.version
    assert table.transaction_version(snapshot.table) == snapshot.number
    query = deltalake.QueryBuilder().register("t", table)
    (counted,) = pa.table(query.execute("SELECT count(*) AS rows FROM t").read_all()).to_pylist()
    assert counted["rows"] == snapshot.rows == len(rows)
    assert normal(pa.table(query.execute("SELECT * FROM t").read_all()).to_pylist()) == normal(rows)
    removable = table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=True)
    prefix = reader.layout.prefix
    assert not named_by(reader, snapshot) & {f"{prefix}{unquote(path)}" for path in removable}
