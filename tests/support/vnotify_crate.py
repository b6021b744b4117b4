"""The Rust crate vnotify itself, in a separate process. The program is built once, and lines of JSON control it."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from s3notify_platform.stores.config import S3Config

PEER = Path(__file__).parent / "vnotify_peer"


def build_peer(folder: Path) -> Path:
    """Builds the program in a new folder; returns its path."""
    here = shutil.copytree(PEER, folder / "peer")
    subprocess.run(["cargo", "build", "--quiet"], cwd=here, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", here / "target")) / "debug" / "vnotify-peer"


class Peer:
    """A running program, which has its own cache."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def put(self, key: str, body: str) -> None:
        self.ask(put=key, body=body)

    def get(self, key: str) -> str | None:
        return self.ask(get=key)

    def ask(self, **what: Any) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the crate's process ended"
        return json.loads(line)


@contextmanager
def running_peer(program: Path, config: S3Config, *, prefix: str, slots: int) -> Iterator[Peer]:
    """The crate on this bucket, with a keyspace at this prefix."""
    place = {
        "endpoint": config.endpoint_url,
        "region": config.region,
        "id": config.access_key_id,
        "secret": config.secret_access_key,
        "bucket": config.bucket,
        "prefix": prefix,
        "shards": slots,
    }
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        peer = Peer(process)
        peer.ask(**place)
        try:
            yield peer
        finally:
            process.kill()
