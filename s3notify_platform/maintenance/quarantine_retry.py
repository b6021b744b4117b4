"""Requests a new read of quarantined data, for `s3notify quarantine retry`."""

from collections.abc import Sequence
from dataclasses import dataclass

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.kernel.slots import slot_from_partition_key, slot_of
from s3notify_platform.source.location import CommitMode, Location
from s3notify_platform.table.quarantined import Choice, Retried, retry


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRequest:
    """The part of a source's quarantine to read again: exactly one of `keys`, `slots` and `everything`.

    `reason`: limits the retry to data whose reason contains this text. `UsageError` unless exactly one of the three is
    given.
    """

    keys: Sequence[str] = ()
    slots: Sequence[int] = ()
    everything: bool = False
    reason: str = ""

    def __post_init__(self) -> None:
        if (bool(self.keys), bool(self.slots), self.everything).count(True) != 1:
            raise UsageError("name what to retry: exactly one of keys, slots and everything")

    def run(
        self, location: Location, store: ObjectStore, commit: CommitMode, *, dry_run: bool = False
    ) -> Retried:
        """Requests the retry: see `table.quarantined.retry`. Without `dry_run`, the commit mode `commit` must be
        settled (`settle_commit_mode`).

        A table that a run would refuse, or that has another number of slots, is also refused here
        (`Location.open_table`).
        """
        location.open_table(store)
        table = location.table(store=store, commit=commit)
        choice = Choice(keys=frozenset(self.keys) if self.keys else None, reason=self.reason)
        slots = {slot_of(key, location.slots) for key in self.keys}
        slots |= {slot_from_partition_key(str(slot), location.slots) for slot in self.slots}
        wanted = slots or location.all_slots()
        return retry(table, wanted, location.slot_signals(store), choice, dry_run=dry_run)
