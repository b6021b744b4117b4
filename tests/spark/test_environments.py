"""Several deployments share a bucket. The tests run the commands that people run. A topic serves only one table."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from s3notify_platform.channels import open_publisher
from s3notify_platform.kernel.ports import Written
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.open_store import queue_records
from tests.support.documents import block

Deployment = Callable[..., Callable[..., subprocess.CompletedProcess[str]]]


@pytest.fixture
def deployment(config: S3Config, tmp_path: Path) -> Deployment:
    """Makes a folder with the YAML of a source `orders`, extended by the given lines. Returns a function that runs
    commands in this folder.
    """

    def made(name: str, lines: str = "") -> Callable[..., subprocess.CompletedProcess[str]]:
        folder = tmp_path / name / "defs" / "orders"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "defs.yaml").write_text(
            "type: s3notify_platform.S3NotifyComponent\nattributes:\n"
            f"  name: orders\n  bucket: {config.bucket}\n  prefix: raw/\n  schema: a bigint\n"
            f"  s3: {{endpoint_url: '{config.endpoint_url}', region: {config.region}}}\n{lines}"
        )
        keys = {"AWS_ACCESS_KEY_ID": config.access_key_id, "AWS_SECRET_ACCESS_KEY": config.secret_access_key}

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "s3notify_platform.cli", *arguments],
                cwd=tmp_path / name,
                env={**os.environ, **{key: value or "" for key, value in keys.items()}, "COLUMNS": "250"},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )

        return run

    return made


def ok(ran: subprocess.CompletedProcess[str]) -> str:
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def put(config: S3Config, value: int, monkeypatch: pytest.MonkeyPatch, **settings: object) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", config.access_key_id or "")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", config.secret_access_key or "")
    place = {"bucket": config.bucket, "endpoint_url": config.endpoint_url, "region": config.region}
    publisher = open_publisher("orders", **place, **settings)  # type: ignore[arg-type]
    assert isinstance(publisher.put("raw/k.jsonl", b'{"a": %d}\n' % value), Written)


@pytest.mark.server
@pytest.mark.thorough
def test_topic_has_the_slots_of_its_source(
    config: S3Config, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the topic had another number of slots than its source, overwritten objects would be missed, and entries would
    stay.
    """
    prod = deployment("prod", "  slots: 40\n")
    assert "40 slots" in ok(prod("topics", "create", "orders", "--prefix", "raw/"))
    queue = NotificationQueue(queue_records(config))
    for value in (1, 2):
        put(config, value, monkeypatch, slots=40)
        ok(prod("ingest", "orders", "--once"))
        rows = ok(prod("rows", "orders", "--slot", str(slot_of("raw/k.jsonl", 40))))
        assert [json.loads(row)["a"] for row in rows.splitlines()] == [value]
        assert not [*queue.pending("orders")]


@pytest.mark.server
@pytest.mark.thorough
def test_second_environment_follows_the_recipe_of_the_guide(
    config: S3Config, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the guide's recipe, the second environment must be refused before it takes any entry. With the recipe,
    the second environment must have its own data. A removal of the second environment must not change the first
    environment.
    """
    queue = NotificationQueue(queue_records(config))
    prod = deployment("prod")
    ok(prod("topics", "create", "orders", "--prefix", "raw/"))
    put(config, 1, monkeypatch)
    ok(prod("ingest", "orders", "--once"))
    (table,) = queue.topics.get("orders").tables
    put(config, 2, monkeypatch)
    waiting = [*queue.pending("orders")]
    assert waiting

    dev = deployment("dev", "  platform_prefix: _s3notify/dev/orders/\n")
    for refused in (dev("doctor", "orders"), dev("ingest", "orders", "--once")):
        assert refused.returncode == 1, refused.stdout + refused.stderr
        assert re.search(
            rf"topic 'orders' serves table {table}.*queue_prefix", refused.stdout + refused.stderr, re.DOTALL
        )
    assert "stays" in ok(dev("remove", "orders", "--yes"))
    assert [*queue.pending("orders")] == waiting
    ok(prod("doctor", "orders"))

    recipe = block("second environment")
    dev = deployment("dev", recipe)
    ok(dev("doctor", "orders"))
    ok(dev("topics", "create", "orders", "--prefix", "raw/"))
    ok(dev("ingest", "orders", "--once"))
    assert queue.topics.get("orders").tables == (table,)
    ok(dev("remove", "orders", "--yes"))
    assert [*queue.pending("orders")] == waiting
    ok(prod("ingest", "orders", "--once"))
    assert not [*queue.pending("orders")]
