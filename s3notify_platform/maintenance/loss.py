"""Losses that a person accepts: lost versions of a table, and the deletion of many objects of the bucket at once."""

from dataclasses import dataclass, replace
from typing import ClassVar

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.task import Report
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.source.location import CommitMode, Location
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.open_table import confirm, forget
from s3notify_platform.table.snapshot import Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetVersions:
    """The task: a table with lost versions, or with a lost record, continues from the remaining versions. See `forget`.

    `asset`: the slot asset whose table the task is for; None: the source's own table.
    """

    location: Location
    commit: CommitMode
    asset: str | None = None
    asks: ClassVar[str] = ""

    def plan(self) -> Report:
        """See `Task`."""
        location = self._of_table()
        if self._is_whole(location):
            return self._whole()
        left = location.table(self.asset).reader.longest()
        line = "the table would be forgotten: no version of it can be read"
        if left is not None:
            line = f"the table would continue from version {left.version}, with another id"
        return Report(lines=(line,), document={"whole": False, "version": left.version if left else -1})

    def run(self) -> Report:
        """See `Task`."""
        location, asset = self._of_table(), self.asset
        if self._is_whole(location):
            # An earlier call may have been killed before it moved the signal.
            location.slot_signals().signal_slots([Slot(0)])
            return self._whole()
        settled = location.settle_commit_mode(self.commit, open_store(location.platform), lost=True)

        def backlog() -> None:
            if asset is None:
                RescanBacklog(location.records()).add(location.all_slots())

        done = forget(location.table(asset, commit=settled).committer, backlog)
        if not done.table:
            raise location.no_table(asset)
        location.slot_signals().signal_slots([Slot(0)])  # triggers the next batch
        line = f"forgot the table; the next run builds a table with the id {done.table} from all objects"
        if done.version >= 0:
            line = (
                f"the table continues from version {done.version} with the id {done.table}; the next batch that lists "
                "the bucket compares all slots of the table"
            )
        return Report(lines=(line,), document={"whole": False, "version": done.version, "table": done.table})

    def _of_table(self) -> Location:
        """The location, with the table's number of slots."""
        known, _ = self.location.known(self.asset).read()
        if known is None or known.identity is None:
            return self.location
        return replace(self.location, slots=known.identity.slots)

    def _is_whole(self, location: Location) -> bool:
        known, _ = location.known(self.asset).read()
        if known is not None and known.version <= 0:
            return False
        try:
            found = location.table(self.asset).newest()
        except CorruptError:
            return False
        if isinstance(found, Absent):
            raise location.no_table(self.asset)
        return True

    @staticmethod
    def _whole() -> Report:
        return Report(lines=("nothing is missing; nothing to forget",), document={"whole": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmWithdrawal:
    """The task: allows the next batch to withdraw any number of objects from the newest version. See `confirm`."""

    location: Location
    asks: ClassVar[str] = ""

    def plan(self) -> Report:
        """See `Task`."""
        found = self.location.open_table().snapshot
        version = found.version if found is not None else -1
        return Report(lines=(f"version {version} would be confirmed",), document={"version": version})

    def run(self) -> Report:
        """See `Task`."""
        version = confirm(self.location.table().reader, self.location.open_table())
        line = f"confirmed for version {version}; the next batch that lists the bucket withdraws the deleted objects"
        return Report(lines=(line,), document={"version": version})
