"""The objects of the demo: orders as JSONL, CSV and Parquet, determined by a seed. Pure.

The rounds contain creates, overwrites, deletes, and a few malformed records. The same seed gives the same bytes, so a
demo that was killed and started again ends with the same table.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import blake2b
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

PREFIX: Final = "raw/orders/"
FORMATS: Final = ("jsonl", "csv", "parquet")
CUSTOMERS: Final = ("ada", "grace", "edsger", "barbara", "leslie", "radia")
ROWS_MAX: Final = 12
START: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One object to write: its bytes, the order ids in it, and the number of its malformed records."""

    key: str
    body: bytes
    order_ids: tuple[int, ...]
    malformed: int


@dataclass(slots=True, kw_only=True)
class Round:
    """Changes that are published together."""

    puts: list[Write] = field(default_factory=list)
    deletes: list[str] = field(default_factory=list)


class _Draw:
    """Pseudo-random numbers. Each number depends only on the seed and its labels, not on the order of the calls."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def below(self, limit: int, *labels: object) -> int:
        digest = blake2b(repr((self._seed, *labels)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % limit


def rounds(seed: int, objects: int) -> Iterator[Round]:
    """Yields endless rounds. The first round creates as many objects as `objects` says. Each further round
    overwrites, deletes and creates a few objects.
    """
    draw = _Draw(seed)
    live = [_key(number) for number in range(objects)]
    yield Round(puts=[_write(draw, key, 0) for key in live])
    number, version = objects, 0
    while True:
        version += 1
        some = max(1, objects // 20)
        start = draw.below(len(live), "start", version)
        touched = [live[(start + n * 7) % len(live)] for n in range(2 * some)]
        touched = list(dict.fromkeys(touched))
        overwritten, deleted = touched[:some], touched[some:] if len(live) > objects // 2 else []
        created = [_key(number + n) for n in range(some)]
        number += some
        live = [key for key in live if key not in deleted] + created
        yield Round(puts=[_write(draw, key, version) for key in (*overwritten, *created)], deletes=deleted)


def _key(number: int) -> str:
    return f"{PREFIX}{number // 100:03d}/order {number:05d}.{FORMATS[number % 3]}"


def _write(draw: _Draw, key: str, version: int) -> Write:
    number = int(key.rsplit(" ", 1)[1].split(".", maxsplit=1)[0])
    count = 1 + draw.below(ROWS_MAX, key, version, "rows")
    rows: list[dict[str, object]] = [
        {
            "order_id": (version * 100_000 + number) * 100 + n,
            "customer": CUSTOMERS[draw.below(len(CUSTOMERS), key, version, n, "customer")],
            "amount": Decimal(draw.below(20_000, key, version, n, "amount") - 2_000) / 100,
            "at": START + timedelta(minutes=draw.below(500_000, key, version, n, "at")),
        }
        for n in range(count)
    ]
    malformed = int(not key.endswith("parquet") and draw.below(25, key, version, "malformed") == 0)
    return Write(
        key=key,
        body=_encode(key.rsplit(".", 1)[1], rows, malformed),
        order_ids=tuple(int(str(row["order_id"])) for row in rows),
        malformed=malformed,
    )


def _encode(fmt: str, rows: list[dict[str, object]], malformed: int) -> bytes:
    match fmt:
        case "jsonl":
            lines = [json.dumps(row, default=str) for row in rows]
            lines[len(lines) // 2 : 0] = ['{"order_id": 12, "customer": "cut o'] * malformed
        case "csv":
            lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
            lines += ["one,column,too,many,here"] * malformed
        case _:
            sink = io.BytesIO()
            pq.write_table(pa.Table.from_pylist(rows), sink)
            return sink.getvalue()
    return ("\n".join(lines) + "\n").encode()
