"""Real servers for tests: ministack (S3, DynamoDB, SQS, SNS, EventBridge) and SeaweedFS. A test session has one server
of each kind.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.local.process import free_ports
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.stores.s3 import S3ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A running server. The methods of the server return the configuration of a bucket, and make new buckets with
    unique names.
    """

    endpoint_url: str
    config: Callable[[str], S3Config]
    region: str = "us-east-1"
    _names: Iterator[int] = field(default_factory=count)

    def make_bucket(self, name: str | None = None) -> str:
        bucket = name or f"test-{next(self._names)}-{uuid4().hex[:8]}"
        store = S3ObjectStore(self.config(bucket))
        with contextlib.closing(store):
            store.create_bucket()
        return bucket

    def table_config(self, name: str | None = None) -> DynamoConfig:
        """The configuration of a DynamoDB table at the same port (ministack), by default with a unique name.

        The table is not created.
        """
        table = name or f"test-{next(self._names)}-{uuid4().hex[:8]}"
        keys = self.config("")
        return DynamoConfig(
            table=table,
            endpoint_url=self.endpoint_url,
            access_key_id=keys.access_key_id,
            secret_access_key=keys.secret_access_key,
        )


def _ministack_program() -> str:
    here = Path(sys.executable).parent / "ministack"
    program = str(here) if here.is_file() else shutil.which("ministack")
    assert program, "ministack is not installed: pip install 's3notify-platform[dev]'"
    return program


@contextlib.contextmanager
def running_ministack(folder: Path, *, strict: bool = False) -> Iterator[S3Server]:
    """A running ministack on 127.0.0.1, which keeps all data in memory. The credentials are `test`/`test`.

    `strict`: policies of queues and topics are enforced, as on AWS.
    """
    (port,) = free_ports(1, SYSTEM_CLOCK)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "s3,dynamodb,sqs,sns,events,sts",
        # By default, this service of ministack listens on all interfaces, at a fixed port.
        "IOT_MTLS_ENABLED": "0",
        "AUTH": str(strict).lower(),
    }
    url = f"http://127.0.0.1:{port}"
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [_ministack_program()], stdout=log, stderr=log, cwd=folder, env=environment
        ) as process,
    ):
        try:
            _wait_for(f"{url}/_ministack/health", process, folder / "log")
            yield S3Server(
                endpoint_url=url,
                config=lambda bucket: S3Config(
                    bucket=bucket, endpoint_url=url, access_key_id="test", secret_access_key="test"
                ),
            )
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests of a session; each test uses its own buckets and tables."""
    with running_ministack(tmp_path_factory.mktemp("ministack")) as server:
        yield server


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.1)
    pytest.fail(f"{url} did not come up: {log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def local_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalS3Server]:
    """The embedded SeaweedFS as `LocalS3Server`, for tests that need its pid, environment or folder."""
    folder = tmp_path_factory.mktemp("seaweed")
    ports = dict(
        zip(("master_port", "volume_port", "filer_port", "s3_port"), free_ports(4, SYSTEM_CLOCK), strict=True)
    )
    # The server gets the same keys as the other servers, because Spark's tasks read keys from the environment in which
    # Java was started.
    state = {"access_key_id": "test", "secret_access_key": "test", **ports}
    (folder / "server.json").write_text(json.dumps(state))
    with LocalS3Server(folder) as server:
        yield server


@pytest.fixture(scope="session")
def seaweed(local_server: LocalS3Server) -> S3Server:
    """The embedded SeaweedFS as an `S3Server`, like the other servers."""
    return S3Server(endpoint_url=local_server.endpoint_url, config=local_server.config)
