"""Bounds of packs: they include each row, and are as tight as the log can express."""

import datetime as dt
import io
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.table.delta.actions import Add, LogVersion, Vector
from s3notify_platform.table.delta.statistics import (
    STATISTICS_COLUMNS,
    STRING_CHARS,
    add_of,
    hidden,
    stats_of,
    without_nan,
)

CHARS = st.characters(exclude_categories=["Cs"]) | st.sampled_from(
    "a\0\x7f\ud7ff\ue000\uffff\U00010000\U0010ffff"
)
TEXT = st.text(CHARS, max_size=5) | st.text(st.sampled_from("a\ud7ff\uffff\U0010ffff"), max_size=80)
KEY = st.text(CHARS, min_size=1, max_size=256).filter(lambda key: len(key.encode()) <= 1024)


def footer_of(rows: pa.Table, group: int = 1000) -> pq.FileMetaData:
    sink = io.BytesIO()
    pq.write_table(rows, sink, row_group_size=group)
    return pq.ParquetFile(sink).metadata


def stats(rows: pa.Table, group: int = 1000) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        stats_of(footer_of(rows, group), no_nan=without_nan(rows)), parse_float=Decimal
    )
    assert found["numRecords"] == rows.num_rows
    return found


def bounds(values: list[Any], kind: pa.DataType, group: int = 2, name: str = "c") -> tuple[Any, Any]:
    found = stats(pa.table({name: pa.array(values, kind)}), group)
    assert found["nullCount"][name] == values.count(None)
    return found["minValues"].get(name), found["maxValues"].get(name)


@given(st.lists(st.none() | TEXT, max_size=6))
def test_bounds_of_texts_include_all_values(values: list[str | None]) -> None:
    """Otherwise a text would be outside its bounds, in the order of code points or in the order of UTF-8 bytes."""
    low, high = bounds(values, pa.string())
    there = [value for value in values if value is not None]
    assert (low is None) == (not there)
    for value in there:
        assert low.encode() <= value.encode()
        assert high is None or value.encode() <= high.encode()
        assert low <= value
        assert high is None or value <= high
    if there:
        assert len(low) <= STRING_CHARS
        assert min(there).startswith(low)
        assert high is not None or max(there).startswith("\U0010ffff" * STRING_CHARS)
        assert high is None or len(high) <= STRING_CHARS


@pytest.mark.parametrize(
    ("greatest", "bound"),
    [
        ("x" * 32, "x" * 32),
        ("x" * 33, "x" * 31 + "y"),
        ("x" * 31 + "\ud7ff" + "z", "x" * 31 + "\ue000"),
        ("x" * 31 + "\uffff" + "z", "x" * 31 + "\U00010000"),
        ("x" * 30 + "\U0010ffff" * 2 + "z", "x" * 29 + "y"),
        ("\U0010ffff" * 33, None),
        ("\U0010ffff" * 32, "\U0010ffff" * 32),
    ],
)
def test_upper_bound_of_texts_is_raised(greatest: str, bound: str | None) -> None:
    """Otherwise a long text would be above its bound, for example a text whose last character has no successor."""
    assert bounds(["a", greatest], pa.string()) == ("a", bound)


@given(st.lists(st.tuples(st.integers(0, 999), KEY), min_size=1, max_size=5))
def test_bounds_of_slots_and_keys_are_exact(lineage: list[tuple[int, str]]) -> None:
    """Otherwise readers would miss a pack that holds a key, or read packs that do not hold it."""
    slots, keys = zip(*lineage, strict=True)
    rows = pa.table({"_slot": pa.array(slots, pa.int32()), "_key": pa.array(keys, pa.string())})
    add = add_of("data/p", footer_of(rows, 2), size=9, modified_ms=8, since=3, until=4)
    assert add.slots == (min(slots), max(slots))
    assert add.keys == (min(keys), max(keys))
    assert (add.rows, add.size, add.modified_ms, add.since, add.until) == (len(keys), 9, 8, 3, 4)
    assert all(add.may_hold(slot, key, 3, 3) for slot, key in lineage)


def test_key_with_a_lone_surrogate_cannot_be_stored() -> None:
    """If such a key could be stored, the order of keys would differ from the order of their bytes."""
    with pytest.raises(UnicodeEncodeError):
        pa.array(["\ud800"], pa.string())


@given(st.lists(st.none() | st.floats() | st.floats(width=32), max_size=5))
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_bounds_of_floats_include_all_values(kind: pa.DataType, values: list[float | None]) -> None:
    """Otherwise a query would miss rows with NaN or infinity, which JSON's numbers cannot express."""
    stored = pa.array(values, kind).to_pylist()
    low, high = bounds(values, kind)
    there = [value for value in stored if value is not None]
    if not there or any(map(math.isnan, there)):
        assert (low, high) == (None, None)
        return
    for bound, most in ((low, min(there)), (high, max(there))):
        assert (bound is None) == math.isinf(most)
        assert bound is None or float(bound) == most


def test_unchecked_floats_have_no_bounds() -> None:
    """Otherwise a query would miss rows with NaN, which footers ignore."""
    rows = pa.table({"f": [1.0, math.nan], "s": [{"f": 1.0}, {"f": None}]})
    assert json.loads(stats_of(footer_of(rows)))["minValues"] == {}
    assert without_nan(rows) == {("s", "f")}
    assert stats(rows)["minValues"] == {"s": {"f": 1}}


DECIMALS = st.decimals(Decimal("-1e18"), Decimal("1e18"), places=3) | st.integers(-(10**6), 10**6).map(
    Decimal
)


@given(st.lists(st.none() | DECIMALS, max_size=5))
def test_bounds_of_decimals_include_all_values(values: list[Decimal | None]) -> None:
    """Otherwise an engine that reads decimals as doubles would miss values with more digits than a double keeps."""
    low, high = bounds(values, pa.decimal128(22, 3))
    for value in values:
        if value is not None:
            assert low <= value <= high
            assert max(abs(low), abs(high)) < Decimal("1e20")
    there = [value for value in values if value is not None]
    if there and max(map(abs, there)) < 10**12:
        assert (low, high) == (min(there), max(there))


def test_bound_of_decimals_is_left_out_if_the_rounded_bound_does_not_fit_the_type() -> None:
    """Otherwise the rounded bound would have one digit too many for its type."""
    most = Decimal("99999999999999.999")
    assert bounds([most, Decimal(0)], pa.decimal128(17, 3)) == (0, None)
    assert bounds([-most, Decimal("0.001")], pa.decimal128(17, 3)) == (None, Decimal("0.001"))


MICROSECONDS = st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**16), 10**17)


@given(st.lists(st.none() | MICROSECONDS, max_size=5))
@pytest.mark.parametrize("zone", ["UTC", None])
def test_bounds_of_times_are_rounded_outward(zone: str | None, values: list[int | None]) -> None:
    """Otherwise a query would miss times that are not whole milliseconds, or that are outside the calendar."""
    low, high = bounds(values, pa.timestamp("us", zone))
    there = [value for value in values if value is not None]

    def us(text: str) -> int:
        assert text.endswith("Z") == (zone is not None)
        at = dt.datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=dt.UTC)
        return (at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)

    if low is not None:
        assert min(there) - 1000 < us(low) <= min(there)
    if high is not None:
        assert max(there) <= us(high) < max(there) + 1000
    if there:
        assert (low is None) == (not -62_135_596_800_000_000 <= min(there) < 253_402_300_800_000_000)
        assert (high is None) == (not -62_135_596_800_000_999 <= max(there) <= 253_402_300_799_999_000)


def test_bounds_of_dates_are_within_the_calendar() -> None:
    """Otherwise a date that Python and the log cannot express would be a bound."""
    assert bounds([0, -719_162, 2_932_896], pa.date32()) == ("0001-01-01", "9999-12-31")
    assert bounds([1, None, -719_163], pa.date32()) == (None, "1970-01-02")
    assert bounds([2_932_897, 1], pa.date32()) == ("1970-01-02", None)


def test_bounds_of_integers_are_exact() -> None:
    for bits, kind in ((8, pa.int8()), (16, pa.int16()), (32, pa.int32()), (64, pa.int64())):
        least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        assert bounds([0, most, None, least], kind) == (least, most)


def test_nested_columns_have_nested_statistics() -> None:
    """Otherwise the field `b` of `a` would be confused with a column `a.b`, or lists and maps would get bounds."""
    rows = pa.table(
        {
            "_slot": pa.array([1, 2], pa.int32()),
            "s.t": [3, 4],
            "s": pa.array([{"t": 5, "in": {"x y": "a"}, "li": [1]}, None]),
            "li": pa.array([[1], None]),
            "m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "yes": [True, None],
            "raw": [b"x", None],
            "void": pa.array([None, None], pa.string()),
        }
    )
    assert stats(rows) == {
        "numRecords": 2,
        "minValues": {"_slot": 1, "s.t": 3, "s": {"t": 5, "in": {"x y": "a"}}},
        "maxValues": {"_slot": 2, "s.t": 4, "s": {"t": 5, "in": {"x y": "a"}}},
        "nullCount": {"_slot": 0, "s.t": 0, "s": {"t": 1, "in": {"x y": 1}}, "yes": 1, "raw": 1, "void": 2},
    }


def test_first_columns_and_lineage_have_statistics() -> None:
    """Otherwise packs could not be found by slot and key in a table whose first columns are other columns."""
    names = [*(f"c{n}" for n in range(50)), "_slot", "_key"]
    rows = pa.table({name: ["a" * 500] for name in names})
    found = stats(rows)
    assert [*found["nullCount"]] == ["_slot", "_key", *(f"c{n}" for n in range(STATISTICS_COLUMNS - 2))]
    assert found["minValues"]["_key"] == found["maxValues"]["_key"] == "a" * 500


def test_sorted_column_behind_the_first_columns_has_statistics() -> None:
    """Otherwise each query would read the whole table if the table is clustered by such a column."""
    rows = pa.table({f"c{n}": pa.array([n, n + 1]) for n in range(STATISTICS_COLUMNS + 8)})
    sink = io.BytesIO()
    order = pq.SortingColumn.from_ordering(rows.schema, [(rows.schema.names[-1], "ascending")])
    pq.write_table(rows, sink, sorting_columns=order)
    found = json.loads(stats_of(pq.ParquetFile(sink).metadata))
    assert [*found["minValues"]] == [rows.schema.names[-1], *rows.schema.names[: STATISTICS_COLUMNS - 1]]


def test_invalid_or_long_text_has_no_bound() -> None:
    """Otherwise a bound would exclude rows of another row group, or the statistics could not be written."""
    broken = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
    assert stats(pa.table({"c": broken}))["minValues"] == {"c": "a"}
    assert stats(pa.table({"c": broken}))["maxValues"] == {}
    for values in (["x" * 5000, "b", "a"], ["a", "b", "x" * 5000]):
        found = stats(pa.table({"c": values}), group=1)
        assert found["minValues"] == found["maxValues"] == {}


def test_file_without_rows_has_statistics() -> None:
    assert stats(pa.table({"c": pa.array([], pa.string())}))["nullCount"] == {"c": 0}


def test_bounds_of_a_file_with_hidden_rows_are_marked_as_wide() -> None:
    """Otherwise an engine would take the bounds of a file with hidden rows for exact values."""
    rows = pa.table({"_slot": pa.array([1, 2, 3], pa.int32()), "_key": ["a", "é", "\U0001f600"]})
    add = add_of("data/p", footer_of(rows), size=9, modified_ms=8, since=3, until=4)
    found = hidden(add, Vector(storage="i", body="", size=0, rows=2))
    assert json.loads(found.stats) == json.loads(add.stats) | {"tightBounds": False}
    assert (found.rows, found.live_rows, found.slots, found.keys) == (3, 1, add.slots, add.keys)
    assert found.id != add.id
    assert found.json()["tags"] == add.json()["tags"]


def test_bounds_of_another_engine_stay_if_rows_are_hidden() -> None:
    """Otherwise a bound with half of a character, which UTF-8 cannot express, would become another text, and queries
    would skip rows.
    """
    bounds = {"numRecords": 2, "minValues": {"a": "\ud83d"}, "maxValues": {"a": "\ud83d"}}
    merged = Add(path="f", size=1, rows=2, modified_ms=1, stats=json.dumps(bounds))
    found = hidden(merged, Vector(storage="i", body="", size=0, rows=1))
    written = LogVersion.loads(LogVersion(adds=(found,)).dumps(), where="version 1")
    assert json.loads(written.adds[0].stats) == bounds | {"tightBounds": False}
