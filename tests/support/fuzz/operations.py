"""The operations of the writers in the fuzz test, and the journal of a writer. Operations are drawn from a seed, so
that the check at the end can draw the same operations.
"""

import hashlib
import json
import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BUCKET = "s3notify-e2e"
PREFIX = "raw/orders/"
KEYSPACE = "_s3notify/orders/keyspace/"
SECRET_ENV = "FUZZ_SECRET"
STALE_SECONDS = 15.0
"""The queue's setting `stale_seconds`, for writers and the reconciler."""

DELETED = "deleted"
"""The customer of rows that mark their order as deleted (`deleted_when`)."""

WRITERS = 4
QUEUED, SQS, HTTP, PLAIN = "queued", "sqs", "http", "plain"
ANNOUNCED = (QUEUED, SQS, HTTP)
"""The ways of writing that announce a change in the notification queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A change by a writer. `body` is None for a deletion."""

    number: int
    way: str
    key: str
    body: bytes | None
    twice: bool
    """True if the change is reported twice."""

    @property
    def etag(self) -> str | None:
        """The ETag of the object after the change."""
        return None if self.body is None else hashlib.md5(self.body, usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The operations `first` to `last` (exclusive) of each writer. A writer uses only these `ways` of writing."""

    seed: int
    first: int
    last: int
    ways: Sequence[str]
    keys: int
    """The number of keys of each writer."""

    def draw(self, writer: int, number: int) -> Operation:
        """The operation of the writer with this number. The same arguments always give the same operation."""
        draw = random.Random(f"{self.seed} {writer} {number}")
        place = draw.randrange(self.keys)
        # Some names have characters that some programs escape, decode twice or treat as separators.
        name = f"{place} + 100%41 ü{place}" if place % 7 == 0 else str(place)
        body = None
        if draw.random() >= 0.25:
            # Some bodies equal an earlier body of the key, so that the key gets an earlier ETag again.
            version = number // 40 if draw.random() < 0.1 else 1_000_000 + number
            rows = [
                {
                    "order_id": 100 * version + n,
                    "customer": DELETED if draw.random() < 0.15 else f"w{writer}",
                    "amount": f"{place}.5",
                }
                for n in range(version % 5)
            ]
            body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        return Operation(
            number=number,
            way=draw.choice(self.ways),
            key=f"{PREFIX}w{writer}/{name}.jsonl",
            body=body,
            twice=draw.random() < 0.1,
        )


class Journal:
    """The journal of a writer, with its next operation and its completed operations.

    Each line is on disk before the writer continues. `begin` is written before an operation, and `done` after its
    confirmation. `doubt` means that the reconciler resolves the outcome.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._file.write(b"\n")  # this ends a truncated line

    def note(self, what: str, number: int) -> None:
        self._file.write(f"{what} {number};\n".encode())
        os.fsync(self._file.fileno())


def read_journal(path: Path) -> dict[int, str]:
    """The last journal entry (`begin`, `done` or `doubt`) of each operation, in the order in which the operations
    began.
    """
    if not path.exists():
        return {}
    lines = re.findall(r"^(begin|done|doubt) (\d+);$", path.read_text(), re.MULTILINE)
    return {int(number): what for what, number in lines}
