"""A small table as a Delta log over any store. A `Counts` change adds one to the row count of each of its slots, and
replaces the slot's only pack. So the row count of a slot is the number of changes that were committed to this slot.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.kernel.ports import ObjectStore, StoredObject
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.conditional_commit import ConditionalCommit, NativeCommit
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.table.delta.actions import Add, LogVersion, MetaData, Protocol
from s3notify_platform.table.known import Identity, Known, KnownRecord
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.log_table import LogTable, table_of
from s3notify_platform.table.proposal import Proposal
from s3notify_platform.table.snapshot import Absent, Snapshot
from s3notify_platform.table.states.state_cache import StateCache

LAYOUT = TableLayout(prefix="t/")
IDENTITY = Identity(bucket="b", prefix="raw/", slots=10)
SCHEMA = json.dumps({"type": "struct", "fields": []})


@dataclass(kw_only=True)
class Table:
    """Reader and committer of the table below `t/`."""

    store: ObjectStore
    clock: Clock = SYSTEM_CLOCK
    commits: ConditionalCommit | None = None
    more: dict[str, Any] = field(default_factory=dict)
    adopt: bool = True
    first: tuple[MetaData, Protocol] = (MetaData(id="", schema=SCHEMA, created_ms=1), Protocol())
    """Metadata and protocol of version 0."""
    records: ObjectStore | None = None
    """The store of the record `known`, if the record is in another store than the table."""

    def __post_init__(self) -> None:
        self.known = KnownRecord(
            records=ObjectRecordStore(self.records or self.store, "", clock=self.clock),
            key="t",
            where="bucket 'b'",
            clock=self.clock,
        )
        self.whole = table_of(
            self.store,
            LAYOUT,
            self.known,
            self.commits or NativeCommit(self.store, clock=self.clock),
            leases=not self.adopt,
            clock=self.clock,
            at_once=1,
            cache=StateCache(),
            **self.more,
        )
        self.reader, self.committer = self.whole.reader, self.whole.committer

    def opened(self) -> Snapshot:
        """The newest snapshot; the table is created if it does not exist."""
        found = self.reader.open()
        if isinstance(found, Absent):
            known, _ = self.known.change(
                lambda held: held or Known(table=unique_name(self.clock)[:16], identity=IDENTITY)
            )
            assert known is not None
            metadata, protocol = self.first
            metadata = replace(metadata, id=known.table, created_ms=self.clock.wall_ms())
            self.committer.create(table=known.table, metadata=metadata, protocol=protocol)
            found = self.reader.open()
        assert isinstance(found, Snapshot)
        return found

    def counted(self) -> dict[int, int]:
        """The row count of each slot, read without a cache."""
        return counts_of(self.opened())


def counts_of(snapshot: Snapshot) -> dict[int, int]:
    """The row count of each slot, from its pack. The manifest must have the same count."""
    rows = {pack.slots[0]: pack.live_rows for pack in snapshot.packs.values()}
    assert rows == {slot: facts.rows for slot, facts in snapshot.manifest.slots.items() if facts.rows}
    return rows


@dataclass(kw_only=True)
class Counts:
    """A change that adds one to the row count of each of its slots.

    Slots that another writer has changed after `base` are dropped.
    """

    base: Snapshot
    slots: tuple[int, ...]
    clock: Clock = SYSTEM_CLOCK
    dropped: set[int] = field(default_factory=set)
    bytes: int = 1

    def onto(self, base: Snapshot) -> Proposal | None:
        """See `Change`."""
        self.dropped = {
            slot
            for slot in self.slots
            if base.manifest.slot(Slot(slot)).generation > self.base.version or base.table != self.base.table
        }
        left = [slot for slot in self.slots if slot not in self.dropped]
        held = {pack.slots[0]: pack for pack in base.packs.values()}
        adds, facts, files = [], {}, {}
        for slot in left:
            name, before = unique_name(self.clock), base.manifest.slot(Slot(slot))
            add = pack(name, slot, before.rows + 1, label=self.base.version + 1)
            adds.append(add)
            files[LAYOUT.file(add.path)] = b"x" * self.bytes
            facts[Slot(slot)] = replace(before, rows=before.rows + 1)
        if not left:
            return None
        return Proposal(
            adds=tuple(adds),
            removes=tuple(held[slot].removed(1) for slot in left if slot in held),
            slots=facts,
            files=files,
            note={"slots": left},
        )


def pack(name: str, slot: int, rows: int, *, label: int, **given: Any) -> Add:
    """A pack of one slot."""
    stats = {"numRecords": rows, "minValues": {"_slot": slot}, "maxValues": {"_slot": slot}}
    found = Add(
        path=LAYOUT.pack_path(name),
        size=1,
        rows=rows,
        modified_ms=1,
        slots=(slot, slot),
        since=label,
        until=label,
        stats=json.dumps(stats),
    )
    return replace(found, **given)


@dataclass(kw_only=True)
class Beaten:
    """Creates table versions. Before each version, calls the next function in `others`, as long as there is one."""

    inner: ConditionalCommit
    others: list[Callable[[], Any]]
    layout: TableLayout = LAYOUT

    def put_if_absent(self, key: str, body: bytes) -> Any:
        """See `ConditionalCommit`."""
        if self.layout.version_of(key) is not None and self.others:
            self.others.pop(0)()
        return self.inner.put_if_absent(key, body)

    def put_if_match(self, key: str, body: bytes, etag: Any) -> Any:
        """See `ConditionalCommit`."""
        return self.inner.put_if_match(key, body, etag)

    def delete_if_match(self, key: str, etag: Any) -> Any:
        """See `ConditionalCommit`."""
        return self.inner.delete_if_match(key, etag)


def beaten(whole: LogTable, others: list[Callable[[], Any]]) -> LogTable:
    """Returns the table with a committer that others overtake: before each of its versions, the next function in
    `others` commits.
    """
    commits = Beaten(inner=whole.committer.commits, others=others, layout=whole.layout)
    return replace(whole, committer=replace(whole.committer, commits=commits))


def foreign(store: ObjectStore, number: int, version: LogVersion) -> None:
    """Creates this version like another engine that knows nothing of manifests."""
    lines = version.dumps().splitlines(keepends=True)
    store.put(LAYOUT.version(number), b"".join(line for line in lines if b'"txn"' not in line))


def versions(store: ObjectStore) -> list[LogVersion]:
    """All existing versions, which must be contiguous."""
    found = []
    for meta in store.list(LAYOUT.log).objects:
        number = LAYOUT.version_of(meta.key)
        if number is not None:
            body = store.get(meta.key)
            assert isinstance(body, StoredObject)
            found.append((number, LogVersion.loads(body.body, where=meta.key)))
    found.sort()
    numbers = [number for number, _ in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return [version for _, version in found]
