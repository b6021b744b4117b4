"""Commands reach buckets and DynamoDB tables as runs do, or refuse to work."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from tests.contracts.fault_proxy import FaultProxy
from tests.support.servers import S3Server

Project = Callable[..., set[str]]

PROFILE = "[{0}]\naws_access_key_id = {0}\naws_secret_access_key = test\n"


@pytest.fixture
def signers(ministack: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A function that runs a command and returns the key ids that signed its requests to DynamoDB.

    Each source of the project has the given `dynamodb` settings. The profiles `shop` and `admin` have key ids of the
    same names. The key id of the environment is `usual`.
    """
    monkeypatch.chdir(tmp_path)
    for name in ("S3NOTIFY_DEFS", "DAGSTER_HOME", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "credentials").write_text("".join(map(PROFILE.format, ("shop", "admin"))))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "usual")
    for name in ("AWS_SECRET_ACCESS_KEY", "SHOP_SECRET"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("SHOP_KEY", "shop")
    table, bucket = ministack.table_config().table, ministack.make_bucket()

    def run(*command: str, **sources: dict[str, object]) -> set[str]:
        with FaultProxy(ministack.endpoint_url) as proxy:
            for name, dynamodb in sources.items():
                file = tmp_path / "defs" / name / "defs.yaml"
                file.parent.mkdir(parents=True, exist_ok=True)
                attributes = {
                    "name": name,
                    "bucket": bucket,
                    "prefix": f"{name}/",
                    "s3": {"endpoint_url": ministack.endpoint_url, "profile": "shop"},
                    "dynamodb": {"records_table": table, "endpoint_url": proxy.url, **dynamodb},
                }
                file.write_text(json.dumps({"attributes": attributes}))
            ran = CliRunner().invoke(main, list(command))
            assert ran.exit_code == 0, ran.output
            found = [re.search("Credential=([^/]+)/", one.headers["authorization"]) for one in proxy.answered]
            return {each[1] for each in found if each}

    return run


PLACES = [{"profile": "shop"}, {"access_key_id_env": "SHOP_KEY", "secret_access_key_env": "SHOP_SECRET"}]


@pytest.mark.server
@pytest.mark.parametrize("given", PLACES)
def test_init_and_doctor_reach_tables_with_the_credentials_of_the_yaml(
    signers: Project, given: dict[str, object]
) -> None:
    """Otherwise `init` would create tables in the wrong AWS account, and `doctor` would look for tables in this
    account.
    """
    assert signers("init", "orders", orders=given) == {"shop"}
    assert signers("doctor", "orders", orders=given) == {"shop"}


@pytest.mark.server
@pytest.mark.parametrize(
    ("option", "given"),
    [
        *(("--profile", each) for each in ({}, *PLACES)),
        *(("--dynamodb-profile", each) for each in ({}, PLACES[0])),
    ],
)
def test_init_makes_tables_as_the_user_of_the_command_line(
    signers: Project, option: str, given: dict[str, object]
) -> None:
    """Otherwise an administrator could not create the tables of a source whose runs may not create tables."""
    assert signers("init", "orders", option, "admin", orders=given) == {"admin"}


@pytest.mark.server
def test_credentials_of_buckets_do_not_reach_tables(signers: Project) -> None:
    """Otherwise `init` would create tables as another user than the runs that use them."""
    assert signers("init", "orders", orders={}) == {"usual"}


@pytest.mark.parametrize("group", ["s3", "dynamodb"])
def test_commands_refuse_a_source_whose_access_only_dagster_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    """Otherwise a command would work at the default place: `table show` would report a loss of the table, and would
    advise a command that would break the table.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("S3NOTIFY_DEFS", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")  # no command may reach AWS
    attributes = {
        "name": "orders",
        "bucket": "b",
        "prefix": "raw/",
        "resources": {group: "ours", "spark": "its"},
    }
    (tmp_path / "defs" / "orders").mkdir(parents=True)
    command = ["init", "orders", "--print", "iam", "--role", "reader"]

    def run(more: dict[str, object]) -> tuple[int, str]:
        (tmp_path / "defs" / "orders" / "defs.yaml").write_text(json.dumps({"attributes": attributes | more}))
        ran = CliRunner().invoke(main, command)
        return ran.exit_code, " ".join(ran.stderr.split())

    code, message = run({})
    assert code == 1
    assert "source 'orders': commands cannot see Dagster's resource 'ours'" in message
    assert f"write the same settings into the group {group}, too" in message
    for same in ({"region": "eu-west-1"}, {}):
        assert run({group: same}) == (0, "")
    attributes["resources"] = {"spark": "its"}
    assert run({}) == (0, "")
