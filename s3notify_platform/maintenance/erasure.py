"""Removes everything that the platform holds of an object, including the history. The object must have left the bucket.

Steps, each safe to repeat
    1. Remove the object from the source's table, its history and its files (`maintenance.table_erasure`).
    2. Remove the object from the tables of the slot assets. A table without `_key` (the result of an aggregate) does
       not say which rows come from the object. So all rows of the object's slot are removed from this table. The next
       batch builds these rows again. If the asset is not in the source's `slot_assets`, a run of the asset builds these
       rows instead. Tables that follow the source's table as a whole (`latest`, `cluster_by`) are removed, and the next
       batch builds them again.
    3. Move the signal of the object's slot, so that the next batch comes soon. A repetition moves the signal again,
       because it cannot see whether an earlier call was killed before this step.
    4. Remove the object's entries and dead letters from the queue.
    5. Remove the failure of the object's slot, and each failure that names the object, from the rescan backlog. A
       failure may quote values of the object. The slot stays in the backlog, so the next batch looks at it.

The order matters, because a slot asset may be built from the source's table between two steps. If the command is killed
at any point, every table is consistent.

Names of columns in the schema stay. Copies outside the tables stay, too: data that was delivered to endpoints, streamed
or logged, and copies that other programs made.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from s3notify_platform.engine.batch.batches import EVERYTHING
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.maintenance.removal import remove_table
from s3notify_platform.maintenance.table_erasure import Erased, ending
from s3notify_platform.maintenance.table_erasure import erase as erase_from
from s3notify_platform.maintenance.task import Report
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.source.location import Location
from s3notify_platform.source.source import Source
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.delta.log_state import NO_VERSION
from s3notify_platform.table.snapshot import Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedObject:
    """The result of one call: the removed data of an object, and the data that is left.

    `of_source`, `of_assets`: the result for the source's table, and for the tables of its slot assets. `cleared`: the
    slot assets from which the whole slot was removed, by this call or an earlier one. `entries`: entries removed from
    the queue, dead letters included. `waiting`: entries that stay, because these entries are being delivered, or
    announce the object's deletion to consumers.
    `batches`: open batches that may have read the object before the call, and may still write a file with the object.
    """

    slot: Slot
    of_source: Erased
    of_assets: dict[str, Erased] = field(default_factory=dict)
    cleared: tuple[str, ...] = ()
    entries: int = 0
    waiting: int = 0
    batches: tuple[str, ...] = ()

    @property
    def files(self) -> int:
        """The number of files removed, over all tables."""
        return sum(each.files for each in self._all)

    @property
    def left(self) -> int:
        """The number of files, over all tables, that hold the object and may belong to a running batch."""
        return sum(each.left for each in self._all)

    @property
    def again_ms(self) -> int:
        """The time at which to repeat the call, by the store's clock (Unix milliseconds); 0: nothing was found.

        A repetition is not needed for a slot asset whose slot is built again as a whole.
        """
        kept = [each for name, each in self.of_assets.items() if name not in self.cleared or each.left]
        return max((each.again_ms for each in (self.of_source, *kept) if each.found), default=0)

    @property
    def _all(self) -> tuple[Erased, ...]:
        return (self.of_source, *self.of_assets.values())


def erase(
    source: Source, key: str, *, platform: ObjectStore | None = None, clock: Clock = SYSTEM_CLOCK
) -> ErasedObject:
    """Erases the object of this key, which must have left the bucket. The call may be repeated; the module docstring
    has the steps.

    The commit mode of `source` must be settled (`settle_commit_mode`). `platform`: a store to use instead of the
    source's own store. `UsageError`: the object is still in the bucket, so the next batch would ingest it again.
    `ConflictError`, `UnavailableError`, `UnknownOutcomeError`: repeat the call. Cost: the requests of
    `maintenance.table_erasure` for each table, the requests of `NotificationQueue.erase`, 2 PUTs for the signal, and 1
    to 3 requests for the backlog.
    """
    location, slot = source.location, slot_of(key, source.location.slots)
    check_erasable(source, key)
    store = platform if platform is not None else open_store(location.platform)
    opened = source.open_table(create=False, store=store)
    of_source = erase_from(source.table(store=store, clock=clock), slot, key, clock=clock)
    done = ErasedObject(slot=slot, of_source=of_source)
    for asset in slot_assets(location, store):
        if location.follows_whole(asset):
            done.of_assets[asset] = Erased(files=remove_table(location, asset, store, clock))
            done = replace(done, cleared=(*done.cleared, asset))
            continue
        table = source.table(asset, store=store, clock=clock)
        found = table.newest()
        if isinstance(found, Absent):
            continue
        whole = "_key" not in arrow_schema(found.metadata.schema).names
        done.of_assets[asset] = erase_from(table, slot, key, whole_slot=whole, clock=clock)
        if whole:
            done = replace(done, cleared=(*done.cleared, asset))
    check_erasable(source, key)
    if of_source.version != NO_VERSION:
        location.slot_signals(store, clock=clock).signal_slots([slot])
    entries, waiting = location.queue(store).erase(
        source.input.bucket.bucket, key, own=source.name, user=opened.topic_user(location.slots)
    )
    backlog = RescanBacklog(location.records(store), clock=clock)
    failures = backlog.read().failed.items()
    backlog.note_failed(
        {}, ended=[each for each, one in failures if each == slot or key in f"{one.reason}{one.trace}"]
    )
    batches = (
        chain.tag
        for chain in AckChains(location.records(store), clock=clock).open_states()
        if not {str(slot), str(EVERYTHING)}.isdisjoint(chain.missing)
    )
    return replace(done, entries=entries, waiting=waiting, batches=tuple(batches))


def check_erasable(source: Source, key: str) -> None:
    """Raises `UsageError` if the object is still in the bucket, or if its key is outside the source's prefix. Cost: 1
    HEAD.
    """
    if not key.startswith(source.input.prefix):
        raise UsageError(f"{key!r}: source {source.name!r} reads keys below {source.input.prefix!r}")
    if open_store(source.input.bucket).head(key) is not None:
        raise UsageError(
            f"{key!r} is in bucket {source.input.bucket.bucket!r}: delete the object first, or it is ingested again"
        )


def time_travel(location: Location, store: ObjectStore) -> dict[str, tuple[int, int]]:
    """The first and the last readable version of each table; `erase` may leave only the last version readable.

    Keys: names of slot assets, and "" for the source's table. Cost: 1 LIST for each table, and the requests of
    `slot_assets`.
    """
    tables = {
        asset or "": location.table(asset, store=store) for asset in (None, *slot_assets(location, store))
    }
    return {name: kept for name, table in tables.items() if (kept := ending(table)) is not None}


def slot_assets(location: Location, store: ObjectStore) -> Iterator[str]:
    """The slot assets that have a table. Cost: 1 LIST for each slot asset, and 1 LIST more."""
    below = f"{location.platform_prefix}derived/"
    after = below
    while page := store.list(below, start_after=after, limit=1).objects:
        name = page[0].key.removeprefix(below).partition("/")[0]
        yield name
        after = f"{below}{name}0"  # sorts after all keys that begin with the name and a slash


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseObject:
    """The task: erases an object. Nothing is written before `check_erasable` has passed.

    `discard` removes the messages about the object outside the platform's queue, and returns the number of removed
    messages.
    """

    source: Source
    key: str
    discard: Callable[[], int] = lambda: 0

    @property
    def asks(self) -> str:
        """See `Task`."""
        return f"Permanently remove everything that source {self.source.name!r} holds of {self.key!r}?"

    def plan(self) -> Report:
        """See `Task`. The report lists the versions that will no longer be readable."""
        check_erasable(self.source, self.key)
        location = self.source.location
        kept = time_travel(location, open_store(location.platform))
        lines = tuple(
            f"{f'slot asset {table!r}' if table else f'source {self.source.name!r}'}: versions {first} to {last} are "
            "readable now; versions up to the last one with the object will no longer be readable"
            for table, (first, last) in kept.items()
        )
        return Report(lines=lines, document={"versions": {name: list(ends) for name, ends in kept.items()}})

    def run(self) -> Report:
        """See `Task`."""
        check_erasable(self.source, self.key)
        source = self.source.settle_commit_mode(open_store(self.source.location.platform))
        done, messages = erase(source, self.key), self.discard()
        of = done.of_source
        lines = [
            (
                f"{self.key!r}: slot {done.slot}, {of.rows} rows and {of.rejects} rejects of the newest version, "
                f"{done.files} files, {done.entries} entries and {messages} messages removed"
            )
        ]
        if of.begins >= 0:
            lines.append(f"the table's history now begins with version {of.begins}")
        for asset in done.cleared:
            if source.location.follows_whole(asset):
                lines.append(f"{asset!r}: the table is empty until the next batch builds it again")
            else:
                lines.append(
                    f"{asset!r}: slot {done.slot} is empty until it is built again, by the next batch if the asset is "
                    f"in the source's slot_assets; otherwise materialize partition {done.slot} of the asset in Dagster"
                )
        if done.waiting:
            lines.append(
                f"{done.waiting} entries still name the object: they are being delivered, or announce its deletion. "
                "Repeat the command when these entries have left the queue"
            )
        lines += [
            f"batch {batch} of the object's slot is open and may have read the object: repeat the command when the "
            "batch has ended"
            for batch in done.batches
        ]
        if done.left:
            lines.append(f"{done.left} files still hold the object; a run may be writing them")
        if done.again_ms:
            when = datetime.fromtimestamp(done.again_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
            lines.append(
                f"repeat the command once after {when} UTC, when no earlier run can still be working"
            )
        document = {
            **{name: getattr(of, name) for name in ("version", "begins", "rows", "rejects")},
            **{
                name: getattr(done, name)
                for name in ("slot", "files", "left", "entries", "waiting", "again_ms")
            },
            "cleared": list(done.cleared),
            "batches": list(done.batches),
            "messages": messages,
        }
        left = bool(done.waiting or done.batches or done.left or done.again_ms)
        return Report(lines=tuple(lines), document=document, left=left)
