"""The objects of the fuzz test over formats, drawn from a seed. The objects have all formats and compressions. No two
records have the same id, even in different objects. Some records are malformed on purpose, and have a mark.
"""

import bz2
import csv
import gzip
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import cramjam
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from tests.support import avro
from tests.support.poison import files

SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("note", pa.string()), ("amount", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)  # fmt: skip
SCHEMA_DDL = "id bigint, note string, amount decimal(12,2), at timestamp"

MAGIC = {"parquet": b"PAR1", "orc": b"ORC", "avro": b"Obj\x01"}
"""The formats whose objects must be read whole, with the first bytes of their files."""

AVRO_SCHEMA = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": "string"},
        {
            "name": "amount",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}],
        },
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}

YEAR_10000 = 253_402_300_800_000_000


def no_file(magic: bytes, mark: str) -> bytes:
    return magic + b" " + mark.encode() + b"is none"


def repeated(mark: str) -> pa.Table:
    """A table with the same text in so many rows that the object exceeds the limit for one object."""
    return pa.table({"note": pa.array([mark + "x" * 290]).take(pa.array([0] * 1_000_000))})


def parquet_of_year_10000(mark: str) -> bytes:
    at = pa.array([YEAR_10000], pa.timestamp("us", tz="UTC"))
    return files.parquet(pa.table({"id": [7], "note": [mark], "at": at}))


def orc_of_large_blocks(mark: str) -> bytes:
    body = files.orc_with_blocks_of(2**40)
    return body[:3] + mark.encode() + body[3:]


def avro_of_year_10000(mark: str) -> bytes:
    text = mark.encode()
    row = avro.long(7) + avro.long(len(text)) + text + avro.long(0) + avro.long(1) + avro.long(YEAR_10000)
    return avro.header(AVRO_SCHEMA) + avro.block(row, 1)


def avro_in_itself(mark: str) -> bytes:
    inner = {"name": "a", "type": ["null", "r"]}
    return avro.header({"type": "record", "name": "r", "doc": mark, "fields": [inner]})


POISON: dict[str, tuple[Callable[[str], bytes], ...]] = {
    "parquet": (
        partial(no_file, b"PAR1"), parquet_of_year_10000,
        lambda mark: files.parquet(repeated(mark), store_schema=False, write_statistics=False),
    ),
    "orc": (
        partial(no_file, b"ORC"), orc_of_large_blocks,
        lambda mark: files.orc(repeated(mark), compression="snappy", row_index_stride=1_000_000),
    ),
    "avro": (partial(no_file, b"Obj\x01"), avro_of_year_10000, avro_in_itself),
}  # fmt: skip
"""Files that give one reject each. The bytes of the reject contain the mark."""

PIECES = ("plain", "ünïcode 🙂", 'say "no"', "a,b", "two\nlines", "", " ", "x" * 60, "1", "{}", "\\n")


def hadoop_snappy(text: bytes) -> bytes:
    """Blocks in the format of Hadoop's codec."""
    found = b""
    for place in range(0, len(text), 5000):
        block = text[place : place + 5000]
        part = pa.Codec("snappy").compress(block, asbytes=True)
        found += len(block).to_bytes(4) + len(part).to_bytes(4) + part
    return found


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda text: gzip.compress(text, compresslevel=1, mtime=0),
    ".bz2": bz2.compress,
    ".zst": lambda text: pa.Codec("zstd").compress(text, asbytes=True),
    ".sz": lambda text: bytes(cramjam.snappy.compress(text)),
    ".snappy": hadoop_snappy,
}


@dataclass
class Drawn:
    """Draws objects. The same order of calls gives the same objects."""

    dice: random.Random
    ids: int = 0
    broken: int = 0

    def body(self, key: str, earlier: bytes = b"") -> bytes:
        """A new object for this key, or `earlier` with appended data."""
        fmt, packing = format_and_packing(key)
        count = self.dice.choice((0, 1, 2, 5, 12, 30, 150, 300))
        if fmt in MAGIC:
            return self._file(fmt, count, earlier)
        if fmt == "bin":
            return earlier + self.dice.randbytes(count * 40)
        text = self._records(fmt, count, header=not earlier)
        if earlier:
            # The new data become a separate compressed member after the earlier members, as if a writer had appended
            # them.
            text = b"\n" + text
        elif self.dice.random() < 0.2 and not text.endswith(b"\r\n"):
            text = text.removesuffix(b"\n")
        # The compression may differ from the suffix of the name, because the content decides.
        if packing in ("", ".gz") and not earlier and self.dice.random() < 0.05:
            packing = self.dice.choice(("", ".gz", ".zst"))
        elif earlier:
            packing = packing_of(earlier, packing)
        return earlier + COMPRESSIONS[packing](text)

    def _records(self, fmt: str, count: int, *, header: bool) -> bytes:
        write = {"jsonl": self._jsonl, "csv": self._csv, "txt": self._text}[fmt]
        head = b"id,note,amount,at\n" if fmt == "csv" and header else b""
        return head + b"".join(
            self._broken(fmt) if self.dice.random() < 0.01 else write() for _ in range(count)
        )

    def _row(self) -> dict[str, Any]:
        self.ids += 1
        dice = self.dice
        known = dice.random() < 0.8
        return {
            "id": self.ids,
            "note": "".join(dice.choices(PIECES, k=dice.randrange(4))),
            "amount": Decimal(dice.randrange(10**6)) / 100 if known else None,
            "at": datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=dice.randrange(10**7))
            if known
            else None,
        }

    def _jsonl(self) -> bytes:
        row = self._row()
        plain = {
            name: str(value) if name == "amount" else value
            for name, value in row.items()
            if value is not None
        }
        if "at" in plain:
            plain["at"] = plain["at"].strftime("%Y-%m-%dT%H:%M:%SZ")
        return json.dumps(plain, ensure_ascii=self.dice.random() < 0.5).encode() + b"\n"

    def _csv(self) -> bytes:
        row = self._row()
        stamp = row["at"].strftime("%Y-%m-%dT%H:%M:%SZ") if row["at"] else ""
        sink = io.StringIO(newline="")
        ends = self.dice.choice(("\n", "\r\n"))
        csv.writer(sink, lineterminator=ends).writerow([row["id"], row["note"], row["amount"], stamp])
        return sink.getvalue().encode()

    def _text(self) -> bytes:
        self.ids += 1
        return f"{self.ids} {''.join(self.dice.choices(PIECES, k=2))}".replace("\n", " ").encode() + b"\n"

    def _broken(self, fmt: str) -> bytes:
        self.broken += 1
        mark = b"BROKEN-%d" % self.broken
        if fmt == "txt":
            # These bytes are not UTF-8, and do not begin with the byte order mark of another encoding.
            return b"\x80 " + mark + b"\n"
        if fmt == "csv":
            return self.dice.choice((b'"' + mark + b'"x,1,2,\n', mark + b",not a number,,\n"))
        return self.dice.choice((b'{"id": 7, "note": "' + mark + b"\n", b'{"id": "' + mark + b'"}\n'))

    def _file(self, fmt: str, count: int, earlier: bytes) -> bytes:
        magic = MAGIC[fmt]
        if not earlier and self.dice.random() < 0.1:
            self.broken += 1
            return self.dice.choice(POISON[fmt])(f"BROKEN-{self.broken} ")
        rows = [self._row() for _ in range(count)]
        if earlier.startswith(magic) and b"BROKEN-" not in earlier:
            rows = read_rows(fmt, earlier) + rows
        sink = io.BytesIO()
        size = self.dice.choice((7, 40, 1000))
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        if fmt == "parquet":
            pq.write_table(table, sink, row_group_size=size)
        elif fmt == "orc":
            orc.write_table(table, sink, stripe_size=1024 * size, batch_size=size)
        else:
            fastavro.writer(
                sink, AVRO_SCHEMA, rows, codec=("null", "deflate")[size % 2], sync_interval=40 * size
            )
        return sink.getvalue()


def read_rows(fmt: str, body: bytes) -> list[dict[str, Any]]:
    """The rows of a file in one of the formats in `MAGIC`, by the format's library."""
    if fmt == "avro":
        return [dict(row) for row in fastavro.reader(io.BytesIO(body)) if isinstance(row, dict)]
    source = pa.BufferReader(body)
    table = pq.read_table(source) if fmt == "parquet" else orc.ORCFile(source).read()
    return table.cast(SCHEMA).to_pylist()


def format_and_packing(key: str) -> tuple[str, str]:
    """Format and compression by the suffixes of a key: `raw/1.csv.gz` gives `csv` and `.gz`."""
    stem, _, last = key.rpartition(".")
    if f".{last}" in COMPRESSIONS:
        return stem.rpartition(".")[2], f".{last}"
    return last, ""


def packing_of(body: bytes, named: str) -> str:
    """The compression of an object, by its content."""
    for packing, magic in (
        (".gz", b"\x1f\x8b"),
        (".bz2", b"BZh"),
        (".zst", b"\x28\xb5\x2f\xfd"),
        (".sz", b"\xff\x06"),
    ):
        if body.startswith(magic):
            return packing
    return ".snappy" if named == ".snappy" else ""
