"""`s3notify ingest`: what it hands to the engine, and what its exit code says."""

from typing import Any

import boto3
import pyspark.sql
import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.local import java
from s3notify_platform.spark import continuous

ARGUMENTS = ["ingest", "orders", "--bucket", "landing", "--prefix", "raw/"]


class Anything:
    """Stands for Spark and for what ingests."""

    failing: dict[int, str]
    behind: str

    def __init__(self) -> None:
        self.failing, self.behind = {}, ""

    def __getattr__(self, name: str) -> "Anything":
        return self

    def __call__(self, *_: Any, **__: Any) -> "Anything":
        return self


@pytest.fixture
def started(moto_aws: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that it was started with, and what it works with."""
    for bucket in ("landing", "own"):
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=bucket)
    seen: dict[str, Any] = {"keeper": Anything()}

    def start(**arguments: Any) -> Any:
        seen.update(arguments)
        return seen["keeper"]

    def run(_stop: Any, **arguments: Any) -> None:
        seen.update(arguments)

    seen["keeper"].run = run
    monkeypatch.setattr(continuous, "ContinuousIngest", start)
    monkeypatch.setattr(pyspark.sql.SparkSession, "builder", Anything())
    monkeypatch.setattr(java, "java_environment", dict)
    return seen


def test_options_and_trigger(started: dict[str, Any]) -> None:
    """Options of the data source by name, the others by -o; polling by default, --once until all is taken."""
    given = [*ARGUMENTS, "--format", "jsonl", "-o", "slots=8", "-o", "platform_bucket=own"]
    assert CliRunner().invoke(main, [*given, "--list-seconds", "3"]).exit_code == 0
    assert (started["every_seconds"], started["sweep"], started["list_seconds"]) == (10.0, False, 3.0)
    source = started["source"]
    assert (source.name, source.location.slots, source.location.platform.bucket) == ("orders", 8, "own")
    assert (source.input.bucket.bucket, source.input.prefix, source.input.format) == (
        "landing",
        "raw/",
        "jsonl",
    )
    assert CliRunner().invoke(main, [*ARGUMENTS, "--once", "--sweep"]).exit_code == 0
    assert (started["every_seconds"], started["sweep"]) == (None, True)


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
    assert "source" not in started
