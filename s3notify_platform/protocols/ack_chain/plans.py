"""What each operation does to a record, as pure functions of the record as it was read.

A plan returns the record to write, or None if nothing is to change, and the result for its caller. It is
called again on the record as read again, whenever a write was refused or is in doubt; so each plan finds the
traces of its own earlier attempts. `combine` folds the plans of several callers into one write.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, assert_never

from blake3 import blake3

from s3notify_platform.errors import S3NotifyError, UsageError, ZeroBufferNoOp
from s3notify_platform.protocols.ack_chain.record import Chain
from s3notify_platform.protocols.ack_chain.values import (
    STAMP_BYTES,
    Acked,
    AlreadyAcked,
    AlreadyFailed,
    Stamped,
    StampOutcome,
    child_stamp,
    in_order,
    xor,
    xor_all,
)

T = TypeVar("T")
Plan = Callable[[Chain], tuple[Chain | None, T]]

STAMP_BYTES_MIN = 8
PAYLOAD_MAX = 100_000
OPERATIONS_MAX = 2_000
LANES_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """One write for several plans: the record, None if none of them changes it, and each one's result."""

    after: Chain | None
    results: tuple[Any, ...]
    """In the order of the plans; an error of one plan stands in its place and leaves the others alone."""


def combine(chain: Chain, plans: Sequence[Plan[Any]]) -> Combined:
    """Each plan applied to what the ones before it leave: as if sent one after another."""
    changed = False
    results: list[Any] = []
    for plan in plans:
        try:
            after, result = plan(chain)
        except S3NotifyError as error:
            results.append(error)
            continue
        if after is not None:
            chain, changed = after, True
        results.append(result)
    return Combined(after=chain if changed else None, results=tuple(results))


# Stamps on one record


def closed(chain: Chain, operation: bytes) -> StampOutcome | None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """A stamp on the chain `tag`: the children that it ends and begins, under the digest of an operation id.

    `raw` is the caller's own XOR; None takes the children's stamps from the chain's seed. `expires_ms` is for
    the tombstone, should this be the last one.
    """

    tag: str
    operation: bytes
    ending: frozenset[str]
    beginning: frozenset[str]
    expires_ms: int
    raw: bytes | None = None

    def __call__(self, chain: Chain) -> tuple[Chain | None, StampOutcome]:
        """The plan for one record."""
        if (done := closed(chain, self.operation)) is not None:
            return None, done
        if self.raw is not None:
            return self._raw(chain, self.raw)
        if not chain.seed:
            raise UsageError(f"chain {self.tag!r} was created with stamps: stamp it with them")
        self._check_names(chain)
        ending, beginning = self.ending & chain.missing, self.beginning - chain.children
        if not ending and not beginning:
            return None, Stamped(missing=len(chain.missing))
        moved = (child_stamp(chain.seed, name) for name in (*ending, *beginning))
        return self._apply(chain, xor_all((chain.stamp, *moved)), ending, beginning)

    def _raw(self, chain: Chain, stamp: bytes) -> tuple[Chain | None, StampOutcome]:
        if chain.lanes > 1:
            raise UsageError(f"chain {self.tag!r} has lanes: stamp its children by name")
        self._check_names(chain)
        again = self.ending - chain.missing
        if self.operation in chain.operations or (self.ending and again == self.ending):
            return None, Stamped(missing=len(chain.missing))
        if twice := again | self.beginning & chain.children:
            raise UsageError(f"chain {self.tag!r}: another operation stamped {in_order(twice)}")
        if len(chain.operations) >= OPERATIONS_MAX:
            raise UsageError(
                f"chain {self.tag!r} has had {OPERATIONS_MAX} stamps: XOR several into one stamp"
            )
        noted = replace(chain, operations=(*chain.operations, self.operation))
        return self._apply(noted, xor(chain.stamp, stamp), self.ending, self.beginning)

    def _check_names(self, chain: Chain) -> None:
        if unknown := self.ending - chain.children:
            raise UsageError(f"chain {self.tag!r} has no children {in_order(unknown)[:10]}")

    def _apply(
        self, chain: Chain, stamp: bytes, ending: frozenset[str], beginning: frozenset[str]
    ) -> tuple[Chain, StampOutcome]:
        missing = (chain.missing - ending) | beginning
        after = replace(
            chain, stamp=stamp, missing=missing, children=chain.children | beginning, last=self.operation
        )
        if any(stamp):
            return after, Stamped(missing=len(missing))
        return acked(after, self.expires_ms), Acked()


def acked(chain: Chain, expires_ms: int) -> Chain:
    """The tombstone. The XOR is the truth: a raw stamp may have finished children without naming them."""
    return replace(chain, status="acked", missing=frozenset(), operations=(), expires_ms=expires_ms)


def failed(chain: Chain, reason: str, expires_ms: int) -> tuple[Chain | None, Chain]:
    """The chain closed as failed; as it is, if it was closed before."""
    if chain.status != "open":
        return None, chain
    after = replace(chain, status="failed", reason=reason, expires_ms=expires_ms)
    return after, after


def check_stamp(stamp: bytes) -> bytes:
    """The stamp, if it changes anything."""
    if not any(stamp):
        raise ZeroBufferNoOp(f"a stamp of {len(stamp)} zero bytes would change nothing")
    return stamp


# Lanes


def family(name: str) -> str:
    """What a child and all that is begun below it have in common."""
    return name.partition("/")[0]


def lane_of(name: str, lanes: int) -> int:
    """The lane of a child and its family."""
    digest: bytes = blake3(family(name).encode("utf-8")).digest(length=8)
    return int.from_bytes(digest, "little") % lanes


def with_lanes(chain: Chain, lanes: int) -> Chain:
    """A chain of named children, not written yet, spread over `lanes`; lanes without children are done."""
    if not 1 <= lanes <= LANES_MAX:
        raise UsageError(f"lanes={lanes}: 1 to {LANES_MAX}")
    if lanes == 1:
        return chain
    used = frozenset(lane_of(name, lanes) for name in chain.children)
    stamp = xor_all(_lane_stamp(chain.seed, number) for number in used)
    return replace(chain, stamp=stamp, missing=frozenset(), lanes=lanes, open_lanes=used)


def new_lane(chain: Chain, number: int) -> Chain:
    """A lane as it is before its first stamp: the chain's own children of that lane, all of them out."""
    names = frozenset(name for name in chain.children if lane_of(name, chain.lanes) == number)
    stamp = xor_all((bytes(STAMP_BYTES), *(child_stamp(chain.seed, name) for name in names)))
    return Chain(
        identity=chain.identity,
        stamp=stamp,
        status=chain.status,
        children=names,
        missing=names,
        seed=chain.seed,
        last=chain.last,
        created_ms=chain.created_ms,
        reason=chain.reason,
    )


def dealt(stamp: Stamp, chain: Chain) -> Mapping[int, Stamp]:
    """The stamp, taken apart by lane; a parent's end and its children's starts stay together."""
    known = {family(name) for name in chain.children}
    if unknown := [name for name in stamp.ending if family(name) not in known]:
        raise UsageError(f"chain {stamp.tag!r} has no children {in_order(unknown)[:10]}")
    ended = {family(name) for name in stamp.ending}
    if alone := [name for name in stamp.beginning if family(name) not in ended]:
        raise UsageError(
            f"chain {stamp.tag!r} has lanes: {in_order(alone)[:10]} must be begun by the stamp that ends their "
            "parent, and be named parent/child"
        )
    return {
        number: replace(
            stamp,
            ending=_of_lane(stamp.ending, number, chain.lanes),
            beginning=_of_lane(stamp.beginning, number, chain.lanes),
        )
        for number in sorted({lane_of(name, chain.lanes) for name in stamp.ending})
    }


def carried(chain: Chain, number: int, lane: Chain, expires_ms: int) -> Chain | None:
    """The chain with the end of one lane in it, in the name of the operation that was the lane's last.

    None if that is known, or the chain closed.
    """
    if chain.status != "open" or number not in chain.open_lanes:
        return None
    after = replace(
        chain,
        stamp=xor(chain.stamp, _lane_stamp(chain.seed, number)),
        open_lanes=chain.open_lanes - {number},
        children=chain.children | lane.children,
        last=lane.last,
    )
    return after if any(after.stamp) else acked(after, expires_ms)


def merged(outcomes: Sequence[StampOutcome]) -> StampOutcome:
    """The outcome of a stamp whose parts went to several lanes."""
    for outcome in outcomes:
        if isinstance(outcome, AlreadyFailed):
            return outcome
    if Acked() in outcomes:
        return Acked()
    if AlreadyAcked() in outcomes:
        return AlreadyAcked()
    return Stamped(missing=sum(o.missing for o in outcomes if isinstance(o, Stamped)))


def _of_lane(names: Iterable[str], number: int, lanes: int) -> frozenset[str]:
    return frozenset(name for name in names if lane_of(name, lanes) == number)


def _lane_stamp(seed: bytes, number: int) -> bytes:
    # No child's name has a NUL at its head and this after it, or it would have to be meant.
    return child_stamp(seed, f"\0lane {number}")
