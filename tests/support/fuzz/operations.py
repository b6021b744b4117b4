"""The operations of the fuzz run's writers, drawn from a seed so that the check draws the same; and their journal."""

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
"""A setting of the queue, for writers and the reconciler."""

WRITERS = 4
QUEUED, SQS, HTTP, PLAIN = "queued", "sqs", "http", "plain"
ANNOUNCED = (QUEUED, SQS, HTTP)
"""Ways of writing that announce a change in the notification queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One change. `body` is None for a deletion."""

    number: int
    way: str
    key: str
    body: bytes | None
    twice: bool
    """True: the change is reported twice."""

    @property
    def etag(self) -> str | None:
        """The ETag of the object after the change."""
        return None if self.body is None else hashlib.md5(self.body, usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Operations `first` to `last` (exclusive) of each writer, by some of the ways."""

    seed: int
    first: int
    last: int
    ways: Sequence[str]
    keys: int
    """The number of keys of each writer."""

    def draw(self, writer: int, number: int) -> Operation:
        """The operation with this number; always the same for the same arguments."""
        draw = random.Random(f"{self.seed} {writer} {number}")
        place = draw.randrange(self.keys)
        # Characters that some programs escape, decode twice or treat as separators.
        name = f"{place} + 100%41 ü{place}" if place % 7 == 0 else str(place)
        body = None
        if draw.random() >= 0.25:
            # Sometimes the former bytes, so that the same ETag comes back.
            version = number // 40 if draw.random() < 0.1 else 1_000_000 + number
            rows = [
                {"order_id": 100 * version + n, "customer": f"w{writer}", "amount": f"{place}.5"}
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
    """A writer's record of its next and its completed operations; each line is on disk before the writer continues.

    `begin` is before an operation; `done` is after its confirmation; `doubt` leaves its outcome to the reconciler.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._file.write(b"\n")  # ends a truncated line

    def note(self, what: str, number: int) -> None:
        self._file.write(f"{what} {number};\n".encode())
        os.fsync(self._file.fileno())


def read_journal(path: Path) -> dict[int, str]:
    """The last record of each operation that was begun, in order."""
    if not path.exists():
        return {}
    lines = re.findall(r"^(begin|done|doubt) (\d+);$", path.read_text(), re.MULTILINE)
    return {int(number): what for what, number in lines}
