"""The client of ack chains: plans, sent to a record store. What they guarantee stands in the package's docstring."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, assert_never

from blake3 import blake3

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, backoff_seconds, unique_name
from s3notify_platform.errors import (
    StaleLocalData,
    TagExists,
    TagNotFound,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from s3notify_platform.ports import Conflict, Record, RecordStore, Unknown, Version, WriteOutcome, Written
from s3notify_platform.protocols.ack_chain.combining import Combiner
from s3notify_platform.protocols.ack_chain.plans import (
    PAYLOAD_MAX,
    STAMP_BYTES_MIN,
    Plan,
    Stamp,
    carried,
    check_stamp,
    closed,
    combine,
    dealt,
    failed,
    merged,
    new_lane,
    with_lanes,
)
from s3notify_platform.protocols.ack_chain.record import OPERATION_BYTES, Chain, decode, encode, facts
from s3notify_platform.protocols.ack_chain.values import (
    ChainState,
    Stamped,
    StampOutcome,
    child_stamp,
    in_order,
    xor_all,
)

T = TypeVar("T")

SEED_BYTES: Final = 32

TOMBSTONE_SECONDS: Final = 7 * 24 * 3600.0
"""How long a finished chain is kept, for people and for late stamps."""

ATTEMPTS: Final = 40
"""Reads and replaces of one record before `StaleLocalData`; about 20 s of backoff on average."""

BACKOFF_BASE_SECONDS: Final = 0.05
BACKOFF_CEILING_SECONDS: Final = 1.0

KNOWN_MAX: Final = 256
"""Chains with lanes whose lanes are remembered."""


class _Place(NamedTuple):
    partition: str
    key: str


class AckChains:
    """The ack chains of one partition of a record store. Thread-safe.

    Requests, uncontended: create 1, stamp 2, state 1, fail 2, delete 2; n threads that stamp one chain at once,
    4 between them. With L lanes: a stamp 2 for each lane that it touches, 1 more the first time, 2 more for the
    stamp that finishes a lane; state 1 + L, fail 2 + 4 L, delete 2 + 2 L. `ATTEMPTS` bounds each of them.
    """

    def __init__(
        self,
        records: RecordStore,
        *,
        clock: Clock = SYSTEM_CLOCK,
        partition: str = "ack",
        tombstone_seconds: float = TOMBSTONE_SECONDS,
    ) -> None:
        self._records = records
        self._clock = clock
        self._partition = partition
        self._tombstone_seconds = tombstone_seconds
        self._combiner = Combiner()
        self._known: dict[str, Chain] = {}
        """Chains with lanes as they were seen: how many lanes, and which children they begin with."""

    def create(
        self,
        tag: str,
        stamp: bytes,
        *,
        children: Mapping[str, bytes] | None = None,
        deadline_seconds: float | None = None,
        payload: str = "",
    ) -> ChainState:
        """Begin a chain whose XOR is `stamp`; `TagExists` if the tag is in use, finished or not. 1 request.

        `children` names all that the chain begins with, and `stamp` must be the XOR of their stamps.
        """
        if len(check_stamp(stamp)) < STAMP_BYTES_MIN:
            raise UsageError(
                f"a stamp of {len(stamp)} bytes: at least {STAMP_BYTES_MIN} random ones are needed"
            )
        if children and xor_all(children.values()) != stamp:
            raise UsageError(f"chain {tag!r}: its stamp is not the XOR of its children's stamps")
        names = frozenset(children or ())
        return self._create(tag, self._chain(stamp, names, deadline_seconds, payload))

    def open_batch(
        self,
        tag: str,
        children: Iterable[str],
        *,
        deadline_seconds: float | None = None,
        payload: str = "",
        lanes: int = 1,
    ) -> ChainState:
        """Begin a chain of children to be stamped by name; `TagExists` if the tag is in use. 1 request.

        `lanes` is for chains that many processes stamp at once, each with few children. Children that they
        begin are then named below their parent: parent/child.
        """
        names = frozenset(children)
        if not names:
            raise UsageError(f"chain {tag!r} has no children: nothing could ever ack it")
        seed = self._clock.random_bytes(SEED_BYTES)
        stamp = xor_all(child_stamp(seed, name) for name in names)
        chain = replace(self._chain(stamp, names, deadline_seconds, payload), seed=seed)
        return self._create(tag, with_lanes(chain, lanes))

    def stamp(
        self,
        tag: str,
        stamp: bytes,
        *,
        operation_id: str | None = None,
        children: Iterable[str] = (),
        starts: Iterable[str] = (),
    ) -> StampOutcome:
        """XOR `stamp` into the chain, once for each operation id, however often it is sent. 2 requests.

        `children` names the children that it finishes, `starts` those that it begins. Without an operation id
        a repeated call is a new stamp. Children that were all finished before make it a no-op; if only some
        were, it cannot be taken apart: `UsageError`.
        """
        return self._stamp(self._planned(tag, children, starts, operation_id, raw=check_stamp(stamp)))

    def stamp_children(
        self, tag: str, names: Iterable[str], operation_id: str | None = None, *, starts: Iterable[str] = ()
    ) -> StampOutcome:
        """Finish these children of an `open_batch` chain, and begin `starts`, in one stamp. 2 requests.

        Idempotent by name: children finished before are left out, whoever stamped them. The operation id only
        tells a retry that it was itself the one that acked. With lanes, children that are in different ones
        are finished one after another: a call that was cut off is repeated.
        """
        return self._stamp(self._planned(tag, names, starts, operation_id))

    def fail(self, tag: str, reason: str) -> ChainState:
        """Close an open chain as failed; the state after it. One closed before stays as it is. 2 requests.

        With lanes, repeat it if it was cut off: stampers of some lanes may not know of it yet.
        """
        plan = partial(failed, reason=reason, expires_ms=self._expiry_ms())
        chain = self._change(lambda found: plan(found) if found.lanes == 1 else (None, found), self._at(tag))
        if chain.lanes == 1:
            return facts(tag, chain)
        self._look(tag, chain)  # one whose last stamper died is acked, and stays so
        chain = self._change(plan, self._at(tag))
        # Lanes that nobody has stamped are made, as failed: a stamper on its way to do so meets them.
        plan = partial(plan, reason=chain.reason or "")
        first = partial(new_lane, replace(chain, status="open"))
        lanes = [
            self._send(self._at(tag, chain, number), partial(first, number), [plan])[0]
            for number in sorted(chain.open_lanes)
        ]
        return facts(tag, chain, lanes)

    def state(self, tag: str) -> ChainState:
        """The chain's facts; `TagNotFound` if there is none. 1 request, and 1 for each lane that is not done."""
        return self._look(tag, self._read(tag))

    def states(self) -> Iterator[ChainState]:
        """Every chain, open or closed, in tag order. One scan, and 1 request for each lane that is not done."""
        for record in self._records.scan(self._partition):
            yield self._look(record.key, decode(record.key, record.value))

    def delete(self, tag: str) -> None:  # noqa: C901 - one loop over the outcomes of one write
        """Forget the chain, open or closed; `TagNotFound` if there is none. 2 requests."""
        seen: Chain | None = None
        """What the removal in doubt was of."""
        for attempt in range(ATTEMPTS):
            try:
                if (record := self._records.read(self._partition, tag)) is None:
                    if seen is None:
                        raise TagNotFound(f"no ack chain {tag!r}")
                    return self._forget_lanes(tag, seen)
                chain = decode(tag, record.value)
                if seen is not None and chain.identity != seen.identity:
                    return self._forget_lanes(tag, seen)  # the tag has been created again since
                outcome = self._records.remove(self._partition, tag, expected=record.version)
            except UnavailableError:
                if seen is None:
                    raise
            else:
                match outcome:
                    case Written():
                        return self._forget_lanes(tag, chain)
                    case Conflict():
                        pass
                    case Unknown():
                        seen = chain
                    case _ as unreachable:
                        assert_never(unreachable)
            self._pause(attempt)
        if seen is not None:
            raise UnknownOutcomeError(f"ack chain {tag!r} may or may not be deleted: delete it again")
        raise StaleLocalData(f"ack chain {tag!r} kept changing while it was deleted: delete it again")

    def purge(self) -> int:
        """Forget closed chains whose time is up by this wall clock; how many. For tidiness alone.

        2 scans, and 1 request for each lane that has no chain. Lanes are left behind by a process that dies
        while it deletes their chain.
        """
        now_ms = self._clock.wall_ms()
        purged = 0
        for record in self._records.scan(self._partition):
            chain = decode(record.key, record.value)
            if chain.expires_ms is not None and chain.expires_ms <= now_ms:
                outcome = self._records.remove(self._partition, record.key, expected=record.version)
                purged += isinstance(outcome, Written)
        alive = ""
        for record in self._records.scan(self._lanes):
            of, _, _ = record.key.rpartition("/")
            if of == alive:
                continue
            tag, _, identity = of.rpartition("/")
            # Read after the lane was seen, and lanes are made after their chain: so this proves it.
            root = self._records.read(self._partition, tag)
            if root is not None and decode(tag, root.value).identity == identity:
                alive = of
            else:
                self._records.remove(self._lanes, record.key, expected=record.version)
        return purged

    # Beginning a chain

    def _chain(
        self, stamp: bytes, names: frozenset[str], deadline_seconds: float | None, payload: str
    ) -> Chain:
        if deadline_seconds is not None and deadline_seconds <= 0:
            raise UsageError(f"deadline_seconds={deadline_seconds}: a deadline lies ahead")
        if len(payload) > PAYLOAD_MAX:
            raise UsageError(f"a payload of {len(payload)} characters: at most {PAYLOAD_MAX}")
        return Chain(
            identity=unique_name(self._clock),
            stamp=stamp,
            children=names,
            missing=names,
            deadline_seconds=deadline_seconds,
            created_ms=self._clock.wall_ms(),
            payload=payload,
        )

    def _create(self, tag: str, chain: Chain) -> ChainState:
        if not tag:
            raise UsageError("an ack chain needs a tag")
        value = encode(chain)
        opened = facts(tag, replace(chain, missing=chain.children))
        in_doubt = False
        for attempt in range(ATTEMPTS):
            try:
                outcome = self._records.create(self._partition, tag, value)
                if isinstance(outcome, Written):
                    return opened
                if isinstance(outcome, Conflict) and not in_doubt:
                    raise TagExists(f"ack chain {tag!r} exists")
                in_doubt = True
                # A conflict now may be with our own first attempt.
                if (record := self._records.read(self._partition, tag)) is not None:
                    if decode(tag, record.value).identity == chain.identity:
                        return opened
                    raise TagExists(f"ack chain {tag!r} exists")
            except UnavailableError:
                if not in_doubt:
                    raise
            self._pause(attempt)
        raise UnknownOutcomeError(f"ack chain {tag!r} may or may not have been created: read its state")

    # Stamping

    def _planned(
        self,
        tag: str,
        ending: Iterable[str],
        beginning: Iterable[str],
        operation_id: str | None,
        raw: bytes | None = None,
    ) -> Stamp:
        drawn = operation_id if operation_id is not None else unique_name(self._clock)
        return Stamp(
            tag=tag,
            operation=blake3(drawn.encode("utf-8")).digest(length=OPERATION_BYTES),
            ending=frozenset(ending),
            beginning=frozenset(beginning),
            expires_ms=self._expiry_ms(),
            raw=raw,
        )

    def _stamp(self, stamp: Stamp) -> StampOutcome:
        if stamp.raw is None and (known := self._known.get(stamp.tag)) is not None:
            # It may have been deleted since, and created again with other children.
            with suppress(TagNotFound, UsageError):
                return self._stamp_lanes(known, stamp)
            self._known.pop(stamp.tag, None)

        def plan(chain: Chain) -> tuple[Chain | None, StampOutcome | Chain]:
            to_lanes = chain.lanes > 1 and chain.status == "open" and stamp.raw is None
            return (None, chain) if to_lanes else stamp(chain)

        found = self._change(plan, self._at(stamp.tag))
        if not isinstance(found, Chain):
            return found
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[stamp.tag] = found
        return self._stamp_lanes(found, stamp, fresh=True)

    def _stamp_lanes(self, chain: Chain, stamp: Stamp, *, fresh: bool = False) -> StampOutcome:
        """`fresh`: the chain was read by this very call, and need not be read again to make a lane."""
        parts = dealt(stamp, chain)
        return merged([self._stamp_lane(chain, number, part, fresh) for number, part in parts.items()])

    def _stamp_lane(self, chain: Chain, number: int, stamp: Stamp, fresh: bool) -> StampOutcome:
        def plan(lane: Chain) -> tuple[Chain | None, tuple[StampOutcome, Chain]]:
            after, outcome = stamp(lane)
            return after, (outcome, after or lane)

        def absent() -> Chain:
            now = chain if fresh else self._read(stamp.tag)
            if now.identity != chain.identity:
                raise TagNotFound(f"ack chain {stamp.tag!r} was deleted, and created again")
            return new_lane(now, number)

        outcome, lane = self._change(plan, self._at(stamp.tag, chain, number), absent)
        if lane.status != "acked":
            return outcome
        outcome = self._carry(stamp, chain, number, lane)
        if isinstance(outcome, Stamped) and (late := stamp.beginning - lane.children):
            raise UsageError(
                f"chain {stamp.tag!r}: {in_order(late)[:10]} come too late: their parents ended without them"
            )
        return outcome

    def _carry(self, stamp: Stamp, chain: Chain, number: int, lane: Chain) -> StampOutcome:
        """Tell the chain that a lane is done; what that means for `stamp`."""

        def plan(now: Chain) -> tuple[Chain | None, StampOutcome]:
            if now.identity != chain.identity:
                raise TagNotFound(f"ack chain {stamp.tag!r} was deleted, and created again")
            after = carried(now, number, lane, stamp.expires_ms)
            return after, closed(after or now, stamp.operation) or Stamped(missing=0)

        return self._change(plan, self._at(stamp.tag))

    # Looking

    def _read(self, tag: str) -> Chain:
        if (record := self._records.read(self._partition, tag)) is None:
            raise TagNotFound(f"no ack chain {tag!r}")
        return decode(tag, record.value)

    def _look(self, tag: str, chain: Chain) -> ChainState:
        """The facts, after finishing what a stamper that died has left unfinished."""
        lanes = {number: self._read_lane(tag, chain, number) for number in sorted(chain.open_lanes)}
        done = [number for number, lane in lanes.items() if lane.status == "acked"]
        if done and chain.status == "open":
            nobody = self._planned(tag, (), (), None)
            for number in done:
                # It was asked for a state: whoever asks next, or stamps, tries again.
                with suppress(TagNotFound, UnavailableError, UnknownOutcomeError, StaleLocalData):
                    self._carry(nobody, chain, number, lanes[number])
            before, chain = chain, self._read(tag)
            if chain.identity != before.identity:
                return self._look(tag, chain)
        return facts(tag, chain, (lane for number, lane in lanes.items() if number in chain.open_lanes))

    def _read_lane(self, tag: str, chain: Chain, number: int) -> Chain:
        place = self._at(tag, chain, number)
        record = self._records.read(*place)
        return decode(place.key, record.value) if record is not None else new_lane(chain, number)

    def _forget_lanes(self, tag: str, chain: Chain) -> None:
        self._known.pop(tag, None)
        if chain.lanes == 1:
            return
        for number in range(chain.lanes):
            # The chain is gone already; what is left of it is for `purge`.
            with suppress(UnavailableError):
                if (record := self._records.read(*(place := self._at(tag, chain, number)))) is not None:
                    self._records.remove(*place, expected=record.version)

    # Changing a record

    @property
    def _lanes(self) -> str:
        return f"{self._partition}.lanes"

    def _at(self, tag: str, chain: Chain | None = None, lane: int | None = None) -> _Place:
        if chain is None:
            return _Place(self._partition, tag)
        return _Place(self._lanes, f"{tag}/{chain.identity}/{lane}")

    def _change(self, plan: Plan[T], place: _Place, absent: Callable[[], Chain] | None = None) -> T:
        """Carry out a plan, together with those of other threads for the same record."""
        result: T = self._combiner.run(place, plan, partial(self._send, place, absent))
        return result

    def _send(  # noqa: C901 - one loop over the outcomes of one write
        self, place: _Place, absent: Callable[[], Chain] | None, plans: Sequence[Plan[Any]]
    ) -> Sequence[Any]:
        """The plans' results, after at most one write that holds all of their changes."""
        doubtful: tuple[Version | None] | None = None
        """The version that a write in doubt would replace."""
        for attempt in range(ATTEMPTS):
            try:
                record = self._records.read(*place)
                version = record.version if record is not None else None
                if doubtful is not None and doubtful != (version,):
                    doubtful = None  # it landed, and the plans find its traces, or it never will
                combined = combine(self._decoded(place, record, absent), plans)
                if combined.after is None:
                    return combined.results
                outcome = self._write(place, encode(combined.after), version)
            except UnavailableError:
                if doubtful is None:
                    raise
            else:
                match outcome:
                    case Written():
                        return combined.results
                    case Conflict():
                        pass
                    case Unknown():
                        doubtful = (version,)
                    case _ as unreachable:
                        assert_never(unreachable)
            self._pause(attempt)
        if doubtful is not None:
            raise UnknownOutcomeError(
                f"ack chain {place.key!r}: the change may still be applied; read its state"
            )
        raise StaleLocalData(f"ack chain {place.key!r} changed under each of {ATTEMPTS} attempts: try again")

    @staticmethod
    def _decoded(place: _Place, record: Record | None, absent: Callable[[], Chain] | None) -> Chain:
        if record is not None:
            return decode(place.key, record.value)
        if absent is None:
            raise TagNotFound(f"no ack chain {place.key!r}")
        return absent()

    def _write(self, place: _Place, value: bytes, expected: Version | None) -> WriteOutcome:
        if expected is None:
            return self._records.create(*place, value)
        return self._records.replace(*place, value, expected=expected)

    def _expiry_ms(self) -> int:
        return self._clock.wall_ms() + int(self._tombstone_seconds * 1000)

    def _pause(self, attempt: int) -> None:
        self._clock.sleep(
            backoff_seconds(attempt, self._clock, base=BACKOFF_BASE_SECONDS, ceiling=BACKOFF_CEILING_SECONDS)
        )
