"""The search for a row finds each file that has the row, and as few other files as the statistics allow."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from math import inf, nan
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.table.clustered.bounds import files_of
from s3notify_platform.table.delta.actions import Add
from s3notify_platform.table.delta.statistics import add_of, without_nan

VALUES: dict[pa.DataType, Any] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats() | st.sampled_from([0.0, -0.0, nan, inf, -inf]),
    pa.decimal128(20, 3): st.decimals(-(10**16), 10**16, places=3),
    pa.string(): st.text(max_size=4) | st.text("ab", min_size=30, max_size=40),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.timestamp("us"): st.datetimes(),
}


def add(values: list[Any], kind: pa.DataType, path: str = "f") -> Add:
    """Returns the log's entry of a file whose column has these values."""
    table = pa.table({"v": pa.array(values, kind)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    footer = pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata
    return add_of(path, footer, size=1, modified_ms=1, since=1, until=1, no_nan=without_nan(table))


def files(packs: list[Add], values: list[Any], kind: pa.DataType) -> dict[str, list[int]]:
    found = files_of(packs, pa.table({"v": pa.array(values, kind)}), ["v"])
    return {path: rows.tolist() for path, rows in found.items()}


@pytest.mark.parametrize("kind", VALUES, ids=str)
@given(data=st.data())
def test_file_with_the_row_is_always_found(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=5))
    assert files([add(values, kind)], values, kind) == {"f": [*range(len(values))]}


@pytest.mark.parametrize(
    ("kind", "low", "within", "high"),
    [
        (pa.int64(), 1, 5, 9),
        (pa.float64(), 1.5, 5.0, 9.5),
        (pa.decimal128(9, 2), Decimal("1.00"), Decimal("5.00"), Decimal("9.00")),
        (pa.string(), "b", "c", "d"),
        (pa.date32(), date(2026, 1, 2), date(2026, 1, 3), date(2026, 1, 4)),
        (
            pa.timestamp("us", "UTC"),
            datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC), datetime(2026, 1, 4, tzinfo=UTC),
        ),
    ],
    ids=str,
)  # fmt: skip
def test_files_without_the_row_are_left_out(kind: pa.DataType, low: Any, within: Any, high: Any) -> None:
    """Otherwise the search would read files whose bounds exclude the row's value, or files without nulls if the row's
    value is null.
    """
    packs = [
        add([low, within], kind, "first"), add([high], kind, "second"), add([high, None], kind, "third"),
        add([None], kind, "nulls"),
    ]  # fmt: skip
    assert files(packs, [low, within, high, None], kind) == {
        "first": [0, 1],
        "second": [2],
        "third": [2, 3],
        "nulls": [3],
    }


def test_file_without_statistics_may_hold_any_value() -> None:
    whole = Add(path="f", size=1, rows=2, modified_ms=1)
    assert files([whole], [1, None], pa.int64()) == {"f": [0, 1]}


@pytest.mark.parametrize(
    ("stats", "value", "kind"),
    [
        ({"minValues": {"v": 1.5}, "maxValues": {"v": "NaN"}}, nan, pa.float64()),
        ({"minValues": {"v": "-Infinity"}, "maxValues": {"v": 2.5}}, 2.0, pa.float64()),
        ({"minValues": {"v": 1.5}, "maxValues": {"v": 2.5}}, nan, pa.float64()),
        ({"minValues": {"v": 2**70}}, 1, pa.int64()),
        ({"minValues": {"v": "\ud83d"}, "maxValues": {"v": "z\ud83d"}}, "z", pa.string()),
        ({"maxValues": {"v": "+10000-01-01"}}, date(9999, 1, 1), pa.date32()),
        (
            {"maxValues": {"v": "2026-01-01T00:00:00.123Z"}},
            datetime(2026, 1, 1, microsecond=123_999, tzinfo=UTC), pa.timestamp("us", "UTC"),
        ),
    ],
    ids=str,
)  # fmt: skip
def test_bounds_of_other_engines_leave_out_no_row(
    stats: dict[str, Any], value: Any, kind: pa.DataType
) -> None:
    """Otherwise each step would fail after an OPTIMIZE of another engine, because a bound could not be converted, or a
    withdrawn row would not be found.
    """
    merged = Add(path="f", size=1, rows=1, modified_ms=1, stats=json.dumps(stats))
    assert files([merged], [value], kind) == {"f": [0]}
