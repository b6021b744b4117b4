"""Requests a new read of quarantined data, for `s3notify quarantine retry`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import slot_from_partition_key, slot_of
from s3notify_platform.kernel.texts import counted
from s3notify_platform.maintenance.task import Report
from s3notify_platform.source.location import CommitMode, Location
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.quarantined import Choice, Retried, retry


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryQuarantined:
    """The task: the next batch reads a part of the quarantine again. The part is exactly one of `keys`, `slots` and
    `everything`. See `table.quarantined.retry`.

    `reason`: limits the retry to data whose reason contains this text. `UsageError` unless exactly one of the three is
    given. A table that a run would refuse is also refused here (`Location.open_table`).
    """

    location: Location
    commit: CommitMode
    keys: Sequence[str] = ()
    slots: Sequence[int] = ()
    everything: bool = False
    reason: str = ""
    asks: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if (bool(self.keys), bool(self.slots), self.everything).count(True) != 1:
            raise UsageError("name what to retry: exactly one of keys, slots and everything")

    def plan(self) -> Report:
        """See `Task`."""
        found = self._requested(dry_run=True)
        return self._report(found, f"in quarantine: {_summary(found)}")

    def run(self) -> Report:
        """See `Task`."""
        found = self._requested()
        if not found.objects:
            return self._report(found, f"in quarantine: {_summary(found)}")
        return self._report(found, f"requested: {_summary(found)}; the next batch reads these objects")

    def _requested(self, *, dry_run: bool = False) -> Retried:
        location, store = self.location, open_store(self.location.platform)
        location.check_exists()
        location.open_table(store)  # raises the errors that a run would raise
        mode = self.commit if dry_run else location.settle_commit_mode(self.commit, store)
        table = location.table(store=store, commit=mode)
        choice = Choice(keys=frozenset(self.keys) if self.keys else None, reason=self.reason)
        slots = {slot_of(key, location.slots) for key in self.keys}
        slots |= {slot_from_partition_key(str(slot), location.slots) for slot in self.slots}
        wanted = slots or location.all_slots()
        return retry(table, wanted, location.slot_signals(store), choice, dry_run=dry_run)

    def _report(self, found: Retried, line: str) -> Report:
        missing = sorted(set(self.keys) - found.keys)
        lines = [line, *(f"not in quarantine: {key!r}" for key in missing)]
        if found.left:
            lines.append(
                f"{found.left} more objects are not requested yet: repeat the command after the next batch"
            )
        return Report(
            lines=tuple(lines),
            document=asdict(found) | {"keys": len(found.keys), "missing": missing},
            left=bool(found.left or (self.keys and not found.objects)),
        )


def _summary(found: Retried) -> str:
    waiting = f", {found.waiting} of them requested before" if found.waiting else ""
    return (
        f"{counted(found.failing, 'failing object')}, {counted(found.records, 'rejected record')} of "
        f"{counted(found.rejected, 'object')}, in {counted(len(found.slots), 'slot')}{waiting}"
    )
