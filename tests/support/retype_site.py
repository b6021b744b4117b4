"""A table over a store in memory. The columns of the table get other types, while batches still read objects with the
earlier types.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.arrow_schema import REJECT_SCHEMA, arrow_schema, spark_schema
from s3notify_platform.table.check import check_table
from s3notify_platform.table.commit import CommitResult
from s3notify_platform.table.packs.pack_file import PackSizes
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.pinned_schema import described, grown, schema_of
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.retype import Wanted
from s3notify_platform.table.round import RoundChange, SlotRound
from s3notify_platform.table.snapshot import Snapshot
from tests.support.log_tables import Table

SIZES = PackSizes(target=4000, smallest=1000, fan=2, in_class=3, group=1000)
LINEAGE = [("_slot", pa.int32()), ("_key", pa.string()), ("_etag", pa.string()), ("_offset", pa.int64())]


def wanted(read_again: bool = False, **kinds: pa.DataType) -> Wanted:
    """The request that these columns get these types."""
    return Wanted(columns=spark_schema(pa.schema(list(kinds.items()))), read_again=read_again)


@dataclass(kw_only=True)
class RetypeSite:
    """One process on the table. The first letter of a key decides its slot.

    Each commit has one object, whose rows replace the rows of its former object version.
    """

    store: ObjectStore = field(default_factory=MemoryObjectStore)
    vectors: bool = False

    def __post_init__(self) -> None:
        table = Table(store=self.store, more={"sizes": SIZES, "vectors": self.vectors})
        table.opened()
        self.table = table.whole

    def newest(self) -> Snapshot:
        """The newest table version, after a check."""
        found = self.table.newest()
        assert isinstance(found, Snapshot)
        checked = check_table(self.table, found)
        assert checked.ok, checked.problems
        return found

    def planned(
        self,
        key: str,
        kinds: dict[str, pa.DataType],
        *,
        rejects: Sequence[str] = (),
        state: Mapping[str, Any] | None = None,
        **values: list[Any],
    ) -> RoundChange:
        """A staged round with the rows of one object.

        `rejects`: the reasons of the object's rejects. `state`: more fields of the object's state.
        """
        base, slot = self.newest(), Slot(ord(key[0]) - ord("a"))
        label = base.version + 1
        count = len(next(iter(values.values()), []))
        lineage = [[slot] * count, [key] * count, [f"e{label}"] * count, range(count)]
        schema = pa.schema([*LINEAGE, *((name, kinds[name]) for name in values)])
        columns = [
            pa.array(each, part.type) for each, part in zip([*lineage, *values.values()], schema, strict=True)
        ]
        rows, files = self.table.data.staged(write([pa.table(columns, schema=schema)], SIZES), label=label)
        bad = [[slot] * len(rejects), [key] * len(rejects), [f"e{label}"] * len(rejects)]
        bad += [[*range(len(rejects))], [*rejects], [b"x"] * len(rejects)]
        table = pa.table(
            [pa.array(each, part.type) for each, part in zip(bad, REJECT_SCHEMA, strict=True)],
            schema=REJECT_SCHEMA,
        )
        bads, more = self.table.quarantine.staged(write([table], SIZES) if rejects else (), label=label)
        for name, body in (files | more).items():
            self.store.put(name, body)
        data = spark_schema(pa.schema([(name, kinds[name]) for name in values]))
        pinned = grown(schema_of(base.metadata), source=data, rows=data, inferred=True)
        metadata, protocol = described(pinned, created_ms=1, table=base.table)
        new = ObjectState(
            key=key,
            etag=f"e{label}",
            size=10 * count,
            rows=count,
            rejects=len(rejects),
            since=label,
            until=label,
            **(state or {}),
        )
        (_, held), *_ = self.table.states.of_slots(base.manifest.states, {slot})
        grew = metadata.schema != base.metadata.schema
        return RoundChange(
            base=base,
            slots={slot: SlotRound(changes={key: new}, before={key: held[key]} if key in held else {})},
            table=self.table,
            clock=SYSTEM_CLOCK,
            rows=rows,
            rejects=bads,
            metadata=metadata if grew else None,
            protocol=protocol if grew else None,
        )

    def commit(self, key: str, kinds: dict[str, pa.DataType], **given: Any) -> CommitResult:
        """Plans and commits a round with the rows of one object."""
        change = self.planned(key, kinds, **given)
        return self.table.commit(change, change.base)

    def kinds(self) -> dict[str, str]:
        """The types of the table's columns, and the types with which objects are read."""
        found = schema_of(self.newest().metadata)
        assert found is not None
        rows, source = (
            {part["name"]: part["type"] for part in json.loads(each)["fields"]}
            for each in (found.rows, found.source)
        )
        assert {name: rows[name] for name in source} == source
        return rows

    def rows(self, snapshot: Snapshot | None = None) -> dict[str, list[Any]]:
        """The rows by key, without lineage. Each file must have exactly the types of the version's schema."""
        found = snapshot or self.newest()
        output = arrow_schema(found.metadata.schema)
        for pack in found.packs.values():
            for part in self.table.data.opened(pack).schema:
                assert part.type == output.field(part.name).type, (pack.path, part)
        result: dict[str, list[Any]] = {}
        for batch in read_slots(self.store, self.table.layout, found.packs.values(), None, output):
            for row in sorted(batch.to_pylist(), key=lambda row: row["_offset"]):
                data = {name: value for name, value in row.items() if name not in dict(LINEAGE)}
                result.setdefault(row["_key"], []).append(data)
        return result

    def states(self) -> dict[str, ObjectState]:
        """The states of all objects."""
        every = self.table.states.of_slots(self.newest().manifest.states, set(map(Slot, range(26))))
        return {key: state for _, states in every for key, state in states.items()}
