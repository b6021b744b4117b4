"""A Python object that runs `xor_ack_peer.js`, a replacement for the npm package xor-ack-dynamodb. The module also
makes tables for the replacement on ministack.
"""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from uuid import uuid4

import boto3
import pytest

from s3notify_platform.stores.config import DynamoConfig

PROGRAM = Path(__file__).with_suffix(".js")
SDK = "aws-sdk@2.1692.0"
ANSWER_SECONDS = 60


class PeerError(Exception):
    """An error that the peer reports: its name and its code."""

    def __init__(self, name: str, code: str | None) -> None:
        super().__init__(name, code)
        self.name, self.code = name, code


def install(folder: Path) -> Path:
    """Installs AWS's SDK from the npm registry. Returns the folder."""
    assert shutil.which("npm"), "npm is missing: apt-get install nodejs npm"
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), SDK]
    subprocess.run(command, check=True, timeout=240)
    return folder


class XorAckPeer:
    """A running peer. Several threads may call it concurrently."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._ids = count()
        self._answers: dict[int, Future[dict]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def create(self, tag: str, stamp: bytes) -> None:
        self._ask(op="create", tag=tag, stamp=stamp.hex())

    def stamp(self, tag: str, stamp: bytes) -> bool:
        """Makes one stamp. Returns True if the stamp acks the chain."""
        return self._ask(op="stamp", tag=tag, stamp=stamp.hex())["acked"]

    def delete(self, tag: str) -> None:
        self._ask(op="delete", tag=tag)

    def stamp_all(self, tag: str, stamps: Sequence[bytes]) -> dict:
        """Makes all stamps at the same time. Each stamp is repeated until it is not stale.

        Returns `attempts`, `acked` (the number of acks) and `seconds`.
        """
        return self._ask(op="stampAll", tag=tag, stamps=[stamp.hex() for stamp in stamps])

    def _ask(self, **command: object) -> dict:
        answer: Future[dict] = Future()
        with self._lock:
            number = next(self._ids)
            self._answers[number] = answer
            self._process.stdin.write(json.dumps({"id": number, **command}) + "\n")
            self._process.stdin.flush()
        found = answer.result(ANSWER_SECONDS)
        if "error" in found:
            raise PeerError(found["error"], found.get("code"))
        return found

    def _listen(self) -> None:
        for line in self._process.stdout:
            answer = json.loads(line)
            self._answers.pop(answer["id"]).set_result(answer)


@contextmanager
def running(folder: Path, config: DynamoConfig, partition_key: str = "tagID") -> Iterator[XorAckPeer]:
    """A running peer on a table. `folder`: the folder in which `install` has put the SDK."""
    environment = {
        **os.environ,
        "NODE_PATH": str(folder / "node_modules"),
        "AWS_SDK_JS_SUPPRESS_MAINTENANCE_MODE_MESSAGE": "1",
        "NODE_NO_WARNINGS": "1",
    }
    command = ["node", str(PROGRAM), config.endpoint_url, config.table, partition_key]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield XorAckPeer(process)
        finally:
            process.stdin.close()
            process.terminate()


def make_table(endpoint_url: str, partition_key: str = "tagID") -> DynamoConfig:
    """A new table with the schema of the npm package."""
    config = DynamoConfig(
        table=f"acks-{uuid4().hex[:8]}",
        endpoint_url=endpoint_url,
        access_key_id="test",
        secret_access_key="test",
    )
    client = boto3.client(
        "dynamodb",
        endpoint_url=endpoint_url,
        region_name=config.region,
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    client.create_table(
        TableName=config.table,
        KeySchema=[{"AttributeName": partition_key, "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": partition_key, "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    client.close()
    return config


@pytest.fixture(scope="session")
def peer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("npm"))
