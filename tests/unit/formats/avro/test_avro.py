"""Avro: everything that fastavro has written is read, in any splits. Damaged or hostile data affects only its block."""

import io
import subprocess
import sys
import tracemalloc
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.formats.base import SplitEnd
from s3notify_platform.formats.records import Target
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.protocols.source_enumerator import Split
from tests.support.avro import AB_RECORD, HOSTILE, SYNC, block, file_of, header
from tests.support.parsing import AB, infer, reject, take, values
from tests.support.poison.files import empty_records, null_fields, null_fields_in_list
from tests.support.split_reading import Remote, cut, places, read, version, whole

CODECS = ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"]


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"a": n, "b": f"text {n}"} for n in range(count)]


@pytest.mark.parametrize("codec", CODECS)
@given(rows=st.integers(0, 120), at=places)
def test_splits_give_each_record_once(codec: str, rows: int, at: list[int]) -> None:
    """Otherwise tasks that share a large file would lose records, or would read records twice. A later split must
    continue where an earlier split ended, because a big file can take several rounds.
    """
    body = file_of(rows_of(rows), codec=codec)
    expected = whole(body, "avro", AB)
    assert [values for _, values in expected] == rows_of(rows)
    together = []
    for split in cut(body, at, "avro"):
        found, end = read(Remote(body), split, "avro", AB)
        together += found
        rest = Split(version=split.version, start=end.offset, end=len(body))
        more, last = read(Remote(body), rest, "avro", AB)
        assert last.reach_end
        assert together + more == expected
    assert together == expected


def test_types_become_the_nearest_arrow_types() -> None:
    """Otherwise a value would lose its type or its precision in the table. A time after the year 2262 must be read,
    too, although a 64-bit count of nanoseconds cannot represent such a time.
    """
    fields: list[tuple[str, Any, Any, Any]] = [
        ("i", "int", -1, -1),
        ("f", "float", 0.5, 0.5),
        ("y", "bytes", b"\xff", b"\xff"),
        ("day", {"type": "int", "logicalType": "date"}, date(2020, 2, 29), date(2020, 2, 29)),
        (
            "at",
            {"type": "long", "logicalType": "timestamp-millis"},
            datetime(2026, 1, 1, tzinfo=UTC),
            datetime(2026, 1, 1, tzinfo=UTC),
        ),
        (
            "d",
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            Decimal("1.50"),
            Decimal("1.50"),
        ),
        ("e", {"type": "enum", "name": "e", "symbols": ["X", "Y"]}, "Y", "Y"),
        ("x", {"type": "fixed", "name": "x", "size": 2}, b"ab", b"ab"),
        ("l", {"type": "array", "items": ["null", "int"]}, [1, None], [1, None]),
        ("m", {"type": "map", "values": "long"}, {"k": 1}, [("k", 1)]),
        (
            "o",
            {"type": "record", "name": "o", "fields": [{"name": "p", "type": "x"}]},
            {"p": b"cd"},
            {"p": b"cd"},
        ),
        ("n", ["null", "int", "long"], 2**40, 2**40),
    ]
    body = file_of(
        [{name: given for name, _, given, _ in fields}], [{"name": n, "type": t} for n, t, _, _ in fields]
    )
    schema = infer([("avro", body)])
    assert schema is not None
    assert values([body], schema, "avro") == [{name: found for name, _, _, found in fields}]
    timed = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}}],
    }
    sink = io.BytesIO()
    fastavro.writer(
        sink,
        {"type": "record", "name": "r", "fields": [{"name": "t", "type": "long"}]},
        [{"t": 2**55}],
        metadata={},
    )
    body = _with_schema(sink.getvalue(), timed)
    (parsed,) = FORMATS["avro"].parse(
        [("k", body)], Target(schema=pa.schema([("t", pa.timestamp("us", tz="UTC"))]))
    )
    assert parsed.table["t"].cast(pa.int64()).to_pylist() == [2**55]


def _with_schema(body: bytes, schema: object) -> bytes:
    """Returns a file that has the same blocks and another schema."""
    reader = fastavro.block_reader(io.BytesIO(body))
    sync = reader._header["sync"]
    start = body.index(sync) + 16
    return header(schema) + body[start:].replace(sync, SYNC)


def test_a_value_that_does_not_fit_rejects_only_its_record() -> None:
    body = file_of(
        [{"a": str(n) if n != 57 else "no"} for n in range(100)], [{"name": "a", "type": "string"}]
    )
    rows, (one,) = take([body], AB, "avro")
    assert [row["a"] for _, _, row in rows] == [n for n in range(100) if n != 57]
    assert one.raw == b"\x04no"
    assert "does not fit" in one.reason
    bad_text = header({"type": "record", "name": "r", "fields": [{"name": "b", "type": "string"}]})
    bad_text += block(b"\x02x\x02\xff\x02y", 3)
    rows, (one,) = take([bad_text], AB, "avro")
    assert [row["b"] for _, _, row in rows] == ["x", "y"]
    assert one.raw == b"\x02\xff"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_block_with_a_wrong_record_count_loses_no_record(count: int) -> None:
    """Records beyond the declared number must be in a reject. Otherwise such records would be missing from the table,
    and nobody would notice. If the block declares too many records, its readable records must still become rows.
    """
    row = b"\x02\x02\x02\x02x"
    body = (
        header({"type": "record", "name": "r", "fields": AB_RECORD}) + block(row * 2, count) + block(row, 1)
    )
    rows, (one,) = take([body], AB, "avro")
    assert len(rows) == min(count, 2) + 1
    assert one.raw == row * (2 - min(count, 2))


def test_bytes_behind_the_records_are_a_reject() -> None:
    """The records of a block are read as one array, and bytes behind the records look like one more item.
    Without the check, the table would get a row that the block does not declare.
    """
    schema = header({"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]})
    rows, (one,) = take([schema + block(b"\x02" * 3, 1)], AB, "avro")
    assert [row["a"] for _, _, row in rows] == [1]
    assert one.raw == b"\x02\x02"


def test_many_records_that_do_not_fit_are_rejected_fast() -> None:
    """If each reject decoded its block again, the time for a bad block would grow with the square of its records. If a
    reject had bytes of other records, a person would see a wrong record in the quarantine.
    """
    schema = header({"type": "record", "name": "r", "fields": [{"name": "a", "type": "string"}]})
    rows, rejects = take([schema + block(b"\x04no" * 5000, 5000)], AB, "avro")
    assert not rows
    assert {one.raw for one in rejects} == {b"\x04no"}
    assert len({one.offset for one in rejects}) == 5000


def test_large_records_become_small_tables() -> None:
    """Otherwise thousands of large records would become one Arrow table, and the task could run out of memory."""
    body = file_of(
        [{"b": "x" * (4 << 20)} for _ in range(12)], [{"name": "b", "type": "string"}], codec="deflate"
    )
    found = [*FORMATS["avro"].parse([("k", body)], Target(schema=AB))]
    assert [parsed.table.num_rows for parsed in found] == [4, 4, 4]


def test_values_that_do_not_fit_are_rescued() -> None:
    body = file_of([{"a": "1"}, {"a": "no"}], [{"name": "a", "type": "string"}])
    rows, rejects = take([body], AB, "avro", mismatches="rescue")
    assert not rejects
    assert [row["a"] for _, _, row in rows] == [1, None]
    assert "no" in rows[1][2]["_rescued"]


@pytest.mark.parametrize("codec", CODECS)
def test_a_damaged_block_affects_no_other(codec: str) -> None:
    """Otherwise one flipped byte would keep all rows of the file out of the table. Without a reject for the lost
    records, nobody would notice the damage.
    """
    body = file_of(rows_of(60), codec=codec)
    whole_rows = len(rows_of(60))
    start = body.index(SYNC) + 16
    for place in range(start, len(body), 7):
        damaged = bytearray(body)
        damaged[place] ^= 0x55
        rows, rejects = take([bytes(damaged)], AB, "avro")
        assert rejects or len(rows) == whole_rows, "only a checksum detects a flipped letter of a text"
        assert len(rows) >= whole_rows - 40
        together = [
            row
            for split in cut(bytes(damaged), [start + 50, 700], "avro")
            for row in read(Remote(bytes(damaged)), split, "avro", AB)[0]
        ]
        assert [row[0] for row in together] == [row[0] for row in whole(bytes(damaged), "avro", AB)]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_reject(name: str) -> None:
    """Otherwise one hostile file could exhaust the memory of a task, or keep the task busy for hours. Without the
    reason, a person could not see why the file has no rows.
    """
    body, reason = HOSTILE[name]
    assert reason in reject(body, AB, "avro").reason
    for split in cut(body, [20, 50], "avro"):
        *_, end = FORMATS["avro"].read(Remote(body), split, Target(schema=AB))
        assert isinstance(end, SplitEnd)
        assert end.status == "ok"


@given(st.binary(max_size=200))
def test_a_good_block_behind_garbage_is_read(garbage: bytes) -> None:
    """Otherwise garbage before a good block would hide the block's record from the table and from the quarantine. The
    record is in a reject if the garbage looks like the head of a block that includes the good block.
    """
    good = header({"type": "record", "name": "r", "fields": AB_RECORD})
    row = b"\x02\x02\x02\x02x"
    rows, rejects = take([good + garbage + SYNC + block(row, 1)], AB, "avro")
    assert {"a": 1, "b": "x"} in [row for _, _, row in rows] or any(row in each.raw for each in rejects)


def test_a_split_reads_only_the_header_and_its_part() -> None:
    """Otherwise each of the tasks that share a large file would transfer the whole file."""
    body = file_of([{"a": n, "b": "x" * 100} for n in range(20_000)], block=1000)
    middle = len(body) // 2
    remote = Remote(body)
    split = Split(version=version(body), start=middle, end=middle + 5000)
    found, _ = read(remote, split, "avro", AB)
    assert found
    assert sum(end - start for start, end in remote.asked) < 4 * (64 << 10) < len(body) / 5


@pytest.mark.parametrize("rescue", [False, True])
def test_fields_without_bytes_cost_no_memory(rescue: bool) -> None:
    """A few bytes can declare a million records of a thousand nulls each. If such nulls took memory, a small file could
    kill the task that reads the file.
    """
    target = Target(schema=pa.schema([("id", pa.int32()), ("f7", pa.string())]), rescue=rescue)
    tracemalloc.start()
    found = [*FORMATS["avro"].parse([("k", null_fields(20_000))], target)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(parsed.table.num_rows for parsed in found) == 20_000
    assert not any(
        parsed.rejects or parsed.table["f7"].null_count < parsed.table.num_rows for parsed in found
    )
    assert peak < 30 << 20
    items = infer([("avro", null_fields_in_list(3))])
    assert items is not None
    (row,) = values([null_fields_in_list(3)], items, "avro")
    assert row["list"] == [{"id": 1} | {f"f{n}": None for n in range(1900)}] * 3
    assert "take no bytes" in reject(empty_records(1_000_000), target.schema, "avro").reason
    for many in (null_fields(1_000_000), null_fields_in_list(1_000_000)):
        assert "always null" in reject(many, target.schema, "avro").reason
    few = pa.schema([("id", pa.int32()), ("f7", pa.struct([("_", pa.string())]))])
    assert values([empty_records(2)], few, "avro") == [{"id": 1, "f7": {"_": None}}] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory on Linux only")
def test_a_block_that_exceeds_the_memory_is_a_reject() -> None:
    """The block behind the rejected block must be read."""
    program = """
import sys, zlib
from tests.support.avro import block
from tests.support.poison.files import avro, long, record
from tests.support.poison import SCHEMA
from s3notify_platform.formats.records import Target
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.spark.memory_limit import limit_memory

many = record("r", {"name": "list", "type": {"type": "array", "items": record("i")}})
body = avro(many, b"\\x02" + long(4_000_000) + b"\\x02" * 4_000_000 + b"\\0", 1)
body += block(zlib.compress(b"\\x02\\0", wbits=-15), 1)
limit_memory(150 << 20)
for parsed in FORMATS["avro"].parse([("k", body)], Target(schema=SCHEMA)):
    print(parsed.table.num_rows, [reject.reason for reject in parsed.rejects])
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "0 ['Avro: a block of 1 records needs more memory than there is']",
        "1 []",
    ]
