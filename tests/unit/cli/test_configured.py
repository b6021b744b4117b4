"""Commands take their options from the project's YAML, so that the name of a source is enough."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from dagster import DagsterInstance
from dagster_aws.s3 import S3Resource

from s3notify_platform.channels.publish.open_publisher import open_publisher
from s3notify_platform.cli.common import SourcePlace
from s3notify_platform.cli.configured import dagster_instance
from s3notify_platform.cli.main import main
from s3notify_platform.deploy import Tables, policy
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.kernel.setting import settings_of
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.local.project import sources_of
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.resources import DynamoTables
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.source.settings import UNGROUPED
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.contracts.fault_proxy import FaultProxy
from tests.support.iam import needs, places_of, refused
from tests.support.servers import S3Server
from tests.unit.source.test_settings import other

Run = Callable[..., Result]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that writes `defs/NAME/defs.yaml` into the folder where the commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("S3NOTIFY_DEFS", raising=False)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)

    def write(name: str, attributes: str, folder: str = "defs") -> None:
        file = tmp_path / folder / name / "defs.yaml"
        file.parent.mkdir(parents=True)
        text = indent(dedent(attributes).strip(), "  ")
        file.write_text(f"type: s3notify_platform.S3NotifyComponent\nattributes:\n  name: {name}\n{text}\n")

    return write


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def bucket(ministack: S3Server, project: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> S3Config:
    """The bucket of a source `orders`. The source's YAML names environment variables that have the access keys. No
    other credentials are set.
    """
    config = ministack.config(ministack.make_bucket())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ORDERS_KEY", "test")
    monkeypatch.setenv("ORDERS_SECRET", "test")
    monkeypatch.setenv("WHERE", ministack.endpoint_url)
    attributes = f"""
        bucket: {config.bucket}
        prefix: raw/orders/
        slots: 16
        s3:
          endpoint_url: "{{{{ env.WHERE }}}}"
          access_key_id_env: ORDERS_KEY
          secret_access_key_env: "{{{{ env('OTHER', 'ORDERS_SECRET') }}}}"
    """
    project("orders", attributes)
    return config


@pytest.mark.server
def test_a_command_on_an_object_needs_only_a_key(bucket: S3Config) -> None:
    """The number of slots must come from the YAML. Otherwise the wrong slot would be signalled."""
    store = S3ObjectStore(bucket)
    store.put("raw/orders/1.jsonl", b"{}\n")
    ran = run("signal", "raw/orders/1.jsonl")
    assert ran.exit_code == 0, ran.output
    slot = slot_of("raw/orders/1.jsonl", 16)
    assert ran.output == f"signalled 1 objects of 'orders', by the root and slots {slot}\n"
    assert store.head(f"_s3notify/orders/keyspace/{slot}") is not None
    answer = json.loads(run("explain", "raw/orders/1.jsonl", "--json").stdout)
    assert answer["slot"] == slot


@pytest.mark.server
@pytest.mark.parametrize("by_table", [False, True], ids=["bucket alone", "records table"])
def test_a_writer_s_rights_suffice_for_signalling(
    bucket: S3Config, ministack: S3Server, monkeypatch: pytest.MonkeyPatch, by_table: bool
) -> None:
    """Otherwise a program that may only write objects could not signal them. The table's record, too, has the prefix
    and the number of slots, but such a program may not read this record.
    """
    places = replace(places_of(bucket.bucket, tables=Tables()), bucket=bucket.bucket)
    with FaultProxy(ministack.endpoint_url) as proxy:
        monkeypatch.setenv("WHERE", proxy.url)
        proxy.forbidden.add("/_s3notify-known/orders")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        table = ["--records-table", "t", "--dynamodb-endpoint-url", proxy.url] if by_table else []
        proxy.faults.append("denied")  # only DynamoDB refuses by this fault
        ran = run("signal", "raw/orders/1.jsonl", *table)
        assert ran.exit_code == 0, ran.output
        proxy.faults.append("denied")
        assert "reads keys below 'raw/orders/'" in run("signal", "raw/elsewhere", *table).stderr
        assert proxy.requests.count("PUT") == 2
        for role in ("writer", "publisher"):
            assert refused(policy(role, places), needs(proxy.answered)) == set()
    assert S3ObjectStore(bucket).head(f"_s3notify/orders/keyspace/{slot_of('raw/orders/1.jsonl', 16)}")


@pytest.mark.server
def test_a_command_on_a_source_needs_only_a_name(bucket: S3Config) -> None:
    """Otherwise users would have to repeat bucket, endpoint and credentials in every command. If the error did not name
    the bucket, a user would not notice a wrong bucket in the YAML.
    """
    ran = run("quarantine", "list", "orders")
    assert ran.exit_code == 1
    assert f"source 'orders' has no table in bucket '{bucket.bucket}'" in ran.stderr
    assert run("topics", "stats").exit_code == 0


@pytest.mark.server
def test_doctor_and_explain_know_that_only_the_root_is_signalled(bucket: S3Config, tmp_path: Path) -> None:
    """Otherwise `doctor` would advise to delete a topic in use, and `explain` would report that the slot's signal is
    missing. No writer moves this signal.
    """
    file = tmp_path / "defs" / "orders" / "defs.yaml"
    file.write_text(f"{file.read_text()}  signals: root\n")
    (found,) = sources_of()
    topic = TopicSettings(bucket=bucket.bucket, prefix="raw/orders/", slots=16, shards=1, signals="root")
    found.source().location.queue().topics.create("orders", topic)
    publisher = open_publisher(
        "orders",
        bucket=bucket.bucket,
        slots=16,
        endpoint_url=bucket.endpoint_url,
        access_key_id_env="ORDERS_KEY",
        secret_access_key_env="ORDERS_SECRET",
    )
    publisher.put("raw/orders/1.jsonl", b"{}\n")
    examined = run("doctor", "orders")
    assert examined.exit_code == 0, examined.output
    answer = run("explain", "raw/orders/1.jsonl")
    assert answer.stdout.startswith("waiting in the queue for "), answer.output
    assert "signalled yet" not in answer.stdout
    assert "never signalled" not in answer.stdout


@pytest.mark.server
@pytest.mark.parametrize("command", [("remove", "orders", "--yes"), ("signal", "raw/orders/1")])
def test_a_platform_prefix_on_the_command_line_has_signals_of_its_own(
    bucket: S3Config, command: tuple[str, ...]
) -> None:
    """Otherwise a command for another environment would move or delete the signals of the environment in the YAML."""
    store, dev = S3ObjectStore(bucket), "_s3notify/dev/orders/"
    (found,) = sources_of()
    for source in (found.source(), found.source(platform_prefix=dev)):
        source.location.slot_signals().signal(["raw/orders/1"], queued=())

    def signals(prefix: str) -> dict[str, str]:
        return {meta.key: meta.etag for meta in list_all(store, f"{prefix}keyspace/")}

    before, of_dev = signals("_s3notify/orders/"), signals(dev)
    assert before
    assert of_dev
    ran = run(*command, "--platform-prefix", dev)
    assert ran.exit_code == 0, ran.output
    assert signals("_s3notify/orders/") == before
    assert signals(dev) != of_dev


@pytest.mark.server
@pytest.mark.parametrize(
    "command",
    [
        ["history", "order", "--slot", "1"],
        ["rows", "order", "--slot", "1"],
        ["vacuum", "order"],
        ["table", "show", "order"],
        ["table", "compact", "order"],
        ["table", "rollback", "order", "--to", "1"],
        ["table", "forget", "order"],
        ["quarantine", "list", "order"],
        ["quarantine", "retry", "--all", "--name", "order"],
        ["backfill", "order", "--all"],
        ["schema", "show", "order"],
        ["table", "confirm", "order"],
        ["explain", "raw/x", "--name", "order", "--prefix", "raw/"],
        ["signal", "raw/x", "--name", "order"],
    ],
)
def test_an_unknown_name_is_refused(bucket: S3Config, command: list[str]) -> None:
    """Otherwise a mistyped name would look like a source without data. The error says where the command looked for the
    name: in the YAML, or, with `--bucket`, in the bucket.
    """
    ran = run(*command)
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert "no source 'order'; defs has: orders" in ran.stderr
    flags = ["--bucket", bucket.bucket, "--endpoint-url", str(bucket.endpoint_url)]
    ran = CliRunner(env={"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}).invoke(
        main, [*command, *flags]
    )
    assert (ran.exit_code, ran.stdout) == (1, ""), ran.output
    assert "source 'order' has no table in bucket" in ran.stderr


def test_a_key_identifies_one_of_several_sources(
    project: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the user would have to name the source for each key, or the command could look into the table of
    another source. A command without a key needs the name of the source.
    """
    project("a", "bucket: b\nprefix: raw/a/")
    project("c", "bucket: b\nprefix: raw/c/")
    seen: list[Any] = []
    build = SourcePlace.source

    def locate(place: SourcePlace) -> None:
        seen.append((place.name, place.bucket, build(place).location.keyspace_prefix))
        raise RuntimeError

    monkeypatch.setattr(SourcePlace, "source", locate)
    run("explain", "raw/c/1")
    run("quarantine", "show", "raw/a/1")
    run("quarantine", "list", "c", "--bucket", "other")
    assert seen == [
        ("c", "b", "_s3notify/c/keyspace/"),
        ("a", "b", "_s3notify/a/keyspace/"),
        ("c", "other", "_s3notify/c/keyspace/"),
    ]
    ran = run("quarantine", "list")
    assert ran.exit_code == 1
    assert "name one of: a, c" in ran.stderr


def test_missing_values_are_named_with_their_place(project: Callable[..., None], tmp_path: Path) -> None:
    """Otherwise a user would not know which file or option lacks the value. The test covers missing options, missing
    folders, and environment variables that are not set.
    """
    ran = run("explain", "raw/1")
    assert ran.exit_code == 2
    assert "Missing option '--name'" in ran.stderr
    assert "defs/SOURCE/defs.yaml" in ran.stderr
    assert run("history", "orders", "--slot", "1", "--defs", "nowhere").exit_code == 1
    (tmp_path / "pyproject.toml").touch()
    project("orders", 'bucket: "{{ env.NO_SUCH_VARIABLE }}"', folder="src/shop/defs")
    ran = run("explain", "raw/1")
    assert ran.exit_code == 1
    assert "src/shop/defs/orders/defs.yaml: bucket" in ran.stderr
    assert "there is no environment variable NO_SUCH_VARIABLE" in ran.stderr


def test_only_what_a_command_needs_is_evaluated(
    project: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expressions in other attributes, and empty attributes, must not cause an error."""
    project("orders", 'bucket: b\nprefix: raw/\ndescription: "{{ mine.text }}"\nspark:\ns3:\nrunning: false')
    monkeypatch.setattr("s3notify_platform.cli.common.SourcePlace.location", lambda place: (_ for _ in ()).throw(
        UsageError(f"reached {place.bucket}")))  # fmt: skip
    assert "reached b" in run("history", "--slot", "1").stderr


def test_a_surplus_argument_is_named(project: Callable[..., None]) -> None:
    """Otherwise a NAME before the KEY would count as the key, and the error would not say what is wrong."""
    for name in ("orders", "returns"):
        project(name, f"bucket: b\nprefix: raw/{name}/")
    done = run("quarantine", "show", "orders", "raw/orders/1")
    assert (done.exit_code, "unexpected extra argument (raw/orders/1)" in done.output) == (2, True), (
        done.output
    )


def test_keys_without_a_common_source_are_refused(project: Callable[..., None]) -> None:
    """A command works on one source. For keys of another source, a command would signal the wrong slots."""
    project("orders", "bucket: b\nprefix: raw/")
    project("clicks", "bucket: b\nprefix: clicks/")
    for keys in (["elsewhere/1"], ["raw/1", "clicks/1"]):
        ran = run("signal", *keys)
        assert ran.exit_code == 1
        assert "no source that reads all of these keys; defs has: clicks, orders" in ran.stderr


def test_a_file_with_wrong_yaml_is_named(project: Callable[..., None], tmp_path: Path) -> None:
    project("orders", "bucket: [")
    ran = run("history", "orders", "--slot", "1")
    assert ran.exit_code == 1
    assert "defs/orders/defs.yaml" in ran.stderr
    (tmp_path / "defs" / "orders" / "defs.yaml").write_text("just text")
    assert run("history", "orders", "--slot", "1").exit_code == 2


GIVEN = {
    "key": "raw/orders/1", "keys": "raw/orders/1", "topic": "orders", "topics": "orders", "name": "orders",
    "into": "units", "home": ".", "slot": "1", "chosen": "1", "set_queue_url": "https://queue", "version": "1",
    "columns": "amount string", "since": "0",
}  # fmt: skip
"""Values for the arguments and options that are not in the YAML."""


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_every_command_takes_a_yaml_with_every_setting(project: Callable[..., None], tmp_path: Path) -> None:
    """If a parameter had the name of a setting but another meaning, it would get the value of the setting."""
    attributes = {
        setting.name: other(setting)
        for setting in settings_of(*UNGROUPED)
        if setting.name not in ("name", "bucket", "commit")
    }
    attributes |= {
        "bucket": "b",
        "transform": "json.loads",
        "dynamodb": {"records_table": "t"},
        "latest": {"key": "dt", "order_by": "_size"},
    }
    project("orders", "\n".join(f"{name}: {json.dumps(value)}" for name, value in attributes.items()))
    seen = []
    for path, command in commands(main):
        if not any(parameter.name == "bucket" for parameter in command.params):
            continue
        arguments = []
        for parameter in command.params:
            if parameter.required and parameter.name in GIVEN and parameter.name != "bucket":
                value = GIVEN[parameter.name]
                option = isinstance(parameter, click.Option) and parameter.name != "name"
                arguments += [parameter.opts[0], value] if option else []
                arguments += [value] if isinstance(parameter, click.Argument) else []
        command.make_context(" ".join(path), arguments)
        seen.append(path)
    assert len(seen) > 20


@pytest.mark.parametrize(("given", "region"), [({}, "eu-central-1"), ({"region": "eu-west-1"}, "eu-west-1")])
def test_commands_and_dagster_use_the_same_tables(
    project: Callable[..., None], given: dict[str, str], region: str
) -> None:
    """Otherwise the policy of `init --print iam` would name a table in one region, and a run would have no permission
    for the table that it uses in another region. By default, the tables are in the region of the bucket.
    """
    tables = {"records_table": "t", **given}
    project(
        "orders",
        f"bucket: b\nprefix: raw/\ns3: {{region: eu-central-1}}\ndynamodb: {json.dumps(tables)}",
    )
    command = ["init", "orders", "--print", "iam", "--role", "run", "--account", "123456789012"]
    assert f"arn:aws:dynamodb:{region}:123456789012:table/t" in CliRunner().invoke(main, command).output
    other = CliRunner().invoke(main, [*command, "--region", "sa-east-1"]).output
    assert "arn:aws:dynamodb:sa-east-1:" in other
    io = SlotIOManager(
        name="orders",
        bucket="b",
        prefix="raw/",
        s3=S3Resource(region_name="eu-central-1"),
        dynamodb=DynamoTables(**tables),
    )
    assert io.source.location.records_table is not None
    assert io.source.location.records_table.region == region


def test_a_command_does_not_create_dagster_s_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a command and the first start of Dagster could create the storage at the same time. The storage could
    then not be opened again.
    """
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dagster_instance() as found:
        assert found is None
    assert not [*home.iterdir()]
    with DagsterInstance.get():
        pass
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", "home")
    with dagster_instance() as found:
        assert found is not None


def test_a_source_does_not_read_objects_of_the_platform(project: Callable[..., None]) -> None:
    """A source must not read objects below prefixes that the platform uses in the same bucket for any source of the
    project.
    """
    project("whole", "bucket: b\nother_platform_prefixes: of/another/project/")
    project(
        "clicks",
        "bucket: b\nprefix: raw/\nplatform_prefix: own/\nkeyspace_prefix: signals/\nqueue_prefix: q/",
    )
    project("apart", "bucket: b\nprefix: raw/\nplatform_bucket: p\nplatform_prefix: mine/")
    project("later", "bucket: b\nprefix: raw/\nplatform_prefix: '{{ context.project_root }}/'")
    sources = {source.name: source for source in sources_of()}
    whole = sources["whole"].source()
    keys = ("own/records/1", "signals/7", "q/topics/1", "of/another/project/1", "mine/1", "raw/1")
    assert [key for key in keys if whole.choice.covers(key)] == ["mine/1", "raw/1"]
    assert sources["clicks"].values["other_platform_prefixes"] == ""


@pytest.mark.server
@pytest.mark.parametrize(
    ("setting", "key", "chosen"),
    [
        ("exclude: '*.csv'", "raw/orders/1.csv", False),
        ("include: '*.jsonl'", "raw/orders/1.csv", False),
        ("modified_after: '2100-01-01T00:00:00Z'", "raw/orders/1.csv", False),
        ("hidden_files: read", "raw/orders/_1.csv", True),
    ],
)
def test_explain_follows_the_yaml_s_choice_of_objects(
    bucket: S3Config, tmp_path: Path, setting: str, key: str, chosen: bool
) -> None:
    file = tmp_path / "defs" / "orders" / "defs.yaml"
    file.write_text(f"{file.read_text()}  {setting}\n")
    S3ObjectStore(bucket).put(key, b"{}\n")
    run("signal", key)
    answer = run("explain", key)
    assert (answer.exit_code, answer.stdout.startswith("not read")) == (
        (1, False) if chosen else (0, True)
    ), answer.output
