"""A source's YAML: commands and Dagster accept the same attributes. The error of a command names the key or value that
is wrong.
"""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner, Result

from s3notify_platform.channels.registry import SERVICES
from s3notify_platform.cli.main import main
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.attributes import attributes_of
from s3notify_platform.local.cron import check_cron
from s3notify_platform.local.project import sources_of
from s3notify_platform.orchestration import S3NotifyComponent
from tests.support.setting_examples import example_of

PLACE = {"name": "orders", "bucket": "landing", "prefix": "raw/"}
SQS = "https://sqs.eu-central-1.amazonaws.com/123456789012/events"

EXAMPLES: dict[str, tuple[list[Any], list[Any]]] = {
    "name": (["orders", "o_2"], ["Orders", "", 7, None, ["orders"]]),
    "bucket": (["landing", "arn:aws:s3:eu-west-1:123456789012:accesspoint/a"], ["s3://landing", "a/b", 7]),
    "commit": (["auto", "native", "dynamo:leases:5000"], ["dynamodb", "nativ", "dynamo:", "dynamo:leases:x", 1, None]),
    "slots": ([1, 1000, "7", 7.0, "{{ env.SEVEN }}"], [0, 1001, -1, "many", 7.5, None, "{{ env.WORD }}"]),
    "platform_prefix": (["own/", ""], ["own", 7]),
    "queue_prefix": (["q/"], [7]),
    "prefix": (["raw/", "", "1_000", "[raw]", "{{ env.SEVEN }}"], ["/raw/", "s3://landing/raw", 7, None, ["raw/"]]),
    "other_platform_prefixes": (["own/|o/", ""], ["own", 7, ["own/"]]),
    "modified_after": (["2026-01-31T12:00:00Z", ""], ["yesterday", 7]),
    "committed_tags": (["archive=yes"], ["archive", 7]),
    "format": (["auto", "jsonl", "csv"], ["xml", "", 7]),
    "schema": (["id bigint", None], ["id bigit", "id", 7]),
    "schema_hints": (["id bigint"], ["id bigit", 7]),
    "partition_columns": (["dt date"], ["dt dat", 7]),
    "metadata_columns": (["_size"], ["_sise", 7]),
    "encoding": (["utf-8", "cp1252"], ["utf-9", 7]),
    "code_version": (["v2", "1", None], [1, ["v2"]]),
    "csv_delimiter": ([";", "\\t"], [";;", 7]),
    "csv_quote": (["'", "none", ""], ["''", 7]),
    "csv_escape": (["\\"], ["\\\\", 7]),
    "csv_comment": (["#"], ["##", 7]),
    "csv_names": (["id,amount"], [7]),
    "date_format": (["dd.MM.yyyy", "d/M/yy|born=yyyyMMdd", ""], ["dd.MM.YYYY", "MM", "|", 7]),
    "timestamp_format": (["yyyy-MM-dd'T'HH:mm[:ss]XXX"], ["HH:mm", "at=", "a=yy|a=yyyy", 7]),
    "time_zone": (["Europe/Berlin", "UTC", "UTC|at=Asia/Tokyo"], ["Europe/Berln", "at=", 7]),
    "decimal_comma": (["all", "amount|price", ""], ["|", 7, True]),
    "payload_column": (["raw", ""], ["_raw", 7]),
    "expect": (["amount >= 0", "positive: amount >= 0; region is not null", ""], ["amount >", "1 = 1", "a = 'x", 7]),
    "expect_warn": (["positive: amount >= 0"], ["amount like", "a: b = 1; a: c = 1", 7]),
    "description": (["Orders", "{{ env.WORD }}", None], [7]),
    "owners": ([["ann@example.com", "team:sales"], []], ["ann@example.com", [7], None]),
    "sweep_cron": (["0 3 * * *", "@daily"], ["daily", "0 25 * * *", "", 7]),
    "running": ([False, "false"], ["off course", None]),
    "run_tags": ([{"team": "sales", "n": 7}, {"k8s": {"a": [1]}}], ["team", ["team"], None]),
    "op_tags": ([{"cost": "high"}], ["cost"]),
    "resources": ([{"spark": "cluster"}], [{"duckdb": "x"}, {"s3": 7}, "s3"]),
    "transform": ([None, "json.loads"], [7, ["json.loads"]]),
    "slot_assets": ([[]], ["defs.orders.paid", [7]]),
    "cluster_by": (["dt", "dt, customer_id", ""], [7, ["dt"]]),
    "latest": (
        [None, {"key": "a, b", "order_by": "c"}, {"key": "a", "order_by": "b", "deleted_when": "op = 'D'"}],
        [{"key": "a"}, {"order_by": "b"}, {"key": "a", "order_by": "b", "deleted_when": "op ="}, {"keys": "a"}, "a", 7],
    ),
    "s3": (
        [
            {},
            None,
            {"endpoint_url": "http://127.0.0.1:1", "region": "eu-west-1", "requester_pays": "false"},
            {"region": None, "profile": None},
            {"access_key_id_env": "A", "secret_access_key_env": "B", "session_token_env": "C"},
            {"profile": "landing", "kms_key_id": "alias/a"},
            {"role_arn": "arn:aws:iam::123456789012:role/landing", "external_id": "acme"},
        ],
        [
            "s3",
            {"region_name": "eu-west-1"},
            {"access_key_id": "AKIA"},
            {"endpoint_url": "localhost:9000"},
            {"access_key_id_env": "A"},
            {"requester_pays": "perhaps"},
            {"region": ["eu-west-1"]},
            {"external_id": "acme"},
        ],
    ),
    "dynamodb": (
        [
            {},
            None,
            {"records_table": "t", "region": "eu-west-1"},
            {"lease_table": "l", "lease_timeout_seconds": "5"},
        ],
        [
            {"record_table": "t"},
            {"records_table": 7},
            {"lease_timeout_seconds": 0},
            {"lease_max_clock_skew_rate": 0.5},
            {"lease_ttl_seconds": "long"},
            {"lease_test_interval_seconds": 0},
        ],
    ),
    "spark": (
        [{}, None, {"master": "yarn", "max_sessions": 2, "config": {"spark.driver.memory": "1g", "spark.x": 7}}],
        [{"masters": "yarn"}, {"max_sessions": 0}, {"config": "spark.x=7"}, {"remote": 7}],
    ),
    "sqs": (
        [
            None, {"queue_url": SQS}, {"queue_url": SQS, "region": "eu-west-1"}, {"queue_url": "{{ env.WORD }}"},
            {"queue_url": SQS, "allow_networks": ["10.1.0.0/16"]},
        ],
        [{}, {"queue_url": None}, {"queue_url": SQS, "queue_region": "eu-west-1"}, SQS],
    ),
    "http": (
        [
            None, {}, {"host": "0.0.0.0", "port": "8080", "plain_http": "true", "secret_envs": ["A"]},
            {"allow_http": True},
        ],
        [{"port": 70_000}, {"secret_env": ["A"]}, {"secret_envs": "A"}, {"plain_http": "perhaps"}, 8080],
    ),
    "deliver": (
        [None, {}, {"allow_networks": ["10.1.0.0/16"], "poll_seconds": 1}],
        [{"allow_network": ["10.1.0.0/16"]}, {"poll_seconds": 0}, {"allow_http": 7}, {"heartbeat_seconds": "slow"}],
    ),
}  # fmt: skip
"""For each attribute: some values that a source may have, and some that must be refused. Texts and choices without
special rules need no entry (see `given`)."""

ATTRIBUTES = attributes_of(*SERVICES)


def given(name: str) -> tuple[list[Any], list[Any]]:
    """Values of an attribute that must be accepted, and values that must be refused. A number's default must be
    accepted as a number and as text.

    A text or a choice that is not in `EXAMPLES` has the example of its declaration.
    """
    if name in EXAMPLES:
        return EXAMPLES[name]
    setting = ATTRIBUTES[name]
    default, kind = setting.default, setting.number
    if kind is None:
        return [default, example_of(setting)], ["no such choice" if setting.choices else 7, [default]]
    return [default, str(default)], [None, "many", [default], *([0.5] if kind is int else []), "nan"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEVEN", "7")
    monkeypatch.setenv("WORD", "word")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def write(folder: Path, attributes: Mapping[str, Any]) -> Path:
    file = folder / "defs" / "orders" / "defs.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {"type": "s3notify_platform.S3NotifyComponent", "attributes": attributes}
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def refusal_of_commands(folder: Path, attributes: Mapping[str, Any]) -> str:
    write(folder, attributes)
    try:
        (source,) = sources_of(str(folder / "defs"))
        source.check()
    except UsageError as error:
        return str(error)
    return ""


def refusal_of_dagster(attributes: Mapping[str, Any]) -> str:
    try:
        S3NotifyComponent.resolve_from_yaml(yaml.safe_dump(dict(attributes))).definitions()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_commands_and_dagster_accept_the_same_values(tmp_path: Path, name: str) -> None:
    """If commands accepted a YAML that Dagster refuses, or the reverse, the error would appear only in production."""
    good, bad = given(name)
    assert good
    assert bad
    for value in good:
        attributes = PLACE | {name: value}
        assert refusal_of_commands(tmp_path, attributes) == "", value
        assert refusal_of_dagster(attributes) == "", value
    for value in bad:
        attributes = PLACE | {name: value}
        refused = refusal_of_commands(tmp_path, attributes)
        assert str(tmp_path / "defs" / "orders" / "defs.yaml") in refused, value
        assert name in refused or f"bucket {PLACE['bucket']!r}" in refused, value
        assert refusal_of_dagster(attributes), value


def test_unknown_keys_of_groups_are_refused(tmp_path: Path) -> None:
    """Otherwise a misspelled key in a group would be ignored."""
    groups = {name for name, setting in ATTRIBUTES.items() if setting.group}
    for name in groups:
        attributes = PLACE | {name: {"nonsense": 1}}
        assert f"{name}.nonsense: there is no such setting" in refusal_of_commands(tmp_path, attributes)
        assert refusal_of_dagster(attributes)
    assert groups == {"s3", "dynamodb", "latest", "spark", *SERVICES}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("S3NOTIFY_DEFS", raising=False)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prefx: raw/", "prefx: there is no such setting; did you mean prefix?"),
        ("s3: {region_name: eu-west-1}", "s3.region_name: there is no such setting; did you mean s3.region?"),
        ("endpoint_url: x", "endpoint_url: this setting is part of a group: write s3: {endpoint_url: …}"),
        ("queue_url: x", "queue_url: this setting is part of a group: write sqs: {queue_url: …}"),
        ("colour: x", "colour: there is no such setting; there are backoff_seconds, bucket, "),
        ("htp: {}", "htp: there is no such setting; did you mean http?"),
        ("http: {prt: 1}", "http.prt: there is no such setting; did you mean http.port?"),
        ("sqs: {queueurl: x}", "sqs.queue_url is missing: URL of the SQS queue"),
        ("slots: many", "slots='many': give a whole number"),
        ("s3: {secret_access_key: s3cr3t}", "did you mean s3.secret_access_key_env?"),
        ("sweep_cron: daily", "sweep_cron: invalid cron schedule 'daily': give five fields, like 0 3 * * *"),
    ],
)
def test_a_command_says_what_is_wrong(project: Path, text: str, said: str) -> None:
    """If a mistyped setting were ignored, the command would run with a default that the user did not choose. Without
    file, key and nearest valid key, the user would have to search for the mistake. A secret in the message could end up
    in a log.
    """
    file = write(project, PLACE)
    file.write_text(f"{file.read_text()}  {text}\n")
    for command in (
        ["ingest", "orders", "--once"],
        ["doctor", "orders"],
        ["signal", "raw/1"],
        ["topics", "stats"],
    ):
        ran = run(*command)
        assert ran.exit_code == 1, ran.output
        assert f"defs/orders/defs.yaml: {said}" in ran.stderr or f"; {said}" in ran.stderr, ran.stderr
        assert "s3cr3t" not in ran.output


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"type": "s3notify_platform.S3NotifyComponent"}, "attributes is missing"),
        ({"type": "s3notify_platform.S3NotifyComponent", "atributes": PLACE}, "did you mean attributes?"),
        (
            {"type": "s3notify_platform.S3NotifyComponent", "attributes": {"name": "o", "buckt": "b"}},
            "bucket?",
        ),
        ({"type": "s3notify_platform.S3NotifyComponent", "attributes": {"name": "o"}}, "bucket is missing"),
    ],
)
def test_a_document_without_a_source_is_refused(project: Path, document: dict[str, Any], said: str) -> None:
    write(project, PLACE).write_text(yaml.safe_dump(document))
    ran = run("history", "orders", "--slot", "1")
    assert ran.exit_code == 1
    assert said in ran.stderr


def test_other_components_may_have_their_own_keys(project: Path) -> None:
    """Otherwise commands would refuse the YAML of a project whose own component has further keys."""
    write(project, PLACE).write_text(
        yaml.safe_dump({"type": "shop.Orders", "attributes": PLACE | {"shop": 7}})
    )
    (source,) = sources_of()
    assert source.values["prefix"] == "raw/"
    write(project, PLACE).write_text(yaml.safe_dump({"type": "shop.Other", "attributes": {"shop": 7}}))
    assert sources_of() == []


def test_values_have_their_types(project: Path) -> None:
    """Otherwise the quoted text "false" would count as true. The setting `requester_pays` would then be on, and the
    user would pay for each request.
    """
    given = {"slots": "7", "max_seconds": "{{ env.SEVEN }}", "s3": {"requester_pays": "false"}}
    write(project, PLACE | given)
    (source,) = sources_of()
    assert (source.values["slots"], source.values["max_seconds"]) == (7, 7.0)
    assert source.values["requester_pays"] is False
    assert source.source().input.bucket.requester_pays is False


def test_an_expression_of_the_project_fails_only_where_it_is_needed(project: Path) -> None:
    """Other attributes in the same file must still be checked."""
    write(project, PLACE | {"description": "{{ mine.text }}", "sqs": {"queue_url": "{{ mine.url }}"}})
    (source,) = sources_of()
    assert source.values["bucket"] == "landing"
    write(project, PLACE | {"sqs": {"queue_url": "{{ mine.url }}", "nonsense": 1}})
    with pytest.raises(UsageError, match=r"sqs\.nonsense"):
        sources_of()
    write(project, PLACE | {"s3": {"endpoint_url": "{{ mine.url }}"}})
    (source,) = sources_of()
    with pytest.raises(UsageError, match=r"s3\.endpoint_url"):
        _ = source.values


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"format": "xml"}, "format='xml'"),
        ({"schema": "id bigit"}, "there is no type 'bigit'"),
        ({"sweep_cron": "x"}, "x"),
    ],
)
def test_doctor_checks_what_dagster_would_refuse(project: Path, setting: dict[str, str], said: str) -> None:
    """The error must come before any request to the bucket."""
    write(project, PLACE | setting | {"s3": {"endpoint_url": "http://127.0.0.1:1"}})
    ran = run("doctor", "orders")
    assert ran.exit_code == 1
    assert "defs/orders/defs.yaml: " in ran.stderr
    assert said in ran.stderr


def test_checking_a_source_does_not_import_dagster(project: Path) -> None:
    """Importing Dagster would slow every command by more than a second."""
    write(project, PLACE | {"sqs": {"queue_url": SQS}, "http": {}, "deliver": {}})
    program = "import sys; from s3notify_platform.local.project import sources_of; sources_of()[0].check()"
    asked = f"{program}; sys.exit('dagster' in sys.modules or 'pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False, cwd=project).returncode == 0


CRONS = {
    True: """0 3 * * *|*/5 * * * *|0-59/7 1,2,22-23 1 jan-mar mon-fri|0 0 29 2 *|15 2 * * 7|@hourly|@Daily|@yearly
    0 0 31 1,2 *|5/15 * * * sun""",
    False: """daily|* * * *|* * * * * *|60 * * * *|* 24 * * *|* * 0 * *|* * * 13 *|* * * * 8|*/0 * * * *|5-1 * * * *
    0 0 30 2 *|0 0 31 2 *|a b c d e|1,, * * * *|@noon|-1 * * * *|1.5 * * * *|* * * foo *|| * * * *""",
}  # fmt: skip


def test_schedules_that_commands_accept_are_accepted_by_dagster() -> None:

    @dg.job
    def nothing() -> None: ...

    for good, texts in CRONS.items():
        for text in texts.replace("\n", "|").split("|"):
            try:
                check_cron(text.strip())
            except UsageError:
                assert not good, text
            else:
                assert good, text
                dg.ScheduleDefinition(job=nothing, cron_schedule=text.strip())
