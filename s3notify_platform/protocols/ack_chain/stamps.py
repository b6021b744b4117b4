"""Stamps, and what the operations on a chain return. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from typing import Final, Literal, NewType

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import (
    BufferLengthsUnequal,
    LessThanTwoBuffers,
    UsageError,
    ZeroBufferNoOp,
)

Tag = NewType("Tag", str)
Ended = Literal["acked", "failed"]
Status = Literal["open"] | Ended

STAMP_BYTES: Final = 16
STAMP_BYTES_MIN: Final = 8
STAMP_BYTES_MAX: Final = 128
PAYLOAD_MAX: Final = 100_000

TOMBSTONE_SECONDS: Final = 7 * 24 * 3600.0
"""How long a closed chain is kept, for people and for late stamps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """Applied, now or by an earlier attempt; the chain is open. `missing` named children are not finished yet.

    None: nobody knows how many, since what is missing are stamps, which have no names.
    """

    missing: int | None
    xor: bytes = field(default=b"", compare=False)
    """The XOR of the chain's stamps, with this one and those that others had sent by then; b"" if they have no bytes,
    as those of the children of `AckChains.open_batch`. Outcomes are compared without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """Applied, and it was the last one: all work is done. One operation of a chain gets this, retries too.

    `xor`: of raw stamps, as many zero bytes as they have.
    """

    xor: bytes = field(default=b"", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyAcked:
    """The chain is done, and another operation was the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyFailed:
    """The chain was failed before."""

    reason: str


StampOutcome = Stamped | Acked | AlreadyAcked | AlreadyFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainState:
    """The facts of a chain. `missing` is empty once acked; a failed chain keeps it. It names children: what a chain of
    stamps misses has no names.
    """

    tag: Tag
    status: Status
    children: tuple[str, ...]
    missing: tuple[str, ...]
    deadline_seconds: float | None
    created_ms: int
    """For people: no decision compares it with another machine's clock."""
    reason: str | None
    payload: str


def xor(*stamps: bytes) -> bytes:
    """The XOR of two or more stamps of one length."""
    if len(stamps) < 2:
        raise LessThanTwoBuffers(f"xor of {len(stamps)} stamps: two or more are needed")
    return xor_all(stamps)


def xor_all(stamps: Iterable[bytes]) -> bytes:
    """The XOR of one or more stamps of one length."""

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


def with_xor(outcome: StampOutcome, stamp: bytes) -> StampOutcome:
    """The outcome of a raw stamp; of one that was the last, with the XOR, which is as long as the stamp."""
    return Acked(xor=bytes(len(stamp))) if isinstance(outcome, Acked) else outcome


def check_stamp(stamp: bytes) -> bytes:
    """Return the stamp; `ZeroBufferNoOp` if it is all zero."""
    if not any(stamp):
        raise ZeroBufferNoOp(f"a stamp of {len(stamp)} zero bytes would change nothing")
    return stamp


def check_facts(deadline_seconds: float | None, payload: str) -> None:
    """`UsageError` for a deadline or a payload that a chain cannot have."""
    if deadline_seconds is not None and not deadline_seconds > 0:
        raise UsageError(f"deadline_seconds={deadline_seconds}: must be above 0")
    if len(payload) > PAYLOAD_MAX:
        raise UsageError(f"a payload of {len(payload)} characters: at most {PAYLOAD_MAX}")


def check_new(stamp: bytes) -> bytes:
    """Return the stamp, if a chain may begin with it."""
    if not STAMP_BYTES_MIN <= len(check_stamp(stamp)) <= STAMP_BYTES_MAX:
        raise UsageError(
            f"a stamp of {len(stamp)} bytes: {STAMP_BYTES_MIN} to {STAMP_BYTES_MAX} random ones are needed"
        )
    return stamp


def overdue(state: ChainState, watched_seconds: float) -> bool:
    """Whether an open chain has passed its deadline, by the caller's own elapsed time.

    `watched_seconds` is how long the caller has seen it open, on one monotonic clock. A restarted caller
    begins again: a chain may then stay open past its deadline, but a wrong wall clock never fails it early.
    """
    return (
        state.status == "open"
        and state.deadline_seconds is not None
        and watched_seconds >= state.deadline_seconds
    )
