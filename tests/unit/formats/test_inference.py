"""A schema that is inferred from samples fits these samples."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.formats import inference
from s3notify_platform.formats.registry import FORMATS
from tests.support.parsing import infer, parquet, take


def test_columns_of_jsonl_get_the_types_of_their_values() -> None:
    found = infer(
        [
            (
                "jsonl",
                b'{"i":1,"f":1,"t":"2024-01-01T00:00:00","s":"2024-01-01","n":null}\nbad\n{"i":2,"f":1.5}',
            ),
            ("jsonl", b'{"o":{"x":[1]},"s":"text","big":99999999999999999999}'),
            ("jsonl", b"null"),
            ("jsonl", b""),
        ]
    )
    assert found == pa.schema(
        [
            ("i", pa.int64()), ("f", pa.float64()), ("t", pa.timestamp("us", tz="UTC")), ("s", pa.string()),
            ("n", pa.string()), ("o", pa.struct([("x", pa.list_(pa.int64()))])), ("big", pa.float64()),
        ]
    )  # fmt: skip


def test_columns_of_csv_get_the_types_of_their_values() -> None:
    body = (
        b"i,f,m,d,t,e\n1,1,1,2024-01-01,2024-01-01 10:00:00Z,\n2\n3,0.5,x,2024-01-02,2024-01-01 10:00:00,\n"
    )
    assert infer([("csv", body), ("csv", b"a,a\n1,1\n")]) == pa.schema(
        [
            ("i", pa.int64()), ("f", pa.float64()), ("m", pa.string()), ("d", pa.date32()),
            ("t", pa.timestamp("us", tz="UTC")), ("e", pa.string()),
        ]
    )  # fmt: skip
    assert take([body], infer([("csv", body)]), "csv", inferred=True)[1][0].raw == b"2"


def test_a_header_alone_shows_no_types() -> None:
    """Otherwise a first object without records would make each column a text for ever, and numbers would be texts."""
    assert infer([("csv", b"i,f\n")]) is None
    assert infer([("csv", b"i,f\n"), ("csv", b"i,f\n1,0.5\n")]) == pa.schema(
        [("i", pa.int64()), ("f", pa.float64())]
    )


def test_columns_of_parquet_get_the_types_of_their_values() -> None:
    table = pa.table(
        {
            "u": pa.array([1], pa.uint64()), "n": pa.array([1], pa.timestamp("ns")),
            "d": pa.array(["x"]).dictionary_encode(), "l": pa.array([["x"]], pa.large_list(pa.large_string())),
            "h": pa.array([1.0], pa.float16()), "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.uint8())),
            "x": pa.array([b"12"], pa.binary(2)), "z": pa.array([1], pa.time64("us")),
        }
    )  # fmt: skip
    found = infer([("parquet", parquet(table)), ("parquet", b"broken")])
    assert found == pa.schema(
        [
            ("u", pa.decimal128(20, 0)), ("n", pa.timestamp("us")), ("d", pa.string()),
            ("l", pa.list_(pa.string())), ("h", pa.float32()), ("m", pa.map_(pa.string(), pa.int64())),
            ("x", pa.binary()), ("z", pa.string()),
        ]
    )  # fmt: skip
    rows, rejects = take([parquet(table)], found, "parquet", inferred=True)
    assert rejects == []
    assert rows[0][2]["l"] == ["x"]


def test_the_first_of_contradicting_types_wins() -> None:
    """Nobody has to choose a type. Values that do not fit the first type are rejected when they are read."""
    found = infer([("jsonl", b'{"a":1}'), ("jsonl", b'{"a":"x"}'), ("jsonl", b'{"a":[1]}')])
    assert found == pa.schema([("a", pa.int64())])


def test_a_text_column_accepts_later_numbers() -> None:
    """In contrast, a column of numbers does not become a column of texts."""
    bodies = [b'{"a":"x"}', b'{"a":1}']
    found = infer([("jsonl", body) for body in bodies])
    assert found == pa.schema([("a", pa.string())])
    rows, rejects = take(bodies, found, "jsonl", inferred=True)
    assert ([row["a"] for _, _, row in rows], rejects) == (["x", "1"], [])
    assert infer([("jsonl", body) for body in bodies[::-1]]) == pa.schema([("a", pa.int64())])


def test_no_schema_is_inferred_from_nothing() -> None:
    assert infer([]) is None
    assert infer([("jsonl", b""), ("csv", b""), ("parquet", b"no"), ("jsonl", b"[1]\nnull")]) is None


@pytest.mark.parametrize("name", ["_key", "_KEY", "_rescued", ""])
def test_reserved_names_are_not_inferred(name: str) -> None:
    """A record that has a field with a reserved name is a reject, and the source continues."""
    body = json.dumps({"a": 1}).encode() + b"\n" + json.dumps({name: 1}).encode() + b"\n"
    found = infer([("jsonl", body)])
    assert found == pa.schema([("a", pa.int64())])
    rows, rejects = take([body], found, "jsonl", inferred=True)
    assert [row for _, _, row in rows] == [{"a": 1}]
    assert f"field {name!r} is not in the schema" in rejects[0].reason


def test_fields_with_the_name_of_a_key_column_are_not_inferred() -> None:
    """The names are excluded in upper and lower case, from the first schema and from later additions."""
    schemas = [pa.schema([("id", pa.int64()), ("DT", pa.string())])]
    assert inference.infer(((FORMATS["jsonl"], each) for each in schemas), ["dt"]) == pa.schema(
        [("id", pa.int64())]
    )
    assert inference.new_fields(schemas, None, ["dt", "ID"]) is None


objects_of_one_shape = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "i": st.none() | st.integers(-(2**63), 2**63 - 1),
            "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "s": st.none() | st.text(max_size=4),
            "o": st.none()
            | st.fixed_dictionaries({}, optional={"x": st.booleans(), "y": st.text(max_size=2)}),
            "l": st.none() | st.lists(st.integers(-9, 9), max_size=2),
        },
    ),
    max_size=6,
)


@given(st.lists(objects_of_one_shape, min_size=1, max_size=3))
def test_an_inferred_schema_fits_its_sample(contents: list[list[dict[str, Any]]]) -> None:
    objects = [b"".join(json.dumps(row).encode() + b"\n" for row in rows) for rows in contents]
    schema = infer([("jsonl", body) for body in objects])
    if schema is None:
        return
    rows, rejects = take(objects, schema, "jsonl", inferred=True)
    assert rejects == []
    assert len(rows) == sum(map(len, contents))
