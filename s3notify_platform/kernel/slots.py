"""Slots divide the keys of a bucket by hash into up to 1000 classes.

The vnotify crate computes the same slots. The hash of a key is a little-endian number: the first 8 bytes of the BLAKE3
hash of the UTF-8 key. The key's slot is this number modulo the number of slots. The slot's number, in decimal and
unpadded, is the slot's partition key in Dagster, and the name of the slot's signal object.
"""

from collections.abc import Iterable
from typing import NewType

from blake3 import blake3

from s3notify_platform.kernel.errors import UsageError

Slot = NewType("Slot", int)

HASH = "blake3-64"
"""The name of the hash that assigns keys to slots. The name is a part of a table's identity."""

SLOT_COUNT = 1000
"""The largest number of slots. One LIST returns up to 1000 keys. The key of the root signal sorts after the keys of all
other signals. So the signals of all slots are on one page of a LIST.
"""


def check_slot_count(slots: int) -> int:
    """Returns `slots` if a keyspace can have this number of slots. Otherwise raises `UsageError`."""
    if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= SLOT_COUNT:
        raise UsageError(
            f"slots={slots!r}: a keyspace has 1 to {SLOT_COUNT} slots; use {SLOT_COUNT} unless the publishers use fewer"
        )
    return slots


def slot_of(key: str, slots: int = SLOT_COUNT) -> Slot:
    """Returns the slot of an object key, in `0 .. slots-1`. Raises `UsageError` if the key is not UTF-8. Pure."""
    try:
        digest = blake3(key.encode("utf-8")).digest(length=8)
    except UnicodeEncodeError as error:
        raise UsageError(f"key {key[:60]!r} is not UTF-8: S3 accepts only UTF-8 keys") from error
    return Slot(int.from_bytes(digest, "little") % check_slot_count(slots))


def slot_from_partition_key(partition_key: str, slots: int = SLOT_COUNT) -> Slot:
    """Returns the slot of a partition key or a signal's name. Raises `UsageError` if the text is not the number of a
    slot.
    """
    if partition_key.isascii() and partition_key.isdecimal() and str(int(partition_key)) == partition_key:
        number = int(partition_key)
        if number < slots:
            return Slot(number)
    raise UsageError(f"unknown slot {partition_key!r}: slots are 0 to {slots - 1}, decimal and unpadded")


def slots_in(text: str, slots: int = SLOT_COUNT) -> frozenset[Slot]:
    """Returns the slots in a text like `3,17,20-29` or `all`. Raises `UsageError` for any other text."""
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
    """Returns the partition keys of `slots`, in numeric order."""
    return [str(slot) for slot in sorted(slots)]
