"""Quarantine: the records and objects that could not be ingested, with the reasons. After a fix, a retry reads these
records and objects again.

There are two kinds of entries. *Rejected records* belong to objects whose other records are committed. The manifest
names the packs of these records. *Failing objects* could not be read completely. The state of a failing object has the
reason, and the traceback of an unforeseen error.

After a fix, `retry` requests a new read of objects, by the steps of `reread`. If an object was read up to some offset,
the new read continues at this offset. Otherwise the new read begins at the object's start. A record or an object stays
in quarantine until a version adds its rows, or until the object is deleted. If a new read fails, the object stays in
quarantine with the new reason.

Limits: at most `PENDING_MAX` objects of a slot are pending at the same time. The limit exists because a batch keeps the
states of pending objects in memory. Further objects need another call of `retry`. One version requests the new read of
several slots, which have at most `REQUEST_MAX` failing objects and rejects in total. A slot that exceeds this number
gets a separate version. If an object is being read in parts and has not failed, the object is already pending. The
rejects of such an object can be retried after the object was read to its end.

The examination of slots makes the requests of `LogTable.newest`, of `StateReader.failing`, and of `reading` for the
rejects. Slots share packs of rejects, so one request often serves several slots.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.clock import unique_name
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.arrow_schema import REJECT_SCHEMA
from s3notify_platform.table.delta.actions import Add
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import Manifest
from s3notify_platform.table.proposal import Proposal
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.reread import ask_again
from s3notify_platform.table.round import SlotRound
from s3notify_platform.table.snapshot import Absent, Snapshot

PENDING_MAX: Final = 100_000
"""The largest number of objects of one slot that may be pending at the same time."""

REQUEST_MAX: Final = 200_000
"""The largest number of failing objects and rejects in slots that are processed together."""

RETRY: Final = "retry"
"""The batch name of versions that request a retry."""

Kind = Literal["failing", "rejected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A choice of objects to retry.

    An object is chosen if its key is in `keys` (None: any key), and its reason contains `reason`. `columns`: the reason
    must also name one of these columns, or a field in it.
    """

    keys: frozenset[str] | None = None
    reason: str = ""
    columns: tuple[str, ...] = ()

    def has(self, state: ObjectState) -> bool:
        """Returns true if the failing object is chosen."""
        chosen = (self.keys is None or state.key in self.keys) and self.reason in state.reason
        return chosen and (not self.columns or re.search(self._of_columns, state.reason) is not None)

    def among(self, rejects: pa.Table) -> pa.Table:
        """Returns the chosen rejects."""
        if self.keys is not None:
            rejects = rejects.filter(_is_in(rejects, self.keys))
        if self.reason:
            rejects = rejects.filter(pc.match_substring(rejects["reason"], self.reason))
        if self.columns:
            rejects = rejects.filter(pc.match_substring_regex(rejects["reason"], self._of_columns))
        return rejects

    @property
    def _of_columns(self) -> str:
        """A regular expression that finds the reasons that name one of `columns`. Such reasons come from rescued values
        (`formats.rescue.mismatch_reason`) and from columnar files.
        """
        names = "|".join(re.escape(name) for name in self.columns)
        return rf"^([0-9]+ more, the first: )?`?({names})`?[:.\[]|column '({names})' does not fit"


EVERYTHING: Final = Choice()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount:
    """The numbers of records and objects of one slot that are in quarantine for the same reason.

    If the entries are counted by key, the numbers belong to one object, `reasons` is the number of its different
    reasons, and `reason` is its most frequent reason. `key`: the key of one of the objects. `records` is 0 for failing
    objects.
    """

    slot: Slot
    kind: Kind
    reason: str
    key: str
    reasons: int
    objects: int
    records: int
    waiting: int
    """The number of counted objects for which a retry is already requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyQuarantine:
    """The failure and the rejects of one object version. `state.reason`: the reason of the failure, or "".

    `rejects`: the first rejects in order, with the columns of `REJECT_SCHEMA`. `state.rejects`: the number of all
    rejects. `waiting`: True if a retry was requested, or if the object is being read in parts.
    """

    slot: Slot
    state: ObjectState
    rejects: pa.Table
    waiting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The objects for which a retry is requested: failing objects, and objects with chosen rejects. `records`: the
    number of the chosen rejects.

    `waiting`: the number of objects for which a retry was already requested before the call. `left`: the number of
    objects beyond `PENDING_MAX`, which need another call.
    """

    slots: tuple[Slot, ...] = ()
    failing: int = 0
    rejected: int = 0
    records: int = 0
    waiting: int = 0
    left: int = 0
    keys: frozenset[str] = frozenset()

    @property
    def objects(self) -> int:
        """The number of failing objects and of objects with rejects."""
        return self.failing + self.rejected


# Examination


def reasons_of(table: LogTable, slots: Iterable[Slot], *, by_key: bool = False) -> list[ReasonCount]:
    """Returns the counts by slot, kind and reason, or by slot, kind and key.

    The call makes the requests of an examination (see the module's docstring), and of `StateReader.pending`.
    """
    base = table.newest()
    if isinstance(base, Absent):
        return []
    return [
        count for some in _together(base.manifest, slots) for count in _reasons(table, base, some, by_key)
    ]


def _reasons(table: LogTable, base: Snapshot, slots: Sequence[Slot], by_key: bool) -> Iterator[ReasonCount]:
    pending = table.states.pending(base.manifest.states, slots)
    for slot, failing in sorted(table.states.failing(base.manifest.states, slots).items()):
        groups: dict[str, list[ObjectState]] = {}
        for state in failing.values():
            groups.setdefault(state.key if by_key else state.reason, []).append(state)
        for states in groups.values():
            yield ReasonCount(
                slot=slot,
                kind="failing",
                reason=states[0].reason,
                key=states[0].key,
                reasons=1,
                objects=len(states),
                records=0,
                waiting=sum(state.pending for state in states),
            )
    counted = _counted(table, base, slots, EVERYTHING, by=("_slot", "reason", "_key"))
    again = _is_in(counted, {key for of_slot in pending.values() for key in of_slot}).cast(pa.int64())
    # The rows are sorted by the number of records, the largest first. So the first row of a key has its most frequent
    # reason, and the first row of a reason has the key with the most records.
    counted = counted.append_column("waiting", again).sort_by(
        [("records", "descending"), ("_key", "ascending")]
    )
    group = "_key" if by_key else "reason"
    columns = [("reason", "first"), ("_key", "first"), ("records", "sum"), ("records", "count")]
    grouped = counted.group_by(["_slot", group], use_threads=False).aggregate([*columns, ("waiting", "sum")])
    for row in grouped.sort_by([("_slot", "ascending"), (group, "ascending")]).to_pylist():
        number = row["records_count"]
        yield ReasonCount(
            slot=Slot(row["_slot"]),
            kind="rejected",
            reason=row["reason_first"] or "",
            key=row["_key_first"],
            reasons=number if by_key else 1,
            objects=1 if by_key else number,
            records=row["records_sum"],
            waiting=min(row["waiting_sum"], 1) if by_key else row["waiting_sum"],
        )


def key_quarantine(table: LogTable, slot: Slot, key: str, *, limit: int) -> KeyQuarantine | None:
    """Returns the failure and at most `limit` rejects of an object, or None if nothing of the object is in quarantine.

    The call makes the requests of `LogTable.newest`, of `StateReader.lookup`, and of `reading` for the packs that may
    have rejects of the object.
    """
    base = table.newest()
    if isinstance(base, Absent):
        return None
    state = table.states.lookup(base.manifest.states, {slot: [key]}).get(key)
    if state is None or not (state.reason or state.rejects):
        return None
    packs = rejects_packs(base, slot, state)
    rejects = first_rejects(table, packs, slot, state, limit=limit)
    return KeyQuarantine(slot=slot, state=state, rejects=rejects, waiting=state.pending)


def rejects_packs(base: Snapshot, slot: Slot, state: ObjectState) -> list[Add]:
    """Returns the packs that may have rejects of an object. Pure."""
    if not state.rejects:
        return []
    labels = state.since, state.until
    return [pack for pack in base.manifest.rejects if pack.may_hold(slot, state.key, *labels)]


def first_rejects(
    table: LogTable, packs: Iterable[Add], slot: Slot, state: ObjectState, *, limit: int
) -> pa.Table:
    """Returns the first rejects of an object version, in order, from the packs `packs`.

    The call makes the requests of `reading.read`.
    """
    found = REJECT_SCHEMA.empty_table()
    for batch in read_slots(table.reader.store, table.layout, packs, [slot], REJECT_SCHEMA):
        rows = pa.Table.from_batches([batch])
        mine = rows.filter(pc.and_(pc.equal(rows["_key"], state.key), pc.equal(rows["_etag"], state.etag)))
        found = pa.concat_tables([found, mine]).sort_by("_offset").slice(0, limit)
    return found


# Retry


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """The chosen objects of one slot. `failing`: failing objects. `rejected`: other objects with chosen rejects.
    `records`: the number of the chosen rejects.
    """

    failing: Mapping[str, ObjectState]
    rejected: Mapping[str, ObjectState]
    records: int

    @property
    def states(self) -> dict[str, ObjectState]:
        """All chosen objects, in order."""
        return dict(sorted({**self.failing, **self.rejected}.items()))


@dataclass(slots=True, kw_only=True)
class _Retry:
    """The request of a retry for some slots.

    If another writer creates a version first, only the slots that this version changed are examined again.
    """

    table: LogTable
    wanted: Sequence[Slot]
    choice: Choice
    found: Retried = Retried()
    _chosen: dict[Slot, tuple[tuple[str, int], _Chosen]] = field(default_factory=dict)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """See `Request`."""
        return self.found.slots

    def onto(self, base: Snapshot) -> Proposal | None:
        """See `Change`."""
        seen = {slot: (base.table, base.manifest.slot(slot).generation) for slot in self.wanted}
        moved = [
            slot for slot in self.wanted if slot not in self._chosen or self._chosen[slot][0] != seen[slot]
        ]
        for slot, chosen in _chosen_of(self.table, base, moved, self.choice).items():
            self._chosen[slot] = (seen[slot], chosen)
        asked: dict[Slot, SlotRound] = {}
        parts: list[Retried] = []
        for slot in self.wanted:
            chosen = self._chosen[slot][1]
            states = chosen.states
            if not states:
                continue
            new = [key for key, state in states.items() if not state.pending]
            taken = new[: max(0, PENDING_MAX - base.manifest.slot(slot).pending)]
            parts.append(
                Retried(
                    slots=(slot,),
                    failing=len(chosen.failing),
                    rejected=len(chosen.rejected),
                    records=chosen.records,
                    waiting=len(states) - len(new),
                    left=len(new) - len(taken),
                    keys=frozenset(states),
                )
            )
            if taken:
                before = {key: states[key] for key in taken}
                again = {key: replace(state, again=True) for key, state in before.items()}
                asked[slot] = SlotRound(changes=again, before=before)
        self.found = _added(parts)
        if not asked:
            return None
        changes = {slot: each.changes for slot, each in asked.items()}
        marked = base.manifest.states.after(changes, name=lambda: unique_name(self.table.committer.clock))
        return Proposal(
            slots={slot: each.facts(base.manifest.slot(slot)) for slot, each in asked.items()},
            states=marked.states,
            files={self.table.layout.state(name): body for name, body in marked.bodies.items()},
            note={"batch": RETRY, "request": RETRY, "slots": [*asked]},
        )


def retry(
    table: LogTable,
    slots: Iterable[Slot],
    signals: Publisher | None,
    choice: Choice,
    *,
    dry_run: bool = False,
) -> Retried:
    """Lets the source's next batch read again the objects that `choice` selects in `slots`.

    `signals`: the publisher of the source's keyspace, or None for a run that reads the slots itself. The call may be
    repeated. Cost: the requests of an examination (see the module's docstring), of `StateReader.lookup`, and of a
    commit for each group of slots (`REQUEST_MAX`). The signals cost 1 PUT for each slot, and 1 PUT for the root. With
    `dry_run`, nothing is written. Raises the errors of `LogTable.newest` and `Committer.commit`.
    """
    base = table.newest()
    if isinstance(base, Absent):
        return Retried()
    done: list[Retried] = []
    for some in _together(base.manifest, slots):
        request = _Retry(table=table, wanted=some, choice=choice)
        base = ask_again(table, base, request, signals, dry_run=dry_run)
        done.append(request.found)
    return _added(done)


def _chosen_of(table: LogTable, base: Snapshot, slots: Sequence[Slot], choice: Choice) -> dict[Slot, _Chosen]:
    """Returns the chosen objects of each of these slots."""
    states = base.manifest.states
    failing = {
        slot: {key: state for key, state in found.items() if choice.has(state)}
        for slot, found in table.states.failing(states, _with(base.manifest, slots, "failing")).items()
    }
    records: dict[Slot, dict[str, int]] = {slot: {} for slot in slots}
    for row in _counted(table, base, slots, choice, by=("_slot", "_key")).to_pylist():
        slot, key = Slot(row["_slot"]), row["_key"]
        if key not in failing.get(slot, ()):
            records[slot][key] = row["records"]
    # Rejects of an expired object are kept, like the object's rows. But an expired object can no longer be read.
    known = table.states.lookup(states, {slot: [*keys] for slot, keys in records.items() if keys})
    found: dict[Slot, _Chosen] = {}
    for slot, keys in records.items():
        rejected = {key: known[key] for key in keys if key in known and not known[key].expired}
        found[slot] = _Chosen(
            failing=failing.get(slot, {}), rejected=rejected, records=sum(keys[key] for key in rejected)
        )
    return found


def _added(parts: Iterable[Retried]) -> Retried:
    done = [part for part in parts if part.slots]
    return Retried(
        slots=tuple(slot for part in done for slot in part.slots),
        failing=sum(part.failing for part in done),
        rejected=sum(part.rejected for part in done),
        records=sum(part.records for part in done),
        waiting=sum(part.waiting for part in done),
        left=sum(part.left for part in done),
        keys=frozenset().union(*(part.keys for part in done)),
    )


# For examination and retry


def _together(manifest: Manifest, slots: Iterable[Slot]) -> Iterator[list[Slot]]:
    """Yields groups of the slots that have records or objects in quarantine. A group has at most `REQUEST_MAX` of these
    records and objects, or is a single slot.
    """
    some: list[Slot] = []
    size = 0
    for slot in sorted(set(slots)):
        facts = manifest.slot(slot)
        found = facts.failing + facts.rejects
        if some and size + found > REQUEST_MAX:
            yield some
            some, size = [], 0
        if found:
            some.append(slot)
            size += found
    if some:
        yield some


def _with(manifest: Manifest, slots: Iterable[Slot], what: Literal["failing", "rejects"]) -> list[Slot]:
    return [slot for slot in slots if getattr(manifest.slot(slot), what)]


def _counted(
    table: LogTable, base: Snapshot, slots: Iterable[Slot], choice: Choice, *, by: Sequence[str]
) -> pa.Table:
    """Returns the chosen rejects, grouped by the columns `by`. The column `records` has the number of rejects in each
    group.
    """
    fields = [REJECT_SCHEMA.field(name) for name in by]
    parts = [pa.schema([*fields, pa.field("records", pa.int64())]).empty_table()]
    batches = read_slots(
        table.reader.store,
        table.layout,
        base.manifest.rejects,
        _with(base.manifest, slots, "rejects"),
        REJECT_SCHEMA,
        columns={*by, "reason"},
    )
    for batch in batches:
        rows = choice.among(pa.Table.from_batches([batch]))
        parts.append(_sums(rows.append_column("records", pa.array([1] * rows.num_rows, pa.int64())), by))
    return _sums(pa.concat_tables(parts), by)


def _sums(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    counted = rows.group_by([*by]).aggregate([("records", "sum")])
    return counted.select([*by, "records_sum"]).rename_columns([*by, "records"])


def _is_in(rows: pa.Table, keys: Collection[str]) -> pa.ChunkedArray:
    return pc.is_in(rows["_key"], pa.array(sorted(keys), pa.string()))
