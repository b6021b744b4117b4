"""(12) The bytes and requests of an update of a slot asset. Before the update, 1 slot or 500 slots of the source's
1,000 slots have changed.

The source's table has 1,000 slots of 1,000 rows (100,000 objects of 10 records, see `rewriting_rows`). Ten batches
commit these objects as if they had been read. The asset has the eight columns of the records, and keeps nine of ten
rows. Before each measurement, a new object is added to each of these 1 or 500 slots. The results also show the size of
the necessary work: the rows of these slots in the asset's table. The alternative is to build all slots again.

A measurement fails if the update writes more than the bounds of `table.derived_round` allow: besides the slots' own
rows, 16 MB for one slot, and the bytes of these rows again for a batch.

Requests and bytes are measured in a pass through a proxy. Seconds are medians of other passes. All passes use a running
Spark session.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.source.source import Source
from s3notify_platform.spark.derive import derived_tables
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.derived_round import MAX_OTHERS
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.pinned_schema import described, grown, schema_of
from s3notify_platform.table.round import RoundChange, SlotRound
from s3notify_platform.table.snapshot import Snapshot
from tests.benchmarks.figures import Figure, seconds, times
from tests.benchmarks.growth import Cost, watched
from tests.benchmarks.lake import embedded_spark, source_of
from tests.benchmarks.rewriting_rows import RECORDS, Numbers, key_of, rows_of, slots_of
from tests.contracts.fault_proxy import Answered

ASSET = "kept"
BATCHES = 10
REPEATS = 3
BESIDE = 200_000
"""The number of bytes that a commit writes besides rows, for version, manifest and `known`."""
LINEAGE = ["_slot", "_key", "_etag", "_offset"]


def kept(rows: DataFrame) -> DataFrame:
    """The slot asset: nine of ten rows."""
    return rows.where("id % 10 > 0").drop("_key", "_etag", "_offset")


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    slots, objects = (50, 1_000) if small else (1_000, 100_000)
    server.create_bucket("bench-derived")
    config = server.config("bench-derived")
    with embedded_spark() as spark:
        lake = Lake(spark=spark, source=source_of(config, "derived", "in/", slots=slots), objects=objects)
        for numbers in np.array_split(np.random.default_rng(3).permutation(objects), BATCHES):
            lake.commit(numbers)
        every = [Slot(number) for number in range(slots)]
        lake.derive(every)
        with watched(lake.source) as (seen, answered):
            lake.derive(every, source=seen, force=True)
        whole = Cost.of(median(lake.derive(every, force=True) for _ in range(REPEATS)), answered)
        return [
            lake.figure("one changed slot", lake.some(1), whole),
            lake.figure(f"a batch of {slots // 2} changed slots", lake.some(slots // 2), whole),
        ]


@dataclass(kw_only=True)
class Lake:
    """A source's table of this many objects, and its slot asset."""

    spark: SparkSession
    source: Source
    objects: int
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(2))
    more: int = 0

    @property
    def slots(self) -> int:
        return self.source.location.slots

    @property
    def slot_of(self) -> Numbers:
        """The slot of each object, including objects that do not exist yet."""
        return slots_of(4 * self.objects, self.slots)

    def commit(self, numbers: Numbers) -> None:
        """Commits these objects as new objects, as if they had been read."""
        table, base = self.source.table(), self.source.open_table().snapshot
        assert base is not None
        rows, label = rows_of(numbers, self.slot_of, self.chance), base.version + 1
        packs, files = table.data.staged(write([rows]), label=label)
        for key, body in files.items():
            table.reader.store.put(key, body)
        columns = from_arrow_schema(rows.drop_columns(LINEAGE).schema).json()
        schema = grown(schema_of(base.metadata), source=columns, rows=columns, inferred=False)
        metadata, protocol = described(schema, created_ms=base.metadata.created_ms, table=base.table)
        changes: dict[Slot, dict[str, ObjectState]] = {}
        for number in numbers.tolist():
            state = ObjectState(
                key=key_of(number), etag="e", size=2000, rows=RECORDS, since=label, until=label
            )
            changes.setdefault(Slot(int(self.slot_of[number])), {})[state.key] = state
        change = RoundChange(
            base=base,
            slots={slot: SlotRound(changes=states, label=label) for slot, states in changes.items()},
            table=table,
            clock=SYSTEM_CLOCK,
            rows=packs,
            metadata=metadata,
            protocol=protocol,
        )
        assert isinstance(table.commit(change, base), Committed)

    def change(self, slots: Sequence[Slot]) -> None:
        """Commits one batch, with a new object in each of these slots."""
        first = self.objects + self.more
        found = [np.flatnonzero(self.slot_of[first:] == slot)[0] + first for slot in slots]
        self.more = int(max(found)) + 1 - self.objects
        self.commit(np.array(found))

    def derive(self, slots: Sequence[Slot], *, source: Source | None = None, force: bool = False) -> float:
        """Builds these slots of the asset; returns the seconds."""
        source = source or self.source
        snapshot = source.table().newest()
        assert isinstance(snapshot, Snapshot)
        with seconds() as took:
            for staged in derived_tables(
                self.spark, source, ASSET, kept, snapshot=snapshot, slots=slots, batch="b", force=force
            ):
                results = staged.commit()
        assert {each.status for each in results.values()} == {"committed"}
        return took()

    def some(self, count: int) -> Iterator[list[Slot]]:
        """Yields one list of slots after another. Each list has this number of slots, which are drawn at random.

        A slot may be drawn again in a later pass. Such a slot has a small file of its own since its last build.
        """
        while True:
            yield sorted(Slot(int(n)) for n in self.chance.choice(self.slots, count, replace=False))

    def answered(self, some: Iterator[list[Slot]]) -> tuple[list[Slot], list[Answered]]:
        """Gives each slot of the next list a new object. Returns the slots, and the requests to derive their rows."""
        with watched(self.source) as (seen, answered):
            for slots in islice(some, 2):  # the first pass opens connections
                self.change(slots)
                answered.clear()
                self.derive(slots, source=seen)
        return slots, answered

    def figure(self, what: str, some: Iterator[list[Slot]], whole: Cost) -> Figure:
        changed, answered = self.answered(some)
        taken = []
        for slots in islice(some, REPEATS):
            self.change(slots)
            taken.append(self.derive(slots))
        cost, own = Cost.of(median(taken), answered), self.bytes_of(changed)
        assert cost.written <= own + (MAX_OTHERS if len(changed) == 1 else own) + BESIDE, (what, own, cost)
        return Figure(
            what=f"{what} of {self.slots:,}, {own / 1e6:,.2f} MB of the slot asset",
            ours=str(cost),
            instead=f"all {self.slots:,} slots again: {whole}",
            ratio=times(whole.seconds, cost.seconds),
        )

    def bytes_of(self, slots: Sequence[Slot]) -> float:
        """The size of these slots' rows in the asset's table, calculated from the mean size of its rows."""
        found = self.source.table(ASSET).newest()
        assert isinstance(found, Snapshot)
        rows = sum(found.manifest.slot(slot).rows for slot in slots)
        size = sum(pack.size for pack in found.packs.values())
        return size * rows / sum(pack.rows for pack in found.packs.values())
