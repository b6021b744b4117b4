"""Rounds over a bucket in memory. A round plans, makes packs and commits as the engine does, without the engine.

An object is a pair of its ETag and the numbers of its rows. Every third number is a reject instead of a row. The first
letter of a key decides its slot.
"""

import io
import json
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.check import check_table
from s3notify_platform.table.commit import CommitResult
from s3notify_platform.table.delta.actions import Add, LogVersion
from s3notify_platform.table.packs.pack_file import PackSizes
from s3notify_platform.table.packs.pack_set import PackSet
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.round import RoundChange, SlotRound
from s3notify_platform.table.snapshot import Snapshot
from tests.support.log_tables import LAYOUT, Table, foreign

SCHEMA = pa.schema(
    [
        pa.field("_slot", pa.int32()),
        pa.field("_key", pa.string()),
        pa.field("_etag", pa.string()),
        pa.field("_offset", pa.int64()),
        pa.field("n", pa.int64()),
    ]
)

Bucket = dict[str, tuple[str, tuple[int, ...]]]
"""By key, the object's ETag and the numbers of its rows."""

FAILS = "fails"
"""An object whose ETag begins with this text cannot be read: it goes to quarantine, and its earlier rows leave the
table.
"""

SMALL = PackSizes(target=4000, smallest=1000, fan=2, in_class=3, group=1000)


def slot_of_key(key: str) -> Slot:
    """The slot of a key of these tests."""
    return Slot(ord(key[0]) - ord("a"))


@dataclass(kw_only=True)
class Rounds:
    """One process that commits rounds to the table of `tests.support.log_tables`.

    `small`: True if packs are written together with the version, and False if packs are stored before the version. If
    `small` is None, rounds alternate between the two ways.
    """

    store: ObjectStore
    clock: Clock = SYSTEM_CLOCK
    vectors: bool = False
    small: bool | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        more = {"sizes": SMALL, "vectors": self.vectors, **self.more}
        self.table = Table(store=self.store, clock=self.clock, more=more, **self.created())
        self.whole = self.table.whole
        self.data, self.quarantine = self.whole.data, self.whole.quarantine
        self.states = self.whole.states

    def created(self) -> dict[str, Any]:
        """Arguments of `Table` for version 0."""
        return {}

    def planned(
        self, bucket: Bucket, slots: set[int] | None = None, base: Snapshot | None = None
    ) -> RoundChange:
        """A staged round that ingests the changes in `slots`. If `slots` is None, the round ingests all changes."""
        base = base or self.table.opened()
        label = base.version + 1
        wanted = {slot_of_key(key) for key in bucket} | {*base.manifest.slots}
        wanted = {slot for slot in wanted if slots is None or slot in slots}
        changes: dict[Slot, SlotRound] = {}
        rows: list[tuple[Slot, str, str, int, int]] = []
        rejects: list[tuple[Slot, str, str, int, int]] = []
        for slot, held in self.states.of_slots(base.manifest.states, wanted):
            there = {key: found for key, found in bucket.items() if slot_of_key(key) == slot}
            new: dict[str, ObjectState] = {}
            for key, (etag, numbers) in there.items():
                if key in held and held[key].etag == etag:
                    continue
                if etag.startswith(FAILS):
                    new[key] = ObjectState(
                        key=key, etag=etag, size=len(numbers), reach_end=False, reason="it cannot be read"
                    )
                    continue
                good = [(slot, key, etag, at, n) for at, n in enumerate(numbers) if n % 3]
                bad = [(slot, key, etag, at, n) for at, n in enumerate(numbers) if not n % 3]
                rows += good
                rejects += bad
                new[key] = ObjectState(
                    key=key,
                    etag=etag,
                    size=len(numbers),
                    rows=len(good),
                    rejects=len(bad),
                    since=label,
                    until=label,
                )
            for key in held.keys() - there.keys():
                new[key] = ObjectState(key=key, etag="", size=0, gone=True)
            if new:
                before = {key: held[key] for key in new if key in held}
                changes[slot] = SlotRound(changes=new, before=before)
        return RoundChange(
            base=base,
            slots=changes,
            table=self.whole,
            clock=self.clock,
            rows=self._staged(self.data, rows, label),
            rejects=self._staged(self.quarantine, rejects, label),
        )

    def grown(self, planned: RoundChange, column: str) -> RoundChange:
        """Adds a column to the schema of a round."""
        schema = json.loads(planned.base.metadata.schema)
        schema["fields"].append({"name": column, "type": "long", "nullable": True, "metadata": {}})
        planned.metadata = replace(planned.base.metadata, schema=json.dumps(schema))
        return planned

    def columns(self) -> list[str]:
        """The columns of the newest version's schema."""
        return [each["name"] for each in json.loads(self.table.opened().metadata.schema)["fields"]]

    def refused(self) -> None:
        """Creates the next version like another engine that deletes all rows. This version is refused."""
        base = self.table.opened()
        removes = tuple(pack.removed(1) for pack in base.packs.values())
        foreign(self.store, base.version + 1, LogVersion(removes=removes))

    def optimized(self) -> None:
        """Creates the next version like another engine that merges packs. This version is adopted."""
        base = self.table.opened()
        packs = [pack for pack in base.packs.values() if not pack.vector]
        removes = tuple(pack.removed(1, data_change=False) for pack in packs)
        foreign(self.store, base.version + 1, LogVersion(adds=tuple(self.compacted(packs)), removes=removes))

    def commit(self, planned: RoundChange) -> CommitResult:
        """Commits a round."""
        return self.table.committer.commit(planned, planned.base)

    def compacted(self, packs: list[Add]) -> list[Add]:
        """Merges these packs as another engine would, without the platform's tags and order. The new pack is stored."""
        rows = pa.concat_tables([group for pack in packs for group in self.data.opened(pack).groups()])
        sink = io.BytesIO()
        pq.write_table(rows.sort_by([("n", "ascending")]), sink)
        path = LAYOUT.pack_path(f"part-{unique_name(self.clock)}")
        self.store.put(LAYOUT.file(path), sink.getvalue())
        stats = json.dumps({"numRecords": rows.num_rows})
        size = len(sink.getvalue())
        found = {"path": path, "size": size, "modificationTime": 1, "dataChange": False, "stats": stats}
        return [Add.of(found)]

    def _staged(self, packs: PackSet, rows: list[Any], label: int) -> Any:
        rows.sort()
        if not rows:
            return ()
        columns = [
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
        ]
        table = self.shaped(pa.table(columns, schema=SCHEMA))
        staged, files = packs.staged(write([table], SMALL), label=label)
        if label % 2 if self.small is None else self.small:
            return [replace(pack, body=files[packs.layout.file(pack.add.path)]) for pack in staged]
        for key, body in files.items():
            self.store.put(key, body)
        return staged

    def shaped(self, rows: pa.Table) -> pa.Table:
        """These rows in the form in which they are stored."""
        return rows

    def contents(self, snapshot: Snapshot | None = None) -> Bucket:
        """The contents of the table in the form of a bucket, with rows and rejects of each object.

        The table is checked.
        """
        snapshot = snapshot or self.table.opened()
        checked = check_table(self.whole, snapshot)
        assert checked.ok, checked.problems
        found: dict[str, tuple[str, list[tuple[int, int]]]] = {}
        for packs, live in (
            (self.data, snapshot.packs.values()),
            (self.quarantine, snapshot.manifest.rejects),
        ):
            for pack in live:
                for group in packs.opened(pack).groups():
                    for row in group.to_pylist():
                        held = found.setdefault(row["_key"], (row["_etag"], []))
                        assert held[0] == row["_etag"]
                        held[1].append((row["_offset"], row["n"]))
        for _, states in self.states.of_slots(snapshot.manifest.states, set(map(Slot, range(26)))):
            for key, state in states.items():
                found.setdefault(key, (state.etag, []))
        return {key: (etag, tuple(n for _, n in sorted(rows))) for key, (etag, rows) in found.items()}
