"""What the writers of the fuzz run do, drawn from a seed, so that the check draws the same; and their journal."""

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
"""Of the queue, for writers and the reconciler."""

WRITERS = 4
QUEUED, SQS, HTTP, PLAIN = "queued", "sqs", "http", "plain"
ANNOUNCED = (QUEUED, SQS, HTTP)
"""Ways by which the notification queue hears of a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One change. `body` is None for a deletion."""

    number: int
    way: str
    key: str
    body: bytes | None
    twice: bool
    """Whoever reports it does so twice."""

    @property
    def etag(self) -> str | None:
        """Of the object that it leaves."""
        return None if self.body is None else hashlib.md5(self.body, usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Operations `first` to `last` (exclusive) of each writer, by some of the ways."""

    seed: int
    first: int
    last: int
    ways: Sequence[str]
    keys: int
    """Of each writer."""

    def draw(self, writer: int, number: int) -> Operation:
        """Always the same for the same arguments."""
        draw = random.Random(f"{self.seed} {writer} {number}")
        place = draw.randrange(self.keys)
        # What others escape, decode twice or take for a separator.
        name = f"{place} + 100%41 ü{place}" if place % 7 == 0 else str(place)
        body = None
        if draw.random() >= 0.25:
            # Now and then what was there before, to the byte: the same ETag comes back.
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
    """What a writer is about to do and has done, each line on the disk before it goes on.

    `begin` before an operation; `done` when it is confirmed; `doubt` when its outcome is left to the reconciler.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._file.write(b"\n")  # ends a line that was cut short

    def note(self, what: str, number: int) -> None:
        self._file.write(f"{what} {number};\n".encode())
        os.fsync(self._file.fileno())


def read_journal(path: Path) -> dict[int, str]:
    """The last word on each operation that was begun, in order."""
    if not path.exists():
        return {}
    lines = re.findall(r"^(begin|done|doubt) (\d+);$", path.read_text(), re.MULTILINE)
    return {int(number): what for what, number in lines}
