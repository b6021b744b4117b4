"""Dates, times and numbers in another notation, in CSV and JSON: values, mismatches with their reasons, inference."""

import io
import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from s3notify_platform.formats import inference
from s3notify_platform.formats.base import Format
from s3notify_platform.formats.object_bytes import BytesInMemory
from s3notify_platform.formats.records import Parsed, Target
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.source.format_settings import FormatSettings

DAY, UTC_TIME, TIME = pa.date32(), pa.timestamp("us", tz="UTC"), pa.timestamp("us")
MONEY, FLOAT, TEXT, INT = pa.decimal128(12, 2), pa.float64(), pa.string(), pa.int64()
FMTS = ["csv", "tsv", "jsonl", "json"]


def form_of(fmt: str, **settings: str) -> Format:
    return FORMATS[fmt].configured(FormatSettings(**settings))


def body_of(fmt: str, rows: list[dict[str, Any]]) -> bytes:
    """An object with these rows of strings and numbers."""
    if fmt in ("json", "jsonl"):
        lines = [json.dumps(row) for row in rows]
        return ("[" + ",\n".join(lines) + "]").encode() if fmt == "json" else "\n".join(lines).encode()
    separator, text = "\t" if fmt == "tsv" else ",", io.StringIO()
    text.write(separator.join(rows[0]) + "\n")
    for row in rows:
        text.write(separator.join(f'"{value}"' for value in row.values()) + "\n")
    return text.getvalue().encode()


def take(
    form: Format, body: bytes, schema: pa.Schema, *, rescue: bool = False, inferred: bool = False
) -> tuple[list[dict[str, Any]], list[str]]:
    target = Target(schema=schema, rescue=rescue, inferred=inferred)
    parsed: list[Parsed] = [*form.parse([("k", body)], target)]
    for part in parsed:
        part.table.validate(full=True)
    rows = [row for part in parsed for row in part.table.to_pylist()]
    return rows, [reject.reason for part in parsed for reject in part.rejects]


def inferred(form: Format, body: bytes) -> dict[str, str]:
    found = inference.infer(form.schemas(BytesInMemory(body), "k", "utf-8"))
    assert found is not None
    return {column.name: str(column.type) for column in found}


@pytest.mark.parametrize("fmt", FMTS)
def test_a_notation_applies_by_column(fmt: str) -> None:
    """Otherwise a source with two forms of dates could not be read. The pattern for one column would reject
    correct values in another column.
    """
    form = form_of(
        fmt,
        date_format="dd.MM.yyyy|born=yyyyMMdd",
        timestamp_format="dd.MM.yyyy HH:mm|ordered=yyyy/MM/dd",
        decimal_comma="amount|rate",
    )
    days = {"day": DAY, "born": DAY, "at": UTC_TIME, "ordered": UTC_TIME, "local": TIME}
    schema = pa.schema(days | {"amount": MONEY, "rate": FLOAT, "plain": FLOAT, "note": TEXT})
    row = {
        "day": "31.01.2026", "born": "19700203", "at": "31.01.2026 07:05", "ordered": "2026/02/03",
        "local": "31.01.2026 07:05", "amount": "1.234,50", "rate": "-0,125", "plain": "0.125", "note": "1,5",
    }  # fmt: skip
    body = body_of(fmt, [row])
    if fmt.startswith("json"):
        body = body.replace(b'"0.125"', b"0.125")
    assert take(form, body, schema) == (
        [
            {
                "day": date(2026, 1, 31),
                "born": date(1970, 2, 3),
                "at": datetime(2026, 1, 31, 7, 5, tzinfo=UTC),
                "ordered": datetime(2026, 2, 3, tzinfo=UTC),
                "local": datetime(2026, 1, 31, 7, 5),
                "amount": Decimal("1234.50"),
                "rate": -0.125,
                "plain": 0.125,
                "note": "1,5",
            }
        ],
        [],
    )


@pytest.mark.parametrize("count", [3, 200])
@pytest.mark.parametrize("fmt", FMTS)
def test_a_value_in_another_notation_does_not_fit(fmt: str, count: int) -> None:
    """If the text 12.50 were read with a decimal comma, the amount would silently become 1250. Without the notation in
    the reason, a user would not see why a usual text like 12.50 is refused.
    """
    form = form_of(fmt, date_format="dd.MM.yyyy", timestamp_format="d.M.yy H:mm", decimal_comma="all")
    schema = pa.schema([("id", INT), ("day", DAY), ("at", UTC_TIME), ("amount", MONEY)])
    good = {"day": "31.01.2026", "at": "1.2.26 7:05", "amount": "1.234,5"}
    bad = [
        {"day": "2026-01-31"},
        {"day": "31.02.2026"},
        {"at": "2026-01-31T07:05:00Z"},
        {"amount": "12.50"},
        {"amount": "1.2345,0"},
        {"amount": "1,234"},
    ]
    rows = [{"id": n, **good} for n in range(count)] + [
        {"id": count + n, **good, **one} for n, one in enumerate(bad)
    ]
    random.Random(7).shuffle(rows)
    body = body_of(fmt, rows)
    found, reasons = take(form, body, schema)
    assert sorted(row["id"] for row in found) == [*range(count)]
    assert {row["amount"] for row in found} == {Decimal("1234.50")}
    assert {row["at"] for row in found} == {datetime(2026, 2, 1, 7, 5, tzinfo=UTC)}
    assert sorted(reasons) == [
        "amount: '1,234' does not fit decimal(12,2), written with a decimal comma (decimal_comma)",
        "amount: '1.2345,0' does not fit decimal(12,2), written with a decimal comma (decimal_comma)",
        "amount: '12.50' does not fit decimal(12,2), written with a decimal comma (decimal_comma)",
        "at: '2026-01-31T07:05:00Z' does not fit timestamp, written as d.M.yy H:mm (timestamp_format)",
        "day: '2026-01-31' does not fit date, written as dd.MM.yyyy (date_format)",
        "day: '31.02.2026' does not fit date, written as dd.MM.yyyy (date_format)",
    ]
    rescued, reasons = take(form, body, schema, rescue=True)
    assert reasons == []
    assert sorted(json.dumps(json.loads(row["_rescued"])) for row in rescued if row["_rescued"]) == sorted(
        json.dumps(one) for one in bad
    )


@pytest.mark.parametrize("fmt", FMTS)
def test_times_without_a_zone_are_in_the_set_zone(fmt: str) -> None:
    """Otherwise all local times of a source would be read as UTC, and would be wrong by hours. A time that clocks show
    twice in autumn means the first of the two moments. A time that clocks skip in spring does not fit.
    """
    texts = {
        "2026-01-31T12:00:00": datetime(2026, 1, 31, 11, tzinfo=UTC),
        "2026-07-31 12:00:00.5": datetime(2026, 7, 31, 10, 0, 0, 500_000, tzinfo=UTC),
        "2026-07-31": datetime(2026, 7, 30, 22, tzinfo=UTC),
        "2026-07-31T12:00:00Z": datetime(2026, 7, 31, 12, tzinfo=UTC),
        "2026-07-31T12:00:00.123456789": datetime(2026, 7, 31, 10, 0, 0, 123_456, tzinfo=UTC),
        "2026-07-31T12:00:00-05:00": datetime(2026, 7, 31, 17, tzinfo=UTC),
        "2026-10-25T02:30:00": datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
    }
    form = form_of(fmt, time_zone="Europe/Berlin")
    rows = [{"at": text} for text in texts]
    schema = pa.schema([("at", UTC_TIME)])
    found, reasons = take(form, body_of(fmt, [*rows, {"at": "2026-03-29T02:30:00"}]), schema)
    assert [row["at"] for row in found] == [*texts.values()]
    assert reasons == ["at: '2026-03-29T02:30:00' does not fit timestamp"]
    local, _ = take(form, body_of(fmt, rows[:1]), pa.schema([("at", TIME)]))
    assert local == [{"at": datetime(2026, 1, 31, 12)}]
    patterned = form_of(fmt, time_zone="America/New_York", timestamp_format="dd.MM.yyyy HH:mm[X]")
    found, _ = take(
        patterned, body_of(fmt, [{"at": "31.01.2026 12:00"}, {"at": "31.01.2026 12:00+01"}]), schema
    )
    assert [row["at"].hour for row in found] == [17, 11]


@pytest.mark.parametrize("fmt", FMTS)
def test_a_column_may_have_a_zone_of_its_own(fmt: str) -> None:
    form = form_of(fmt, time_zone="Europe/Berlin|there=America/New_York|sent=UTC")
    schema = pa.schema([(name, UTC_TIME) for name in ("at", "there", "sent")])
    (row,), reasons = take(form, body_of(fmt, [dict.fromkeys(schema.names, "2026-01-31T12:00:00")]), schema)
    assert (row["at"].hour, row["there"].hour, row["sent"].hour, reasons) == (11, 17, 12, [])


@pytest.mark.parametrize("fmt", ["csv", "jsonl"])
def test_a_null_stays_null_under_a_notation(fmt: str) -> None:
    form = form_of(
        fmt,
        date_format="dd.MM.yyyy",
        timestamp_format="dd.MM.yyyy",
        decimal_comma="all",
        time_zone="Asia/Tokyo",
    )
    schema = pa.schema([("n", INT), ("day", DAY), ("at", UTC_TIME), ("amount", MONEY), ("rate", FLOAT)])
    body = (
        b"n,day,at,amount,rate\n1,,NULL,,\n"
        if fmt == "csv"
        else b'{"n":1,"day":null,"at":null,"rate":null}\n'
    )
    (row,), reasons = take(form, body, schema)
    assert (row.pop("n"), {*row.values()}, reasons) == (1, {None}, [])


def test_a_notation_applies_in_objects_and_lists_by_path() -> None:
    """If several paths apply, the longest path decides. Otherwise dates in `o.born` would be read with the pattern of
    `o`, and correct dates would become rejects.
    """
    form = form_of(
        "jsonl", date_format="dd.MM.yyyy|o=yyyy/MM/dd|o.born=yyyyMMdd", decimal_comma="lines.amount|rates"
    )
    kinds = pa.struct([("born", DAY), ("day", DAY)])
    line = pa.struct([("amount", MONEY), ("count", FLOAT)])
    schema = pa.schema([("o", kinds), ("day", DAY), ("lines", pa.list_(line)), ("rates", pa.list_(FLOAT))])
    good = {
        "o": {"born": "19700203", "day": "2026/01/31"},
        "day": "31.01.2026",
        "lines": [{"amount": "1.000,5", "count": 1.5}, {"amount": None}],
        "rates": ["0,5", "1.000"],
    }
    worse = {
        "o": {"born": "1970-02-03", "day": "2026/01/31"},
        "lines": [{"amount": "7,5"}, {"amount": "7.5"}],
    }
    found, reasons = take(form, body_of("jsonl", [good, worse]), schema)
    assert found == [
        {
            "o": {"born": date(1970, 2, 3), "day": date(2026, 1, 31)},
            "day": date(2026, 1, 31),
            "lines": [{"amount": Decimal("1000.50"), "count": 1.5}, {"amount": None, "count": None}],
            "rates": [0.5, 1000.0],
        }
    ]
    assert reasons == ["o.born: '1970-02-03' does not fit, written as yyyyMMdd (date_format)"]
    rescued, _ = take(form, body_of("jsonl", [worse]), schema, rescue=True)
    assert json.loads(rescued[0]["_rescued"]) == {"o.born": "1970-02-03", "lines[1].amount": "7.5"}
    assert rescued[0]["lines"][0] == {"amount": Decimal("7.50"), "count": None}


@pytest.mark.parametrize("fmt", ["jsonl", "json"])
@pytest.mark.parametrize("count", [2, 100])
def test_json_numbers_keep_their_decimal_point(fmt: str, count: int) -> None:
    """If the decimal comma also applied to JSON numbers, 1.234 would be loaded as 1234, and 1.5 would be a reject."""
    form, schema = (
        form_of(fmt, decimal_comma="all"),
        pa.schema([("amount", MONEY), ("rate", FLOAT), ("s", TEXT)]),
    )
    numbers = [{"amount": 1.5, "rate": -2.25, "s": "é\n"} for _ in range(count)]
    texts = [{"amount": "1.234", "rate": "-2,25"} for _ in range(count)]
    of_numbers = {"amount": Decimal("1.50"), "rate": -2.25, "s": "é\n"}
    of_texts = {"amount": Decimal(1234), "rate": -2.25, "s": None}
    for rows, expected in (
        (numbers, [of_numbers] * count),
        (texts, [of_texts] * count),
        ([row for pair in zip(numbers, texts, strict=True) for row in pair], [of_numbers, of_texts] * count),
    ):
        assert take(form, body_of(fmt, rows), schema) == (expected, [])
    escaped = json.dumps(texts[0]).replace("amount", "\\u0061mount").encode()
    assert take(form, b"[" + escaped + b"]" if fmt == "json" else escaped, schema) == ([of_texts], [])


NOTED = {
    "date_format": "dd.MM.yyyy|born=yyyyMMdd", "timestamp_format": "dd.MM.yyyy HH:mm", "decimal_comma": "all",
}  # fmt: skip


@pytest.mark.parametrize("fmt", FMTS)
def test_types_are_inferred_in_the_notation(fmt: str) -> None:
    """Otherwise a column of dates like 31.01.2026 would be a string, and users would have to convert each value. Times
    in ISO 8601 stay texts, because a column with another pattern would reject such times.
    """
    row = {
        "day": "31.01.2026", "born": "19700203", "at": "31.01.2026 07:05", "amount": "1.234,50", "code": "a,5",
        "iso": "2026-01-31T12:00:00", "id": "0815",
    }  # fmt: skip
    found = inferred(form_of(fmt, **NOTED), body_of(fmt, [row, row]))
    assert found == {
        "day": "date32[day]",
        "born": "date32[day]",
        "at": "timestamp[us, tz=UTC]",
        "amount": "double",
        "code": "string",
        "iso": "string",
        "id": "int64" if fmt in ("csv", "tsv") else "string",
    }


def test_types_are_inferred_in_objects_and_lists() -> None:
    row = {"o": {"at": ["31.01.2026 07:05"], "n": 1}, "l": [{"day": "31.01.2026"}, {"day": None}], "e": []}
    found = inferred(form_of("jsonl", **NOTED), body_of("jsonl", [row]))
    assert found == {
        "o": "struct<at: list<item: timestamp[us, tz=UTC]>, n: int64>",
        "l": "list<item: struct<day: date32[day]>>",
        "e": "list<item: string>",
    }


@pytest.mark.parametrize(("fmt", "count"), [("csv", 1), ("csv", 100), ("jsonl", 1), ("jsonl", 100)])
def test_new_fields_have_the_type_of_the_notation(fmt: str, count: int) -> None:
    target = Target(schema=pa.schema([("id", INT)]), inferred=True)
    form, body = form_of(fmt, **NOTED), body_of(fmt, [{"id": n, "day": "31.01.2026"} for n in range(count)])
    (parsed,) = form.parse([("k", body)], target)
    assert len(parsed.rejects) == count
    assert {str(one.field("day").type) for one in parsed.new_fields} == {"date32[day]"}


@pytest.mark.parametrize("fmt", FMTS)
def test_values_are_read_as_usual_without_settings_of_a_notation(fmt: str) -> None:
    """Without settings of a notation, values must be read as usual."""
    assert FORMATS[fmt].configured(FormatSettings()) is FORMATS[fmt]
    assert FORMATS[fmt].configured(FormatSettings(time_zone="UTC")) == FORMATS[fmt] or fmt in (
        "csv",
        "tsv",
        "json",
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"date_format": "dd.MM.YYYY"}, "date_format 'dd.MM.YYYY': 'YYYY' is not supported"),
        ({"date_format": "yyyy-MM-dd HH:mmX"}, "a date has no zone"),
        ({"timestamp_format": "yyyy|"}, "give a pattern, or several like column=pattern"),
        ({"timestamp_format": "=yyyy"}, "give a pattern, or several like column=pattern"),
        ({"timestamp_format": "yyyy|yy"}, "all columns has two values"),
        ({"timestamp_format": "a=yyyy|a=yy"}, "column 'a' has two values"),
        (
            {"time_zone": "Berlin"},
            "time_zone 'Berlin': this system has no such zone: give an IANA name",
        ),
        ({"time_zone": "Europe/Berlin|at="}, "give a zone, or several like column=zone"),
        ({"time_zone": "UTC|at=Mars"}, "time_zone 'Mars': this system has no such zone"),
        ({"decimal_comma": "a||b"}, r"decimal_comma 'a\|\|b': give columns"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, str], said: str) -> None:
    for fmt in FMTS:
        with pytest.raises(UsageError, match=said):
            form_of(fmt, **settings)
