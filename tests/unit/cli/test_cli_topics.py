"""`s3notify topics`: every declared setting is an option, has an effect, and refuses wrong values."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.cli.main import main
from s3notify_platform.cli.topics import topics
from s3notify_platform.kernel.setting import Setting, settings_of
from s3notify_platform.protocols.notification_queue import (
    Event,
    NotificationQueue,
    Reservation,
    Rule,
    ShardConsumer,
    TopicSettings,
    Worker,
)
from s3notify_platform.protocols.notification_queue.topic_settings import FIXED
from s3notify_platform.stores import open_store as opening
from s3notify_platform.stores.memory import MemoryRecordStore

SETTINGS = [*settings_of(TopicSettings), *settings_of(Endpoint)]
FLAGS = {"bucket": "--source-bucket", "ttl_seconds": "--ttl-hours", "rules": "--rule"}
RULE = '{"suffix": ".csv", "events": ["s3:ObjectCreated:*"]}'
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
    "opaque_data": "for me",
    "rules": (Rule(suffix=".csv", events=("ObjectCreated:*",)),),
    "signals": "root",
    "without_rules": "none",
    "persistent": False,
}
"""Values that differ from the defaults. All other settings are numbers; each gets its default plus one."""


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> NotificationQueue:
    """The queue of bucket `b`, in memory."""
    records = MemoryRecordStore()
    monkeypatch.setattr(opening, "queue_records", lambda *_: records)
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
    """`create` must have an option for each setting, with its description. `update` must have the same options, except
    those for shards and signals.
    """
    for name in ("create", "update"):
        command = topics.get_command(click.Context(topics), name)
        assert command is not None
        found = [each for each in command.params if flag_of(setting) in each.opts]
        if name == "update" and setting.name in FIXED:
            assert found == []
            continue
        (option,) = found
        assert isinstance(option, click.Option)
        described = setting.about.description.replace(
            "Seconds for", "Hours for" if "hours" in flag_of(setting) else "Seconds for"
        )
        assert described in str(option.help)
        assert setting.about.unit or setting.number is None


def test_every_option_has_its_effect(queue: NotificationQueue) -> None:
    """Otherwise a setting on the command line would be ignored without a message. If an update also changed other
    values, a topic could lose its endpoint or its limits.
    """
    arguments: list[str] = []
    for setting in SETTINGS:
        value = value_of(setting)
        match setting.name:
            case "verify" | "persistent":
                arguments += [f"--no-{setting.name}"]
            case "rules":
                arguments += ["--rule", RULE]
            case "ttl_seconds":
                arguments += ["--ttl-hours", "2"]
            case _:
                arguments += [flag_of(setting), str(value)]
    assert "to https://hooks.example.com/, not persistent" in done("create", "t", *arguments)
    assert "https://hooks.example.com/, not persistent" in done("list")
    found = queue.topics.get("t").settings
    for setting in settings_of(TopicSettings):
        assert getattr(found, setting.name) == value_of(setting) != setting.default
    endpoint = Endpoint.loads(found.endpoint)
    for setting in settings_of(Endpoint):
        assert getattr(endpoint, setting.name) == value_of(setting) != setting.default
    done("update", "t", "--retry-seconds", "7")
    assert queue.topics.get("t").settings == dataclasses.replace(found, retry_seconds=7.0)
    done("update", "t", "--rule", "", "--yes")
    assert queue.topics.get("t").settings.rules == ()


def test_create_does_not_change_an_existing_topic(queue: NotificationQueue) -> None:
    """Otherwise a repeated command in a script would undo the changes that an operator has made to the topic. The error
    names the settings that differ, and the command that changes them.
    """
    done("create", "t", "--capacity", "20")
    done("create", "t", "--capacity", "20")
    ran = run("create", "t", "--capacity", "30", "--stale-seconds", "60")
    assert ran.exit_code == 1
    assert "capacity is 20, not 30, stale_seconds is 120.0, not 60.0; `s3notify topics update`" in ran.output
    assert queue.topics.get("t").settings.capacity == 20
    listed = json.loads(done("list", "--json"))
    assert [(one["name"], one["capacity"]) for one in listed] == [("t", 20)]


def test_show_prints_the_shards(queue: NotificationQueue) -> None:
    """For each shard, the command must print worker, depth and oldest age."""
    done("create", "t", "--shards", "2", "--capacity", "10", "--url", "https://hooks.example.com/")
    worker = Worker(queue, name="w")
    worker.balance()
    queue.push("t", Event(key="old", time_ms=queue.clock.wall_ms() - 60_000))
    queue.push("t", Event(key="new"))
    shown = json.loads(done("show", "t", "--json"))
    assert (shown["name"], shown["depth"], shown["paused"], shown["capacity"]) == ("t", 2, False, 10)
    assert shown["endpoint"] == {"url": "https://hooks.example.com/"}
    shards = shown["shards"]
    assert [(shard["shard"], shard["worker"], shard["depth"]) for shard in shards] == [
        (0, worker.name, 1),
        (1, worker.name, 1),
    ]
    assert all(0 <= shard["since_seconds"] < 30 and 0 <= shard["beat_seconds"] < 30 for shard in shards)
    assert sorted(shard["oldest_age_seconds"] // 60 for shard in shards) == [0, 1]
    worker.stop()
    done("pause", "t")
    (free, _) = json.loads(done("show", "t", "--json"))["shards"]
    assert (free["worker"], free["since_seconds"], free["beat_seconds"]) == (None, None, None)
    assert "paused" in done("show", "t").splitlines()[0]
    assert "paused" in done("list")
    ran = run("show", "none")
    assert ran.exit_code == 1
    assert "no topic 'none'" in ran.output


def test_dump_prints_lines_as_it_reads(queue: NotificationQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise `--limit` would still cost a scan of the whole queue. The entries stay in the queue, because the
    topic's consumer must still get them.
    """
    done("create", "t", "--shards", "1")
    for n in range(5):
        queue.push("t", Event(key=f"k\n{n}", bucket="b", size=n))
    assert isinstance(queue.reserve("t", Event(key="reserved")), Reservation)
    lines = [json.loads(line) for line in done("dump", "t").splitlines()]
    assert sorted(line["key"] for line in lines) == [*(f"k\n{n}" for n in range(5)), "reserved"]
    assert {line["state"] for line in lines} == {"committed", "reserved"}
    read: list[str] = []
    scan = MemoryRecordStore.scan

    def counted(*args: Any, **kwargs: Any) -> Any:
        for record in scan(*args, **kwargs):
            read.append(record.key)
            yield record

    monkeypatch.setattr(MemoryRecordStore, "scan", counted)
    assert len(done("dump", "t", "--limit", "2", "--json").splitlines()) == 2
    assert len(read) == 2
    assert queue.stats("t").depth == 6


def test_pause_and_resume_may_be_repeated(queue: NotificationQueue) -> None:
    """Otherwise a script that repeats the command would fail. If the pause were not stored with the topic, an update
    would resume the delivery. A topic without an endpoint has no delivery to pause.
    """
    done("create", "hooks", "--url", "https://hooks.example.com/")
    for command, paused in (("pause", True), ("pause", True), ("resume", False), ("resume", False)):
        done(command, "hooks")
        assert queue.topics.get("hooks").paused is paused
    done("pause", "hooks")
    done("update", "hooks", "--capacity", "20")
    assert queue.topics.get("hooks").paused
    done("create", "pulled")
    ran = run("pause", "pulled")
    assert ran.exit_code == 1
    assert "'pulled' has no endpoint" in ran.output
    assert run("pause", "none").exit_code == 1


def test_purge_asks_and_deletes_only_dead_letters(queue: NotificationQueue) -> None:
    """Otherwise a user could lose pending entries that were never delivered, or would delete dead letters without
    knowing their number.
    """
    done("create", "t", "--shards", "1", "--max-attempts", "1", "--url", "https://hooks.example.com/")
    queue.push_many("t", [Event(key=f"k{n}") for n in range(3)])
    worker = Worker(queue)
    consumer = ShardConsumer(worker, *worker.balance())
    for entry in consumer.take(2):
        consumer.failed(entry, "no")
    for given in ("", "n\n"):
        ran = run("purge", "t", given=given)
        assert ran.exit_code == 1
        assert "2 dead letters" in ran.output
    assert queue.stats("t").dead == 2
    assert "2 dead letters deleted" in done("purge", "t", "--yes")
    assert (queue.stats("t").dead, queue.stats("t").depth) == (0, 1)
    assert "0 dead letters deleted" in done("purge", "t")


def test_redrive_names_the_letters_that_stay(queue: NotificationQueue) -> None:
    """Otherwise a person would believe that all letters are delivered again."""
    done("create", "t", "--shards", "1", "--max-attempts", "1", "--url", "https://hooks.example.com/")
    queue.push_many("t", [Event(key="a"), Event(key="b" * 500)])
    worker = Worker(queue)
    consumer = ShardConsumer(worker, *worker.balance())
    for entry in consumer.take(2):
        consumer.failed(entry, "no")
    done("update", "t", "--max-event-bytes", "400")
    ran = run("redrive", "t")
    assert ran.exit_code == 1
    assert "1 dead letters put back" in ran.output
    assert f"{'b' * 500}: larger than" in " ".join(ran.output.split())
    assert "1 dead letters stay" in ran.output
    done("update", "t", "--max-event-bytes", "4096")
    assert "1 dead letters put back" in done("redrive", "t")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--max-event-bytes", "70000"], "--max-event-bytes=70000: must be at most 65536"),
        (["--retry-seconds", "-1"], "--retry-seconds=-1.0: must be at least 0"),
        (["--stale-seconds", "0"], "--stale-seconds=0.0: must be at least 1"),
        (["--capacity", "4"], "8 shards are more than its capacity"),
        (["--url", "https://h/", "--concurrency", "0"], "--concurrency=0: must be at least 1"),
        (["--url", "ftp://h/"], "give https://host/path"),
        (["--url", "https://h/", "--opaque-data", "x" * 2049], "at most 2048 printable"),
        (["--rule", '{"regex": "(a"}'], "missing )"),
    ],
)
def test_wrong_values_are_refused(queue: NotificationQueue, arguments: list[str], said: str) -> None:
    """A refused command must write nothing."""
    ran = run("create", "t", *arguments)
    assert (ran.exit_code in {1, 2}, queue.topics.all()) == (True, ()), ran.output
    assert said in ran.output


def test_a_topic_of_a_source_has_the_settings_of_the_yaml(queue: NotificationQueue, tmp_path: Path) -> None:
    """Otherwise the topic could differ from the topic that Dagster would make. The settings come from the YAML of this
    source, not of other sources. Options of the command line override these settings.
    """
    more: dict[str, dict[str, Any]] = {
        "orders": {
            "slots": 40,
            "signals": "root",
            "prefix": "raw/",
            "queue_shards": 3,
            "queue_capacity": 900,
        },
        "clicks": {"slots": 7, "signals": "slots", "prefix": "clicks/"},
    }
    for name, settings in more.items():
        (tmp_path / name).mkdir()
        attributes = {"name": name, "bucket": "b", **settings}
        (tmp_path / name / "defs.yaml").write_text(json.dumps({"attributes": attributes}))
    defs = ["--defs", str(tmp_path)]
    done("create", "orders", *defs)
    done("create", "copies", *defs)
    done("create", "clicks", "--slot-count", "9", "--signals", "root", *defs)
    assert {topic.name: topic.settings for topic in queue.topics.all()} == {
        "orders": TopicSettings(bucket="b", prefix="raw/", slots=40, signals="root", shards=3, capacity=900),
        "copies": TopicSettings(bucket="b"),
        "clicks": TopicSettings(bucket="b", prefix="clicks/", slots=9, signals="root"),
    }


def test_a_topic_keeps_the_tables_that_it_serves(queue: NotificationQueue) -> None:
    """Updates of other settings must not change the tables that a topic serves."""
    done("create", "orders", "--table", "one")
    done("update", "orders", "--capacity", "99")
    assert json.loads(done("list", "--json"))[0]["tables"] == ["one"]
    done("update", "orders", "--table", "one", "--table", "two")
    assert json.loads(done("show", "orders", "--json"))["tables"] == ["one", "two"]
    done("update", "orders", "--table", "")
    assert queue.topics.get("orders").tables == ()


def test_deleting_a_topic_that_serves_tables_needs_a_flag(queue: NotificationQueue) -> None:
    """`--yes` is not enough, because the tables would lose entries. The error names the flag and the tables."""
    done("create", "orders", "--table", "one", "--table", "two")
    queue.push("orders", Event(key="a"))
    refused = run("delete", "orders", "--yes")
    assert refused.exit_code == 1
    assert "topic 'orders' serves table one, two" in refused.output
    assert "--served" in refused.output
    assert queue.stats("orders").depth == 1
    assert "which serves table one, two" in run("delete", "orders", "--served", given="n\n").output
    assert queue.stats("orders").depth == 1
    done("delete", "orders", "--served", "--yes")
    assert queue.topics.all() == ()


def test_a_topic_without_tables_is_deleted(queue: NotificationQueue) -> None:
    """Otherwise a topic that only serves an endpoint could not be deleted, or a script that always gives `--served`
    would fail.
    """
    for flags in ((), ("--served",)):
        done("create", "hooks")
        done("delete", "hooks", "--yes", *flags)
        assert queue.topics.all() == ()


@pytest.mark.parametrize("command", [["topics"], ["deliver"]])
def test_help_explains_the_order_of_delivery(command: list[str]) -> None:
    """An endpoint that ignores the order of events would apply an old event last."""
    shown = " ".join(CliRunner().invoke(main, [*command, "--help"]).output.split()).lower()
    for word in ("at least once", "unordered", "sequencer"):
        assert word in shown


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ('{"prefix": "other/"}', "its rule for prefix 'other/' matches nothing: the topic has prefix 'raw/'"),
        ('{"bucket": "b9"}', "its rule for bucket 'b9' matches nothing: the topic has bucket 'b'"),
    ],
)
def test_rules_that_can_never_match_are_refused(queue: NotificationQueue, rule: str, said: str) -> None:
    """Otherwise a mistyped rule would be stored, and the topic would receive none of the wanted changes, without any
    message. A rule with a shorter prefix, like `r` for `raw/`, can match.
    """
    ran = run("create", "t", "--prefix", "raw/", "--rule", rule)
    assert ran.exit_code == 1
    assert said in ran.stderr
    assert queue.topics.all() == ()
    done(
        "create",
        "t",
        "--prefix",
        "raw/",
        "--rule",
        '{"prefix": "raw/a/"}',
        "--rule",
        '{"prefix": "r", "suffix": "x"}',
    )
    assert said in run("update", "t", "--rule", rule).stderr
    refused = run("update", "t", "--prefix", "logs/")
    assert (refused.exit_code, "matches nothing" in refused.stderr) == (1, True)
    assert queue.topics.get("t").settings.prefix == "raw/"


def test_removing_all_rules_needs_a_confirmation(queue: NotificationQueue) -> None:
    """Otherwise a mistake could send all changes below the prefix to an endpoint that must get only some of them. Other
    updates ask no question, because scripts could not answer.
    """
    done("create", "t", "--prefix", "raw/", "--rule", '{"suffix": ".csv"}')
    ran = run("update", "t", "--rule", "", given="n\n")
    assert ran.exit_code == 1
    assert "Remove all 1 rules of topic 't', so that it receives b/raw/*?" in ran.output
    assert run("update", "t", "--rule", "").exit_code == 1, "no answer is no confirmation"
    assert len(queue.topics.get("t").settings.rules) == 1
    done("update", "t", "--rule", '{"suffix": ".json"}')
    done("update", "t", "--rule", "", "--yes")
    assert queue.topics.get("t").settings.rules == ()
    done("update", "t", "--rule", "")
