"""Predicates of rules: their meaning, compared with DuckDB, and the errors for wrong predicates."""

import datetime as dt
from contextlib import suppress
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_RULE_DEPTH
from s3notify_platform.source.rules.evaluation import bound
from s3notify_platform.source.rules.grammar import parsed

ROWS = pa.table(
    {
        "n": pa.array([None, -5, 0, 1, 2, 2**62], pa.int64()),
        "m": pa.array([1, 1, None, 3, 2, 2**62 - 1], pa.int64()),
        "small": pa.array([1, None, 0, 127, 2, -128], pa.int8()),
        "amount": pa.array([None, Decimal("-0.01"), Decimal("0.00"), Decimal("1.50"), 2, 12], pa.decimal128(12, 2)),
        "rate": pa.array([None, -0.5, 0.0, 0.1, 2.0, 1e300], pa.float64()),
        "s": pa.array([None, "", "a", "ab%", "A_b", "it's"], pa.string()),
        "t": pa.array(["a", "a", "a", None, "A_b", "x"], pa.string()),
        "ok": pa.array([None, True, False, True, False, True], pa.bool_()),
        "day": pa.array([None, dt.date(2026, 1, 31), dt.date(1970, 1, 1), dt.date(2026, 2, 1)] * 2, pa.date32())[:6],
        "seen": pa.array(
            [None, dt.datetime(2026, 1, 31, 12), dt.datetime(2026, 1, 31), dt.datetime(1969, 1, 1)] * 2,
            pa.timestamp("us"),
        )[:6],
    }
)  # fmt: skip


def evaluated(predicate: str, rows: pa.Table = ROWS) -> list[bool | None]:
    found: list[bool | None] = bound(parsed(predicate), rows.schema)(
        dict(zip(rows.schema.names, rows.columns, strict=True))
    ).to_pylist()
    return found


def by_duckdb(predicate: str) -> list[bool | None]:
    rows = ROWS  # noqa: F841 - DuckDB finds it by its name
    return [found for (found,) in duckdb.sql(f"select {predicate} from rows").fetchall()]


NUMBERS = st.sampled_from(
    ["0", "-5", "1", "2", "1.5", "0.1", "-0.01", "1e2", "127", "2.0", "0.001", "4611686018427387904"]
)
TEXTS = st.sampled_from(["''", "'a'", "'ab%'", "'A_b'", "'it''s'", "'z'"])
DAYS = st.sampled_from(["'2026-01-31'", "'1970-01-01'", "date '2026-02-01'"])
TIMES = st.sampled_from(["'2026-01-31 12:00:00'", "'2026-01-31'", "timestamp '2026-01-31 00:00:00'"])
GROUPS = (
    (["n", "m", "small", "amount", "rate"], NUMBERS),
    (["s", "t"], TEXTS),
    (["day"], DAYS),
    (["seen"], TIMES),
)  # fmt: skip
SIGNS = st.sampled_from(["=", "==", "!=", "<>", "<", "<=", ">", ">="])


@st.composite
def comparisons(draw: Any) -> str:
    columns, literals = draw(st.sampled_from(GROUPS))
    names = st.sampled_from(columns)
    one, two, column, negated = (
        draw(literals),
        draw(literals),
        draw(names),
        draw(st.sampled_from(["", "not "])),
    )
    other = draw(names)
    pattern = draw(st.sampled_from(["%", "a%", "_", "%b%", "it%s"]))
    return str(
        draw(
            st.sampled_from(
                [
                    f"{column} {draw(SIGNS)} {one}",
                    f"{one} {draw(SIGNS)} {column}",
                    f"{column} is {negated}null",
                    f"{column} {negated}between {one} and {two}",
                    f"{column} {negated}in ({one}, {two})",
                    f"s {negated}like '{pattern}'",
                    "ok",
                    f"ok = {draw(st.sampled_from(['true', 'FALSE']))}",
                    f"{column} {draw(SIGNS)} {other}",
                ]
            )
        )
    )  # fmt: skip


PREDICATES = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "OR"]), inner).map(" ".join),
        inner.map(lambda one: f"NOT ({one})"),
        inner.map(lambda one: f"( {one} )"),
    ),
    max_leaves=6,
)


@given(PREDICATES)
def test_predicates_mean_the_same_as_in_duckdb(predicate: str) -> None:
    """Otherwise a rule would reject records that its SQL predicate allows, or would keep records that break the rule.
    The predicates cover nulls, precedence, numbers of any types, texts, dates and times.
    """
    assert evaluated(predicate) == by_duckdb(predicate), predicate


@pytest.mark.parametrize(
    ("predicate", "found"),
    [
        ("amount >= 0.005", [None, False, False, True, True, True]),
        ("n > 1.5", [None, False, False, False, True, True]),
        ("n = m", [None, False, None, False, True, False]),
        ("n > rate", [None, False, False, True, False, False]),
        ("n < 1e30", [None, True, True, True, True, True]),
        ("N >= 0", [None, False, True, True, True, True]),
        ("`n` >= 0", [None, False, True, True, True, True]),
        ("s like 'ab\\%'", [None, False, False, True, False, False]),
        ("day >= '2026-01-31'", [None, True, False, True, None, True]),
        ("seen > day", [None, True, True, False, None, True]),
    ],
)
def test_more_predicates_give_these_results(predicate: str, found: list[bool | None]) -> None:
    assert evaluated(predicate) == found


def test_nan_equals_nothing_and_fields_of_null_structs_are_null() -> None:
    nan = float("nan")
    rows = pa.table(
        {
            "x": pa.array([1.0, nan, None]),
            "o": pa.array([{"city": "Bonn", "p": {"q": 1}}, None, {"city": None, "p": None}]),
            "odd name": [1, 2, 3],
            "at": pa.array([0, 1, None], pa.timestamp("us", tz="UTC")),
            "l": pa.array([[1], None, []]),
        }
    )
    assert evaluated("x >= 0", rows) == [True, False, None]
    assert evaluated("x < 0 or x >= 0", rows) == [True, False, None]
    assert evaluated("o.city = 'Bonn'", rows) == [True, None, None]
    assert evaluated("o.p.q is not null and `odd name` > 0", rows) == [True, False, False]
    assert evaluated("at <= '1970-01-01T01:00:00+01:00'", rows) == [True, False, None]
    assert evaluated("at >= date '1970-01-01'", rows) == [True, True, None]
    assert evaluated("l is not null", rows) == [True, False, True]


def test_dates_that_no_time_can_express_are_compared() -> None:
    """Otherwise one row with such a date would stop each batch, or each update of the newest rows."""
    last = 2**31 - 1
    rows = pa.table(
        {
            "day": pa.array([last, -last, None], pa.date32()),
            "at": pa.array([0, 0, 0], pa.timestamp("us", "UTC")),
        }
    )
    assert evaluated("day > timestamp '2026-01-31 12:00:00'", rows) == [True, False, None]
    assert evaluated("day < at", rows) == [False, True, None]


@pytest.mark.parametrize(
    ("predicate", "said"),
    [
        ("", "a column or a value is missing before its end"),
        ("amount >", "a column or a value is missing before its end"),
        ("amount > 0 and", "is missing before its end"),
        ("(amount > 0", r"'\)' is missing before its end"),
        ("amount > 0)", r"'\)' follows its end"),
        ("amount > 0 n < 1", "'n' follows its end"),
        ("amount between 1", "'AND' is missing"),
        ("amount not 1", "BETWEEN, IN or LIKE is missing"),
        ("amount in ()", "a column or a value is missing before '\\)'"),
        ("amount in (n)", "'n' is a column, and only a value is allowed there"),
        ("s like t", "'t' is a column, and only a value is allowed there"),
        ("1 = 1", "a comparison without a column is always the same"),
        ("true", "a comparison without a column"),
        ("null is null", "a column or a value is missing before 'null'"),
        ("amount = null", "a column or a value is missing before 'null'"),
        ("amount > 1 + 1", "is not understood"),
        ("amount; drop table x", "is not understood"),
        ("length(s) > 1", r"'\(' follows its end"),
        ("s = 'open", "is not understood"),
        ("amount > 1x", "is not understood"),
        ("amount > " + "9" * 40, "at most 38 digits"),
        ("amount > 1e-50", "at most 38 digits"),
        ("amount > 1e99999", "at most 38 digits"),
        ("not " * (MAX_RULE_DEPTH + 1) + "ok", "nested deeper than 50"),
        ("(" * 400 + "ok" + ")" * 400, "nested deeper than 50"),
        (" or ".join(["ok"] * 600), "more than 1000 words"),
        ("a. > 1", "a column is missing before '>'"),
    ],
)  # fmt: skip
def test_invalid_predicates_are_refused_with_the_reason(predicate: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parsed(predicate)


@pytest.mark.parametrize(
    ("predicate", "said"),
    [
        ("amuont > 0", "there is no column 'amuont', only n, m"),
        ("amount > '0'", "'amount' is decimal.* and cannot be compared with '0'"),
        ("s > 0", "'s' is string, and cannot be compared with Decimal"),
        ("s = t and s = n", "'s' is string, and cannot be compared with 'n', which is bigint"),
        ("ok = 1", "'ok' is boolean, and"),
        ("n", "'n' is bigint, not a boolean"),
        ("n like 'a'", "LIKE compares a column of strings with a text"),
        ("s like 7", "LIKE compares a column of strings with a text"),
        ("day > 'yesterday'", "'yesterday' is not a date, like 2026-01-31"),
        ("day > '2026-02-30'", "is not a date"),
        ("seen > 'noon'", "'noon' is not a time, like"),
        ("day = 1", "'day' is date, and"),
        ("s.x = 1", "'x' is not a field of a struct"),
    ],
)
def test_unknown_columns_and_wrong_types_are_refused(predicate: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        bound(parsed(predicate), ROWS.schema)


@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from(["(", ")", "n", "and", "not", "=", "1", "'a'", ".", ","])).map(" ".join)
)
def test_any_text_parses_or_is_refused(text: str) -> None:
    with suppress(UsageError):
        bound(parsed(text), ROWS.schema)
