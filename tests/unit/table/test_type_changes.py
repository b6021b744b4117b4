"""Conversions between types: the way of conversion, and the results for values."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.table.type_changes import cast, column_ddl, converted, ddl, how, is_same_type

NUMBERS = (
    "byte",
    "short",
    "integer",
    "long",
    "float",
    "double",
    "decimal(5,0)",
    "decimal(18,2)",
    "decimal(38,18)",
)
PLAIN = (*NUMBERS, "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz")
UTC = pa.timestamp("us", "UTC")


def struct(**kinds: Any) -> dict[str, Any]:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in kinds.items()]
    return {"type": "struct", "fields": fields}


def array(kind: Any, *, null: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": null}


@pytest.mark.parametrize("kind", [*PLAIN, struct(x="long"), array("date")])
def test_same_type_needs_no_conversion(kind: Any) -> None:
    assert how(kind, kind) is None


def test_nullability_is_not_a_difference() -> None:
    assert is_same_type(array("long"), array("long", null=False))
    assert is_same_type("decimal(10, 2)", "decimal(10,2)")
    assert not is_same_type(struct(x="long"), struct(y="long"))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("byte", "short", "exact"), ("integer", "long", "exact"), ("long", "integer", "checked"),
        ("integer", "decimal(12,2)", "exact"), ("integer", "decimal(11,2)", "checked"),
        ("long", "decimal(19,0)", "exact"), ("long", "decimal(18,2)", "checked"),
        ("decimal(10,2)", "decimal(12,4)", "exact"), ("decimal(10,2)", "decimal(12,1)", "checked"),
        ("float", "double", "exact"), ("double", "float", "checked"), ("double", "decimal(18,2)", "checked"),
        ("integer", "double", "exact"), ("long", "double", "checked"), ("short", "float", "exact"),
        ("decimal(5,2)", "double", "checked"), ("decimal(5,0)", "long", "checked"),
        ("date", "timestamp", "exact"), ("date", "timestamp_ntz", "exact"), ("timestamp", "date", "checked"),
        ("long", "string", "text"), ("boolean", "string", "text"), ("timestamp", "string", "text"),
        ("decimal(5,2)", "string", "text"), ("date", "string", "text"), ("binary", "string", "checked"),
        ("string", "long", "again"), ("string", "date", "again"), ("boolean", "long", "again"),
        ("timestamp", "timestamp_ntz", "again"), ("date", "long", "again"), ("string", "binary", "again"),
        (struct(x="integer"), struct(x="long"), "exact"), (struct(x="integer"), struct(x="string"), "text"),
        (struct(x="long"), struct(x="integer"), "again"), (struct(x="long"), struct(y="long"), "again"),
        (array("integer"), array(struct(x="long")), "again"), (array("integer"), array("double"), "exact"),
        (struct(x="long"), "string", "again"), ("long", array("long"), "again"),
    ],
)  # fmt: skip
def test_conversion_between_two_types(old: Any, new: Any, expected: str) -> None:
    assert how(old, new) == expected


def test_exact_widening_is_transitive() -> None:
    """Otherwise a change in two exact steps would keep all values, but the same change in one step would not."""
    for one in PLAIN:
        for two in PLAIN:
            for three in PLAIN:
                if how(one, two) == how(two, three) == "exact" and one != three:
                    assert how(one, three) == "exact", (one, two, three)


KINDS = {
    "byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "boolean": pa.bool_(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": UTC, "timestamp_ntz": pa.timestamp("us"), "decimal(5,0)": pa.decimal128(5, 0),
    "decimal(18,2)": pa.decimal128(18, 2), "decimal(38,18)": pa.decimal128(38, 18),
}  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "byte": [-128, 0, 127], "short": [-(2**15), 300], "integer": [-(2**31), 0, 2**31 - 1, 7],
    "long": [-(2**63), 2**63 - 1, 0, 12, 2**53 + 1, 10**16],
    "float": [0.5, -1.0, 3.0e38, float("inf"), float("nan")],
    "double": [0.1, 1.0, -2.5, 1e300, float("-inf"), float("nan"), 123456.78, 1e15],
    "boolean": [True, False], "string": ["", "12", "x", "1.5", "2026-01-31", "١", "0012", "1e3", "-0"],
    "binary": [b"a", b"\xff"], "date": [dt.date(1, 1, 1), dt.date(2026, 1, 31), dt.date(9999, 12, 31)],
    "timestamp": [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, 1, microsecond=1, tzinfo=dt.UTC)],
    "timestamp_ntz": [dt.datetime(2026, 1, 1)],
    "decimal(5,0)": [Decimal(99999), Decimal(-1)], "decimal(18,2)": [Decimal("1.50"), Decimal("-9999999999999999.99")],
    "decimal(38,18)": [Decimal("1e-18"), Decimal("1.5"), Decimal(10) ** 19],
}  # fmt: skip


@pytest.mark.parametrize("old", PLAIN)
@pytest.mark.parametrize("new", PLAIN)
def test_conversion_of_any_value_is_safe(old: str, new: str) -> None:
    """Otherwise a conversion would raise an error, report nulls as doubtful, or change a value without a report."""
    change = how(old, new)
    if change is None:
        return
    values = pa.array([*VALUES[old], None], KINDS[old])
    found, doubtful = converted(values, KINDS[new], change)
    assert found.type == KINDS[new]
    assert (len(found), len(doubtful), doubtful[-1].as_py(), found[-1].as_py()) == (len(values),) * 2 + (
        False,
        None,
    )
    for before, after, doubt in zip(values.to_pylist(), found.to_pylist(), doubtful.to_pylist(), strict=True):
        if before is None:
            continue
        assert doubt or after is not None
        if change in ("exact", "text"):
            assert not doubt
        if change == "again":
            assert doubt
        if not doubt and old in NUMBERS and new in NUMBERS:
            assert (
                str(after) == "nan"
                if str(before) == "nan"
                else Decimal(repr(float(before)) if isinstance(before, float) else before)
                == Decimal(repr(after) if isinstance(after, float) else after)
                or ("float" in (old, new) and before == after)
            )


@pytest.mark.parametrize(
    ("values", "old", "new", "expected", "doubts"),
    [
        ([1, 10**16], "long", "decimal(18,2)", [Decimal("1.00"), None], [False, True]),
        ([0.1, 1.005, 12.0], "double", "decimal(18,2)", [Decimal("0.10"), None, Decimal(12)], [False, True, False]),
        ([300, 1], "long", "byte", [None, 1], [True, False]),
        ([1.0, 1.5], "double", "long", [1, None], [False, True]),
        (["12", "x", "00501"], "string", "long", [12, None, 501], [True, True, True]),
        (["1.5", "x"], "string", "decimal(18,2)", [Decimal("1.50"), None], [True, True]),
        (["2026-01-31", "2026-02-31", "31.1."], "string", "date", [dt.date(2026, 1, 31), None, None], [True] * 3),
        (["2026-01-28"], "string", "date", [dt.date(2026, 1, 28)], [True]),
        ([b"a", b"\xff"], "binary", "string", ["a", None], [False, True]),
        ([501, -1], "long", "string", ["501", "-1"], [False, False]),
        ([True], "boolean", "string", ["true"], [False]),
        ([dt.date(2026, 1, 31)], "date", "timestamp", [dt.datetime(2026, 1, 31, tzinfo=dt.UTC)], [False]),
    ],
)  # fmt: skip
def test_conversion_of_some_values(
    values: list[Any], old: str, new: str, expected: list[Any], doubts: list[bool]
) -> None:
    change = how(old, new)
    assert change is not None
    found, doubtful = converted(pa.array(values, KINDS[old]), KINDS[new], change)
    assert (found.to_pylist(), doubtful.to_pylist()) == (expected, doubts)


def test_parts_of_values_are_converted() -> None:
    """Otherwise values inside structs and lists would keep the old type."""
    old, new = pa.list_(pa.struct({"x": pa.int32()})), pa.list_(pa.struct({"x": pa.string()}))
    values = pa.array([[{"x": 1}, None], None, []], old)
    found, doubtful = converted(values, new, "text")
    assert found.to_pylist() == [[{"x": "1"}, None], None, []]
    assert doubtful.to_pylist() == [False] * 3
    found, doubtful = converted(values, new, "again")
    assert (found.null_count, doubtful.to_pylist()) == (3, [True, False, True])


@given(st.lists(st.floats() | st.none(), max_size=40))
def test_double_is_converted_by_its_shortest_text(values: list[float | None]) -> None:
    """Otherwise a double like 0.1 would count as doubtful, although its shortest text is an exact decimal."""
    found, doubtful = converted(pa.array(values, pa.float64()), pa.decimal128(18, 2), "checked")
    for before, after, doubt in zip(values, found.to_pylist(), doubtful.to_pylist(), strict=True):
        assert doubt == (before is not None and after is None)
        if after is not None:
            assert after == Decimal(repr(before))


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        (0.1, pa.float64(), pa.float32()),
        (Decimal("0.1"), pa.decimal128(18, 2), pa.float64()),
        (dt.datetime(2026, 1, 31, 5, tzinfo=dt.UTC), UTC, pa.date32()),
        ("007", pa.string(), pa.int32()),
        (5, pa.int32(), pa.bool_()),
        (1 << 40, pa.int64(), pa.int32()),
        (Decimal("1.50"), pa.decimal128(18, 2), pa.int64()),
    ],
)
def test_cast_changes_no_value(value: Any, old: pa.DataType, new: pa.DataType) -> None:
    """Arrow rounds some values without an error, also inside structs, lists and maps. So with Arrow's cast alone, a new
    type of a column would change users' values without notice.
    """
    wraps = (
        (lambda kind: kind, lambda each: each),
        (lambda kind: pa.list_(pa.struct({"x": kind})), lambda each: [{"x": each}]),
        (lambda kind: pa.map_(pa.string(), kind), lambda each: [("k", each)]),
    )
    for kind, wrapped in wraps:
        with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError)):
            cast(pa.array([wrapped(value)], kind(old)), kind(new))
    assert cast(pa.array([{"x": 1, "y": value}]), pa.struct({"x": pa.int64()})).to_pylist() == [{"x": 1}]


def test_types_are_written_as_ddl() -> None:
    assert ddl(array(struct(x="long", y="decimal(5,2)"))) == "array<struct<x bigint, y decimal(5,2)>>"
    assert column_ddl("a b", "integer") == "`a b` int"
