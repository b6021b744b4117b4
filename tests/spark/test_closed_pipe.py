"""`s3notify ingest --once 2>&1 | head -1`: a reader that closes the pipe does not stop the ingest."""

import os
import subprocess
import sys

import pytest

from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.servers import S3Server


@pytest.mark.server
@pytest.mark.spark
def test_ingest_survives_a_closed_pipe(ministack: S3Server) -> None:
    """All objects must be committed, with exit code 0, and without an error about the closed pipe."""
    config = ministack.config(ministack.make_bucket())
    S3ObjectStore(config).put("raw/1.jsonl", b'{"id": 7}\n')
    place = [
        "orders",
        "--bucket",
        config.bucket,
        "--endpoint-url",
        ministack.endpoint_url,
        "--slot-count",
        "1",
    ]
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }

    def ran(*arguments: str, **streams: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "s3notify_platform.cli", *arguments]
        return subprocess.run(command, env=environment, text=True, check=False, **streams)  # type: ignore[call-overload,no-any-return]

    reading, unread = os.pipe()
    os.close(reading)
    try:
        assert (
            ran("ingest", *place, "--prefix", "raw/", "--once", stdout=unread, stderr=unread).returncode == 0
        )
        rows = ran("rows", *place, "--slot", "0", stdout=subprocess.PIPE)
        assert '"id": 7' in rows.stdout
        for command in (
            ["rows", *place, "--slot", "0"],
            ["history", *place, "--slot", "0"],
            ["topics", "--help"],
        ):
            ended = ran(*command, stdout=unread, stderr=subprocess.PIPE)
            assert (ended.returncode, ended.stderr) == (1, "")
    finally:
        os.close(unread)
