"""Keys and ranks as texts: equal values have equal texts, and ranks sort like the values."""

from datetime import UTC, date, datetime
from decimal import Decimal
from math import inf, nan
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_KEY_BYTES
from s3notify_platform.table.latest.ranks import (
    check_key,
    check_order,
    key_texts,
    object_key_of,
    rank_texts,
)

TIME = pa.timestamp("us", "UTC")

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [None, -(2**63), -5, -1, 0, 1, 9, 10, 2**63 - 1]),
    (pa.int8(), [None, -128, 0, 127]),
    (pa.bool_(), [None, False, True]),
    (pa.float64(), [None, -inf, -2.5, -0.0, 1e-300, 2.5, inf, nan]),
    (pa.float32(), [None, -inf, -2.5, 0.0, 2.5, inf, nan]),
    (
        pa.decimal128(38, 2),
        [None, Decimal("-1e35"), Decimal("-0.01"), Decimal(0), Decimal("0.01"), Decimal("1e35")],
    ),
    (
        pa.string(),
        [None, "", "\x00", "\x00\x00", "\x01", "a", "a\x00", "a\x00b", "a\x01", "aa", "b", "é", "\U0001f600"],
    ),
    (pa.date32(), [None, date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)]),
    (
        TIME,
        [
            None,
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(1970, 1, 1, tzinfo=UTC),
            datetime(1970, 1, 1, 0, 0, 0, 1, UTC),
        ],
    ),
    (pa.timestamp("us"), [None, datetime(1960, 1, 1), datetime(2026, 1, 1)]),
]


def ranks(order, modified=None, keys=None, offsets=None):
    count = len(order)
    times = pa.nulls(count, TIME) if modified is None else pa.array(modified, TIME)
    keys = pa.array(["k"] * count if keys is None else keys, pa.string())
    return rank_texts([order], times, keys, pa.array(offsets or [0] * count, pa.int64())).to_pylist()


@pytest.mark.parametrize(
    ("kind", "values"), VALUES, ids=lambda each: str(each) if isinstance(each, pa.DataType) else ""
)
def test_ranks_sort_like_values(kind, values):
    """Otherwise a wrong row would be the newest row. Columns that are slices of longer columns are tested, too."""
    check_order("at", kind)
    found = ranks(pa.array(values, kind))
    assert found == sorted(found)
    assert len({*found}) == len(values)
    assert ranks(pa.array([None, *values[::-1], None], kind).slice(1, len(values))) == found[::-1]
    assert ranks(pa.array([None, None], kind)) == [found[0]] * 2


def test_equal_values_have_equal_ranks():
    assert len({*ranks(pa.array([0.0, -0.0], pa.float64()))}) == 1
    other_nan = pa.array([0x7FF8000000000001, 0xFFF8000000000000], pa.uint64()).view(pa.float64())
    assert len({*ranks(other_nan)}) == 1


def test_ties_are_broken_by_time_key_and_offset():
    """Otherwise a later part of the rank would decide although an earlier part differs."""
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    order = pa.array([1] * 6 + [2], pa.int64())
    found = ranks(
        order,
        [None, early, early, early, early, late, None],
        ["z", "a", "a", "a\x00", "b", "", ""],
        [9, 1, 10, 0, 0, 0, 0],
    )
    assert found == sorted(found)
    assert len({*found}) == len(found)


texts = st.text(max_size=4) | st.text("\x00\x01\x7fa0", max_size=4)


@given(st.lists(st.tuples(st.none() | texts, texts, st.integers(0, 3)), min_size=2, max_size=6))
def test_ranks_of_texts_sort_like_their_parts(rows):
    order, keys, offsets = zip(*rows, strict=True)
    found = ranks(pa.array(order, pa.string()), None, keys, [*offsets])
    places = [(value is not None, value or "", key, offset) for value, key, offset in rows]
    by_rank = sorted(range(len(rows)), key=lambda n: found[n])
    assert [places[n] for n in by_rank] == sorted(places)
    assert [object_key_of(rank, [pa.string()]) for rank in found] == [*keys]


@pytest.mark.parametrize(
    ("kind", "values"), VALUES, ids=lambda each: str(each) if isinstance(each, pa.DataType) else ""
)
def test_object_is_found_from_the_rank(kind, values):
    found = ranks(pa.array(values, kind), None, [f"raw/\x00{n}" for n in range(len(values))])
    assert [object_key_of(rank, [kind]) for rank in found] == [f"raw/\x00{n}" for n in range(len(values))]


def test_keys_are_values_as_text():
    found = key_texts([pa.array([1, None, 20], pa.int64())])
    assert found.to_pylist() == ["1", None, "20"]
    assert key_texts([pa.array([Decimal("1.50")], pa.decimal128(9, 2))]).to_pylist() == ["1.50"]
    at = pa.array([datetime(2026, 1, 2, 3, 4, 5, 6, UTC)], TIME)
    assert key_texts([at]).to_pylist() == ["2026-01-02T03:04:05.000006Z"]


def test_keys_of_several_columns_are_distinct():
    rows = [("a|", "b"), ("a", "|b"), ("a\\", "b"), ("a", "\\|b"), ("a|b", ""), (None, "b"), ("a", None)]
    one, other = zip(*rows, strict=True)
    found = key_texts([pa.array(one), pa.array(other)]).to_pylist()
    assert found[-2:] == [None, None]
    assert len({*found[:-2]}) == len(rows) - 2


def test_long_keys_become_a_hash():
    long = ["x" * MAX_KEY_BYTES, "x" * (MAX_KEY_BYTES + 1), "é" * MAX_KEY_BYTES, None]
    found = key_texts([pa.array(long)]).to_pylist()
    assert found[0] == long[0]
    assert found[3] is None
    assert [each.startswith("blake3:") for each in found[1:3]] == [True, True]
    assert found[1] != found[2]


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.list_(pa.int64()), pa.binary(), pa.struct([("a", pa.int64())])]
)
def test_column_that_cannot_be_a_key_is_refused(kind):
    with pytest.raises(UsageError, match=r"latest: key column 'id' is .*: use whole numbers"):
        check_key("id", kind)


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.binary(), pa.struct([("a", pa.int64())])])
def test_column_without_an_order_is_refused(kind):
    with pytest.raises(UsageError, match=r"latest: order_by column 'at' is .*: use numbers"):
        check_order("at", kind)
