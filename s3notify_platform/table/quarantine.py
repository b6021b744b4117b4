"""Quarantine: what could not be taken in, why, and how it is sent again after a fix.

Two kinds. *Rejected records*, of objects whose other records are committed: in files that commits name. *Failing
objects*, which could not be read, or not to their end: commits name them (`failing`), their states say why.

Steps of sending again (`redrive`)
    1. A commit of the slot, the same but that its `pending` has the keys.
    2. The slots' signals move, marked as queued, then the root: the next batch takes these slots up.
    3. It reads what is pending although its ETag is the same: an object that was read in part from where that ended,
       any other from its beginning.
    4. The commit that takes an object in, or finds it gone, holds neither its old rejects nor its failure any more.

Invariants
    - What is in quarantine leaves it in the commit that takes in its rows, and in no other.
    - Sent again twice, or killed between steps 1 and 2 and repeated: signalled again, and read once.
    - What fails again is in quarantine again, with its new reason.

Limits. `WAITING_MAX` keys of a slot are pending at once, since each commit of the slot carries them until they are
read; of more, the rest is left to another call. An object that is being read in parts, and has not failed, is pending
anyway: its rejects can be sent again when it has been read to its end.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, backoff_seconds
from s3notify_platform.errors import ConflictError, S3NotifyError
from s3notify_platform.ports import Conflict, Written
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotCommit, SlotTable
from s3notify_platform.table.reader import REJECT_SCHEMA, read_file

WAITING_MAX: Final = 100_000
"""Keys of one slot that wait to be read on or again; about 60 bytes each of every commit until they are read."""

ATTEMPTS: Final = 8
SLOTS_IN_FLIGHT: Final = 16
BATCH: Final = "redrive"
"""In place of a batch's name, in commits that send again."""

T = TypeVar("T")

Kind = Literal["failing", "rejected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is asked for: of `keys`, or of any, what has a reason that contains `reason`."""

    keys: frozenset[str] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount:
    """How much of a slot is in quarantine for one reason; `records` is 0 for failing objects."""

    slot: Slot
    kind: Kind
    reason: str
    objects: int
    records: int
    waiting: int
    """Of the objects, those that have been sent again and not been read yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotQuarantine:
    """What of a slot is in quarantine, as of one commit. `rejects` are without their raw bytes."""

    commit: SlotCommit
    failing: Mapping[str, ObjectState]
    rejects: pa.Table

    def chosen(self, choice: Choice) -> tuple[frozenset[str], pa.Table]:
        """The failing keys, and the rejects of the others, that are asked for."""
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
    """What is in quarantine of one object version, whose `state.reason` says why it fails, if it does.

    `rejects`: the first of them, as `REJECT_SCHEMA` has them, in order; `state.rejects` counts all. `waiting`: it has
    been sent again, or is being read in parts.
    """

    commit: SlotCommit
    state: ObjectState
    rejects: pa.Table
    waiting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """What is, or would be, sent again: failing objects, and objects with the rejected `records` that were chosen.

    `waiting` of these had been sent again before; `left`, beyond `WAITING_MAX`, wait for another call.
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
        """Failing ones and those with rejects."""
        return self.failing + self.rejected


def quarantine_of(table: SlotTable, slot: Slot) -> SlotQuarantine | None:
    """What of a slot is in quarantine; None if nothing is.

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

    return [count for counts in _in_parallel(of, slots) for count in counts]


def key_quarantine(table: SlotTable, slot: Slot, key: str, *, limit: int) -> KeyQuarantine | None:
    """What is in quarantine of an object, at most `limit` of its rejects; None if nothing is.

    1 LIST and 2 GETs, and 1 GET for each file that may hold rejects of it.
    """
    head = table.head(slot)
    state = table.states(head, [key]).get(key)
    if head is None or state is None or not (state.reason or state.rejects):
        return None
    rejects = REJECT_SCHEMA.empty_table()
    for file in head.rejects_of(state):
        rows = read_file(table, slot, file, rejects=True)
        mine = rows.filter(pc.and_(pc.equal(rows["_key"], key), pc.equal(rows["_etag"], state.etag)))
        rejects = pa.concat_tables([rejects, mine]).sort_by("_offset").slice(0, limit)
    return KeyQuarantine(commit=head, state=state, rejects=rejects, waiting=key in head.pending)


def redrive(
    table: SlotTable,
    slots: Iterable[Slot],
    signals: Publisher,
    choice: Choice,
    *,
    dry_run: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Retried:
    """Send again what `choice` says of `slots`, by the next batch of the source. `signals`: of its keyspace.

    Safe to repeat. Raises the error of a slot after all others have been sent again. Requests of `quarantine_of` for
    each slot, 1 PUT of a commit for each with something new to send again, 1 PUT for its signal, and 1 for the root.
    With `dry_run` nothing is written.
    """

    def again(slot: Slot) -> Retried | S3NotifyError:
        try:
            return _sent_again(table, slot, choice, dry_run=dry_run, clock=clock)
        except S3NotifyError as error:
            return error

    outcomes = _in_parallel(again, slots)
    done = [one for one in outcomes if isinstance(one, Retried) and one.slots]
    if not dry_run:
        signals.signal(min(one.keys) for one in done)
    for one in outcomes:
        if isinstance(one, S3NotifyError):
            raise one
    return Retried(
        slots=tuple(slot for one in done for slot in one.slots),
        failing=sum(one.failing for one in done),
        rejected=sum(one.rejected for one in done),
        records=sum(one.records for one in done),
        waiting=sum(one.waiting for one in done),
        left=sum(one.left for one in done),
        keys=frozenset().union(*(one.keys for one in done)),
    )


def _sent_again(table: SlotTable, slot: Slot, choice: Choice, *, dry_run: bool, clock: Clock) -> Retried:
    for attempt in range(ATTEMPTS):
        if attempt:
            clock.sleep(backoff_seconds(attempt, clock))
        planned_at = clock.monotonic()
        found = quarantine_of(table, slot)
        if found is None:
            return Retried()
        failing, rejects = found.chosen(choice)
        rejected = frozenset(pc.unique(rejects["_key"]).to_pylist())
        if not failing and not rejected:
            return Retried()
        head = found.commit
        pending = set(head.pending)
        new = sorted((failing | rejected) - pending)
        taken = new[: max(0, WAITING_MAX - len(pending))]
        done = Retried(
            slots=(slot,),
            failing=len(failing),
            rejected=len(rejected),
            records=rejects.num_rows,
            waiting=len(failing | rejected) - len(new),
            left=len(new) - len(taken),
            keys=failing | rejected,
        )
        if dry_run or not taken:
            return done
        commit = SlotCommit.after(head, slot, batch=BATCH, clock=clock, read_again=taken)
        match table.commit(commit.staged(), planned_at=planned_at):
            case Written():
                return done
            case Conflict():
                continue  # a run was first: what it took in is not sent again
            case _ as unreachable:
                assert_never(unreachable)
    raise ConflictError(f"slot {slot}: other commits were first {ATTEMPTS} times; send it again")


def _is_in(rows: pa.Table, keys: Collection[str]) -> pa.ChunkedArray:
    return pc.is_in(rows["_key"], pa.array(sorted(keys), pa.string()))


def _in_parallel(function: Callable[[Slot], T], slots: Iterable[Slot]) -> list[T]:
    with ThreadPoolExecutor(SLOTS_IN_FLIGHT) as pool:
        return list(pool.map(function, sorted(set(slots))))
