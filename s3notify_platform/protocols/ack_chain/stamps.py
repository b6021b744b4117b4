"""Stamps, and the results of operations on a chain. Pure."""

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
"""Seconds for which a closed chain is kept, for people and for late stamps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """The stamp is applied, now or by an earlier attempt; the chain is open. `missing` is the number of named children
    that have not ended.

    `missing` is None in a chain of raw stamps: missing stamps have no names and cannot be counted.
    """

    missing: int | None
    xor: bytes = field(default=b"", compare=False)
    """The XOR of all stamps so far, including this stamp; b"" in chains of named children (`AckChains.open_batch`).

    Comparisons of outcomes ignore this XOR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """The stamp is applied, and was the last one: all work is done. One operation of a chain gets `Acked`, and gets
    `Acked` again on a retry.

    If the stamps are raw, `xor` has as many zero bytes as a stamp has bytes; else `xor` is empty.
    """

    xor: bytes = field(default=b"", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyAcked:
    """All work of the chain is done; another operation got `Acked`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyFailed:
    """The chain was already closed, as failed."""

    reason: str


StampOutcome = Stamped | Acked | AlreadyAcked | AlreadyFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainState:
    """The facts of a chain. `missing` has the names of missing children. `missing` is empty after the chain is acked.
    After a failure, `missing` keeps the children that were missing.

    A chain of raw stamps has an empty `missing`, because raw stamps have no names.
    """

    tag: Tag
    status: Status
    children: tuple[str, ...]
    missing: tuple[str, ...]
    deadline_seconds: float | None
    created_ms: int
    """The Unix time of the chain's creation, for people to read; no decision compares it with another machine's clock.
    """
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
            raise BufferLengthsUnequal(f"stamps of {len(left)} and {len(right)} bytes cannot be in one chain")
        return (int.from_bytes(left) ^ int.from_bytes(right)).to_bytes(len(left))

    return reduce(step, stamps)


def new_stamp(clock: Clock = SYSTEM_CLOCK) -> bytes:
    """A random stamp."""
    while not any(stamp := clock.random_bytes(STAMP_BYTES)):
        pass
    return stamp


def with_xor(outcome: StampOutcome, stamp: bytes) -> StampOutcome:
    """Returns the outcome of a raw stamp. If the outcome is `Acked`, sets its XOR: as many zero bytes as the stamp has
    bytes.
    """
    return Acked(xor=bytes(len(stamp))) if isinstance(outcome, Acked) else outcome


def check_stamp(stamp: bytes) -> bytes:
    """Returns the stamp; raises `ZeroBufferNoOp` if all its bytes are zero."""
    if not any(stamp):
        raise ZeroBufferNoOp(f"a stamp of {len(stamp)} zero bytes would change nothing")
    return stamp


def check_facts(deadline_seconds: float | None, payload: str) -> None:
    """Raises `UsageError` for a deadline or a payload that is not allowed."""
    if deadline_seconds is not None and not deadline_seconds > 0:
        raise UsageError(f"deadline_seconds={deadline_seconds}: must be above 0")
    if len(payload) > PAYLOAD_MAX:
        raise UsageError(f"a payload of {len(payload)} characters: at most {PAYLOAD_MAX} are allowed")


def check_new(stamp: bytes) -> bytes:
    """Returns the stamp if a chain may begin with it; raises `UsageError` otherwise."""
    if not STAMP_BYTES_MIN <= len(check_stamp(stamp)) <= STAMP_BYTES_MAX:
        raise UsageError(
            f"a stamp of {len(stamp)} bytes: {STAMP_BYTES_MIN} to {STAMP_BYTES_MAX} random bytes are needed"
        )
    return stamp


def overdue(state: ChainState, watched_seconds: float) -> bool:
    """True if an open chain has passed its deadline, measured by the caller's own elapsed time.

    `watched_seconds`: the time for which the caller has seen the chain open, on one monotonic clock. A restarted caller
    counts from 0 again, so a chain may stay open past its deadline. But a wrong wall clock never makes a chain fail too
    early.
    """
    return (
        state.status == "open"
        and state.deadline_seconds is not None
        and watched_seconds >= state.deadline_seconds
    )
