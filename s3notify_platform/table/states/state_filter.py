"""A Bloom filter of keys, which says if a page of states may have a key. Pure.

The filter of a page with n states has n * `BITS` bits. Each key sets `PROBES` of these bits. Bytes of the key's BLAKE3
hash choose the bits. The bytes of the hash that choose the slot are not used, because they may be equal for all keys of
a page. The filter wrongly accepts about 0.3% of absent keys.

Source: Kirsch and Mitzenmacher, "Less Hashing, Same Performance: Building a Better Bloom Filter", 2006.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
from blake3 import blake3

BITS: Final = 12
"""The number of bits for each key."""

PROBES: Final = 8

_MASK: Final = 2**64 - 1

KeyHash = tuple[int, int]


def _digest(key: str) -> bytes:
    return blake3(key.encode("utf-8")).digest(length=16, seek=16)


def hash_of(key: str) -> KeyHash:
    """Converts a key to the form that `may_hold` needs."""
    digest = _digest(key)
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1


def filter_bytes(keys: int) -> int:
    """Returns the size of a filter in bytes, for this number of keys."""
    return -(-keys * BITS // 8)


def filter_of(keys: Iterable[str]) -> bytes:
    """Returns the filter of these keys. At least one key is needed."""
    digests = b"".join(map(_digest, keys))
    halves = np.frombuffer(digests, np.dtype("<u8")).reshape(-1, 2)
    size = 8 * filter_bytes(len(halves))
    steps = np.arange(PROBES, dtype=np.uint64)
    places = (halves[:, :1] + steps * (halves[:, 1:] | np.uint64(1))) % np.uint64(size)
    bits = np.zeros(size, np.bool_)
    bits[places.ravel()] = True
    return np.packbits(bits, bitorder="little").tobytes()


def may_hold(body: bytes | memoryview, key: KeyHash) -> bool:
    """Returns true if the filter may contain the key. If the result is False, the filter certainly does not contain the
    key.
    """
    start, step = key
    size = 8 * len(body)
    for n in range(PROBES):
        place = ((start + n * step) & _MASK) % size
        if not body[place >> 3] >> (place & 7) & 1:
            return False
    return True
