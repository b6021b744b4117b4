"""Quarantine: records and objects that could not be ingested, the reasons, and their retry after a fix.

Two kinds. *Rejected records*, of objects whose other records are committed: in files that commits name. *Failing
objects*, which could not be read, or not to their end: commits name them (`failing`), their states hold the reason, and
the traceback of an error that nobody foresaw.

After a fix, `retry` has objects read again, by the steps of `reread`: from where reading ended, or else from the
beginning. A record or object leaves quarantine only in the commit that ingests its rows, or finds its object
gone. If it fails again, it stays in quarantine with the new reason.

Limits. `WAITING_MAX` keys of a slot are pending at once, since each commit of the slot carries them until they are
read. Any more are left to another call. An object that is being read in parts, and has not failed, is pending already:
its rejects can be retried when it has been read to its end.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.parallel import in_parallel
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotCommit, SlotTable, spanning
from s3notify_platform.table.reader import REJECT_SCHEMA, read_file
from s3notify_platform.table.reread import SLOTS_IN_FLIGHT, ask_again

WAITING_MAX: Final = 100_000
"""Keys of one slot that wait to be read further or again. Each takes about 60 bytes of every commit until then."""

RETRY: Final = "retry"
"""The batch name of commits that request a retry."""

Kind = Literal["failing", "rejected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to retry: of `keys`, or of all, those whose reason contains `reason`."""

    keys: frozenset[str] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount:
    """How many records and objects of a slot are in quarantine for one reason; `records` is 0 for failing objects."""

    slot: Slot
    kind: Kind
    reason: str
    objects: int
    records: int
    waiting: int
    """The objects that wait for a retry that was requested before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotQuarantine:
    """The quarantine of a slot, as of one commit. `rejects` are without their raw bytes."""

    commit: SlotCommit
    failing: Mapping[str, ObjectState]
    rejects: pa.Table

    def chosen(self, choice: Choice) -> tuple[frozenset[str], pa.Table]:
        """The failing keys, and the rejects of other objects, that are chosen."""
        failing = frozenset(
            key
            for key, state in self.failing.items()
            if (choice.keys is None or key in choice.keys) and choice.reason in state.reason
        )
        rejects = self.rejects.filter(pc.invert(_is_in(self.rejects, failing)))
        if choice.keys is not None:
            rejects = rejects.filter(_is_in(rejects, choice.keys))
        if choice.reason:
            rejects = rejects.filter(pc.match_substring(rejects["reason"], choice.reason))
        return failing, rejects

    def reasons(self) -> list[ReasonCount]:
        """Counts by kind and reason."""
        slot, waiting = self.commit.slot, frozenset(self.commit.pending)
        by_reason: dict[str, list[str]] = {}
        for key, state in self.failing.items():
            by_reason.setdefault(state.reason, []).append(key)
        found = [
            ReasonCount(
                slot=slot,
                kind="failing",
                reason=reason,
                objects=len(keys),
                records=0,
                waiting=len(waiting.intersection(keys)),
            )
            for reason, keys in by_reason.items()
        ]
        grouped = self.rejects.group_by(["reason", "_key"]).aggregate([([], "count_all")])
        grouped = grouped.append_column("waiting", _is_in(grouped, waiting).cast(pa.int64()))
        grouped = grouped.group_by("reason").aggregate(
            [("_key", "count"), ("count_all", "sum"), ("waiting", "sum")]
        )
        return found + [
            ReasonCount(
                slot=slot,
                kind="rejected",
                reason=row["reason"] or "",
                objects=row["_key_count"],
                records=row["count_all_sum"],
                waiting=row["waiting_sum"],
            )
            for row in grouped.to_pylist()
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyQuarantine:
    """The quarantine of one object version. `state.reason` is why it fails, if it does.

    `rejects`: the first ones in order, with the columns of `REJECT_SCHEMA`; `state.rejects` counts all. `waiting`: its
    retry was requested, or it is being read in parts.
    """

    commit: SlotCommit
    state: ObjectState
    rejects: pa.Table
    waiting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """What is, or would be, read again: failing objects, and objects with the rejected `records` that were chosen.

    `waiting` of these had been requested before. `left` exceed `WAITING_MAX`, and need another call.
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
        """Failing objects and those with rejects."""
        return self.failing + self.rejected


def quarantine_of(table: SlotTable, slot: Slot) -> SlotQuarantine | None:
    """The quarantine of a slot; None if it is empty.

    1 LIST and 1 GET, 1 GET for each page of states with failing objects, and for each file of rejects.
    """
    head = table.head(slot)
    if head is None or not (head.failing or head.rejects):
        return None
    failing = table.states(head, head.failing) if head.failing else {}
    columns = [name for name in REJECT_SCHEMA.names if name != "raw"]
    parts = [read_file(table, slot, file, rejects=True, columns=columns) for file in head.rejects]
    none = pa.schema([REJECT_SCHEMA.field(name) for name in columns]).empty_table()
    return SlotQuarantine(
        commit=head,
        failing={key: state for key, state in failing.items() if state.reason},
        rejects=pa.concat_tables([none, *parts], promote_options="default"),
    )


def reasons_of(table: SlotTable, slots: Iterable[Slot]) -> list[ReasonCount]:
    """Counts by slot, kind and reason. Requests of `quarantine_of` for each slot."""

    def of(slot: Slot) -> list[ReasonCount]:
        found = quarantine_of(table, slot)
        return found.reasons() if found is not None else []

    return [count for counts in in_parallel(of, sorted(set(slots)), SLOTS_IN_FLIGHT) for count in counts]


def key_quarantine(table: SlotTable, slot: Slot, key: str, *, limit: int) -> KeyQuarantine | None:
    """The quarantine of an object, with at most `limit` of its rejects; None if it is empty.

    1 LIST and 2 GETs, and 1 GET for each file that may hold rejects of it.
    """
    head = table.head(slot)
    state = table.states(head, [key]).get(key)
    if head is None or state is None or not (state.reason or state.rejects):
        return None
    rejects = REJECT_SCHEMA.empty_table()
    for file in spanning(head.rejects, [state]):
        rows = read_file(table, slot, file, rejects=True)
        mine = rows.filter(pc.and_(pc.equal(rows["_key"], key), pc.equal(rows["_etag"], state.etag)))
        rejects = pa.concat_tables([rejects, mine]).sort_by("_offset").slice(0, limit)
    return KeyQuarantine(commit=head, state=state, rejects=rejects, waiting=key in head.pending)


def retry(
    table: SlotTable,
    slots: Iterable[Slot],
    signals: Publisher,
    choice: Choice,
    *,
    dry_run: bool = False,
) -> Retried:
    """Have the `choice` of `slots` read again by the next batch of the source. `signals`: of its keyspace.

    Safe to repeat. An error of one slot is raised after all other slots are done. Requests of `quarantine_of` for each
    slot, 1 PUT of a commit for each with a new request, 1 PUT for its signal, and 1 for the root. With `dry_run`
    nothing is written.
    """

    def decide(slot: Slot) -> tuple[Retried, SlotCommit | None]:
        found = quarantine_of(table, slot)
        if found is None:
            return Retried(), None
        failing, rejects = found.chosen(choice)
        # Of what has expired rejects are kept, as rows are, but there is nothing to be read again.
        keys = pc.unique(rejects["_key"]).to_pylist()
        expired = [key for key, state in table.states(found.commit, keys).items() if state.expired]
        rejects = rejects.filter(pc.invert(_is_in(rejects, expired)))
        rejected = frozenset(keys).difference(expired)
        if not failing and not rejected:
            return Retried(), None
        head = found.commit
        new = sorted((failing | rejected).difference(head.pending))
        taken = new[: max(0, WAITING_MAX - len(head.pending))]
        asked = Retried(
            slots=(slot,),
            failing=len(failing),
            rejected=len(rejected),
            records=rejects.num_rows,
            waiting=len(failing | rejected) - len(new),
            left=len(new) - len(taken),
            keys=failing | rejected,
        )
        if not taken:
            return asked, None
        return asked, SlotCommit.after(head, slot, batch=RETRY, clock=table.clock, read_again=taken)

    done = ask_again(table, slots, signals, decide, dry_run=dry_run)
    return Retried(
        slots=tuple(slot for one in done for slot in one.slots),
        failing=sum(one.failing for one in done),
        rejected=sum(one.rejected for one in done),
        records=sum(one.records for one in done),
        waiting=sum(one.waiting for one in done),
        left=sum(one.left for one in done),
        keys=frozenset().union(*(one.keys for one in done)),
    )


def _is_in(rows: pa.Table, keys: Collection[str]) -> pa.ChunkedArray:
    return pc.is_in(rows["_key"], pa.array(sorted(keys), pa.string()))
