"""The printed IAM policy of a run allows each request of the commands of an operator on call."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.cli.main import main
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import TopicSettings
from tests.contracts.fault_proxy import FaultProxy
from tests.support.iam import ACCOUNT, needs, refused
from tests.support.ingested import Place
from tests.support.servers import S3Server

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    "command",
    [
        "status orders",
        "explain raw/a --name orders",
        "history orders",
        "rows orders --limit 1",
        "quarantine list orders",
        "quarantine retry --all --name orders",
        "backfill orders --all",
        "table check orders",
    ],
)
def test_an_operator_needs_only_the_role_of_a_run(
    ministack: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Otherwise the guide would name a role with which a command is refused."""
    place = Place(ministack)
    place.put("a", 1, 2)
    place.run("1")
    location, config = place.source.location, place.store.config
    queue = location.queue()
    queue.topics.create("orders", TopicSettings(bucket=config.bucket, prefix="raw/", slots=location.slots))
    place.put("b", 3)
    signals = Publisher(place.store, prefix=location.keyspace_prefix, slots=location.slots)
    QueuedPublisher(signals, queue, bucket=config.bucket, topic="orders").announce(["raw/b"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with FaultProxy(ministack.endpoint_url) as proxy:
        attributes = {
            "name": "orders",
            "bucket": config.bucket,
            "prefix": place.source.input.prefix,
            "platform_prefix": location.platform_prefix,
            "slots": location.slots,
            "s3": {"endpoint_url": proxy.url, "region": "us-east-1"},
        }
        file = tmp_path / "defs" / "orders" / "defs.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"attributes": attributes}))
        ran = CliRunner().invoke(main, command.split())
        asked = needs(proxy.answered)
    assert ran.exit_code == 0, ran.output
    assert asked
    of_role = ["init", "orders", "--print", "iam", "--role", "run", "--account", ACCOUNT]
    printed = CliRunner().invoke(main, of_role)
    assert refused(json.loads(printed.stdout), asked) == set()
