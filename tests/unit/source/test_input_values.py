"""Notation, payload and rules of a source: errors when the source is loaded."""

import pickle
from typing import Any

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.source.source import Input
from s3notify_platform.stores.config import S3Config


def input_of(**settings: Any) -> Input:
    return Input(bucket=S3Config(bucket="b"), **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"format": "parquet", "date_format": "yyyy"},
            "date_format is only for jsonl, json, csv, tsv, and format is par",
        ),
        (
            {"format": "text", "decimal_comma": "all"},
            "decimal_comma is only for jsonl, json, csv, tsv, and format is text",
        ),
        ({"format": "orc", "time_zone": "Asia/Tokyo"}, "time_zone is only for jsonl"),
        ({"time_zone": "Mars/Base"}, "time_zone 'Mars/Base': this system has no such zone"),
        (
            {"schema": "at timestamp", "timestamp_format": "ad=yyyy"},
            "timestamp_format: there is no column 'ad'",
        ),
        (
            {"schema": "o struct<at date>", "date_format": "p.at=yyyy"},
            "date_format: there is no column 'p.at'",
        ),
        ({"schema": "a double", "decimal_comma": "b"}, "decimal_comma: there is no column 'b' in the schema"),
        ({"format": "parquet", "payload_column": "raw"}, "objects of format parquet have no raw records"),
        ({"format": "binary", "payload_column": "raw"}, "objects of format binary have no raw records"),
        ({"payload_column": "_raw"}, "names that begin with _ are reserved"),
        (
            {"payload_column": "Dt", "partition_columns": "dt date"},
            "the names in partition_columns are taken",
        ),
        (
            {"payload_column": "raw", "schema": "id int, Raw string"},
            "'Raw' is a data column, and also in payload_column",
        ),
        (
            {"payload_column": "value", "format": "text"},
            "'value' is a data column, and also in payload_column",
        ),
        ({"expect": "a >"}, "expect: rule 'a >' does not parse"),
        (
            {"expect": "b > 0", "schema": "a int"},
            "expect: rule 'b > 0': there is no column 'b', only a; correct",
        ),
        ({"expect": "a > 'x'", "schema": "a int"}, "'a' is int, and cannot be compared with 'x'"),
        (
            {"expect_warn": "a > 0", "format": "text"},
            "expect_warn: rule 'a > 0': there is no column 'a', only value",
        ),
    ],
)
def test_settings_that_contradict_the_format_or_schema_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        input_of(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"schema": "at timestamp, o struct<at date>", "timestamp_format": "at=yyyy", "date_format": "o.at=yyyy"},
        {"schema": "`a.b` date", "date_format": "`a.b`=yyyy"},
        {"schema": "amount decimal(12, 2), v variant", "expect": "amount >= 0 and v is not null"},
        {"schema": "a int -- of Spark", "expect": "b > 0"},
        {"expect": "b > 0", "date_format": "x=yyyy"},
        {"expect": "value like '%x%'", "format": "text", "payload_column": "raw"},
        {"schema": "a int", "mismatches": "rescue", "expect": "_rescued is null"},
        {"schema": "a int", "partition_columns": "dt date", "expect": "dt is not null"},
    ],
)  # fmt: skip
def test_settings_that_only_data_or_spark_can_check_are_accepted(settings: dict[str, Any]) -> None:
    """It must also be possible to pickle the input, because it is sent to Spark's tasks."""
    given = input_of(**settings)
    assert pickle.loads(pickle.dumps(given)) == given
