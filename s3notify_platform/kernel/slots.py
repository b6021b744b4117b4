"""Slots: the 1000 hash classes that every key of a bucket falls into.

Byte for byte those of the vnotify crate: the first 8 bytes of BLAKE3 of the UTF-8 key, little-endian,
modulo the number of slots. A slot's Dagster partition key is its decimal number, unpadded, like the name of
its signal object.
"""

from collections.abc import Iterable
from typing import NewType

from blake3 import blake3

from s3notify_platform.kernel.errors import UsageError

Slot = NewType("Slot", int)

HASH = "blake3-64"
"""What the slots of a table are counted by, for its identity."""

SLOT_COUNT = 1000
"""One LIST returns 1000 keys, and the root signal sorts after all digits: a full keyspace is one page."""


def check_slot_count(slots: int) -> int:
    """Return `slots` if a keyspace can have that many; `UsageError` otherwise."""
    if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= SLOT_COUNT:
        raise UsageError(
            f"slots={slots!r}: a keyspace has 1 to {SLOT_COUNT} slots; use {SLOT_COUNT} unless others share yours"
        )
    return slots


def slot_of(key: str, slots: int = SLOT_COUNT) -> Slot:
    """The slot of an object key, in `0 .. slots-1`; `UsageError` for what is no UTF-8. Pure; no request."""
    try:
        digest = blake3(key.encode("utf-8")).digest(length=8)
    except UnicodeEncodeError as error:
        raise UsageError(f"key {key[:60]!r} is no UTF-8, and S3 has no others") from error
    return Slot(int.from_bytes(digest, "little") % check_slot_count(slots))


def slot_from_partition_key(partition_key: str, slots: int = SLOT_COUNT) -> Slot:
    """The slot that a partition key or a signal's name stands for; `UsageError` if it stands for none."""
    if partition_key.isascii() and partition_key.isdecimal() and str(int(partition_key)) == partition_key:
        number = int(partition_key)
        if number < slots:
            return Slot(number)
    raise UsageError(f"unknown slot {partition_key!r}: slots are 0 to {slots - 1}, decimal and unpadded")


def slots_in(text: str, slots: int = SLOT_COUNT) -> frozenset[Slot]:
    """The slots that a text like `3,17,20-29` or `all` names; `UsageError` for any other."""
    if text.strip() == "all":
        return frozenset(map(Slot, range(slots)))
    found: set[Slot] = set()
    for part in text.split(","):
        first, dash, last = (end.strip() for end in part.partition("-"))
        low = slot_from_partition_key(first, slots)
        high = slot_from_partition_key(last, slots) if dash else low
        if low > high:
            raise UsageError(f"{part.strip()!r}: {low} is above {high}")
        found.update(map(Slot, range(low, high + 1)))
    return frozenset(found)


def partition_keys(slots: Iterable[int]) -> list[str]:
    """Partition keys of `slots`, in numeric order."""
    return [str(slot) for slot in sorted(slots)]
