"""Objects of about 2 KB with ten records each, and the batches that change these objects."""

import json
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.slots import slot_of

RECORDS = 10
HOUR = 60
"""The number of batches in an hour: one per minute."""

Numbers = npt.NDArray[np.int64]
Kind = Literal["new", "overwrites", "deletes", "hour", "half"]

POOL = np.random.default_rng(7)
WORDS = ["".join(POOL.choice([*"etaoinshrdlu"], POOL.integers(3, 10))) for _ in range(4000)]
NOTES = pa.array([" ".join(POOL.choice(WORDS, 8)) for _ in range(60_000)])
USERS = pa.array([f"user-{n:06}" for n in range(50_000)])
URLS = pa.array([f"/shop/{WORDS[n % 40]}/{n}" for n in range(20_000)])


@cache
def slots_of(count: int, slots: int) -> Numbers:
    """The slot of each of the first `count` objects."""
    return np.array([slot_of(key_of(n), slots) for n in range(count)], dtype=np.int64)


def key_of(number: int) -> str:
    return f"data/events/{number:09}.jsonl"


def hexes(count: int, characters: int, chance: np.random.Generator) -> pa.Array:
    text = chance.bytes(count * characters // 2).hex().encode()
    offsets = np.arange(0, len(text) + 1, characters, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


def rows_of(numbers: Numbers, slots: Numbers, chance: np.random.Generator) -> pa.Table:
    """The records of these objects, in the order of slots and keys."""
    ordered = numbers[np.lexsort((numbers, slots[numbers]))]
    count = len(ordered) * RECORDS
    each = pa.array(np.repeat(np.arange(len(ordered)), RECORDS))
    place = np.tile(np.arange(RECORDS), len(ordered))
    picked = lambda pool: pc.take(pool, pa.array(chance.integers(0, len(pool), count)))
    at = 1_790_000_000_000_000 + np.repeat(ordered, RECORDS) * 86_400 + chance.integers(0, 10**9, count)
    return pa.table(
        {
            "_slot": pa.array(np.repeat(slots[ordered], RECORDS), pa.int32()),
            "_key": pc.take(pa.array([key_of(n) for n in ordered.tolist()]), each),
            "_etag": pc.take(hexes(len(ordered), 32, chance), each),
            "_offset": pa.array(place * 205, pa.int64()),
            "id": pa.array(np.repeat(ordered, RECORDS) * RECORDS + place),
            "at": pa.array(at).cast(pa.timestamp("us", "UTC")),
            "user": picked(USERS),
            "session": hexes(count, 24, chance),
            "url": picked(URLS),
            "status": pa.array(chance.choice([200, 200, 200, 304, 404, 500], count), pa.int32()),
            "amount": pa.array(chance.integers(1, 100_000, count) / 100),
            "note": picked(NOTES),
        }
    )


def object_bytes(rows: pa.Table) -> float:
    """The mean size of an object as JSON Lines."""
    records = rows.drop_columns(["_slot", "_key", "_etag", "_offset"]).slice(0, 1000).to_pylist()
    lines = (
        json.dumps(record | {"at": record["at"].isoformat()}, separators=(",", ":")) for record in records
    )
    return RECORDS * sum(len(line) + 1 for line in lines) / len(records)


@dataclass(kw_only=True)
class Changes:
    """The changes of each batch, in a bucket with `total` objects at the beginning."""

    kind: Kind
    total: int
    batch: int
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    hour: deque[Numbers] = field(default_factory=lambda: deque(maxlen=HOUR))
    made: int = 0
    there: Numbers = field(init=False)

    def __post_init__(self) -> None:
        self.there = np.arange(self.total)

    def new(self, count: int) -> Numbers:
        self.made += count
        return np.arange(self.total + self.made - count, self.total + self.made)

    def next(self, *, first: bool = False) -> tuple[Numbers, Numbers]:
        """The objects that the next batch writes, and the objects that it deletes.

        With `first`, the batch writes only new objects, even if `kind` demands overwrites or deletes.
        """
        none = np.empty(0, dtype=np.int64)
        match "new" if first else self.kind:
            case "new":
                changed, gone = self.new(self.batch), none
            case "overwrites":
                changed, gone = self.chance.choice(self.total, self.batch, replace=False), none
            case "deletes":
                changed, gone = none, self.chance.choice(self.there, self.batch, replace=False)
                self.there = np.setdiff1d(self.there, gone, assume_unique=True)
            case kind:
                recent = np.unique(np.concatenate([*self.hour]))
                count = min(self.batch if kind == "hour" else self.batch // 2, len(recent))
                changed, gone = self.chance.choice(recent, count, replace=False), none
                changed = np.concatenate([changed, self.new(self.batch - count)])
        self.hour.append(changed)
        return changed, gone
