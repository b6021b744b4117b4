"""Commands under a process supervisor: each home has one platform, SIGTERM ends a command, and no command crashes at
its end.
"""

import json
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.limits import DRAIN_SECONDS
from s3notify_platform.local.process import free_ports
from s3notify_platform.protocols.keyspace import Publisher, Put
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.ingested import Place, rows_of
from tests.support.servers import S3Server
from tests.support.sources import source_of
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.server, pytest.mark.thorough, pytest.mark.timeout(900)]

CLI = [sys.executable, "-m", "s3notify_platform.cli"]


def of_folder(folder: Path) -> dict[int, str]:
    """Running processes whose command or environment contains this folder."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                if str(folder).encode() in command + (entry / "environ").read_bytes():
                    found[int(entry.name)] = command.decode(errors="replace")[:200]
            except OSError:
                pass
    return found


def test_home_has_one_platform_and_no_orphans(tmp_path: Path) -> None:
    """A second platform with the same home must be refused, without damage to the first platform. SIGTERM must end
    daemon, webserver, code servers, runs, Spark and S3.
    """
    folder, log = tmp_path / "demo", tmp_path / "demo.log"

    def all_there(commands: str) -> bool:
        return all(word in commands for word in ("weed", "dagster", "java"))

    with log.open("wb") as sink:
        demo = subprocess.Popen(
            [*CLI, "demo", "--folder", str(folder), "--objects", "40"], stdout=sink, stderr=sink
        )
    try:
        until(
            lambda: demo.poll() is not None or all_there(" ".join(of_folder(folder).values())),
            seconds=400,
            why=lambda: log.read_text()[-3000:],
        )
        assert demo.poll() is None, log.read_text()[-3000:]
        (tmp_path / "defs").mkdir()
        (port,) = free_ports(1, SYSTEM_CLOCK)
        second = [*CLI, "dev", "--defs", str(tmp_path / "defs"), "--port", str(port)]
        ran = subprocess.run(
            [*second, "--home", str(folder / "dagster")], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 1
        assert "is served by another process" in ran.stderr
        demo.send_signal(signal.SIGTERM)
        demo.wait(120)
        until(lambda: not of_folder(folder), seconds=20, why=lambda: json.dumps(of_folder(folder), indent=1))
    finally:
        if demo.poll() is None:
            demo.kill()
            demo.wait()


def test_sigterm_drains_an_ingest(ministack: S3Server, tmp_path: Path) -> None:
    """After SIGTERM, the ingest must end with exit code 0 in time. The next ingest must continue where the first one
    ended, with each row once.
    """
    config = ministack.config(ministack.make_bucket())
    source = source_of(bucket=config, name="orders", prefix="raw/", format="jsonl", slots=4, commit="native")
    location = source.location
    options = [
        "orders", "--bucket", config.bucket, "--prefix", "raw/", "--format", "jsonl", "--slot-count", "4",
        "--schema", "id bigint", "--endpoint-url", ministack.endpoint_url, "--every", "0.5",
        "--master", "local[1]",
        "-o", "access_key_id_env=S3NOTIFY_TEST_KEY", "-o", "secret_access_key_env=S3NOTIFY_TEST_SECRET",
    ]  # fmt: skip

    def rows() -> list[int]:
        return sorted(row["id"] for row in rows_of(source))

    with closing(S3ObjectStore(config)) as store:
        publisher = Publisher(store, prefix=location.keyspace_prefix, slots=4)
        for number in range(2):
            publisher.publish([Put(key=f"raw/{number}.jsonl", body=b'{"id": %d}\n' % number)])
            with (tmp_path / f"log{number}").open("wb") as sink:
                ingest = subprocess.Popen([*CLI, "ingest", *options], stdout=sink, stderr=sink, cwd=tmp_path)
            said = (tmp_path / f"log{number}").read_text
            try:
                until(lambda: rows() == [*range(number + 1)], seconds=300, why=lambda: said()[-3000:])  # noqa: B023
                ingest.send_signal(signal.SIGTERM)
                began = time.monotonic()
                assert ingest.wait(60) == 0, said()
                assert time.monotonic() - began < DRAIN_SECONDS + 3
                # The traceback may be from PySpark's daemon, which reports that its JVM has ended.
                assert "s3notify_platform" not in said().partition("Traceback")[2], said()
            finally:
                if ingest.poll() is None:
                    ingest.kill()
                    ingest.wait()


def test_quarantine_show_does_not_crash_at_its_end(
    ministack: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a fix, `quarantine show` ended with exit code 134 in 2 of 34 calls, after its output (see
    `cli.ending.leave`). A script that calls the command would then report a failure, although the output is complete.
    """
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    place = Place(ministack)
    place.store.put("raw/a", b'{"a":1}\n' + b"broken\n" * 50)
    place.run("b")
    command = [
        *CLI, "quarantine", "show", "raw/a", "--name", "orders", "--bucket", place.source.input.bucket.bucket,
        "--slot-count", "4", "--endpoint-url", ministack.endpoint_url,
    ]  # fmt: skip
    ended = [subprocess.run(command, capture_output=True, check=False) for _ in range(60)]
    assert {one.returncode for one in ended} == {0}, [one.stderr for one in ended if one.returncode]
    assert all(b"slot" in one.stdout for one in ended)
