"""ORC: everything that pyarrow has written is read, in any splits. Damage affects only its stripe or row."""

import random
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.orc as pa_orc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from s3notify_platform.formats.base import SplitEnd
from s3notify_platform.formats.blocks.orc import ROW_BITS
from s3notify_platform.formats.records import Target
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.protocols.source_enumerator import Split
from tests.support.parsing import AB, infer, reject, take, values
from tests.support.split_reading import Remote, cut, places, read, whole

COUNT = 3000
CODECS = ["uncompressed", "zlib", "snappy", "zstd", "lz4"]


def orc(table: pa.Table, compression: str = "zstd", **how: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pa_orc.write_table(table, sink, compression=compression, **how)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def rows(count: int) -> pa.Table:
    return pa.table({"a": pa.array(range(count), pa.int64()), "b": [f"text {n}" for n in range(count)]})


@lru_cache
def striped(codec: str) -> bytes:
    """Returns an ORC file with several stripes."""
    dice = random.Random(1)
    texts = [dice.randbytes(20).hex() for _ in range(COUNT)]
    body = orc(rows(COUNT).set_column(1, "b", pa.array(texts)), codec, stripe_size=8_000, batch_size=256)
    assert pa_orc.ORCFile(pa.BufferReader(body)).nstripes > 1, codec
    return body


@pytest.mark.parametrize("codec", CODECS)
@given(at=places)
def test_splits_give_each_row_once(codec: str, at: list[int]) -> None:
    """Otherwise a large file that is read in parts would lose rows, or would have rows twice. A later split must
    continue where an earlier split ended, because a big file can take several rounds.
    """
    body = striped(codec)
    expected = whole(body, "orc", AB)
    assert [row["a"] for _, row in expected] == list(range(COUNT))
    assert expected[0][0] == 0
    assert {offset >> ROW_BITS for offset, _ in expected} == set(
        range(len({o >> ROW_BITS for o, _ in expected}))
    )
    together = []
    for split in cut(body, [place * 11 for place in at], "orc"):
        found, end = read(Remote(body), split, "orc", AB)
        together += found
        rest = Split(version=split.version, start=end.offset, end=len(body))
        more, last = read(Remote(body), rest, "orc", AB)
        assert last.reach_end
        assert together + more == expected
    assert together == expected


def test_types_are_read_and_inferred() -> None:
    """Each type must be read both with a given schema and with an inferred schema."""
    table = pa.table(
        {
            "i": pa.array([1, None], pa.int32()),
            "t": pa.array([0, 1000], pa.timestamp("ns")),
            "d": pa.array([0, 1], pa.date32()),
            "l": pa.array([[1], None], pa.list_(pa.int64())),
            "s": pa.array([{"x": 1.5}, None], pa.struct([("x", pa.float64())])),
            "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "y": pa.array([b"\xff", b""], pa.binary()),
        }
    )
    body = orc(table)
    schema = infer([("orc", body)])
    assert schema is not None
    assert values([body], schema, "orc") == table.cast(schema).to_pylist()
    given_schema = pa.schema([("i", pa.int64()), ("z", pa.string())])
    assert values([body, b"", orc(table.slice(0, 0))], given_schema, "orc") == [
        {"i": 1, "z": None},
        {"i": None, "z": None},
    ]


def test_a_value_that_does_not_fit_rejects_only_its_row() -> None:
    body = orc(pa.table({"a": [str(n) if n != 57 else "no" for n in range(100)]}))
    found, (one,) = take([body], AB, "orc")
    assert [row["a"] for _, _, row in found] == [n for n in range(100) if n != 57]
    assert one.offset == 57
    rescued, rejects = take([body], AB, "orc", mismatches="rescue")
    assert not rejects
    assert "no" in rescued[57][2]["_rescued"]


@pytest.mark.parametrize("body", [b"ORC", b"x" * 300, orc(rows(9))[:-5], b"ORC" + b"\xff" * 50 + b"ORC\x03"])
def test_a_file_that_is_not_orc_is_one_reject(body: bytes) -> None:
    assert reject(body, AB, "orc").reason.startswith("ORC: ")
    for split in cut(body, [5, 40], "orc"):
        *_, end = FORMATS["orc"].read(Remote(body), split, Target(schema=AB))
        assert isinstance(end, SplitEnd)
        assert end.status == "ok"


def test_unknown_and_missing_columns_are_handled() -> None:
    body = orc(pa.table({"a": [1], "z": [1]}))
    assert values([body], AB, "orc") == [{"a": 1, "b": None}]
    assert "'z'" in reject(body, AB, "orc", inferred=True).reason
    assert "not in the schema" in reject(orc(pa.table({"z": [1]})), AB, "orc").reason
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert reject(orc(twice), AB, "orc").reason.startswith("ORC: ")


def test_a_time_that_pyarrow_cannot_read_rejects_its_stripe() -> None:
    """The time is in the year 9999, so pyarrow reads no row of the stripe. Without a reject for the stripe, nobody
    would notice its missing rows. If the whole file were rejected, the rows of the other stripes would be missing, too.
    """
    kind = pa.timestamp("s")
    times = pa.array([0, 253_402_300_799, 5], kind)  # the second of these times is in the year 9999
    sink = pa.BufferOutputStream()
    with pa_orc.ORCWriter(sink, stripe_size=1, batch_size=1) as writer:
        for at in (0, 1):
            writer.write(pa.table({"a": [at] * 3, "t": pa.array([0, 1, 2], kind) if at else times}))
    body = sink.getvalue().to_pybytes()
    assert pa_orc.ORCFile(pa.BufferReader(body)).nstripes > 1
    found, rejects = take([body], pa.schema([("a", pa.int64()), ("t", pa.timestamp("us"))]), "orc")
    assert 1 in {row["a"] for _, _, row in found}
    assert [reject.reason.partition("(")[0] for reject in rejects] == ["ORC: stripe 0: ORC timestamp "]


@pytest.mark.parametrize("codec", CODECS)
@given(changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=3))
@example(changes=[(193, 128)])
def test_damage_is_never_silent(codec: str, changes: list[tuple[int, int]]) -> None:
    """The read of a damaged file must end, and missing rows must be in a reject."""
    body = bytearray(striped(codec))
    for place, octet in changes:
        body[-(place % min(len(body), 5000)) - 1] = octet
    infer([("orc", bytes(body))])
    found, rejects = take([bytes(body)], AB, "orc")
    assert rejects or len(found) == COUNT
