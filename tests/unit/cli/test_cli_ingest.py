"""`s3notify ingest`: the arguments for the engine, and the exit code."""

from pathlib import Path
from typing import Any

import boto3
import pyspark.sql
import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.local import java
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.source import location
from s3notify_platform.spark import continuous
from s3notify_platform.stores.memory import MemoryRecordStore

ARGUMENTS = ["ingest", "orders", "--bucket", "landing", "--prefix", "raw/"]


class Anything:
    """A stand-in for Spark and the engine: every attribute and call returns the object itself."""

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
    """The arguments that the engine gets. `keeper` is the stand-in for the engine."""
    for bucket in ("landing", "own"):
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=bucket)
    seen: dict[str, Any] = {"keeper": Anything()}

    def start(**arguments: Any) -> Any:
        seen.update(arguments)
        return seen["keeper"]

    def run(_stop: Any, **arguments: Any) -> None:
        seen.update(arguments)

    seen["keeper"].run = run
    records = MemoryRecordStore()
    monkeypatch.setattr(location, "queue_records", lambda *_, **__: records)
    monkeypatch.setattr(continuous, "ContinuousIngest", start)
    monkeypatch.setattr(pyspark.sql.SparkSession, "builder", Anything())
    monkeypatch.setattr(java, "java_environment", dict)
    return seen


def test_options_reach_the_source(started: dict[str, Any]) -> None:
    """Otherwise a setting on the command line would be ignored without a message, or a command with `--once` would poll
    for ever. The option `-o` passes any option of the data source.
    """
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
    assert CliRunner().invoke(main, [*given, "--once", "--sweep"]).exit_code == 0
    assert (started["every_seconds"], started["sweep"]) == (None, True)


def test_failed_slots_give_exit_code_1(started: dict[str, Any]) -> None:
    """Otherwise a cron job with `--once` would report success although some slots were not committed."""
    started["keeper"].failing = {3: "why"}
    result = CliRunner().invoke(main, [*ARGUMENTS, "--once"])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)


def test_ingest_makes_the_topic_with_the_settings_of_the_yaml(
    started: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a topic, an inlet ignores all changes, and only a sweep finds them. A run with `--once --sweep` needs no
    topic, since nobody would empty the topic between two sweeps. Options override the YAML.
    """
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "defs" / "orders" / "defs.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(
        "type: s3notify_platform.S3NotifyComponent\nattributes:\n  name: orders\n  bucket: landing\n"
        "  prefix: raw/\n  slots: 16\n  queue_shards: 3\n  s3: {region: us-east-1}\n  max_attempts: 2\n"
        "  backoff_seconds: 600\n"
    )
    made = TopicSettings(bucket="landing", prefix="raw/a/", slots=16, shards=3)
    for more, expected in (["--once", "--sweep"], []), ([], [made]), (["--once"], [made]):
        ran = CliRunner().invoke(main, ["ingest", "orders", "--prefix", "raw/a/", *more])
        assert ran.exit_code == 0, ran.output
        topics = started["source"].location.queue().topics.all()
        assert [topic.settings for topic in topics] == expected
    assert (started["settings"].max_attempts, started["settings"].backoff_seconds) == (2, 600.0)
    ran = CliRunner().invoke(main, ["ingest", "orders"])
    warning = (
        "topic 'orders' exists with other settings: prefix is 'raw/a/', not 'raw/'; `s3notify topics update`"
    )
    assert warning in " ".join(ran.stderr.split())


@pytest.mark.parametrize("more", [["-o", "slots"], ["--conf", "=x"], ["--transform", "no.such"]])
def test_wrong_options_are_refused_before_spark_starts(started: dict[str, Any], more: list[str]) -> None:
    """Otherwise the user would have to wait for Spark's start to read the error."""
    result = CliRunner().invoke(main, [*ARGUMENTS, *more])
    assert result.exit_code
    assert "source" not in started
