"""Pure functions for the change that each operation makes to a record.

A plan returns the record to write (None: no change), and the result for its caller. If the write was refused, or if its
outcome is unknown, the plan is called again with the current record. So each plan must recognise its own earlier
attempts. `combine` joins the plans of several callers into one write.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, assert_never

from s3notify_platform.kernel.errors import S3NotifyError, UsageError
from s3notify_platform.protocols.ack_chain.names import in_order
from s3notify_platform.protocols.ack_chain.shared.record import Chain, child_stamp
from s3notify_platform.protocols.ack_chain.stamps import (
    Acked,
    AlreadyAcked,
    AlreadyFailed,
    Stamped,
    StampOutcome,
    xor,
    xor_all,
)

T = TypeVar("T")
Plan = Callable[[Chain], tuple[Chain | None, T]]

OPERATIONS_MAX = 2_000


def combine(chain: Chain, plans: Sequence[Plan[Any]]) -> tuple[Chain | None, list[Any]]:
    """Joins several plans into one write. Each plan gets the record that the plan before it returned.

    Returns the record to write (None: no change), and each plan's result. If a plan raises an error, the error is its
    result, and the other plans are not affected.
    """
    before, results = chain, []
    for plan in plans:
        try:
            after, result = plan(chain)
        except S3NotifyError as error:
            after, result = None, error
        chain = chain if after is None else after
        results.append(result)
    return None if chain is before else chain, results


# Stamps on one record


def closed(chain: Chain, operation: bytes) -> StampOutcome | None:
    """The result of a stamp on a closed chain; None if the chain is open."""
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
    """A stamp on the chain `tag`: the children that it ends and begins, and the digest of its operation id.

    `raw` is the caller's own XOR; if it is None, the children's stamps are derived from the chain's seed. `expires_ms`:
    the expiry of the tombstone if this stamp is the last one.
    """

    tag: str
    operation: bytes
    ending: frozenset[str]
    beginning: frozenset[str]
    expires_ms: int
    raw: bytes | None = None

    def __call__(self, chain: Chain) -> tuple[Chain | None, StampOutcome]:
        """Applies the stamp to a record."""
        if (done := closed(chain, self.operation)) is not None:
            return None, done
        if self.raw is not None:
            return self._raw(chain, self.raw)
        if not chain.seed:
            raise UsageError(f"chain {self.tag!r} was created with stamps: use `stamp`")
        self._check_names(chain)
        ending, beginning = self.ending & chain.missing, self.beginning - chain.children
        if not ending and not beginning:
            return None, _stamped(chain)
        moved = (child_stamp(chain.seed, name) for name in (*ending, *beginning))
        return self._apply(chain, xor_all((chain.stamp, *moved)), ending, beginning)

    def _raw(self, chain: Chain, stamp: bytes) -> tuple[Chain | None, StampOutcome]:
        self._check_names(chain)
        again = self.ending - chain.missing
        if self.operation in chain.operations or (self.ending and again == self.ending):
            return None, _stamped(chain)
        if twice := again | self.beginning & chain.children:
            raise UsageError(f"chain {self.tag!r}: another operation has already stamped {in_order(twice)}")
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
            return after, _stamped(after)
        return acked(after, self.expires_ms), Acked()


def _stamped(chain: Chain) -> Stamped:
    return Stamped(missing=len(chain.missing) or None, xor=chain.stamp)


def acked(chain: Chain, expires_ms: int) -> Chain:
    """The tombstone of an acked chain. The tombstone lists no missing children, because raw stamps may end children
    without naming them.
    """
    return replace(chain, status="acked", missing=frozenset(), operations=(), expires_ms=expires_ms)


def failed(chain: Chain, reason: str, expires_ms: int) -> tuple[Chain | None, Chain]:
    """Closes the chain as failed; leaves it unchanged if it is closed already."""
    if chain.status != "open":
        return None, chain
    after = replace(chain, status="failed", reason=reason, expires_ms=expires_ms)
    return after, after
