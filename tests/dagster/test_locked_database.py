"""If another process locks Dagster's own database, a run fails with that reason, and the table stays correct."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.site import Site

BUSY = "dagster._core.storage.event_log.sqlite.sqlite_event_log.SQLITE_BUSY_TIMEOUT_SECONDS"


def test_the_next_run_completes_the_grid_after_the_database_was_locked(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the lock is released, the next run must report the missing slots."""
    monkeypatch.setattr(BUSY, 0.2)
    site.write(3)
    assert site.run([3]).success
    site.write(3, 4, number=1)
    (index,) = tmp_path.rglob("index.db")
    with closing(sqlite3.connect(index, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Exception, match="database is locked"):
            site.run([3, 4])
        other.execute("ROLLBACK")
    assert site.run([3, 4]).success
    assert site.rows() == {3: [3, 3], 4: [4]}
    assert site.grid()["materialized"] == {3, 4}
