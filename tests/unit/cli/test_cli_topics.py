"""`s3notify topics`: what is declared is an option, has its effect, and is refused where it cannot be."""

import dataclasses
import json
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.cli import main
from s3notify_platform.cli.topics import topics
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings
from s3notify_platform.setting import Setting, settings_of
from s3notify_platform.stores import queue_records
from s3notify_platform.stores.memory import MemoryRecordStore

SETTINGS = [*settings_of(TopicSettings), *settings_of(Endpoint)]
FLAGS = {"bucket": "--source-bucket", "ttl_seconds": "--ttl-hours"}
VALUES: dict[str, Any] = {
    "bucket": "b2",
    "prefix": "raw/",
    "ttl_seconds": 7200.0,
    "url": "https://hooks.example.com/",
    "format": "cloudevents",
    "login_env": "S3NOTIFY_SEND_A",
    "secret_env": "S3NOTIFY_PUSH_A",
    "ca_file": "ca.pem",
    "verify": False,
}
"""Values that are no defaults. Numbers that are not here get one more than their default."""


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> NotificationQueue:
    """That of bucket `b`, in memory."""
    records = MemoryRecordStore()
    monkeypatch.setattr(queue_records, "queue_records", lambda *_: records)
    return NotificationQueue(records)


def run(*arguments: str, given: str = "") -> Result:
    bucket = ["--bucket", "b", "--region", "r", "--endpoint-url", "http://127.0.0.1:9"]
    return CliRunner(env={"COLUMNS": "250"}).invoke(main, ["topics", *arguments, *bucket], input=given)


def done(*arguments: str, given: str = "") -> str:
    ran = run(*arguments, given=given)
    assert ran.exit_code == 0, ran.output
    return ran.output


def value_of(setting: Setting) -> Any:
    return VALUES[setting.name] if setting.name in VALUES else setting.default + 1


def flag_of(setting: Setting) -> str:
    return FLAGS.get(setting.name, f"--{setting.name.replace('_', '-')}")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_is_an_option(setting: Setting) -> None:
    """Of both commands, with its description; shards cannot be changed."""
    for name in ("create", "update"):
        command = topics.get_command(click.Context(topics), name)
        assert command is not None
        found = [each for each in command.params if flag_of(setting) in each.opts]
        if (name, setting.name) == ("update", "shards"):
            assert found == []
            continue
        (option,) = found
        assert isinstance(option, click.Option)
        assert setting.about.description in str(option.help)
        assert setting.about.unit or setting.number is None


def test_every_option_has_its_effect(queue: NotificationQueue) -> None:
    """The topic has the values that were given, and an update changes no other."""
    arguments: list[str] = []
    for setting in SETTINGS:
        value = value_of(setting)
        match setting.name:
            case "verify":
                arguments += ["--no-verify"]
            case "ttl_seconds":
                arguments += ["--ttl-hours", "2"]
            case _:
                arguments += [flag_of(setting), str(value)]
    done("create", "t", *arguments)
    found = queue.topics.get("t").settings
    for setting in settings_of(TopicSettings):
        assert getattr(found, setting.name) == value_of(setting) != setting.default
    endpoint = Endpoint.loads(found.endpoint)
    for setting in settings_of(Endpoint):
        assert getattr(endpoint, setting.name) == value_of(setting) != setting.default
    done("update", "t", "--retry-seconds", "7")
    assert queue.topics.get("t").settings == dataclasses.replace(found, retry_seconds=7.0)


def test_a_topic_with_other_settings_stays(queue: NotificationQueue) -> None:
    """The error names them, and the command that changes them."""
    done("create", "t", "--capacity", "20")
    done("create", "t", "--capacity", "20")
    ran = run("create", "t", "--capacity", "30", "--stale-seconds", "60")
    assert ran.exit_code == 1
    assert "capacity is 20, not 30, stale_seconds is 120.0, not 60.0; `s3notify topics update`" in ran.output
    assert queue.topics.get("t").settings.capacity == 20
    listed = json.loads(done("list", "--json"))
    assert [(one["name"], one["capacity"]) for one in listed] == [("t", 20)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--max-event-bytes", "70000"], "max_event_bytes=70000: must be at most 65536"),
        (["--retry-seconds", "-1"], "retry_seconds=-1.0: must be at least 0"),
        (["--stale-seconds", "0"], "stale_seconds=0.0: must be at least 1"),
        (["--capacity", "4"], "8 shards are more than its capacity"),
        (["--url", "https://h/", "--concurrency", "0"], "concurrency=0: must be at least 1"),
        (["--url", "ftp://h/"], "give https://host/path"),
    ],
)
def test_what_cannot_be_is_refused(queue: NotificationQueue, arguments: list[str], said: str) -> None:
    """Before anything is written."""
    ran = run("create", "t", *arguments)
    assert (ran.exit_code, queue.topics.all()) == (1, ()), ran.output
    assert said in ran.output
