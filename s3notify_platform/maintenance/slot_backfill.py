"""Requests a new read of unchanged objects, for `s3notify backfill`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.task import Report
from s3notify_platform.source.location import CommitMode, Location
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.reread import backfill


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillSlots:
    """The task: the next batches read all objects of `slots` again. See `table.reread.backfill`.

    A table that a run would refuse is also refused here (`Location.open_table`).
    """

    location: Location
    commit: CommitMode
    slots: Sequence[Slot]
    asks: ClassVar[str] = ""

    def plan(self) -> Report:
        """See `Task`."""
        return self._requested(dry_run=True)

    def run(self) -> Report:
        """See `Task`."""
        return self._requested()

    def _requested(self, *, dry_run: bool = False) -> Report:
        location, store = self.location, open_store(self.location.platform)
        location.open_table(store)  # raises the errors that a run would raise
        mode = self.commit if dry_run else location.settle_commit_mode(self.commit, store)
        table = location.table(store=store, commit=mode)
        found = backfill(table, self.slots, location.slot_signals(store), dry_run=dry_run)
        done = "would be" if dry_run else "are"
        line = (
            f"{found.objects} objects with {found.rows} rows, in {len(found.slots)} slots, {done} read again"
        )
        return Report(lines=(line,), document=asdict(found))
