"""Writers that use object_store's own DynamoCommit, by obstore 0.8.2, in a separate process and folder.

The tests' environment has a later obstore, which lacks DynamoCommit. `Crate` starts the process, and sends it tasks as
lines of JSON. The tasks of one call begin at the same time, in threads.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s3notify_platform.stores.config import S3Config

OBSTORE = "obstore==0.8.2"

PROGRAM = r"""
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import S3Store

settings = json.loads(sys.argv[1])
store = S3Store(
    settings["bucket"], endpoint=settings["endpoint"], region=settings["region"],
    access_key_id=settings["key"], secret_access_key=settings["secret"], virtual_hosted_style_request=False,
    conditional_put=settings["commit"], copy_if_not_exists=settings["commit"],
    client_options={"allow_http": True},
)

def run(task):
    began = time.monotonic()
    etag = None
    try:
        if task["do"] == "create":
            etag = obstore.put(store, task["path"], task["body"].encode(), mode="create", use_multipart=False)["e_tag"]
        elif task["do"] == "update":
            mode = {"e_tag": '"' + task["etag"] + '"'}
            etag = obstore.put(store, task["path"], task["body"].encode(), mode=mode, use_multipart=False)["e_tag"]
        elif task["do"] == "copy":
            obstore.copy(store, task["source"], task["path"], overwrite=False)
        elif task["do"] == "delete":
            obstore.delete(store, task["path"])
        said = "won"
    except (AlreadyExistsError, PreconditionError):
        said = "lost"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return {"said": said, "etag": etag and etag.strip('"'), "seconds": time.monotonic() - began}

pool = ThreadPoolExecutor(64)
print(json.dumps(obstore.__version__), flush=True)
for line in sys.stdin:
    print(json.dumps(list(pool.map(run, json.loads(line)))), flush=True)
"""


def install_crate(folder: Path) -> Path:
    """Installs only obstore 0.8.2, which has the DynamoDB commit, in `folder`."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*command, "--target", str(folder), "--no-deps", OBSTORE], check=True)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The answer that a writer got from the crate, and the duration in seconds."""

    said: str
    etag: str | None
    seconds: float


class Crate:
    """A running process of the crate's writers, with one lease table and one bucket."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.version = self._answer()

    def begin(self, tasks: Sequence[dict[str, Any]]) -> None:
        """Starts all tasks at the same time. `finish` waits for the tasks."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(list(tasks)) + "\n")
        self._process.stdin.flush()

    def finish(self) -> list[Said]:
        return [Said(**said) for said in self._answer()]

    def run(self, *tasks: dict[str, Any]) -> list[Said]:
        self.begin(tasks)
        return self.finish()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the process of obstore ended"
        return json.loads(line)


@contextmanager
def crate_writers(installed: Path, config: S3Config, table: str, timeout_ms: int) -> Iterator[Crate]:
    """The crate's writers for this bucket. The writers' leases last `timeout_ms`, and are in this table."""
    settings = {
        "bucket": config.bucket,
        "endpoint": config.endpoint_url,
        "region": config.region,
        "key": config.access_key_id,
        "secret": config.secret_access_key,
        "commit": f"dynamo:{table}:{timeout_ms}",
    }
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=installed,
    ) as process:
        try:
            yield Crate(process)
        finally:
            assert process.stdin
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
