"""Casts of columns in binary formats: the values that fit, and the cost of the search for other values."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from s3notify_platform.formats import text_values
from s3notify_platform.formats.blocks import casts
from s3notify_platform.formats.blocks.casts import cast_most
from tests.support.parsing import parquet, take

INT = pa.int64()
MONEY = pa.decimal128(10, 2)
UTC = pa.timestamp("us", tz="UTC")
NO = "does not fit"

places = st.integers(0, 20)

WRAPPED = {
    "column": (lambda values: values, lambda kind: kind),
    "struct": (
        lambda values: pa.StructArray.from_arrays([values], names=["x"]),
        lambda kind: pa.struct([("x", kind)]),
    ),
    "list": (
        lambda values: pa.ListArray.from_arrays(np.arange(len(values) + 1), values),
        pa.list_,
    ),
    "large list": (
        lambda values: pa.LargeListArray.from_arrays(np.arange(len(values) + 1), values),
        pa.list_,
    ),
    "map": (
        lambda values: pa.MapArray.from_arrays(
            np.arange(len(values) + 1), pa.array(["k"] * len(values)), values
        ),
        lambda kind: pa.map_(pa.string(), kind),
    ),
    "map key": (
        lambda values: pa.MapArray.from_arrays(
            np.arange(len(values) + 1), values, pa.array([7] * len(values))
        ),
        lambda kind: pa.map_(kind, INT),
    ),
}
TAKEN: dict[str, Any] = {
    "column": lambda value: value,
    "struct": lambda value: value["x"],
    "list": lambda value: value[0],
    "large list": lambda value: value[0],
    "map": lambda value: value[0][1],
    "map key": lambda value: value[0][0],
}


@pytest.mark.parametrize("place", WRAPPED)
@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        (pa.array([1.239, 0.1, 1.5, -2.675, 1e9]), MONEY, [NO, Decimal("0.10"), Decimal("1.50"), NO, NO]),
        (pa.array([0.1], pa.float32()), MONEY, [Decimal("0.10")]),
        (pa.array([0.1]), pa.decimal128(38, 20), [Decimal("0.1").quantize(Decimal(10) ** -20)]),
        (pa.array([float("nan"), float("inf"), 2.0]), MONEY, [NO, NO, Decimal(2)]),
        (pa.array([10**8, 7]), MONEY, [NO, Decimal(7)]),
        (pa.array([Decimal("1.239"), Decimal("1.230")]), MONEY, [NO, Decimal("1.23")]),
        (pa.array([1.5, 2.0]), INT, [NO, 2]),
        (pa.array([datetime(2024, 1, 2), datetime(2024, 1, 2, 3)]), pa.date32(), [date(2024, 1, 2), NO]),
        (
            pa.array(
                [datetime(2024, 1, 1, 23), datetime(2024, 1, 2)], pa.timestamp("us", tz="Europe/Berlin")
            ),
            pa.date32(),
            [date(2024, 1, 2), NO],
        ),
        (pa.array([datetime(2024, 1, 2)]), INT, [NO]),
        (pa.array([5]), UTC, [NO]),
        (pa.array([2, 1]), pa.bool_(), [NO, NO]),
        (pa.array([1e39, 1.5]), pa.float32(), [NO, 1.5]),
        (pa.array(["1e999", "1", " 2"]), pa.float64(), [NO, 1.0, 2.0]),
        (pa.array(["1.239", "1.2"]), MONEY, [NO, Decimal("1.20")]),
        (pa.array(["a", "b"]).dictionary_encode(), pa.string(), ["a", "b"]),
    ],
)
def test_a_value_fits_if_the_cast_loses_nothing(
    values: pa.Array, kind: pa.DataType, found: list[Any], place: str
) -> None:
    """Otherwise the table would have rounded numbers or shortened times, and no reject would show the difference.
    Nested values and slices of a column must follow the same rule.
    """
    wrap, kind_of = WRAPPED[place]
    column = wrap(pa.concat_arrays([values, values])).slice(len(values))
    fit, odd = cast_most(column, kind_of(kind))
    fit.validate(full=True)
    assert fit.type == kind_of(kind)
    assert odd.tolist() == [value == NO for value in found]
    assert [NO if value is None else TAKEN[place](value) for value in fit.to_pylist()] == found


def test_nulls_and_empty_lists_are_kept() -> None:
    inner = pa.struct([("x", pa.float64())])
    kind = pa.struct([("x", INT), ("y", pa.string())])
    values = pa.array([None, [], [None], [{"x": None}], [{"x": 1.0}, {"x": 1.5}]], pa.list_(inner))
    fit, odd = cast_most(values, pa.list_(kind))
    assert fit.to_pylist() == [None, [], [None], [{"x": None, "y": None}], None]
    assert odd.tolist() == [False] * 4 + [True]
    maps = pa.array([None, [], [("k", None)], [("k", {"x": 2.5})]], pa.map_(pa.string(), inner))
    fit, odd = cast_most(maps, pa.map_(pa.string(), kind))
    assert fit.to_pylist() == [None, [], [("k", None)], None]
    fixed = pa.array([[1.0, 2.0], None, [1.5, 2.0]], pa.list_(pa.float64(), 2))
    assert cast_most(fixed, pa.list_(INT))[0].to_pylist() == [[1, 2], None, None]


numbers = st.floats() | st.builds(
    lambda digits, scale: digits / 10**scale, st.integers(-(10**17), 10**17), places
)


@given(numbers, places, st.booleans())
@example(0.3, 1, False)
@example(2.675, 2, False)
@example(1125899906842624.5, 1, False)
def test_a_floating_point_number_is_the_decimal_of_its_text(number: float, scale: int, is_32: bool) -> None:
    """Otherwise the same number could be a row in Parquet and a reject in CSV, or could become a different
    decimal in each format.
    """
    assume(number == 0 or abs(number) > 1e-30)  # pyarrow reads texts of smaller numbers as 0
    with np.errstate(over="ignore"):
        text = str(np.float32(number)) if is_32 else repr(number)
        column = pa.array(
            [number if not is_32 else np.float32(number)], pa.float32() if is_32 else pa.float64()
        )
    schema = pa.schema([("v", pa.decimal128(30, scale))])
    both = [column, pa.array([0.25], column.type)]  # the second number does not fit the scales 0 and 1
    in_parquet, _ = take(
        [parquet(pa.table({"v": pa.concat_arrays(both)}))], schema, "parquet", mismatches="rescue"
    )
    in_csv, _ = take([f"v\n{text}\n0.25\n".encode()], schema, "csv", mismatches="rescue")
    assert [row["v"] for _, _, row in in_parquet] == [row["v"] for _, _, row in in_csv]
    assert [row["_rescued"] is None for _, _, row in in_parquet] == [
        row["_rescued"] is None for _, _, row in in_csv
    ]


NUMBERS = np.arange(1000)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (pa.array([[0.1]], pa.list_(pa.float32())), "[0.1]"),
        (pa.array([[b"\xff"]], pa.list_(pa.binary_view())), '["ff"]'),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), INT)), '[["k",1]]'),
        (pa.array([1], pa.timestamp("us", tz="No/Where")), "1970-01-01 00:00:00.000001 No/Where"),
    ],
)
def test_columns_of_texts_accept_values_of_all_types(values: pa.Array, text: str) -> None:
    for kind, expected in ((pa.string(), text), (pa.binary(), text.encode())):
        fit, odd = cast_most(values, kind)
        assert (fit.to_pylist(), odd.tolist()) == ([expected], [False])


def test_texts_of_nested_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text has the names of all fields. So the texts of a small file may need more memory than a task has."""
    monkeypatch.setattr(casts, "MAX_DECODED_BYTES", 1000)
    values = pa.array([{"x" * 100: number} for number in range(10)])
    fit, odd = cast_most(pa.concat_arrays([values, pa.nulls(1, values.type)]), pa.string())
    assert odd.tolist() == [number == 9 for number in range(11)]
    assert fit.null_count == 2


@pytest.mark.parametrize("place", [place for place in WRAPPED if place != "map key"])
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array(NUMBERS + 0.5), INT),
        (pa.array(NUMBERS + 0.125), MONEY),
        (pa.array(NUMBERS + 1e9), MONEY),
        (pa.array(NUMBERS + 10**9), MONEY),
        (pa.array(NUMBERS + 10**9).cast(pa.decimal128(20, 0)), MONEY),
        (pa.array(NUMBERS + 10**9).cast(pa.decimal128(20, 0)), pa.int16()),
        (pa.array(NUMBERS + 10**9), pa.int16()),
        (pa.array(NUMBERS.astype(np.uint64) + np.uint64(2**63)), INT),
        (pa.array(2 * NUMBERS + 2**53 + 1), pa.float64()),
        (pa.array(NUMBERS + 1, pa.timestamp("us", tz="Europe/Berlin")), pa.date32()),
        (pa.array(NUMBERS), UTC),
        (pa.array([f"x{number}" for number in NUMBERS]), INT),
        (pa.array([f"x{number}" for number in NUMBERS]), UTC),
        (pa.array([[number] for number in NUMBERS.tolist()]), INT),
    ],
)
def test_a_column_without_any_fitting_value_costs_few_casts(
    values: pa.Array, kind: pa.DataType, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a file with the wrong type in a column would take minutes."""
    calls = []
    for module, name in ((casts, "_cast"), (text_values, "values_of")):
        call = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, call=call: calls.append(given) or call(*given))
    wrap, kind_of = WRAPPED[place]
    fit, odd = cast_most(wrap(values), kind_of(kind))
    assert odd.all()
    assert fit.null_count == len(fit) == len(values)
    assert len(calls) <= 8
