"""Changes the types of columns by one version, which has the new schema and replaces all packs that have these
columns.

Packs are rewritten even if readers of Parquet could widen the type. Delta allows files with narrower types only with
the feature `typeWidening`. The feature raises the reader version, and many engines lack it. Without the feature,
delta-rs and DuckDB can read most such files. Polars can only read `int` as `bigint`, and `float` as `double`
(`test_retyped_readers`).

Steps
    1. Convert the live packs, and store the new packs, which no version names yet. Repeat this step for packs that
       batches add meanwhile.
    2. Commit the version with the schema and all new packs. If a batch commits first, its packs are converted before
       the next attempt. After several conflicts, the change makes other writers wait (`Known.held`).
    3. For each object with a value that cannot be converted, the same version requests a new read, from the beginning.
       The request is a mark in the object's state. If a slot has too many of these objects, the request is a backfill
       of the slot. A backfill leaves out failing objects, so each failing object gets a mark, too.

| after the change was planned, another writer … | then the change … |
|---|---|
| committed rows of the old type, merged or rewrote packs | converts those packs, too |
| added columns | is committed, with these columns |
| gave the columns these types | changes nothing |
| staged rows of the old type, and commits later | is committed; `round` and `derived_round` leave out these rows |
| began the table again, under another id | fails |

So a reader sees all columns with the old types, or all columns with the new types. A value that cannot be converted is
null until its object has been read again. If the object has expired, the change is refused. If readers will see other
values, the version counts as a change of the slots and of the packs' data.

Memory holds `PACKS_AT_ONCE` packs with their old and new bodies, a row group, and `MARKED_MAX` keys.

Cost: 1 GET for each live pack, 1 PUT for each new pack, and the requests of `StateReader.lookup` and of a commit.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.clock import unique_name
from s3notify_platform.kernel.errors import ConflictError, FencedError, UsageError
from s3notify_platform.kernel.parallel import Track, in_parallel, untracked
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.commit import CommitResult
from s3notify_platform.table.delta.actions import Add, MetaData, Protocol
from s3notify_platform.table.delta.metadata import raised
from s3notify_platform.table.known import RESTARTS
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import SlotFacts
from s3notify_platform.table.packs.pack_set import put
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.pinned_schema import NO_SCHEMA, described, schema_of
from s3notify_platform.table.proposal import Proposal
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.round import SlotRound
from s3notify_platform.table.schema_change import SchemaChange, planned_change
from s3notify_platform.table.snapshot import Absent, Snapshot
from s3notify_platform.table.type_changes import How, converted
from s3notify_platform.table.versions import RETYPED, VALUES

HOLDER: Final = "schema set"

PACKS_AT_ONCE: Final = 2

MARKED_MAX: Final = 100_000
"""The largest number of objects that are marked one by one. If there are more objects, whole slots are read again."""

RETYPE_PASSES: Final = 4

LOST_SHOWN: Final = 5

_RESCUED: Final = "_rescued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The new types of columns (Spark's JSON).

    `of_transform`: as in `planned_change`. `read_again`: True if all objects with values in these columns are to be
    read again. `derived`: True for the table of a slot asset. The slots of such a table are made again.
    """

    columns: str
    of_transform: bool = False
    read_again: bool = False
    derived: bool = False

    def of(self, snapshot: Snapshot) -> SchemaChange:
        """Returns the change from this snapshot to the new types. `UsageError`: as in `planned_change`."""
        known = schema_of(snapshot.metadata, derived=self.derived) or NO_SCHEMA
        return planned_change(known, self.columns, of_transform=self.of_transform)


Objects = dict[Slot, set[str] | None]
"""Keys by slot. If a slot has None instead of keys, all keys of the slot are meant."""


@dataclass(slots=True, kw_only=True)
class Doubts:
    """The objects that have a value that cannot be converted. `rows`: the number of rows with such a value.

    `keys`: the objects' keys by slot. A slot with too many keys has None instead. Each slot of a slot asset has None,
    too. `lost`: objects with a value that is null until the object is read again.
    """

    keys: Objects = field(default_factory=dict)
    lost: Objects = field(default_factory=dict)
    rows: int = 0
    _room: int = MARKED_MAX

    def add(self, rows: pa.Table, doubtful: pa.Array, lost: pa.Array) -> None:
        """Adds the objects of some rows.

        The mask `doubtful` is true for rows with a value that cannot be converted. The mask `lost` is true for rows
        with a value that is null until the object is read again.
        """
        self.rows += pc.sum(doubtful).as_py() or 0
        if "_key" not in rows.schema.names:
            self.keys |= dict.fromkeys(map(Slot, pc.unique(rows["_slot"].filter(doubtful)).to_pylist()))
            return
        self._take(self.keys, _objects(rows, doubtful))
        self._take(self.lost, _objects(rows, lost))

    def join(self, other: "Doubts") -> None:
        """Adds the result for another pack."""
        self.rows += other.rows
        self._take(self.keys, other.keys)
        self._take(self.lost, other.lost)

    def _take(self, into: Objects, objects: Objects) -> None:
        for slot, keys in objects.items():
            held = into.setdefault(slot, set())
            if held is None or keys is None:
                into[slot] = None
                continue
            self._room -= len(keys - held)
            held |= keys
            if self._room < 0:
                into[slot] = None


def _objects(rows: pa.Table, mask: pa.Array) -> Objects:
    """Returns, by slot, the objects of the rows for which the mask is true."""
    some = rows.select(["_slot", "_key"]).filter(mask).group_by(["_slot", "_key"]).aggregate([])
    found: dict[Slot, set[str]] = {}
    for slot, key in zip(some["_slot"].to_pylist(), some["_key"].to_pylist(), strict=True):
        found.setdefault(Slot(slot), set()).add(key)
    return {**found}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pack:
    """The result for one pack. `adds`: the new packs, or None if the pack stays because its rows do not change."""

    adds: tuple[Add, ...] | None
    doubts: Doubts


@dataclass(slots=True, kw_only=True)
class Retype:
    """The change of types, as a `Change`. `found`: the schema change that the last call of `onto` has computed."""

    table: LogTable
    wanted: Wanted
    base: Snapshot
    found: SchemaChange = field(init=False)
    doubts: Doubts = field(default_factory=Doubts)
    packs: int = 0
    _made: dict[tuple[str, str], _Pack] = field(default_factory=dict)
    _asked: int = 0
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self.found = self.wanted.of(self.base)
        self._began = self.table.committer.clock.monotonic()

    def onto(self, base: Snapshot) -> Proposal | None:
        """See `Change`, and the list of cases in the module's docstring. `UsageError`: as in `_check_kept`."""
        if base.table != self.base.table:
            raise ConflictError(
                f"the table below {self.table.layout.prefix!r} has another id now: repeat the command"
            )
        self._asked += 1
        if self._asked > RESTARTS:
            self.table.reader.known.hold(HOLDER)
        self.convert(base)
        if not self.found.every:
            return None
        self._check_young()
        made = {pack.id: self._made[pack.id] for pack in base.packs.values()}
        again = [pack for pack in base.packs.values() if made[pack.id].adds is not None]
        self.packs, self.doubts = len(again), Doubts()
        for pack in base.packs.values():
            self.doubts.join(made[pack.id].doubts)
        change, now_ms = self.changes_values, self.table.committer.clock.wall_ms()
        rounds, slots = self._requests(base)
        metadata, protocol = self._schema(base)
        states = base.manifest.states.after(
            {slot: each.changes for slot, each in rounds.items()},
            name=lambda: unique_name(self.table.committer.clock),
        )
        if change:
            slots = {slot: facts for slot, facts in base.manifest.slots.items() if facts.rows} | slots
        return Proposal(
            adds=tuple(
                replace(add, data_change=change) for pack in again for add in made[pack.id].adds or ()
            ),
            removes=tuple(pack.removed(now_ms, data_change=change) for pack in again),
            slots=slots,
            states=states.states if rounds else None,
            metadata=metadata,
            protocol=protocol,
            files={self.table.layout.state(name): body for name, body in states.bodies.items()}
            if rounds
            else {},
            operation="CHANGE COLUMNS",
            note={
                "batch": HOLDER,
                RETYPED: {each.name: [each.old, each.new] for each in self.found.every},
                VALUES: change,
                "slots": sorted(slots),
            },
        )

    @property
    def changes_values(self) -> bool:
        """True if readers will see other values than before."""
        return any(each.how != "exact" for each in self.found.columns)

    def _check_young(self) -> None:
        limit = self.table.committer.max_run_seconds / 2
        if self.table.committer.clock.monotonic() - self._began >= limit:
            raise FencedError(
                f"the packs below {self.table.layout.prefix!r} were not all converted within {limit:.0f} s, and "
                "vacuum may remove the first ones as garbage: repeat the command on a machine nearer to the bucket"
            )

    def _schema(self, base: Snapshot) -> tuple[MetaData, Protocol]:
        metadata, protocol = described(
            self.found.schema,
            created_ms=base.metadata.created_ms,
            table=base.table,
            derived=self.wanted.derived,
        )
        properties = {**base.metadata.configuration, **metadata.configuration}
        return replace(base.metadata, schema=metadata.schema, configuration=properties), raised(
            base.protocol, protocol
        )

    def _requests(self, base: Snapshot) -> tuple[dict[Slot, SlotRound], dict[Slot, SlotFacts]]:
        """Returns two mappings by slot: the marks of objects to read again, and the counts of slots with a request."""
        facts, doubts = base.manifest.slot, self.doubts.keys
        if self.wanted.derived:
            return {}, {slot: replace(facts(slot), source=0) for slot in doubts}
        self._check_kept(base)
        reader, states = self.table.states, base.manifest.states
        known = reader.lookup(states, {slot: keys for slot, keys in doubts.items() if keys})
        whole = [slot for slot, keys in doubts.items() if keys is None]
        failing, rounds = reader.failing(states, whole), dict[Slot, SlotRound]()
        slots = {slot: replace(facts(slot), backfill=base.version + 1) for slot in whole}
        for slot, keys in doubts.items():
            held = {key: known[key] for key in sorted(keys & known.keys())} if keys else failing.get(slot, {})
            held = {key: state for key, state in held.items() if state.rows and not state.expired}
            if marks := {key: replace(state, again=True, offset=0) for key, state in held.items()}:
                rounds[slot] = SlotRound(changes=marks, before=held)
                slots[slot] = rounds[slot].facts(slots.get(slot, facts(slot)))
        return rounds, slots

    def _check_kept(self, base: Snapshot) -> None:
        """Raises `UsageError` if an expired object, which cannot be read again, has a value that cannot be
        converted.
        """
        states = concerned(self.table, base, self.doubts.lost)
        if lost := sorted(state.key for state in states if state.expired and state.rows):
            columns = ", ".join(map(str, self.found.columns))
            raise UsageError(
                f"{columns}: {len(lost)} objects have left the bucket, so their rows stay, and would lose values: "
                f"{', '.join(map(repr, lost[:LOST_SHOWN]))}: choose a type that can hold the values, like string"
            )

    # Packs

    def convert(self, base: Snapshot, *, track: Track = untracked) -> bool:
        """Converts and stores the live packs that are not converted yet. Returns False if there are no such packs."""
        self.found = self.wanted.of(base)
        left = [pack for pack in base.packs.values() if pack.id not in self._made]
        if not left or not self.found.every:
            return False
        old = arrow_schema(base.metadata.schema)
        done = in_parallel(
            lambda pack: self._converted(pack, old), left, PACKS_AT_ONCE, track=track, what="rewriting packs"
        )
        self._made |= {pack.id: each for pack, each in zip(left, done, strict=True)}
        return True

    def _converted(self, pack: Add, old: pa.Schema) -> _Pack:
        packs, doubts = self.table.data, Doubts()
        reader = packs.ordered(pack)
        conversion = Conversion.of(self.found, self.wanted, old)
        if not conversion.concerns(reader.schema):
            return _Pack(adds=None, doubts=doubts)
        rows = (conversion.converted(group, doubts) for group in reader.groups())
        if not conversion.rewrites(reader.schema):
            for _ in rows:
                pass
            return _Pack(adds=None, doubts=doubts)
        adds = []
        for new in write(rows, packs.sizes, schema=conversion.schema(reader.schema)):
            add = packs.add(unique_name(packs.clock), new, since=pack.since, until=pack.until)
            put(packs.store, packs.layout.file(add.path), new.body)
            adds.append(add)
        return _Pack(adds=tuple(adds), doubts=doubts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Converts rows to the next schema.

    `kinds`: for each column, its old type, its new type, and the way of its conversion. `looked_at`: for each changed
    column, its name in the objects.
    """

    kinds: Mapping[str, tuple[pa.DataType, pa.DataType, How]]
    looked_at: Mapping[str, str]
    read_again: bool

    @classmethod
    def of(cls, change: SchemaChange, wanted: Wanted, old: pa.Schema) -> "Conversion":
        """Returns the conversion of packs that a schema change needs."""
        new = arrow_schema(described(change.schema, created_ms=0, derived=wanted.derived)[0].schema)
        kinds = {
            each.name: (old.field(each.name).type, new.field(each.name).type, each.how)
            for each in change.columns
        }
        names = {each.name: change.names[each.name] for each in change.every if each.name in old.names}
        return cls(kinds=kinds, looked_at=names, read_again=wanted.read_again)

    def concerns(self, pack: pa.Schema) -> bool:
        """Returns true if a pack with these columns has a column whose values are converted or examined."""
        return not self.looked_at.keys().isdisjoint(pack.names)

    def rewrites(self, pack: pa.Schema) -> bool:
        """Returns true if a pack has a column whose type changes in the table."""
        return not self.kinds.keys().isdisjoint(pack.names)

    def schema(self, pack: pa.Schema) -> pa.Schema:
        """Returns the columns of a pack after the conversion."""
        kinds = {name: new for name, (_, new, _) in self.kinds.items()}
        return pa.schema([pa.field(each.name, kinds.get(each.name, each.type)) for each in pack])

    def converted(self, rows: pa.Table, doubts: Doubts) -> pa.Table:
        """Returns the rows, converted. Objects with values that cannot be converted are added to `doubts`."""
        doubtful = pa.array([False] * rows.num_rows, pa.bool_())
        lost, columns = doubtful, dict(zip(rows.schema.names, rows.columns, strict=True))
        for name, (old, new, how) in self.kinds.items():
            if name in columns:
                values = columns[name].combine_chunks().cast(old)
                columns[name], unsure = converted(values, new, how)
                doubtful = pc.or_(doubtful, unsure)
                gone = pc.and_(pc.is_valid(values), pc.is_null(columns[name]))
                lost = pc.or_(lost, gone)
        for name in self.looked_at.keys() & columns.keys():
            if self.read_again:
                doubtful = pc.or_(doubtful, pc.is_valid(rows[name].combine_chunks()))
            if _RESCUED in columns:
                doubtful = pc.or_(doubtful, _rescued(rows[_RESCUED].combine_chunks(), self.looked_at[name]))
        if pc.any(doubtful, min_count=0).as_py():
            doubts.add(rows, doubtful, lost)
        return pa.table([*columns.values()], schema=self.schema(rows.schema))


def _rescued(texts: pa.Array, name: str) -> pa.Array:
    """Returns a mask: true for each row with a rescued value of a column, or of a field in it. `name`: the column's
    name in the objects. Only the beginning of each rescued value's path is compared.
    """
    escaped = "|".join(_escaped(json.dumps(name, ensure_ascii=each)[1:-1]) for each in (False, True))
    found = pc.match_substring_regex(texts, rf'[{{,]"`?({escaped})(`|\.|\[|")')
    return pc.fill_null(found, False)


def _escaped(text: str) -> str:
    return "".join(each if each.isalnum() or each == "_" else f"\\x{{{ord(each):x}}}" for each in text)


def doubts_of(table: LogTable, snapshot: Snapshot, wanted: Wanted, *, track: Track = untracked) -> Doubts:
    """Finds the objects that batches must read again if the columns get their new types on top of this snapshot.
    Nothing is written.

    Cost: the requests of `reading.read` for the changed columns, or no request if all values can be converted.
    """
    change, doubts = wanted.of(snapshot), Doubts()
    old = arrow_schema(snapshot.metadata.schema)
    conversion = Conversion.of(change, wanted, old)
    certain = all(each.how in ("exact", "text") for each in change.columns)
    if not conversion.looked_at or (certain and not wanted.read_again and _RESCUED not in old.names):
        return doubts
    names = {"_slot", "_key", _RESCUED, *conversion.looked_at} & {*old.names}
    packs = [*snapshot.packs.values()]
    for pack in track(packs, len(packs), "looking for values"):
        batches = read_slots(table.reader.store, table.layout, [pack], None, old, columns=names)
        for batch in batches:
            conversion.converted(pa.Table.from_batches([batch]), doubts)
    return doubts


def retyped(
    table: LogTable, base: Snapshot, wanted: Wanted, *, track: Track = untracked
) -> tuple[CommitResult, Retype]:
    """Gives the columns their new types, on top of the newest version. Returns the commit's result and the change.

    The call is safe while batches run. A killed call may be repeated. `UsageError`: as in `planned_change`, or the
    change would lose values. `ConflictError`, `FencedError`, `UnavailableError`, `UnknownOutcomeError`: repeat the
    call. The caller must signal the slots that have requests, even if an earlier call committed these requests.
    """
    change, found = Retype(table=table, wanted=wanted, base=base), base
    for _ in range(RETYPE_PASSES):
        if not change.convert(found, track=track):
            break
        newest = table.newest()
        if isinstance(newest, Absent):
            raise ConflictError(
                f"the table below {table.layout.prefix!r} was removed while it was changed: "
                "repeat the command if the table exists again"
            )
        found = newest
    try:
        done = table.committer.commit_alone(change, found, holder=HOLDER)
    finally:
        table.reader.known.release(HOLDER)
    return table.noted(done), change


def concerned(table: LogTable, snapshot: Snapshot, objects: Objects) -> Iterator[ObjectState]:
    """Yields the states of these objects.

    If a slot has None instead of keys, memory holds all states of this slot. Memory never holds two such slots.
    """
    named = {slot: keys for slot, keys in objects.items() if keys}
    yield from table.states.lookup(snapshot.manifest.states, named).values()
    whole = [slot for slot, keys in objects.items() if keys is None]
    for _, states in table.states.of_slots(snapshot.manifest.states, whole):
        yield from states.values()
