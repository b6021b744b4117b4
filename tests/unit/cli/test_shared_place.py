"""A command for all sources of a project works at one place. The YAML files of all sources must name this place."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from s3notify_platform.cli.main import main
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.stores.open_store import queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.servers import S3Server

Project = Callable[..., None]

NOWHERE = "http://127.0.0.1:1"
"""An address without a server. A command that is not refused sends no request to another machine."""

KEYS = {"access_key_id_env": "ORDERS_KEY", "secret_access_key_env": "ORDERS_SECRET"}
TABLE = {"dynamodb": {"records_table": "t"}}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A function that writes a YAML file for each source, in the folder where the commands run."""
    monkeypatch.chdir(tmp_path)
    for name in ("S3NOTIFY_DEFS", "DAGSTER_HOME", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_DYNAMODB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", NOWHERE)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")

    for module in ("reconcile", "services"):
        monkeypatch.setattr(f"s3notify_platform.cli.{module}.run_in_foreground", lambda *_, **__: None)

    def write(**sources: dict[str, object]) -> None:
        for name, attributes in sources.items():
            file = tmp_path / "defs" / name / "defs.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"attributes": {"name": name, "bucket": "b", **attributes}}))

    return write


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize(
    "command",
    [
        ["reconcile"],
        ["inlet", "sqs", "--queue-url", "https://sqs.us-east-1.amazonaws.com/123456789012/q"],
        ["inlet", "poison", "--discard-all"],
        ["topics", "delete", "t", "--yes"],
        ["deliver"],
        ["serve-notifications"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    ("setting", "clicks", "orders", "found"),
    [
        ("bucket", {"bucket": "c"}, {}, "clicks has 'c', orders has 'b'"),
        ("platform-bucket", {"platform_bucket": "p"}, {}, "clicks has 'p', orders has 'b'"),
        ("queue-prefix", {}, {"queue_prefix": "q/"}, "clicks has '_s3notify/queue/', orders has 'q/'"),
        (
            "endpoint-url",
            {"s3": {"endpoint_url": "http://a"}},
            {},
            f"clicks has 'http://a', orders has {NOWHERE!r}",
        ),
        ("region", {}, {"s3": {"region": "eu-west-1"}}, "clicks has 'us-east-1', orders has 'eu-west-1'"),
        ("records-table", TABLE, {}, "clicks has 't', orders has none"),
        (
            "dynamodb-profile",
            TABLE,
            {"dynamodb": {"records_table": "t", "profile": "shop"}},
            "clicks has none, orders has 'shop'",
        ),
        ("kms-key-id", {"s3": {"kms_key_id": "alias/a"}}, {}, "clicks has 'alias/a', orders has none"),
        ("requester-pays", {}, {"s3": {"requester_pays": True}}, "clicks has False, orders has True"),
    ],
)
def test_sources_at_different_places_are_refused(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    *,
    command: list[str],
    setting: str,
    clicks: dict[str, object],
    orders: dict[str, object],
    found: str,
) -> None:
    """Otherwise the command would work at the default place, which perhaps no source uses."""
    if setting == "region":  # on AWS; a refused command sends no request
        monkeypatch.delenv("AWS_ENDPOINT_URL")
    project(clicks=clicks, orders=orders)
    ran = run(*command)
    name = setting.replace("-", "_")
    expected = (
        f"the sources differ in {name}: {found}: give --{setting}, or the folder of one source as --defs"
    )
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert expected in " ".join(ran.stderr.split())


@pytest.mark.server
@pytest.mark.parametrize(
    ("given", "prefix"),
    [(["--queue-prefix", "other/"], "other/"), (["--defs", "defs/orders"], "q/")],
)
def test_the_command_line_chooses_one_of_several_places(
    project: Project, ministack: S3Server, given: list[str], prefix: str
) -> None:
    """Otherwise a project with several queues could not use these commands. A refused command must write nothing."""
    config = ministack.config(ministack.make_bucket())
    there = {"bucket": config.bucket, "s3": {"endpoint_url": config.endpoint_url}}
    project(clicks=there, orders={**there, "queue_prefix": "q/"})
    command = ["topics", "create", "t", "--shards", "1"]
    assert run(*command).exit_code == 1
    assert not [*list_all(S3ObjectStore(config), "")]
    ran = run(*command, *given)
    assert ran.exit_code == 0, ran.output
    queue = NotificationQueue(queue_records(config, prefix))
    assert [topic.name for topic in queue.topics.all()] == ["t"]
    assert {meta.key.startswith(prefix) for meta in list_all(S3ObjectStore(config), "")} == {True}


@pytest.mark.server
def test_other_settings_of_the_sources_may_differ(project: Project, ministack: S3Server) -> None:
    """Otherwise sources with different schemas, or with one place in two spellings, could not share a queue."""
    config = ministack.config(ministack.make_bucket())
    there = {"bucket": config.bucket, "s3": {"endpoint_url": config.endpoint_url}}
    same = {"queue_prefix": "_s3notify/queue/", "platform_bucket": config.bucket}
    more = {"schema": "a int", "format": "csv", "slots": 40, "platform_prefix": "own/", "signals": "root"}
    tables = {"dynamodb": {"lease_table": "t", "region": "eu-west-1"}}
    access = {"s3": {"endpoint_url": config.endpoint_url, "region": "local"} | KEYS}
    project(clicks=there, orders=there | same | more | tables | access)
    ran = run("topics", "list", "--json")
    assert (ran.exit_code, ran.stdout.strip()) == (0, "[]"), ran.output


def test_doctor_without_a_name_probes_only_a_shared_place(project: Project) -> None:
    """Otherwise `doctor` would write its probe objects to a bucket that the platform does not use."""
    project(clicks={"platform_bucket": "p"}, orders={"queue_prefix": "q/"})
    ran = run("doctor")
    assert ran.exit_code == 1
    expected = "clicks has 'p', orders has 'b': give --platform-bucket, or the NAME of one source"
    assert f"the sources differ in platform_bucket: {expected}" in " ".join(ran.stderr.split())


def test_doctor_without_a_name_ignores_lease_tables_that_differ(project: Project) -> None:
    """Otherwise `doctor` would be refused if only some of the sources need leases."""
    project(clicks={"dynamodb": {"lease_table": "t", "region": "eu-west-1"}}, orders={})
    assert "the sources differ" not in run("doctor").stderr


def test_tables_are_made_only_in_the_region_of_all_sources(project: Project, tmp_path: Path) -> None:
    """Otherwise `init` would create a table in the default region, where no source looks for the table. Options that
    need no region must not be refused.
    """
    clicks: dict[str, object] = {"s3": {"region": "eu-west-1"}}
    orders: dict[str, object] = {"s3": {"region": "eu-central-1"}}
    project(clicks=clicks, orders=orders)
    command = ["init", "--records-table", "t"]
    ran = run(*command)
    expected = (
        "clicks has 'eu-west-1', orders has 'eu-central-1': give --dynamodb-region, or the NAME of one source"
    )
    assert f"the sources differ in dynamodb_region: {expected}" in " ".join(ran.stderr.split())
    assert run(*command, "--print", "cloudformation").exit_code == 0
    assert run("init", "--dagster-home", str(tmp_path / "home")).exit_code == 0


def test_tables_are_made_only_with_credentials_of_all_sources(project: Project) -> None:
    """Otherwise `init` would create a table in the account of the default credentials, where no source looks for the
    table.
    """
    project(clicks={"dynamodb": {"records_table": "t", "profile": "shop"}}, orders=TABLE)
    ran = run("init")
    expected = "clicks has 'shop', orders has none: give --dynamodb-profile, or the NAME of one source"
    assert f"the sources differ in dynamodb_profile: {expected}" in " ".join(ran.stderr.split())
