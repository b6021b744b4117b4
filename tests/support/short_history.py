"""Cuts the log of a table, as happens after the retention. Therefore tests need not wait for the retention."""

from dataclasses import replace

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.maintenance.vacuuming import Fence, vacuum
from s3notify_platform.table.commit import CHECKPOINT_EVERY
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.snapshot import Snapshot


def cut(table: LogTable) -> None:
    """Deletes the versions below a new checkpoint. Two vacuums are needed: the first one marks the checkpoint."""
    for _ in range(CHECKPOINT_EVERY + 1):
        table.committer.commit(Fence(), _newest(table))
    ahead = replace(table.committer, max_run_seconds=-3600.0)
    for _ in range(2):
        later = replace(_newest(table), asked_at=_newest(table).asked_at + 7200)
        vacuum(ahead, later, retention_seconds=-60.0, clock=SYSTEM_CLOCK)


def _newest(table: LogTable) -> Snapshot:
    found = table.newest()
    assert isinstance(found, Snapshot)
    return found
