"""Each setting is declared once, appears everywhere with its description, and has its effect."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import Setting, settings_of
from s3notify_platform.local.project import ConfiguredSource, sources_of
from s3notify_platform.orchestration import S3NotifyComponent, SlotIOManager
from s3notify_platform.orchestration.resources import NamedS3, SlotSpark
from s3notify_platform.orchestration.setting_fields import group_of
from s3notify_platform.protocols.conditional_commit import DynamoCommit, LeaseSettings
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.source.build import build
from s3notify_platform.source.commit_settings import LeaseTimeSettings
from s3notify_platform.source.settings import (
    SETTINGS,
    SOURCE,
    UNGROUPED,
    DynamoSettings,
    InputSettings,
    LatestSettings,
    S3Settings,
    TopicSizeSettings,
    ungrouped,
)
from s3notify_platform.source.source import Source
from s3notify_platform.spark.datasource.options import reading_of
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.setting_examples import example_of

OWN = settings_of(*UNGROUPED)
OF_COMPONENT = settings_of(*UNGROUPED, TopicSizeSettings, BatchSettings)

OTHERS: dict[str, Any] = {
    "name": "clicks",
    "commit": "native",
    "slots": 7,
    "queue_prefix": "q/",
    # The first settings below declare columns. Later settings name these columns.
    "format": "csv",
    "schema": "a int",
    "schema_hints": "b int",
    "partition_columns": "dt date",
    "metadata_columns": "_size, _modified",
    "expect": "dt is not null",
    "expect_warn": "_size > 0",
    "date_format": "dd.MM.yyyy",
    "timestamp_format": "dd.MM.yyyy HH:mm",
    "time_zone": "Europe/Berlin",
    "decimal_comma": "all",
    "encoding": "cp1252",
    "csv_delimiter": ";",
    "csv_quote": "'",
    "csv_escape": "\\",
    "csv_comment": "#",
    "csv_names": "a;b",
}
"""Values of some settings, for a source that has every setting. The other settings have the example of their
declaration (`example_of`).
"""


def other(setting: Setting) -> Any:
    return OTHERS[setting.name] if setting.name in OTHERS else example_of(setting)


def ids(settings: Any) -> Any:
    return pytest.mark.parametrize("setting", settings, ids=lambda setting: setting.name)


@ids([*OF_COMPONENT, *settings_of(S3Settings, DynamoSettings)])
def test_every_setting_has_a_description_and_a_valid_default(setting: Setting) -> None:
    """The description of a number must also have a unit."""
    assert setting.about.description[0].isupper() or setting.name == "commit"
    assert setting.about.unit or setting.number is None
    if setting.default is dataclasses.MISSING:
        assert setting.name in ("name", "bucket")
    else:
        setting.check(setting.default)


@ids(OF_COMPONENT)
def test_the_component_has_every_setting(setting: Setting) -> None:
    """The schema of the YAML must show name, description, default and choices of each setting."""
    shown = S3NotifyComponent.model().model_json_schema()["properties"][setting.name]
    assert shown["description"] == setting.help
    assert shown.get("default", dataclasses.MISSING) == setting.default
    assert shown.get("enum", []) == [*setting.choices]


def test_every_attribute_of_the_component_is_described() -> None:
    """Attributes in groups must have descriptions too."""
    schema = S3NotifyComponent.model().model_json_schema()
    assert [name for name, of in schema["properties"].items() if not of.get("description")] == []
    for group in (S3Settings, DynamoSettings, LatestSettings):
        shown = group_of(group).model().model_json_schema()["properties"]
        assert {setting.name: setting.help for setting in settings_of(group)} == {
            name: of["description"] for name, of in shown.items()
        }


@ids(settings_of(*SOURCE, TopicSizeSettings))
def test_the_io_manager_has_every_setting(setting: Setting) -> None:
    fields = {info.alias or name: info for name, info in SlotIOManager.model_fields.items()}
    assert fields[setting.name].description == setting.help


@ids(SETTINGS.values())
def test_the_command_line_has_every_setting(setting: Setting) -> None:
    command = main.get_command(click.Context(main), "ingest")
    assert command is not None
    (option,) = (each for each in command.params if each.name == setting.name)
    if setting.name == "name":
        assert isinstance(option, click.Argument)
        return
    assert isinstance(option, click.Option)
    assert option.opts == [
        "--slot-count" if setting.name == "slots" else f"--{setting.name.replace('_', '-')}"
    ]
    assert option.help == f"{setting.help}."
    assert option.required == (setting.default is dataclasses.MISSING)
    assert not option.hidden


ACCESS = {
    "endpoint_url": "http://127.0.0.1:1",
    "access_key_id_env": "A",
    "secret_access_key_env": "B",
    "session_token_env": "C",
    "role_arn": "arn:aws:iam::123456789012:role/landing",
    "external_id": "x",
}
"""All access settings except `profile`. A source may name its keys in only one way, so these settings exclude
`profile`.
"""

GROUPS: dict[str, dict[str, Any]] = {
    "s3": ACCESS | {"region": "eu-west-1", "scheme": "s3", "requester_pays": True, "kms_key_id": "alias/a"},
    "dynamodb": ACCESS
    | {"region": "eu-west-2", "records_table": "r", "lease_table": "l"}
    | {setting.name: other(setting) for setting in settings_of(LeaseTimeSettings)},
    "latest": {"key": "dt", "order_by": "_size", "deleted_when": "_size = 0"},
}


def write(folder: Path, attributes: dict[str, Any]) -> ConfiguredSource:
    """Writes the YAML of a source; returns the source as commands read it."""
    document = {"type": "s3notify_platform.S3NotifyComponent", "attributes": attributes}
    (folder / "orders").mkdir(exist_ok=True)
    (folder / "orders" / "defs.yaml").write_text(json.dumps(document))
    (found,) = sources_of(str(folder))
    return found


def of_flags(given: dict[str, Any]) -> Source:
    """Returns the source that `s3notify ingest` builds from flags. Errors name the setting instead of its option."""
    command = main.get_command(click.Context(main), "ingest")
    assert command is not None
    arguments = [str(given["name"])]
    for parameter in command.params:
        if parameter.name in given and isinstance(parameter, click.Option):
            value = given[parameter.name]
            arguments += [parameter.opts[0]] if value is True else [parameter.opts[0], str(value)]
    with pytest.MonkeyPatch.context() as patched:
        seen: list[Any] = []
        patched.setattr(
            "s3notify_platform.spark.datasource.options.reading_of",
            lambda options: seen.append(reading_of(options)),
        )
        patched.setattr("s3notify_platform.local.java.java_environment", dict)
        ran = CliRunner().invoke(main, ["ingest", *arguments])
    if not seen:
        said = ran.stderr.rpartition("Error: ")[2].strip()
        raise UsageError(re.sub(r"^--([a-z-]+)", lambda found: found[1].replace("-", "_"), said))
    return seen[0].source


@pytest.mark.parametrize("without", [("schema", "mirror"), ("schema_hints", "overwrites")])
def test_a_setting_has_the_same_effect_from_everywhere(without: tuple[str, ...], tmp_path: Path) -> None:
    """Component, IO manager, data source, flags and file must make the same source.

    All settings have values other than their defaults. If two settings exclude each other, one of them is left out.
    """
    given = {setting.name: other(setting) for setting in OWN if setting.name not in without}
    source, flat = S3NotifyComponent(**given, **GROUPS).assets().io.source, ungrouped(given | GROUPS)
    assert {*flat} == {*SETTINGS} - {*without, "profile", "dynamodb_profile"}
    assert build(flat) == source
    assert reading_of({name: str(value) for name, value in flat.items()}).source == source
    assert of_flags(flat) == source
    assert write(tmp_path, given | GROUPS).source() == source
    for setting in settings_of(InputSettings):
        if setting.name not in without:
            assert getattr(source.input, setting.name) == given[setting.name] != setting.default
    assert source.input.bucket.region == "eu-west-1"
    assert source.latest is not None
    assert (source.latest.key, source.latest.deleted_when) == (("dt",), "_size = 0")
    assert source.clustered is not None
    assert source.clustered.file_bytes == given["cluster_file_bytes"]
    assert source.location.records_table is not None
    assert source.location.records_table.region == "eu-west-2"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_objects": "many"}, "max_objects='many': give a whole number"),
        ({"max_objects": "0"}, "max_objects=0: must be at least 1"),
        ({"max_seconds": "nan"}, "max_seconds='nan': give a number"),
        ({"mismatches": "drop"}, "mismatches='drop': use one of quarantine, rescue"),
        ({"bukcet": "b"}, "bukcet: there is no such setting; did you mean bucket?"),
        ({"name": "Orders!"}, "source 'Orders!': source name 'Orders!': use a-z, 0-9 and _, beginning with a letter"),
        (
            {"platform_prefix": "own"},
            "source 'orders': platform_prefix 'own': end it with '/'",
        ),
        (
            {"name": "queue"},
            (
                "source 'queue': platform_prefix '_s3notify/queue/' is in the queue '_s3notify/queue/', where every "
                "publisher may write: use another name or platform_prefix"
            ),
        ),
        (
            {"name": "queue", "platform_prefix": "dev/queue/", "queue_prefix": "dev/queue/"},
            (
                "source 'queue': platform_prefix 'dev/queue/' is in the queue 'dev/queue/', where every publisher may "
                "write: use another name or platform_prefix"
            ),
        ),
        ({"commit": "dynamodb"}, "source 'orders': commit: dynamodb needs a lease_table"),
        (
            {"commit": "dynamo:l:s"},
            (
                "commit: 'dynamo:l:s' does not name a table of leases: write dynamo:TABLE or "
                "dynamo:TABLE:MILLISECONDS, like dynamo:acme-leases:20000"
            ),
        ),
        (
            {"commit": "nativ"},
            "commit: 'nativ': use one of auto, native, dynamodb, dynamo:TABLE or dynamo:TABLE:MILLISECONDS",
        ),
    ],
)  # fmt: skip
def test_wrong_settings_give_the_same_message_everywhere(
    tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    """The messages of component, IO manager, data source, command line and file must be equal."""
    given = {"name": "orders", "bucket": "b", "prefix": "raw/"} | wrong
    resources = {"s3": NamedS3(), "spark": SlotSpark()}
    unknown = given.keys() - SETTINGS.keys()
    ways = {
        "component": lambda: S3NotifyComponent(**given).assets(),
        "IO manager": lambda: SlotIOManager(**given, **resources).source,
        "data source": lambda: reading_of(given),
        "command line": lambda: of_flags(given),
        "file": lambda: write(tmp_path, given).check(),
    }
    if unknown:
        del ways["command line"]  # click reports unknown options itself
    for way, make in ways.items():
        with pytest.raises(UsageError) as raised:
            make()
        assert str(raised.value).removeprefix(f"{tmp_path}/orders/defs.yaml: ") == said, way


TIMES = {setting.name: other(setting) for setting in settings_of(LeaseTimeSettings)}
LEASES = LeaseSettings(**{name.removeprefix("lease_"): value for name, value in TIMES.items()})


def test_lease_times_have_the_same_effect_wherever_they_are_set(tmp_path: Path) -> None:
    """Component, data source, flags and YAML must set the same times, which differ from the defaults."""
    assert all(getattr(LEASES, field.name) != field.default for field in dataclasses.fields(LEASES))
    place = {"name": "orders", "bucket": "b", "prefix": "raw/", "commit": "dynamodb"}
    tables = {"lease_table": "leases", **TIMES}
    of_component = S3NotifyComponent(**place, dynamodb=tables).assets().io.source
    of_options = reading_of({name: str(value) for name, value in (place | tables).items()}).source
    of_file = write(tmp_path, place | {"dynamodb": tables})
    for commit in (of_component.commit, of_options.commit, of_file.source().commit):
        assert commit.leases == LEASES
        commits = commit.commits(of_component.location.platform, MemoryObjectStore())
        assert isinstance(commits, DynamoCommit)
        assert commits._settings == LEASES


def test_commit_in_the_notation_of_object_store_is_accepted_everywhere(tmp_path: Path) -> None:
    """The one text of object_store must have the same effect as our three settings. Commands must also find the lease
    table in the YAML.
    """
    place = {"name": "orders", "bucket": "b", "prefix": "raw/"}
    spelled = {"commit": "dynamodb", "lease_table": "leases", "lease_timeout_seconds": 5.0}
    given, wanted = place | {"commit": "dynamo:leases:5000"}, build(place | spelled).commit
    resources = {"s3": NamedS3(), "spark": SlotSpark()}
    of_file = write(tmp_path, given)
    for found in (
        S3NotifyComponent(**given).assets().io.source,
        SlotIOManager(**given, **resources).source,
        reading_of(given).source,
        of_flags(given),
        of_file.source(),
    ):
        assert found.commit == wanted
    assert spelled.items() <= of_file.values.items()
    assert build(given | {"lease_table": "leases", "lease_timeout_seconds": 5}).commit == wanted
    assert build(place | {"commit": "dynamo:leases", "lease_timeout_seconds": 5}).commit == wanted


@pytest.mark.parametrize(("setting", "value"), [("lease_table", "others"), ("lease_timeout_seconds", 6.0)])
def test_contradicting_lease_settings_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(
        UsageError, match=f"'dynamo:leases:5000' sets {setting}, and {setting} is also set to {value!r}"
    ):
        build({"name": "orders", "bucket": "b", "commit": "dynamo:leases:5000", setting: value})


@pytest.mark.parametrize("command", ["ingest", "vacuum"])
def test_the_times_of_leases_are_in_the_help(command: str) -> None:
    """Users choose lease times with this help, so the limits must be in it."""
    said = " ".join(CliRunner().invoke(main, [command, "--help-all"]).output.split())
    assert all(f"--{name.replace('_', '-')}" in said for name in TIMES)
    assert "A lease cannot cancel a write" in said


@pytest.mark.parametrize("value", ["0", "nan", "inf", "-1", "1e9"])
def test_invalid_lease_times_are_refused(value: str) -> None:
    with pytest.raises(UsageError, match=r"timeout_seconds"):
        reading_of({"bucket": "b", "prefix": "raw/", "lease_timeout_seconds": value})


@pytest.mark.parametrize(
    ("setting", "value"), [("max_open", 0), ("queue_shards", 0), ("split_bytes", 0), ("interval_seconds", 0)]
)
def test_numbers_below_their_minimum_are_refused_on_load(setting: str, value: int) -> None:
    """The error must come when the definitions are built, not in the first run."""
    with pytest.raises((UsageError, ValueError), match=setting):
        S3NotifyComponent(name="orders", bucket="b", prefix="raw/", **{setting: value}).assets()


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> MemoryRecordStore:
    """The record store of every source's queue."""
    records = MemoryRecordStore()
    monkeypatch.setattr("s3notify_platform.source.location.queue_records", lambda *_, **__: records)
    return records


def test_the_topic_is_created_with_the_settings_of_the_yaml(
    records: MemoryRecordStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the topic would have the default sizes, although the user has set others. An existing topic
    keeps its settings. Without a warning, the user would not notice that a new value in the YAML has no
    effect.
    """
    given = {setting.name: setting.default + 1 for setting in settings_of(TopicSizeSettings)}

    def ensure(**given: Any) -> TopicSettings:
        clients = S3NotifyComponent(name="clicks", bucket="b", prefix="raw/", **given).assets().io.clients
        clients.ensure_topic(None)
        return NotificationQueue(records).topics.get("clicks").settings

    made = ensure(**given)
    for name, value in given.items():
        assert getattr(made, name.removeprefix("queue_")) == value
    assert (made.bucket, made.prefix) == ("b", "raw/")
    assert ensure(**given) == made
    assert caplog.messages == []
    for _ in range(2):
        assert ensure(**given | {"queue_capacity": 77}) == made
    (warning,) = caplog.messages
    assert "capacity is 10001, not 77; `s3notify topics update`" in warning
