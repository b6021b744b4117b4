"""Notation, raw records, and rules on rows, in tables, queries and quarantine. Date patterns are compared with the
patterns of Spark.
"""

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from s3notify_platform.formats.arrow_values import timestamps
from s3notify_platform.formats.time_patterns import time_pattern
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.spark.continuous import ContinuousIngest
from s3notify_platform.spark.datasource.query import register
from s3notify_platform.table.quarantined import Choice, retry
from tests.support.spark import Lake
from tests.support.spark_options import options_of

pytestmark = [pytest.mark.spark, pytest.mark.server]

CSV = b"""id;day;at;amount
1;31.01.2026;31.01.2026 07:05;"1.234,50"
2;2026-01-31;31.01.2026 07:05;1
3;01.02.2026;01.07.2026 12:00;-7,5
"""
NOTED = {
    "format": "csv", "csv_delimiter": ";", "date_format": "dd.MM.yyyy", "timestamp_format": "dd.MM.yyyy HH:mm",
    "time_zone": "Europe/Berlin", "decimal_comma": "all",
}  # fmt: skip
SCHEMA = "id int, day date, at timestamp, amount decimal(12,2)"
FIRST = {
    "id": 1,
    "day": dt.date(2026, 1, 31),
    "at": dt.datetime(2026, 1, 31, 6, 5, tzinfo=dt.UTC),
    "amount": Decimal("1234.50"),
    "raw": '1;31.01.2026;31.01.2026 07:05;"1.234,50"',
}


def test_corrected_rules_and_notation_bring_records_back_from_quarantine(
    lake_of: Callable[..., Lake],
) -> None:
    """A transform must get the raw record, too. After rules and notation are corrected, a retry must ingest the
    rejected records.
    """

    def transform(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("*", "length(raw) as n").where("raw like '%;%'")

    lake = lake_of(slots=1, schema=SCHEMA, payload_column="raw", expect="positive: amount >= 0", **NOTED)
    lake.put("a.csv", CSV)
    result = lake.ingest(transform=transform)
    assert lake.values() == [FIRST | {"n": 40}]
    assert [(row["reason"], row["raw"]) for row in lake.rejects()] == [
        (
            "day: '2026-01-31' does not fit date, written as dd.MM.yyyy (date_format)",
            b"2;2026-01-31;31.01.2026 07:05;1",
        ),
        ("breaks the rule positive: amount >= 0", b"3;01.02.2026;01.07.2026 12:00;-7,5"),
    ]
    (slot,) = result.slots.values()
    assert (slot.ok, slot.rows, slot.rejects, slot.broken) == (True, 1, 2, {"positive": 1})

    mended = lake.with_source(
        expect="", expect_warn="positive: amount >= 0", date_format="yyyy-MM-dd|day=d.M.yyyy"
    )
    source = mended.source
    signals = Publisher(
        source.table().reader.store, prefix=source.location.keyspace_prefix, slots=1, queued=True
    )
    retry(source.table(), source.location.all_slots(), signals, Choice())
    said: list[str] = []
    ContinuousIngest(spark=mended.spark, source=source, progress=said.append).run(
        Event(), every_seconds=None, sweep=False
    )
    assert [row["id"] for row in mended.values()] == [1, 3]
    assert "1 rows break the rule positive" in said
    assert [row["reason"].split(",")[0] for row in mended.rejects()] == [
        "day: '2026-01-31' does not fit date"
    ]


def test_inference_uses_the_notation_of_values(lake_of: Callable[..., Lake]) -> None:
    """The notation must determine the inferred types. A rule for a missing column must be refused before any object is
    read.
    """
    lake = lake_of(slots=1, payload_column="raw", expect="positive: amount >= 0", **NOTED)
    lake.put("a.csv", CSV.replace(b"2026-01-31", b"31.01.2026"))
    lake.ingest()
    first, second = lake.values()
    assert first == FIRST | {"amount": 1234.5}
    assert second["id"] == 2
    wrong = lake_of(slots=1, expect="known: region is not null")
    wrong.put("a.jsonl", [{"id": 1}])
    said = "expect: rule 'known': there is no column 'region', only id; correct the rule, or declare the column's type"
    with pytest.raises(UsageError, match=said):
        wrong.ingest()
    hinted = wrong.with_source(schema_hints="region string")
    hinted.ingest()
    assert hinted.values() == []
    assert [row["reason"] for row in hinted.rejects()] == ["breaks the rule known: region is not null"]


def test_query_applies_notation_and_rules(spark: SparkSession, lake_of: Callable[..., Lake]) -> None:
    """Spark's names of these settings must be accepted. Rows that break a rule must be rejects by default. Other
    settings drop these rows, or let the query fail.
    """
    register(spark)
    lake = lake_of(schema=SCHEMA, format="csv")
    lake.put("a.csv", CSV)

    def frame(**more: str) -> DataFrame:
        given = options_of(
            lake.source, sep=";", decimal_comma="amount", payload_column="raw", expect="amount >= 0", **more
        )
        given |= {
            "dateFormat": "dd.MM.yyyy",
            "timestampFormat": "dd.MM.yyyy HH:mm",
            "timeZone": "Europe/Berlin",
        }
        return spark.read.format("s3notify").options(**given).load()

    rows = sorted(frame().toArrow().to_pylist(), key=lambda row: int(row["_offset"]))
    assert {name: rows[0][name] for name in FIRST} == FIRST
    assert [row["_rejected"] and row["_rejected"].split(":")[0] for row in rows] == [
        None, "day", "breaks the rule amount >= 0",
    ]  # fmt: skip
    assert rows[2]["_raw"] == b"3;01.02.2026;01.07.2026 12:00;-7,5"
    assert frame(mode="DROPMALFORMED").count() == 1
    with pytest.raises(PySparkException, match=r"breaks the rule|does not fit"):
        frame(mode="FAILFAST").collect()


def test_payload_column_added_later_is_null_in_earlier_rows(lake_of: Callable[..., Lake]) -> None:
    """The payload column must be null in earlier rows until their objects are read again."""
    plain = lake_of(slots=1)
    plain.put("a.jsonl", [{"id": 1}])
    plain.ingest()
    lake = plain.with_source(payload_column="raw")
    lake.put("b.jsonl", [{"id": 2}])
    assert lake.ingest().schema_added == {"raw": "string"}
    assert [row["raw"] for row in lake.values()] == [None, json.dumps({"id": 2})]


PATTERNS = {
    "dd.MM.yyyy HH:mm": ["31.01.2026 07:05", "1.1.2026 07:05", "30.02.2026 07:05", "31.01.2026 7:05"],
    "d/M/yy H:m:s": ["3/2/26 7:5:9", "13/12/99 17:15:19", "3/13/26 7:5:9"],
    "MM/dd/yyyy hh:mm a": ["01/31/2026 12:05 AM", "01/31/2026 12:05 PM", "01/31/2026 13:05 PM"],
    "d MMM yyyy": ["3 Feb 2026", "31 Feb 2026"],
    "MMMM d yyyy": ["September 3 2026", "May 31 2026"],
    "yyyy-MM-dd'T'HH:mm:ss.SSSXXX": ["2026-01-31T07:05:09.123+01:00", "2026-01-31T07:05:09.1Z", "2026-01-31T07:05:09Z"],
    "yyyy-MM-dd[ HH:mm[:ss[.SSSSSS]]][X]": ["2026-01-31", "2026-01-31 07:05", "2026-01-31 07:05:09.25+01"],
    "yyyy-MM-dd HH:mmxx": ["2026-01-31 07:05+0530", "2026-01-31 07:05Z"],
    "yyyy-MM-dd HH:mmZ": ["2026-01-31 07:05-0500", "2026-01-31 07:05+01:00"],
    "yyyy.MM.dd 'o''clock' HH": ["2026.01.31 o'clock 07"],
    "yyyy-MM": ["2026-03", "2026-13"],
}  # fmt: skip


def ours(pattern: str, text: str) -> Any:
    try:
        (found,) = timestamps(
            time_pattern(pattern).iso(pa.array([text])), pa.timestamp("us", tz="UTC")
        ).to_pylist()
    except pa.ArrowInvalid:
        return None
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
def test_platform_and_spark_parse_the_same_times_by_each_pattern(spark: SparkSession, pattern: str) -> None:
    """For the same pattern, the platform and Spark must parse the same times, and refuse the same texts."""
    texts = PATTERNS[pattern]
    escaped = pattern.replace("'", "\\'")
    frame = spark.createDataFrame([(text,) for text in texts], "t string").selectExpr(
        f"unix_micros(try_to_timestamp(t, '{escaped}')) as micros"
    )
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone == "UTC"
    found = [ours(pattern, text) for text in texts]
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert [each and (each - epoch) // dt.timedelta(microseconds=1) for each in found] == [
        row["micros"] for row in frame.collect()
    ]
