"""Any mix of records in a block: a record that can be parsed alone can be parsed in the mix, too."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from s3notify_platform.formats.rescue import Mismatches
from tests.support.parsing import take

SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("f", pa.float64()),
        ("ok", pa.bool_()), ("day", pa.date32()), ("price", pa.decimal128(6, 2)),
        ("lines", pa.list_(pa.struct([("x", pa.int64())]))),
    ]
)  # fmt: skip
VALUES = (
    "1",
    "x",
    "",
    "null",
    "1.5",
    "1e999",
    "NaN",
    "true",
    "2024-01-01",
    "2024-01-01 10:00:00.123456789",
    "9" * 30,
)

csv_values = st.sampled_from([*VALUES, '"a,b"', '"a\nb"', 'a"b', '"open', "\xff", "12345.67", "0.005"])
csv_objects = st.tuples(
    st.sampled_from(["id,name", "id,at,f", "name,ok,day,price", "id,other", "id,lines"]),
    st.lists(st.lists(csv_values, min_size=1, max_size=4).map(",".join), max_size=4),
).map(lambda one: "\n".join([one[0], *one[1]]).encode("latin-1"))

json_values = st.sampled_from(
    [*(f'"{value}"' for value in VALUES), "1", "1.5", "null", "true", "NaN", "1e999", "[]", "{}", '[{"x":1}]',
     '[{"x":"y","z":1}]', "[" * 40 + "]" * 40, '"\\ud800"', '"open', "[1"]
)  # fmt: skip
names = st.sampled_from([*SCHEMA.names, "other", "_key"])
json_lines = st.lists(st.tuples(names, json_values).map(lambda one: f'"{one[0]}":{one[1]}'), max_size=3).map(
    lambda fields: ("{" + ",".join(fields) + "}").encode()
) | st.sampled_from([b"", b"bad", b"null", b'{"id":1}{"id":2}', b"\xff", b"[1]"])


def alone(objects: list[bytes], fmt: str, **how: Any) -> list[Any]:
    rows: list[Any] = []
    for number, body in enumerate(objects):
        rows += [(number, offset, repr(row)) for _, offset, row in take([body], SCHEMA, fmt, **how)[0]]
    return rows


def together(objects: list[bytes], fmt: str, **how: Any) -> set[Any]:
    return {(number, offset, repr(row)) for number, offset, row in take(objects, SCHEMA, fmt, **how)[0]}


@pytest.mark.parametrize("mismatches", ["quarantine", "rescue"])
@pytest.mark.parametrize("inferred", [False, True])
@given(lines=st.lists(json_lines, max_size=8))
@example(lines=[b'{"other":"1"}', b'{"other":1,"other":[]}'])
def test_a_json_line_that_parses_alone_parses_among_others(
    inferred: bool, mismatches: Mismatches, lines: list[bytes]
) -> None:
    found = together(lines, "jsonl", inferred=inferred, mismatches=mismatches)
    assert set(alone(lines, "jsonl", inferred=inferred, mismatches=mismatches)) <= found


@pytest.mark.parametrize("mismatches", ["quarantine", "rescue"])
@pytest.mark.parametrize("inferred", [False, True])
@given(objects=st.lists(csv_objects, max_size=4))
def test_a_csv_record_that_parses_alone_parses_among_others(
    inferred: bool, mismatches: Mismatches, objects: list[bytes]
) -> None:
    """Otherwise other records in the same object or batch could make a good record a reject."""
    found = together(objects, "csv", inferred=inferred, mismatches=mismatches)
    assert set(alone(objects, "csv", inferred=inferred, mismatches=mismatches)) <= found


@pytest.mark.parametrize("key", ["other", "id"])
def test_a_key_that_occurs_twice_is_a_reject(key: str) -> None:
    """The reject must not depend on other records. Here, two other records have contradicting types in a field that the
    schema lacks.
    """
    body = b'{"other":1}\n{"other":[]}\n{"%b":0,"%b":1}\n' % (key.encode(), key.encode())
    rows, rejects = take([body], SCHEMA, "jsonl")
    assert [offset for _, offset, _ in rows] == [0, 12]
    assert [reject.offset for reject in rejects] == [25]


def test_only_bad_records_are_rejected_if_a_nested_column_is_absent() -> None:
    """One bad record must not reject records of other objects."""
    schema = pa.schema(
        [("id", pa.int64()), ("name", pa.string()), ("lines", pa.list_(pa.struct([("x", pa.int64())])))]
    )
    bodies = [b"id,name\n1,ann\n2,bob\n", b"id,name\nx,kim\n"]
    rows, rejects = take(bodies, schema, "csv", inferred=True)
    assert [row["id"] for _, _, row in rows] == [1, 2]
    assert [reject.raw for reject in rejects] == [b"x,kim"]
