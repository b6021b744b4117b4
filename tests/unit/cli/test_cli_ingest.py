"""`s3notify ingest`: what it hands to the streaming query, and what its exit code says."""

from typing import Any

import boto3
import pyspark.sql
import pytest
from click.testing import CliRunner

from s3notify_platform.cli import main
from s3notify_platform.local import java
from s3notify_platform.spark import continuous

ARGUMENTS = ["ingest", "orders", "--bucket", "landing", "--prefix", "raw/"]


class Anything:
    """Stands for Spark and for the query."""

    failing: dict[int, str]

    def __init__(self) -> None:
        self.failing = {}

    def __getattr__(self, name: str) -> "Anything":
        return self

    def __call__(self, *_: Any, **__: Any) -> "Anything":
        return self


@pytest.fixture
def started(moto_aws: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that the query was started with, and what it works with."""
    for bucket in ("landing", "own"):
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=bucket)
    seen: dict[str, Any] = {"keeper": Anything()}

    def start(spark: Any, options: dict[str, str], **arguments: Any) -> tuple[Any, Any]:
        seen.update(arguments, options=options)
        return Anything(), seen["keeper"]

    monkeypatch.setattr(continuous, "ingest_stream", start)
    monkeypatch.setattr(pyspark.sql.SparkSession, "builder", Anything())
    monkeypatch.setattr(java, "java_environment", dict)
    return seen


def test_options_and_trigger(started: dict[str, Any]) -> None:
    """Options of the data source by name, the others by -o; polling by default, --once until all is taken."""
    given = [*ARGUMENTS, "--format", "jsonl", "-o", "slots=8", "-o", "platform_bucket=own"]
    assert CliRunner().invoke(main, given).exit_code == 0
    assert started["every_seconds"] == 10.0
    assert started["options"] == {
        "name": "orders", "bucket": "landing", "prefix": "raw/", "format": "jsonl", "slots": "8",
        "platform_bucket": "own", "region": "us-east-1",
    }  # fmt: skip
    assert started["checkpoint"].endswith(".s3notify/orders-checkpoint")
    assert CliRunner().invoke(main, [*ARGUMENTS, "--once", "--checkpoint", "s3a://c/"]).exit_code == 0
    assert (started["every_seconds"], started["checkpoint"]) == (None, "s3a://c/")


def test_exit_code_tells_of_slots_that_failed(started: dict[str, Any]) -> None:
    """With --once, for whoever runs it from cron."""
    started["keeper"].failing = {3: "why"}
    result = CliRunner().invoke(main, [*ARGUMENTS, "--once"])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("more", [["-o", "slots"], ["--conf", "=x"], ["--transform", "no.such"]])
def test_what_makes_no_sense_is_refused(started: dict[str, Any], more: list[str]) -> None:
    """Before Spark starts, or with its reason."""
    result = CliRunner().invoke(main, [*ARGUMENTS, *more])
    assert result.exit_code
    assert "options" not in started
