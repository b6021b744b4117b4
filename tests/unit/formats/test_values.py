"""On the way from a text or a file to a column, a value keeps its meaning, or does not reach the column."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.parsing import infer, parquet, take

INT, FLOAT, TEXT, FLAG, DAY = pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.date32()
UTC_TIME, TIME, MONEY = pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.decimal128(6, 2)
NO = object()
"""Means that the value does not fit."""


def one(body: bytes, kind: pa.DataType, fmt: str) -> Any:
    """Returns the value of column `v` in the only record, or `NO` if this value is in `_rescued`."""
    rows, rejects = take([body], pa.schema([("v", kind)]), fmt, mismatches="rescue")
    assert rejects == []
    ((_, _, row),) = rows
    if row["_rescued"] is None:
        return row["v"]
    assert json.loads(row["_rescued"]).keys() == {"v"}
    assert row["v"] is None
    return NO


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        # Decimals: exact, and only within their precision and scale.
        ("1.5", MONEY, Decimal("1.50")),
        ("0.1", MONEY, Decimal("0.10")),
        ("9999.99", MONEY, Decimal("9999.99")),
        ("-9999.99", MONEY, Decimal("-9999.99")),
        ("1e2", MONEY, Decimal(100)),
        ("1.500", MONEY, Decimal("1.50")),
        ("10000", MONEY, NO),
        ("10000.00", MONEY, NO),
        ("-10000", MONEY, NO),
        ("1.555", MONEY, NO),
        ("1e4", MONEY, NO),
        # Numbers: exact, and only within the range of their type.
        ("9223372036854775807", INT, 2**63 - 1),
        ("-9223372036854775808", INT, -(2**63)),
        ("9223372036854775808", INT, NO),
        ("99999999999999999999", INT, NO),
        ("1.0", INT, NO),
        ("1e3", INT, NO),
        ("127", pa.int8(), 127),
        ("128", pa.int8(), NO),
        ("1", FLOAT, 1.0),
        ("1e308", FLOAT, 1e308),
        ("1e400", FLOAT, NO),
        ("-1e400", FLOAT, NO),
        ("1e38", pa.float32(), float(pa.scalar(1e38, pa.float32()).as_py())),
        ("1e39", pa.float32(), NO),
        ("Infinity", FLOAT, float("inf")),
        ("-Infinity", FLOAT, float("-inf")),
        ("true", FLAG, True),
        ("false", FLAG, False),
    ],
)
def test_numbers_are_exact_or_do_not_fit(text: str, kind: pa.DataType, value: object) -> None:
    """JSON and CSV must give the same numbers."""
    assert one(b'{"v":%s}' % text.encode(), kind, "jsonl") == value
    assert one(b"v\n%s\n" % text.encode(), kind, "csv") == value


@pytest.mark.parametrize(
    ("fmt", "body", "fitting"),
    [
        ("jsonl", b'{"v":1e39,"s":"inf Inf"}\n{"v":Infinity,"s":"\\"Inf"}\n', 1),
        ("jsonl", b'{"l":[{"v":1e39}],"s":":Inf"}\n{"l":[{"v":-Infinity}]}\n', 1),
        ("csv", b"v,s\n1e39,inf\n-inf,Infinity\n", 1),
    ],
)
def test_a_number_that_is_too_large_is_not_an_infinity(fmt: str, body: bytes, fitting: int) -> None:
    """The number must not become an infinity, whatever other values the record has."""
    one = [("v", pa.float32()), ("s", TEXT), ("l", pa.list_(pa.struct([("v", pa.float32())])))]
    names = ("v", "s") if fmt == "csv" else ("v", "s", "l")
    rows, rejects = take([body], pa.schema([part for part in one if part[0] in names]), fmt)
    assert (len(rows), len(rejects)) == (fitting, 2 - fitting)


@pytest.mark.parametrize("fmt", ["jsonl", "csv"])
def test_nan_is_a_float_and_no_integer(fmt: str) -> None:
    body = b'{"v":NaN}' if fmt == "jsonl" else b"v\nNaN\n"
    assert one(body, FLOAT, fmt) != one(body, FLOAT, fmt)
    assert one(body, INT, fmt) is NO


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2024-05-06T07:08:09Z", at("2024-05-06T07:08:09")),
        ("2024-05-06 07:08:09", at("2024-05-06T07:08:09")),
        ("2024-05-06T07:08:09.5+02:00", at("2024-05-06T05:08:09.500000")),
        ("2024-05-06", at("2024-05-06")),
        ("2024-05-06T07:08:09-0330", at("2024-05-06T10:38:09")),
        ("2024-05-06T07:08:09+02", at("2024-05-06T05:08:09")),
        ("2024-05-06T07:08:09.123456789Z", at("2024-05-06T07:08:09.123456")),
        ("2024-05-06T07:08Z", at("2024-05-06T07:08")),
        ("2024-05-06T07:08:09.1234567", at("2024-05-06T07:08:09.123456")),
        ("0001-01-01T00:00:00Z", at("0001-01-01")),
        ("9999-12-31T23:59:59.999999999Z", at("9999-12-31T23:59:59.999999")),
        ("2024-02-30T00:00:00Z", NO),
        ("2024-05-06T24:00:00Z", NO),
        ("2024-05-06T07:08:09,5Z", NO),
        ("yesterday", NO),
        ("1715000000", NO),
    ],
)
def test_times_are_read_in_iso_8601(text: str, value: Any) -> None:
    """Otherwise a time with a zone would be wrong by hours, or a time with nanoseconds would be a reject. Times without
    a zone are UTC. Times are cut to microseconds, the precision of Spark.
    """
    naive = value if value is NO else value.replace(tzinfo=None)
    json_line, csv_file = b'{"v":"%s"}' % text.encode(), b'v\n"%s"\n' % text.encode()
    assert one(json_line, UTC_TIME, "jsonl") == one(csv_file, UTC_TIME, "csv") == value
    assert one(json_line, TIME, "jsonl") == one(csv_file, TIME, "csv") == naive


def test_times_of_different_precision_are_read_together() -> None:
    """Otherwise a single time with nanoseconds would make its record a reject, or change the times of its neighbours,
    even in nested columns.
    """
    kind = pa.struct([("t", pa.list_(UTC_TIME)), ("d", DAY)])
    body = (
        b'{"v":{"t":["2024-05-06T07:08:09.123456789Z",null,"2024-05-06T07:08:09.5"],"d":"2024-02-29"}}\n'
        b'{"v":null}\n{"v":{"t":[]}}\n{"v":{"t":null,"d":null}}'
    )
    rows, rejects = take([body], pa.schema([("v", kind)]), "jsonl")
    assert rejects == []
    assert [row["v"] for _, _, row in rows] == [
        {
            "t": [at("2024-05-06T07:08:09.123456"), None, at("2024-05-06T07:08:09.500000")],
            "d": date(2024, 2, 29),
        },
        None,
        {"t": [], "d": None},
        {"t": None, "d": None},
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [("2024-02-29", date(2024, 2, 29)), ("9999-12-31", date(9999, 12, 31)), ("2024-02-30", NO), ("x", NO)],
)
def test_days_are_read_in_iso_8601(text: str, value: object) -> None:
    assert one(b'{"v":"%s"}' % text.encode(), DAY, "jsonl") == value
    assert one(b"v\n%s\n" % text.encode(), DAY, "csv") == value


@pytest.mark.parametrize(
    "text", ["1.50", "true", "[1]", "{}", '[{"x":null}, "\\ud800\\n"]', '[NaN,"\u00e9"]', "[[[]]]"]
)
@pytest.mark.parametrize("fmt", ["jsonl", "json"])
def test_a_string_column_accepts_each_json_value(text: str, fmt: str) -> None:
    """Otherwise a user who declares `string` for a column with all kinds of values would lose the nested ones."""
    for kind, expected in ((TEXT, text), (pa.binary(), text.encode())):
        assert one(b'{"v": %s }' % text.encode(), kind, fmt) == expected
        nested = one(b'{"v": [{"s":%s}]}' % text.encode(), pa.list_(pa.struct([("s", kind)])), fmt)
        assert nested == [{"s": expected}]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('"1"', INT),
        ('"1.5"', FLOAT),
        ("1", FLAG),
        ('"true"', FLAG),
        ("1715000000", UTC_TIME),
        ('{"x":1,"x":2}', TEXT),
        ("[1]", INT),
        ('""', UTC_TIME),
        ('""', MONEY),
        ('""', DAY),
        ("1", pa.list_(INT)),
        ("[]", pa.struct([("x", INT)])),
    ],
)
def test_json_of_another_type_does_not_fit(text: str, kind: pa.DataType) -> None:
    """Otherwise the number 1715000000 would be read as a time in a guessed unit. A wrong guess would give wrong rows,
    and no reject would show the mistake.
    """
    assert one(b'{"v":%s}' % text.encode(), kind, "jsonl") is NO
    assert one(b'{"v":null}', kind, "jsonl") is None
    assert one(b"{}", kind, "jsonl") is None


def test_empty_csv_fields_and_missing_columns_are_null() -> None:
    """Otherwise a record with an empty number would be a reject, and so would each record of a file that lacks a
    column. An empty field of a string column is the empty string.
    """
    schema = pa.schema(
        [
            ("i", INT),
            ("f", FLOAT),
            ("m", MONEY),
            ("t", UTC_TIME),
            ("d", DAY),
            ("b", FLAG),
            ("s", TEXT),
            ("z", TEXT),
        ]
    )
    body = b"i,f,m,t,d,b,s\n,,,,,,\n" + b",".join([b'""'] * 7) + b"\n" + b",".join([b"NA"] * 7) + b"\n"
    rows, rejects = take([body], schema, "csv", mismatches="rescue")
    assert rejects == []
    nulls = dict.fromkeys([*schema.names, "_rescued"])
    assert [row for _, _, row in rows] == [nulls | {"s": ""}, nulls | {"s": ""}, nulls | {"s": "NA"}]


def test_json_nulls_are_null_at_any_depth() -> None:
    """Otherwise a record with a null inside an object or a list would be a reject, or the null could become an empty
    object that queries count as a value.
    """
    schema = pa.schema([("o", pa.struct([("x", INT)])), ("l", pa.list_(pa.list_(INT))), ("n", TEXT)])
    body = b'{"o":{"x":null},"l":[null,[null],[]],"n":null}\n{"o":null,"l":null}\n{"o":{},"l":[]}'
    rows, rejects = take([body], schema, "jsonl")
    assert rejects == []
    assert [row for _, _, row in rows] == [
        {"o": {"x": None}, "l": [None, [None], []], "n": None},
        {"o": None, "l": None, "n": None},
        {"o": {"x": None}, "l": [], "n": None},
    ]


def test_numbers_in_string_columns_are_texts() -> None:
    """Otherwise a record would be a reject if its writer left out the quotes of a code. The string is the number's
    source text, because 0.10 would otherwise become 0.1.
    """
    lines = (
        b'{"b":1}',
        b'{"b": -1.50e3 ,"a":7}',
        b'{"b":true}',
        b'{"b":"x"}',
        b'{"b":null}',
        b'{"b":01}',
    )
    rows, rejects = take([b"\n".join(lines), b'{"b":0.10}'], pa.schema([("a", INT), ("b", TEXT)]), "jsonl")
    assert [row["b"] for _, _, row in rows] == ["1", "-1.50e3", "true", "x", None, "0.10"]
    assert [reject.raw for reject in rejects] == [b'{"b":01}']
    nested = pa.schema([("l", pa.list_(pa.string())), ("o", pa.struct([("p", pa.string())]))])
    rows, rejects = take([b'{"l":["x",2,false],"o":{"p":3}}'], nested, "jsonl")
    assert [row for _, _, row in rows] == [{"l": ["x", "2", "false"], "o": {"p": "3"}}]
    assert rejects == []


@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        (pa.array(["x", None]).dictionary_encode(), TEXT, ["x", None]),
        (pa.array(["x"], pa.large_string()), TEXT, ["x"]),
        (
            pa.array([[{"a": 1}], None], pa.large_list(pa.struct([("a", pa.int8())]))),
            pa.list_(pa.struct([("a", INT)])),
            [[{"a": 1}], None],
        ),
        (pa.array([[1, 2]], pa.list_(pa.int8(), 2)), pa.list_(INT), [[1, 2]]),
        (
            pa.array([{"b": 1, "a": "x"}]),
            pa.struct([("a", TEXT), ("b", INT), ("c", TEXT)]),
            [{"a": "x", "b": 1, "c": None}],
        ),
        (pa.array([[("k", 1)], None], pa.map_(TEXT, pa.uint8())), pa.map_(TEXT, INT), [[("k", 1)], None]),
        (
            pa.array([[("k", 2**63)], [("k", 1)]], pa.map_(TEXT, pa.uint64())),
            pa.map_(TEXT, INT),
            [NO, [("k", 1)]],
        ),
        (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0), [Decimal(2**64 - 1)]),
        (pa.array([2**63, 1], pa.uint64()), INT, [NO, 1]),
        (pa.array([Decimal("1.555"), Decimal("1.550")]), pa.decimal128(12, 2), [NO, Decimal("1.55")]),
        (pa.array([Decimal("123456.5"), Decimal("1.5")]), MONEY, [NO, Decimal("1.50")]),
        (pa.array([10000, 1]), MONEY, [NO, Decimal(1)]),
        (pa.array([Decimal("1.5"), Decimal("1.0")]), INT, [NO, 1]),
        (pa.array([1.5, 1.0]), INT, [NO, 1]),
        (pa.array([1e39, float("inf"), 1.5]), pa.float32(), [NO, float("inf"), 1.5]),
        (
            pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")),
            UTC_TIME,
            [datetime.fromtimestamp(1_700_000_000.123456, UTC)],
        ),
        (pa.array([10**15], pa.timestamp("s")), UTC_TIME, [NO]),
        (
            pa.array(["2024-05-06T07:08:09Z", "2024-05-06"]),
            UTC_TIME,
            [at("2024-05-06T07:08:09"), at("2024-05-06")],
        ),
        (pa.array([1]), UTC_TIME, [NO]),
        (pa.array([2, 0]), FLAG, [NO, NO]),
        (pa.array([b"\xff", b"a"]), TEXT, [NO, "a"]),
        (pa.array(["1", "x"]), INT, [1, NO]),
        (pa.nulls(1), INT, [None]),
    ],
)
def test_parquet_values_are_cast_or_do_not_fit(values: pa.Array, kind: pa.DataType, found: list[Any]) -> None:
    """Values of logical types are cast to the column's type, one by one if necessary. A cast that must guess is
    refused.
    """
    rows, rejects = take(
        [parquet(pa.table({"v": values}))], pa.schema([("v", kind)]), "parquet", mismatches="rescue"
    )
    assert rejects == []
    assert [NO if row["_rescued"] else row["v"] for _, _, row in rows] == found
    assert all(row["v"] is None for _, _, row in rows if row["_rescued"])


def test_parquet_times_in_int96_are_read() -> None:
    """INT96 has times that do not fit into nanoseconds of 64 bits. If such times were read as nanoseconds, a time of
    the year 1500 would overflow, and would be loaded with a wrong year.
    """
    sink = io.BytesIO()
    values = [datetime(1500, 1, 1), datetime(2024, 1, 1, 1, 2, 3, 4)]
    pq.write_table(pa.table({"v": pa.array(values, TIME)}), sink, use_deprecated_int96_timestamps=True)
    schema = infer([("parquet", sink.getvalue())])
    assert schema == pa.schema([("v", TIME)])
    rows, rejects = take([sink.getvalue()], schema, "parquet", inferred=True)
    assert rejects == []
    assert [row["v"] for _, _, row in rows] == values


def test_only_the_first_byte_order_mark_is_removed() -> None:
    """If a byte order mark at the beginning stayed, the first JSON record would be a reject, and the first CSV column
    would have a wrong name. A mark at any other place belongs to the text. If such a mark were removed, a value would
    change.
    """
    schema = pa.schema([("v", TEXT)])
    bom = b"\xef\xbb\xbf"
    assert take([bom + b'{"v":"a"}\n{"v":"' + bom + b'"}\n' + bom + b'{"v":"c"}'], schema, "jsonl")[0][1][
        2
    ] == {"v": "\ufeff"}
    assert len(take([b'{"v":"a"}\n' + bom + b'{"v":"c"}'], schema, "jsonl")[1]) == 1
    assert [row for _, _, row in take([bom + b"v\n" + bom + b"\n"], schema, "csv")[0]] == [{"v": "\ufeff"}]


def test_only_parquet_decimals_are_inferred() -> None:
    """In texts, numbers with fractions are floating point, unless a given schema says otherwise."""
    found = infer(
        [
            ("parquet", parquet(pa.table({"m": pa.array([Decimal("1.50")])}))),
            ("jsonl", b'{"f":1.50}'),
            ("csv", b"c\n1.50\n"),
        ]
    )
    assert found == pa.schema([("m", pa.decimal128(3, 2)), ("f", FLOAT), ("c", FLOAT)])
