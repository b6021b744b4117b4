"""Ack chains: has all the work of this batch been done? One small record, however many children (xor-ack).

Steps
    1. `open_batch` names the children and draws a seed; each child's stamp is derived from seed and name. The
       record holds the XOR of all of them.
    2. Whoever has finished children XORs their stamps into the record, by compare-and-set: read, replace.
    3. The XOR is zero: the chain is acked. A tombstone keeps it apart from a chain that never was.
    4. A parent's end and its children's starts go into one stamp (`starts`), so that the chain never looks
       done in between.

Storage
    One record under (partition, tag), JSON: the XOR, status, names of all and of missing children (numbers as
    ranges: a batch of 1000 slots is 11 bytes if whole, 5 KB at worst), seed, payload, digests of applied
    operation ids.

Invariants
    - Each child is applied once, whoever stamps it and however often; so is each operation id of a raw stamp.
    - A chain that is acked or failed stays so. Its tombstone expires for tidiness alone (`purge`).
    - A write in doubt is looked for in the record before anything else is said about it.

Limits
    - One record is one lane: stampers of one chain take turns, k at once cost up to k(k+1)/2 attempts. Meant
      for a few runs, each with one stamp for all that it finished. Lanes and combining are to come: further
      records, whose XOR is the state.
    - `PAYLOAD_MAX` characters of payload, `OPERATIONS_MAX` raw stamps, `ATTEMPTS` tries of one stamp.
    - The record is ours, not yet the npm package's item. It needs an adapter that keeps the JSON's `stamp` in
      the binary attribute of that name, and tombstones in items of their own.

Differs from xor-ack-dynamodb: a retried stamp is a no-op; a finished and an unknown chain are told apart; a
chain has a deadline, a reason and names of what is missing; stamps have at least 8 random bytes.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from typing import Literal, NewType, TypeVar, assert_never

from blake3 import blake3

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, backoff_seconds, unique_name
from s3notify_platform.errors import (
    BufferLengthsUnequal,
    CorruptError,
    LessThanTwoBuffers,
    StaleLocalData,
    TagExists,
    TagNotFound,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
    ZeroBufferNoOp,
)
from s3notify_platform.ports import Conflict, Record, RecordStore, Unknown, Version, WriteOutcome, Written

Tag = NewType("Tag", str)
Status = Literal["open", "acked", "failed"]
T = TypeVar("T")

STAMP_BYTES = 16
STAMP_BYTES_MIN = 8
SEED_BYTES = 32
OPERATION_BYTES = 8

PAYLOAD_MAX = 100_000
OPERATIONS_MAX = 2_000

TOMBSTONE_SECONDS = 7 * 24 * 3600.0
"""How long a finished chain is kept, for people and for late stamps."""

ATTEMPTS = 40
"""Reads and replaces of one stamp before `StaleLocalData`; about 20 s of backoff on average."""

BACKOFF_BASE_SECONDS = 0.02
BACKOFF_CEILING_SECONDS = 1.0


# Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """Applied, now or by an earlier attempt; `missing` named children are still out."""

    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """Applied, and it was the last one: all work is done. One operation of a chain gets this, retries too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyAcked:
    """The chain was done before; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyFailed:
    """The chain was failed before; nothing was changed."""

    reason: str


StampOutcome = Stamped | Acked | AlreadyAcked | AlreadyFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainState:
    """The facts of a chain. `missing` is empty once acked; a failed chain still tells it."""

    tag: Tag
    status: Status
    children: tuple[str, ...]
    missing: tuple[str, ...]
    deadline_seconds: float | None
    created_ms: int
    """For people: no decision compares it with another machine's clock."""
    reason: str | None
    payload: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """The record, decoded."""

    identity: str
    stamp: bytes
    status: Status = "open"
    children: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    seed: bytes = b""
    operations: tuple[bytes, ...] = ()
    last: bytes = b""
    deadline_seconds: float | None = None
    created_ms: int = 0
    expires_ms: int | None = None
    reason: str | None = None
    payload: str = ""


# Pure functions


def xor(*stamps: bytes) -> bytes:
    """The XOR of two or more stamps of one length."""
    if len(stamps) < 2:
        raise LessThanTwoBuffers(f"xor of {len(stamps)} stamps: two or more are needed")
    return _xor_all(stamps)


def _xor_all(stamps: Iterable[bytes]) -> bytes:
    def step(left: bytes, right: bytes) -> bytes:
        if len(left) != len(right):
            raise BufferLengthsUnequal(f"stamps of {len(left)} and {len(right)} bytes in one chain")
        return (int.from_bytes(left) ^ int.from_bytes(right)).to_bytes(len(left))

    return reduce(step, stamps)


def new_stamp(clock: Clock = SYSTEM_CLOCK) -> bytes:
    """A random stamp."""
    while not any(stamp := clock.random_bytes(STAMP_BYTES)):
        pass
    return stamp


def child_stamp(seed: bytes, name: str) -> bytes:
    """The stamp of a named child: keyed BLAKE3, so that the record keeps a seed and names, not stamps."""
    stamp: bytes = blake3(name.encode("utf-8"), key=seed).digest(length=STAMP_BYTES)
    return stamp


def overdue(state: ChainState, watched_seconds: float) -> bool:
    """Whether an open chain has outlived its deadline, by the caller's own elapsed time.

    `watched_seconds` is how long the caller has seen it open, on one monotonic clock. A restarted caller
    begins anew: a chain may then outlive its deadline, but no wall clock that is off fails it early.
    """
    return (
        state.status == "open"
        and state.deadline_seconds is not None
        and watched_seconds >= state.deadline_seconds
    )


def in_order(names: Iterable[str]) -> list[str]:
    """Numbers first, ascending, then the other names."""
    return sorted(names, key=lambda name: (0, int(name), "") if _is_number(name) else (1, 0, name))


def pack_names(names: Iterable[str]) -> list[object]:
    """Names as compact JSON: 7 for "7", [3, 5] for "3" to "5", other names as they are."""
    ordered = in_order(names)
    numbers = [int(name) for name in ordered if _is_number(name)]
    packed: list[object] = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        packed.append(found[0] if len(found) == 1 else [found[0], found[-1]])
    return [*packed, *ordered[len(numbers) :]]


def unpack_names(packed: Iterable[object]) -> frozenset[str]:
    """The names that `pack_names` packed."""
    names: set[str] = set()
    for item in packed:
        match item:
            case str():
                names.add(item)
            case int():
                names.add(str(item))
            case [int(first), int(last)]:
                names.update(str(number) for number in range(first, last + 1))
            case _:
                raise CorruptError(f"{item!r} is no packed name")
    return frozenset(names)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and (name == "0" or name[0] != "0")


def _encode(chain: _Chain) -> bytes:
    fields: dict[str, object] = {
        "v": 1,
        "id": chain.identity,
        "stamp": chain.stamp.hex(),
        "status": chain.status,
        "children": pack_names(chain.children),
        "missing": pack_names(chain.missing),
        "seed": chain.seed.hex(),
        "operations": b64encode(b"".join(chain.operations)).decode("ascii"),
        "last": chain.last.hex(),
        "deadline_seconds": chain.deadline_seconds,
        "created_ms": chain.created_ms,
        "expires_ms": chain.expires_ms,
        "reason": chain.reason,
        "payload": chain.payload,
    }
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def _decode(record: Record) -> _Chain:
    try:
        fields = json.loads(record.value)
        if fields["v"] != 1 or fields["status"] not in ("open", "acked", "failed"):
            raise CorruptError(f"ack chain {record.key!r}: version {fields['v']}, status {fields['status']}")
        operations = b64decode(fields["operations"], validate=True)
        return _Chain(
            identity=fields["id"],
            stamp=bytes.fromhex(fields["stamp"]),
            status=fields["status"],
            children=unpack_names(fields["children"]),
            missing=unpack_names(fields["missing"]),
            seed=bytes.fromhex(fields["seed"]),
            operations=tuple(
                operations[start : start + OPERATION_BYTES]
                for start in range(0, len(operations), OPERATION_BYTES)
            ),
            last=bytes.fromhex(fields["last"]),
            deadline_seconds=fields["deadline_seconds"],
            created_ms=fields["created_ms"],
            expires_ms=fields["expires_ms"],
            reason=fields["reason"],
            payload=fields["payload"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"ack chain {record.key!r} holds {record.value[:80]!r}") from error


def _facts(tag: str, chain: _Chain) -> ChainState:
    return ChainState(
        tag=Tag(tag),
        status=chain.status,
        children=tuple(in_order(chain.children)),
        missing=tuple(in_order(chain.missing)),
        deadline_seconds=chain.deadline_seconds,
        created_ms=chain.created_ms,
        reason=chain.reason,
        payload=chain.payload,
    )


def _check_stamp(stamp: bytes) -> bytes:
    if not any(stamp):
        raise ZeroBufferNoOp(f"a stamp of {len(stamp)} zero bytes would change nothing")
    return stamp


def _closed(chain: _Chain, operation: bytes) -> StampOutcome | None:
    """What a stamp on a finished chain gets; None if it is open."""
    match chain.status:
        case "open":
            return None
        case "acked":
            return Acked() if chain.last == operation else AlreadyAcked()
        case "failed":
            return AlreadyFailed(reason=chain.reason or "")
        case _ as unreachable:
            assert_never(unreachable)


# Client


class AckChains:
    """The ack chains of one partition of a record store. Thread-safe; holds no state.

    Uncontended: create 1 request, stamp 2, state 1, fail 2, delete 2. `ATTEMPTS` bounds each of them.
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
        if len(_check_stamp(stamp)) < STAMP_BYTES_MIN:
            raise UsageError(
                f"a stamp of {len(stamp)} bytes: at least {STAMP_BYTES_MIN} random ones are needed"
            )
        if children and _xor_all(children.values()) != stamp:
            raise UsageError(f"chain {tag!r}: its stamp is not the XOR of its children's stamps")
        names = frozenset(children or ())
        return self._create(tag, self._chain(stamp, names, deadline_seconds, payload))

    def open_batch(
        self, tag: str, children: Iterable[str], *, deadline_seconds: float | None = None, payload: str = ""
    ) -> ChainState:
        """Begin a chain of children to be stamped by name; `TagExists` if the tag is in use. 1 request."""
        names = frozenset(children)
        if not names:
            raise UsageError(f"chain {tag!r} has no children: nothing could ever ack it")
        seed = self._clock.random_bytes(SEED_BYTES)
        stamp = _xor_all(child_stamp(seed, name) for name in names)
        return self._create(tag, replace(self._chain(stamp, names, deadline_seconds, payload), seed=seed))

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
        finished, begun = frozenset(children), frozenset(starts)
        operation = self._operation(operation_id)
        _check_stamp(stamp)

        def plan(chain: _Chain) -> tuple[_Chain | None, StampOutcome]:
            if (closed := _closed(chain, operation)) is not None:
                return None, closed
            _check_names(tag, chain, finished)
            again = finished - chain.missing
            if operation in chain.operations or (finished and again == finished):
                return None, Stamped(missing=len(chain.missing))
            if again or begun & chain.children:
                raise UsageError(
                    f"chain {tag!r}: another operation stamped {in_order(again | begun & chain.children)}"
                )
            if len(chain.operations) >= OPERATIONS_MAX:
                raise UsageError(f"chain {tag!r} has had {OPERATIONS_MAX} stamps: XOR several into one stamp")
            after = replace(chain, operations=(*chain.operations, operation))
            return self._apply(after, xor(chain.stamp, stamp), finished, begun, operation)

        return self._change(tag, plan)

    def stamp_children(
        self, tag: str, names: Iterable[str], operation_id: str | None = None, *, starts: Iterable[str] = ()
    ) -> StampOutcome:
        """Finish these children of an `open_batch` chain, and begin `starts`, in one stamp. 2 requests.

        Idempotent by name: children finished before are left out, whoever stamped them. The operation id only
        tells a retry that it was itself the one that acked.
        """
        finished, begun = frozenset(names), frozenset(starts)
        operation = self._operation(operation_id)

        def plan(chain: _Chain) -> tuple[_Chain | None, StampOutcome]:
            if (closed := _closed(chain, operation)) is not None:
                return None, closed
            if not chain.seed:
                raise UsageError(f"chain {tag!r} was created with stamps: stamp it with them")
            _check_names(tag, chain, finished)
            ending, beginning = finished & chain.missing, begun - chain.children
            if not ending and not beginning:
                return None, Stamped(missing=len(chain.missing))
            moved = (child_stamp(chain.seed, name) for name in (*ending, *beginning))
            return self._apply(chain, _xor_all((chain.stamp, *moved)), ending, beginning, operation)

        return self._change(tag, plan)

    def fail(self, tag: str, reason: str) -> ChainState:
        """Close an open chain as failed; the state after it. One closed before stays as it is. 2 requests."""

        def plan(chain: _Chain) -> tuple[_Chain | None, ChainState]:
            if chain.status != "open":
                return None, _facts(tag, chain)
            after = replace(chain, status="failed", reason=reason, expires_ms=self._expiry_ms())
            return after, _facts(tag, after)

        return self._change(tag, plan)

    def state(self, tag: str) -> ChainState:
        """The chain's facts; `TagNotFound` if there is none. 1 request."""
        if (record := self._records.read(self._partition, tag)) is None:
            raise TagNotFound(f"no ack chain {tag!r}")
        return _facts(tag, _decode(record))

    def states(self) -> Iterator[ChainState]:
        """Every chain, open or closed, in tag order. One scan."""
        for record in self._records.scan(self._partition):
            yield _facts(record.key, _decode(record))

    def delete(self, tag: str) -> None:  # noqa: C901 - one loop over the outcomes of one write
        """Forget the chain, open or closed; `TagNotFound` if there is none. 2 requests."""
        identity: str | None = None
        for attempt in range(ATTEMPTS):
            try:
                if (record := self._records.read(self._partition, tag)) is None:
                    if identity is None:
                        raise TagNotFound(f"no ack chain {tag!r}")
                    return
                chain = _decode(record)
                if identity is not None and chain.identity != identity:
                    return  # ours went; the tag has been created anew since
                outcome = self._records.remove(self._partition, tag, expected=record.version)
            except UnavailableError:
                if identity is None:
                    raise
            else:
                match outcome:
                    case Written():
                        return
                    case Conflict():
                        pass
                    case Unknown():
                        identity = chain.identity
                    case _ as unreachable:
                        assert_never(unreachable)
            self._pause(attempt)
        if identity is not None:
            raise UnknownOutcomeError(f"ack chain {tag!r} may or may not be deleted: delete it again")
        raise StaleLocalData(f"ack chain {tag!r} kept changing while it was deleted: delete it again")

    def purge(self) -> int:
        """Forget closed chains whose time is up by this wall clock; how many. For tidiness alone."""
        now_ms = self._clock.wall_ms()
        purged = 0
        for record in self._records.scan(self._partition):
            expires_ms = _decode(record).expires_ms
            if expires_ms is not None and expires_ms <= now_ms:
                outcome = self._records.remove(self._partition, record.key, expected=record.version)
                purged += isinstance(outcome, Written)
        return purged

    def _chain(
        self, stamp: bytes, names: frozenset[str], deadline_seconds: float | None, payload: str
    ) -> _Chain:
        if deadline_seconds is not None and deadline_seconds <= 0:
            raise UsageError(f"deadline_seconds={deadline_seconds}: a deadline lies ahead")
        if len(payload) > PAYLOAD_MAX:
            raise UsageError(f"a payload of {len(payload)} characters: at most {PAYLOAD_MAX}")
        return _Chain(
            identity=unique_name(self._clock),
            stamp=stamp,
            children=names,
            missing=names,
            deadline_seconds=deadline_seconds,
            created_ms=self._clock.wall_ms(),
            payload=payload,
        )

    def _create(self, tag: str, chain: _Chain) -> ChainState:
        if not tag:
            raise UsageError("an ack chain needs a tag")
        value = _encode(chain)
        in_doubt = False
        for attempt in range(ATTEMPTS):
            try:
                outcome: WriteOutcome = self._records.create(self._partition, tag, value)
                if isinstance(outcome, Written):
                    return _facts(tag, chain)
                if isinstance(outcome, Conflict) and not in_doubt:
                    raise TagExists(f"ack chain {tag!r} exists")
                in_doubt = True
                # A conflict now may be with our own first attempt.
                if (record := self._records.read(self._partition, tag)) is not None:
                    if (found := _decode(record)).identity == chain.identity:
                        return _facts(tag, found)
                    raise TagExists(f"ack chain {tag!r} exists")
            except UnavailableError:
                if not in_doubt:
                    raise
            self._pause(attempt)
        raise UnknownOutcomeError(f"ack chain {tag!r} may or may not have been created: read its state")

    def _change(  # noqa: C901 - one loop over the outcomes of one write
        self, tag: str, plan: Callable[[_Chain], tuple[_Chain | None, T]]
    ) -> T:
        in_doubt: Version | None = None
        for attempt in range(ATTEMPTS):
            try:
                if (record := self._records.read(self._partition, tag)) is None:
                    raise TagNotFound(f"no ack chain {tag!r}")
                if in_doubt is not None and record.version != in_doubt:
                    in_doubt = None  # it landed, and the plan finds its traces, or it never will
                after, result = plan(_decode(record))
                if after is None:
                    return result
                outcome = self._records.replace(self._partition, tag, _encode(after), expected=record.version)
            except UnavailableError:
                if in_doubt is None:
                    raise
            else:
                match outcome:
                    case Written():
                        return result
                    case Conflict():
                        pass
                    case Unknown():
                        in_doubt = record.version
                    case _ as unreachable:
                        assert_never(unreachable)
            self._pause(attempt)
        if in_doubt is not None:
            raise UnknownOutcomeError(f"ack chain {tag!r}: the change may still be applied; read its state")
        raise StaleLocalData(f"ack chain {tag!r} changed under each of {ATTEMPTS} attempts: try again")

    def _apply(
        self, chain: _Chain, stamp: bytes, ending: frozenset[str], beginning: frozenset[str], operation: bytes
    ) -> tuple[_Chain, StampOutcome]:
        missing = (chain.missing - ending) | beginning
        after = replace(
            chain, stamp=stamp, missing=missing, children=chain.children | beginning, last=operation
        )
        if any(stamp):
            return after, Stamped(missing=len(missing))
        # The XOR is the truth: a raw stamp may have finished children without naming them.
        tombstone = replace(
            after, status="acked", missing=frozenset(), operations=(), expires_ms=self._expiry_ms()
        )
        return tombstone, Acked()

    def _operation(self, operation_id: str | None) -> bytes:
        drawn = operation_id if operation_id is not None else unique_name(self._clock)
        digest: bytes = blake3(drawn.encode("utf-8")).digest(length=OPERATION_BYTES)
        return digest

    def _expiry_ms(self) -> int:
        return self._clock.wall_ms() + int(self._tombstone_seconds * 1000)

    def _pause(self, attempt: int) -> None:
        self._clock.sleep(
            backoff_seconds(attempt, self._clock, base=BACKOFF_BASE_SECONDS, ceiling=BACKOFF_CEILING_SECONDS)
        )


def _check_names(tag: str, chain: _Chain, names: frozenset[str]) -> None:
    if unknown := names - chain.children:
        raise UsageError(f"chain {tag!r} has no children {in_order(unknown)[:10]}")
