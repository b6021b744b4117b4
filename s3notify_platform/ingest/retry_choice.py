"""Requests to read objects of a source again: those in its quarantine, or whole slots.

Shared by the commands `s3notify quarantine retry` and `backfill` and by the job `{source}_retry`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from s3notify_platform.errors import UsageError
from s3notify_platform.ingest.location import CommitMode, Location
from s3notify_platform.ports import ObjectStore
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.slots import Slot, slot_from_partition_key, slot_of
from s3notify_platform.table import reread
from s3notify_platform.table.quarantine import Choice, Retried, retry


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRequest:
    """Which part of a source's quarantine to read again: exactly one of `keys`, `slots` and `everything`.

    `reason`: only what has a reason that contains this text. `UsageError` if it names none of the three, or several.
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
        """Request it: see `table.quarantine.retry`. `commit` is settled, unless it is a `dry_run`."""
        table = location.table(store=store, commit=commit)
        keys = frozenset(self.keys) if self.keys else None
        choice = Choice(keys=keys, reason=self.reason)
        return retry(table, self._slots(location), signals_of(location, store), choice, dry_run=dry_run)

    def _slots(self, location: Location) -> Collection[Slot]:
        if self.keys:
            return {slot_of(key, location.slots) for key in self.keys}
        if self.slots:
            return {slot_from_partition_key(str(slot), location.slots) for slot in self.slots}
        return location.all_slots()


def backfill(
    location: Location,
    store: ObjectStore,
    commit: CommitMode,
    slots: Collection[Slot],
    *,
    dry_run: bool = False,
) -> reread.Backfilled:
    """Request it for these slots: see `table.reread.backfill`. `commit` is settled, unless it is a `dry_run`."""
    table = location.table(store=store, commit=commit)
    return reread.backfill(table, slots, signals_of(location, store), dry_run=dry_run)


def signals_of(location: Location, store: ObjectStore) -> Publisher:
    """The signals of a source, moved without an unqueued change: a batch need not list for them."""
    return Publisher(store, prefix=location.keyspace_prefix, slots=location.slots, queued=True)
