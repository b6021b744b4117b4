"""A schema that is inferred from samples fits these samples."""

import decimal
import itertools
import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.formats import inference
from tests.support.parsing import infer, parquet, take, values


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
            ("n", pa.string()), ("o", pa.struct([("x", pa.list_(pa.int64()))])), ("big", pa.decimal128(38, 0)),
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
    """Otherwise a first object without records would make each column a text for ever, so numbers would be stored as
    texts.
    """
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


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", '"x"'], pa.string()),
        (["true", "1", "0.5"], pa.string()),
        (["1", "[1]", '"x"'], pa.string()),
        (["[]", '{"x":1}', '""', "null"], pa.string()),
        (['{"x":[1]}', '{"x":2}'], pa.struct([("x", pa.string())])),
        (
            ['{"x":1}', '{"x":0.5,"y":[]}', "{}"],
            pa.struct([("x", pa.float64()), ("y", pa.list_(pa.string()))]),
        ),
        (['"2024-01-01"', '"x"'], pa.string()),
    ],
)
def test_the_order_of_contradicting_values_does_not_matter(values: list[str], kind: pa.DataType) -> None:
    """Otherwise the same records would give a table with other column types and other rejects if the records were read
    in another order.
    """
    for one in itertools.permutations(values):
        bodies = [b'{"a":%b}' % value.encode() for value in one]
        found = infer([("jsonl", body) for body in bodies])
        assert found is not None
        assert unordered(found) == unordered(pa.schema([("a", kind)]))
        assert infer([("jsonl", b"\n".join(bodies))]) == found


def test_a_column_of_texts_and_numbers_accepts_both() -> None:
    bodies = [b'{"a":1}', b'{"a":"x"}']
    found = infer([("jsonl", body) for body in bodies])
    rows, rejects = take(bodies, found, "jsonl", inferred=True)
    assert ([row["a"] for _, _, row in rows], rejects) == (["1", "x"], [])


def test_one_object_with_other_values_does_not_make_other_objects_rejects() -> None:
    """Otherwise one bad object in the first batch would send the rows of all good objects to quarantine, for as long as
    the table exists.
    """
    good = b'{"name":"ann","o":{"x":1}}'
    bad = parquet(pa.table({"name": [[1, None], None], "o": ["", "y"]}))
    mapped = parquet(pa.table({"name": pa.array([[("k", 1.5)]], pa.map_(pa.string(), pa.float64()))}))
    found = infer([("parquet", bad), ("jsonl", good), ("parquet", mapped)])
    assert found == pa.schema([("name", pa.string()), ("o", pa.string())])
    assert values([good], found, "jsonl") == [{"name": "ann", "o": '{"x":1}'}]
    assert values([bad], found, "parquet") == [{"name": "[1,null]", "o": ""}, {"name": None, "o": "y"}]
    assert values([mapped], found, "parquet") == [{"name": '[["k",1.5]]', "o": None}]


def test_values_of_one_record_may_have_several_types() -> None:
    """pyarrow infers no type for a list of several types. If a record with such a list suggested no schema, a source of
    such records would have no table, and each record with a new field of this kind would be a reject for ever.
    """
    line = b'{"l":[1,"x"],"i":1,"o":[{"v":1,"m":[true,[2]]},{"v":"x"}],"n":{"a":[{}]}}'
    inner = pa.struct([("v", pa.string()), ("m", pa.list_(pa.string()))])
    kinds = {
        "l": pa.list_(pa.string()), "i": pa.int64(), "o": pa.list_(inner),
        "n": pa.struct([("a", pa.list_(pa.struct([("_", pa.string())])))]),
    }  # fmt: skip
    expected = pa.schema([*kinds.items()])
    for found in (infer([("jsonl", line)]), infer([("json", b"[%b]" % line)])):
        assert unordered(found or ()) == unordered(expected)
    first, second = {"v": "1", "m": ["true", "[2]"]}, {"v": "x", "m": None}
    assert values([line], expected, "jsonl") == [
        {"l": ["1", "x"], "i": 1, "o": [first, second], "n": {"a": [{"_": None}]}}
    ]
    for known in (["i"], ["i", "n"], ["i", "l"], ["l", "o"]):
        seen: list[Any] = []
        take([line], pa.schema([(name, kinds[name]) for name in known]), "jsonl", inferred=True, seen=seen)
        new = inference.infer(one for parsed in seen for one in parsed.new_fields)
        assert unordered(new or ()) == {one for one in unordered(expected) if one[0] not in known}
    part = pa.schema([("n", pa.struct([("b", pa.int64())])), ("l", kinds["l"])])
    seen = []
    take([b'{"n":{"a":[1,"x"],"b":1},"l":[1,"x"]}'], part, "jsonl", inferred=True, seen=seen)
    assert [one for parsed in seen for one in parsed.new_fields], "a field inside of a known column"


@pytest.mark.parametrize("line", [b'{"o":{"x":1,"x":2}}', b'{"o":"\\ud800"}', b'{"o":[{"x":1,"x":2}, 1'])
def test_a_record_that_cannot_be_a_row_suggests_no_type(line: bytes) -> None:
    """Otherwise one bad record could turn the main column of all other objects into a column of texts."""
    assert infer([("jsonl", line), ("jsonl", b'{"o":{"x":1}}')]) == infer([("jsonl", b'{"o":{"x":1}}')])
    assert infer([("jsonl", line)]) is None


def test_values_that_are_no_json_fit_a_column_of_texts() -> None:
    assert values([b'{"a":NaN}', b'{"a":-Infinity}'], pa.schema([("a", pa.string())]), "jsonl") == [
        {"a": "NaN"}, {"a": "-Infinity"},
    ]  # fmt: skip


def test_json_does_not_fit_a_column_of_maps() -> None:
    """JSON has no maps. A value in such a column must be a reject of its record, not an error of its object."""
    kind = pa.schema([("m", pa.map_(pa.string(), pa.int64())), ("i", pa.int64())])
    rows, (reject,) = take([b'{"m":null,"i":1}\n{"m":{"k":1},"i":2}\n{"i":3}'], kind, "jsonl", inferred=True)
    assert [row["i"] for _, _, row in rows] == [1, 3]
    assert "m: " in reject.reason


def test_a_deep_schema_is_left_out() -> None:
    """An ORC file may have hundreds of levels. A recursion without end would stop the inference of a whole batch."""
    deep = pa.int64()
    for _ in range(800):
        deep = pa.list_(deep)
    assert inference.infer([pa.schema([("deep", deep), ("i", pa.int64())])]) == pa.schema([("i", pa.int64())])


def test_documents_and_lines_of_json_have_the_same_types() -> None:
    line = b'{"t":"2024-01-01T00:00:00","l":["2024-01-01"],"i":1}'
    found = infer([("jsonl", line)])
    assert found is not None
    assert found.field("t").type == pa.timestamp("us", tz="UTC")
    assert infer([("json", b"[%b]" % line)]) == found


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["9223372036854775807", "-9223372036854775808", "-0"], pa.int64()),
        (["9223372036854775808"], pa.decimal128(38, 0)),
        (["-9223372036854775809", "-0", "1"], pa.decimal128(38, 0)),
        (["9" * 38, "-" + "9" * 38], pa.decimal128(38, 0)),
        (["1" + "0" * 38], pa.string()),
        (["12345678901234567890123", "1.5"], pa.string()),
        (["12345678901234567890123", "1e22"], pa.string()),
        (["1e22", "1", "1234567890123456789.5"], pa.float64()),
    ],
)
def test_integers_keep_their_digits(values: list[str], kind: pa.DataType) -> None:
    """Integers of more than 64 bits must not silently become doubles."""
    expected = pa.schema([("a", kind)])
    objects: list[tuple[str, list[bytes]]] = [
        ("jsonl", [b'{"a":%b}' % value.encode() for value in values]),
        ("json", [b'[{"a":%b}]' % value.encode() for value in values]),
        ("csv", [b"a\n%b" % value.encode() for value in values]),
    ]
    for fmt, bodies in objects:
        assert {str(infer([(fmt, body) for body in one])) for one in itertools.permutations(bodies)} == {
            str(expected)
        }
        rows, rejects = take(bodies, expected, fmt, inferred=True)
        assert rejects == []
        if not pa.types.is_floating(kind):
            given = [decimal.Decimal(value) for value in values]
            assert [decimal.Decimal(row["a"]) for _, _, row in rows] == given
    together = "\n".join(values)
    assert infer([("csv", f"a\n{together}\n".encode())]) == expected
    assert infer([("jsonl", "".join(f'{{"a":{value}}}\n' for value in values).encode())]) == expected
    nested = "".join(f'{{"o":{{"n\\"":"{{1","l":[{value}]}}}}\n' for value in values).encode()
    parts = pa.struct([('n"', pa.string()), ("l", pa.list_(kind))])
    assert infer([("jsonl", nested)]) == pa.schema([("o", parts)])


def test_new_fields_keep_the_digits_of_integers() -> None:
    schema = pa.schema([("id", pa.int64())])
    for fmt, body in (
        ("jsonl", b'{"id":1,"new":12345678901234567890123}\n{"id":2,"new":5}\n'),
        ("csv", b"id,new\n1,12345678901234567890123\n2,5\n"),
    ):
        seen: list[Any] = []
        take([body], schema, fmt, inferred=True, seen=seen)
        found = inference.infer(one for parsed in seen for one in parsed.new_fields)
        assert found == pa.schema([("new", pa.decimal128(38, 0))]), fmt


def test_leading_zeros_are_no_digits() -> None:
    """Leading zeros do not change a number. If leading zeros counted as digits, a column of small numbers
    would become decimal because its texts are long.
    """
    assert infer([("csv", b"a\n000000000000000000000005\n")]) == pa.schema([("a", pa.int64())])
    assert infer([("csv", b"a\n0000012345678901234567890123\n")]) == pa.schema([("a", pa.decimal128(38, 0))])


decimals = st.integers(1, 38).flatmap(
    lambda digits: st.integers(0, digits).map(lambda scale: pa.decimal128(digits, scale))
)
scalars = decimals | st.sampled_from(
    [
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64(), pa.float16(), pa.float32(),
        pa.float64(), pa.string(), pa.large_string(), pa.binary(), pa.binary(3), pa.date32(), pa.timestamp("ns"),
        pa.timestamp("s", tz="Europe/Berlin"), pa.time64("us"), pa.decimal256(50, 3),
        pa.dictionary(pa.int8(), pa.string()),
    ]
)  # fmt: skip
field_names = st.sampled_from(["a", "b"])
kinds = st.recursive(
    st.just(pa.null()) | scalars,
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(pa.large_list)
        | st.dictionaries(field_names, inner, max_size=2).map(lambda parts: pa.struct([*parts.items()]))
        | st.tuples(scalars, inner).map(lambda pair: pa.map_(*pair))
    ),
    max_leaves=4,
)
schemas = st.dictionaries(field_names, kinds, min_size=1, max_size=2).map(
    lambda parts: pa.schema([*parts.items()])
)


def unordered(fields: Iterable[pa.Field]) -> set[Any]:
    """The columns of a schema, or the fields of a struct, as a set."""
    return {(part.name, unordered_kind(part.type)) for part in fields}


def unordered_kind(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return frozenset(unordered(kind))
    if pa.types.is_nested(kind):
        return (kind.id, *(unordered_kind(kind.field(number).type) for number in range(kind.num_fields)))
    return kind


@given(st.lists(schemas, min_size=1, max_size=4), st.data())
def test_an_inferred_schema_depends_neither_on_the_order_nor_on_the_grouping(
    found: list[pa.Schema], data: st.DataObject
) -> None:
    """Tasks join the fields of their objects, and the driver joins the results. If order or grouping mattered, the
    number of tasks could change the column types of a new table.
    """
    expected = inference.infer(found)
    assert expected is not None
    other = data.draw(st.permutations(found))
    cut = data.draw(st.integers(0, len(other)))
    groups = [inference.joined(other[:cut]), inference.joined(other[cut:])]
    again = inference.infer(group for group in groups if group is not None)
    assert again is not None
    assert unordered(again) == unordered(expected)


json_numbers = st.sampled_from(
    ["0", "-0", "7", "1.5", "1e22", "9223372036854775807", "9223372036854775808", "-12345678901234567890123",
     "9" * 38, "9" * 39, "null"]
)  # fmt: skip
json_values = st.recursive(
    json_numbers | st.sampled_from(["true", '"x"', '"2024-01-01T00:00:00"', '"9999999999999999999999"']),
    lambda inner: (
        st.lists(inner, max_size=2).map(lambda items: f"[{','.join(items)}]")
        | st.dictionaries(field_names, inner, max_size=2).map(
            lambda parts: "{" + ",".join(f'"{name}":{value}' for name, value in parts.items()) + "}"
        )
    ),
    max_leaves=3,
)


@given(st.lists(json_values | json_numbers, min_size=1, max_size=5), st.data())
def test_the_types_of_json_depend_neither_on_the_order_nor_on_the_objects(
    values: list[str], data: st.DataObject
) -> None:
    lines = [f'{{"a":{value}}}\n'.encode() for value in values]
    expected = infer([("jsonl", line) for line in lines])
    lines = data.draw(st.permutations(lines))
    cut = data.draw(st.integers(0, len(lines)))
    found = infer([("jsonl", b"".join(part)) for part in (lines[:cut], lines[cut:])])
    assert unordered(found or ()) == unordered(expected or ())


@given(st.lists(json_values | json_numbers, min_size=1, max_size=5))
def test_inferred_types_of_json_accept_all_values_of_the_sample(values: list[str]) -> None:
    bodies = [f'{{"a":{value}}}\n'.encode() for value in values]
    found = infer([("jsonl", body) for body in bodies])
    if found is not None:
        rows, rejects = take(bodies, found, "jsonl", inferred=True)
        assert (len(rows), rejects) == (len(bodies), [])


def test_no_schema_is_inferred_from_nothing() -> None:
    assert infer([]) is None
    assert infer([("jsonl", b""), ("csv", b""), ("parquet", b"no"), ("jsonl", b"[1]\nnull")]) is None


@pytest.mark.parametrize("name", ["_key", "_KEY", "_rescued", ""])
def test_reserved_names_are_not_inferred(name: str) -> None:
    """A table already has the column `_key`, and no column can have an empty name. If a record could put such a field
    into the inferred schema, no row of the source could be written.
    """
    body = json.dumps({"a": 1}).encode() + b"\n" + json.dumps({name: 1}).encode() + b"\n"
    found = infer([("jsonl", body)])
    assert found == pa.schema([("a", pa.int64())])
    rows, rejects = take([body], found, "jsonl", inferred=True)
    assert [row for _, _, row in rows] == [{"a": 1}]
    assert f"field {name!r} is not in the schema" in rejects[0].reason


def test_fields_with_the_name_of_a_key_column_are_not_inferred() -> None:
    """The object's key already gives the value of a key column. If a field with the same name were inferred, too, the
    table would have two columns whose names differ at most in case, and Spark would refuse the table.
    """
    schemas = [pa.schema([("id", pa.int64()), ("DT", pa.string())])]
    assert inference.infer(schemas, ["dt"]) == pa.schema([("id", pa.int64())])
    assert inference.joined(schemas, ["dt", "ID"]) is None


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
