"""Stamps, and what the operations on a chain return. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NewType

from blake3 import blake3

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import BufferLengthsUnequal, LessThanTwoBuffers

Tag = NewType("Tag", str)
Status = Literal["open", "acked", "failed"]

STAMP_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """Applied, now or by an earlier attempt; `missing` named children are not finished yet."""

    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """Applied, and it was the last one: all work is done. One operation of a chain gets this, retries too."""


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
    """The facts of a chain. `missing` is empty once acked; a failed chain keeps it."""

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


def child_stamp(seed: bytes, name: str) -> bytes:
    """The stamp of a named child: keyed BLAKE3, so that the record keeps a seed and names, not stamps."""
    stamp: bytes = blake3(name.encode("utf-8"), key=seed).digest(length=STAMP_BYTES)
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


def in_order(names: Iterable[str]) -> list[str]:
    """Numbers first, ascending, then the other names."""
    return sorted(names, key=lambda name: (0, int(name), "") if is_number(name) else (1, 0, name))


def is_number(name: str) -> bool:
    """Whether a name is a decimal number as Python prints it."""
    return name.isascii() and name.isdecimal() and (name == "0" or name[0] != "0")
