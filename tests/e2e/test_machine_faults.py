"""A machine fails during a run: its S3 server is restarted, or its disk is full.

In both cases the error must be clear, and the table correct.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.source.source import Source
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.drivers import WAIT_SECONDS, Driver
from tests.support.fuzz.kills import ROOT
from tests.support.ingested import rows_of
from tests.support.servers import S3Server
from tests.support.sources import source_of

pytestmark = [pytest.mark.e2e, pytest.mark.server, pytest.mark.thorough, pytest.mark.timeout(900)]

SETTINGS: dict[str, Any] = {
    "name": "orders", "prefix": "raw/", "format": "jsonl", "schema": "id bigint, note string", "slots": 4,
}  # fmt: skip


def filled(config: S3Config, objects: int, *, rows: int = 10) -> Source:
    """A source whose objects have this number of rows each. The ids of the rows rise from object to object."""
    store = S3ObjectStore(config)
    for n in range(objects):
        lines = [{"id": n * rows + m, "note": os.urandom(100).hex()} for m in range(rows)]
        store.put(f"raw/{n}.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    store.close()
    return source_of(bucket=config, commit="native", **SETTINGS)


def ids(source: Source) -> list[int]:
    return sorted(row["id"] for row in rows_of(source))


def answer_of(driver: Driver) -> dict[str, Any]:
    while "progress" in (answer := driver.answer(WAIT_SECONDS) or {}):
        pass
    return answer


def driver_of(config: S3Config, log: Path) -> Driver:
    keys = {"access_key_id": config.access_key_id, "secret_access_key": config.secret_access_key}
    return Driver({"bucket": config.bucket, "endpoint_url": config.endpoint_url, **keys}, {}, log)


def test_server_restarted_during_a_run(local_server: LocalS3Server, tmp_path: Path) -> None:
    """The run must wait for the server, or fail with an error that names the endpoint. The next run must commit the
    missing objects.
    """
    local_server.create_bucket("restarted")
    config = local_server.config("restarted")
    source = filled(config, 60)
    driver = driver_of(config, tmp_path / "driver.log")
    try:
        driver.tell({"source": SETTINGS, "batch": "first", "listing": True})
        while not (answer := driver.answer(WAIT_SECONDS) or {}).get("progress", "").startswith("reading"):
            assert "progress" in answer, (answer, driver.tail())
        assert local_server.pid is not None
        os.kill(local_server.pid, signal.SIGKILL)
        first = answer_of(driver)
        assert not first.get("failed") or str(config.endpoint_url) in json.dumps(first["failed"]), first
        if "error" in first:
            assert str(config.endpoint_url) in first["error"]
        local_server.wait_ready()
        driver.tell({"source": SETTINGS, "batch": "second", "listing": True})
        second = answer_of(driver)
        assert (second.get("failed"), second.get("complete")) == ({}, True), second
    finally:
        driver.kill()
    assert ids(source) == [*range(600)]


def test_full_disk_ends_a_run_with_a_clear_error(ministack: S3Server, tmp_path: Path) -> None:
    """The driver cannot write Spark's input, so the run must end with an error that says this. The next run must ingest
    all objects.
    """
    config = ministack.config(ministack.make_bucket())
    source = filled(config, 8, rows=4000)
    driver = driver_of(config, tmp_path / "driver.log")
    given = {"source": SETTINGS | {"split_bytes": 100_000}, "listing": True}
    try:
        driver.start()
        assert driver.process is not None
        limit = 4_000  # simulates a full disk: no file may become longer
        resource.prlimit(driver.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        driver.tell(given | {"batch": "full"})
        with pytest.raises(AssertionError, match="File too large"):
            answer_of(driver)
        driver.kill()
        driver.start()
        driver.tell(given | {"batch": "room"})
        assert answer_of(driver)["failed"] == {}
    finally:
        driver.kill()
    assert ids(source) == [*range(8 * 4000)]


def test_output_to_a_full_disk_fails_with_one_line() -> None:
    """Otherwise a person would see a traceback. The error must be one line that names the full disk, and the exit code
    must be 1.
    """
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "s3notify_platform.cli", "--help"],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert ran.returncode == 1
    assert "No space left on device" in ran.stderr
    assert "Traceback" not in ran.stderr
