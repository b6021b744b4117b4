"""A small Ceph cluster on 127.0.0.1: one monitor, one OSD on a file, and RGWs. The cluster ends with its `with` block.

This module installs nothing; `poe ceph` installs Ceph (`tests/ceph/run`). The cluster needs no systemd, container or
manager, and starts in about 10 s. Comments explain unusual settings, which were found by experiment.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.local.process import free_ports
from s3notify_platform.local.server import _LAUNCHER
from s3notify_platform.stores.config import S3Config
from tests.support.servers import S3Server
from tests.support.waiting import until

PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
REGION = "default"
"""The name of RGW's zone group. Requests for topics must use this name as region; S3 requests may use any region."""

_CONFIGURATION = """
[global]
fsid = {fsid}
mon_host = v2:127.0.0.1:{mon_port}/0
mon_initial_members = a
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
run_dir = {folder}/run
crash_dir = {folder}/crash
admin_socket =
log_file = {folder}/log/$name.log
mon_cluster_log_file = {folder}/log/cluster.log
mon_data = {folder}/mon
osd_data = {folder}/osd
rgw_data = {folder}/run
# Without it radosgw waits 300 s for a monitor that speaks only one of the modes.
ms_mon_client_mode = crc
ms_cluster_mode = crc
ms_service_mode = crc
ms_client_mode = crc
# A pool costs a second each at the default.
paxos_propose_interval = 0.05
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 2000
# By default, a monitor stops if less than 5 % of the machine's disk is free.
mon_data_avail_crit = 1
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_objectstore = bluestore
bluestore_block_size = 21474836480
bluestore_cache_autotune = false
bluestore_cache_size = 134217728
osd_memory_target = 939524096
rgw_thread_pool_size = 64
# A topic whose endpoint holds a password is refused, unless the request came by TLS, or says that it did.
rgw_trust_forwarded_https = true
"""


def missing_programs() -> list[str]:
    """The programs of Ceph that are not installed."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


@dataclass(slots=True, kw_only=True)
class Gateway:
    """One RGW. `kill` sends SIGKILL. `start` starts the RGW again on its port."""

    ceph: "Ceph"
    name: str
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, seconds: float = 60.0) -> None:
        """Starts the RGW, and waits until it answers."""
        # Without tcp_nodelay, a GET would take 44 ms.
        frontends = f"beast endpoint=127.0.0.1:{self.port} tcp_nodelay=1"
        self.process = self.ceph.spawn(
            "radosgw", "-f", "-n", f"client.rgw.{self.name}", f"--rgw-frontends={frontends}"
        )
        self.ceph.wait(f"RGW {self.name}", lambda: _answers(self.url), seconds)

    def kill(self) -> None:
        """Sends SIGKILL, and waits."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Sends SIGTERM, and waits."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)


@dataclass(slots=True, kw_only=True)
class Ceph:
    """A running cluster."""

    folder: Path
    access_key_id: str = "test"
    secret_access_key: str = "test"
    gateways: list[Gateway] = field(default_factory=list)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _files: list[IO[bytes]] = field(default_factory=list)

    @property
    def server(self) -> S3Server:
        """The first gateway as an `S3Server`, like the other servers of the tests."""
        return S3Server(endpoint_url=self.gateways[0].url, config=self.config)

    def config(self, bucket: str, gateway: int = 0) -> S3Config:
        """The configuration that reaches a bucket through one of the gateways."""
        return S3Config(
            bucket=bucket,
            endpoint_url=self.gateways[gateway].url,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
        )

    def add_gateway(self) -> int:
        """Starts another RGW; returns its number."""
        (port,) = free_ports(1, SYSTEM_CLOCK)
        self.gateways.append(Gateway(ceph=self, name="abcdef"[len(self.gateways)], port=port))
        self.gateways[-1].start()
        return len(self.gateways) - 1

    def client(self, service: str) -> Any:
        """A boto3 client of the first gateway: `s3` or `sns`."""
        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=self.gateways[0].url,
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret_access_key,
        )

    def notify(
        self,
        bucket: str,
        topic: str,
        endpoint: str,
        *,
        prefix: str = "",
        persistent: bool = True,
        opaque: str = "",
    ) -> None:
        """Makes Ceph post every change below `prefix` to `endpoint`. The first post of a new topic takes up to 30 s.

        Without a prefix, changes of the platform's own objects in the bucket are posted, too.
        """
        attributes = {"push-endpoint": endpoint, "persistent": str(persistent).lower(), "OpaqueData": opaque}
        sns = self.client("sns")
        sns.meta.events.register("before-sign", _came_by_tls)
        arn = sns.create_topic(Name=topic, Attributes=attributes)["TopicArn"]
        self.client("s3").put_bucket_notification_configuration(
            Bucket=bucket,
            NotificationConfiguration={
                "TopicConfigurations": [
                    {
                        "Id": topic,
                        "TopicArn": arn,
                        "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"],
                        "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": prefix}]}},
                    }
                ]
            },
        )

    # Processes

    def spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a daemon in the foreground. If the process that called this function is killed, the kernel kills the
        daemon, too.
        """
        path = shutil.which(program)
        assert path is not None
        out = (self.folder / "log" / f"{program}.out").open("ab")
        self._files.append(out)
        command = [sys.executable, "-c", _LAUNCHER, str(os.getpid()), path, *self._common(), *arguments]
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=self.folder)
        self._processes.append(process)
        return process

    def run(self, *command: str) -> str:
        """Runs a command of Ceph until it ends; returns its output."""
        done = subprocess.run(
            [command[0], *self._common(), *command[1:]],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            cwd=self.folder,
        )
        assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
        return done.stdout

    def wait(self, what: str, condition: Any, seconds: float) -> None:
        def holds() -> Any:
            dead = [process.args for process in self._processes if process.poll() not in (None, -9, -15, 0)]
            assert not dead, f"{what}: a daemon ended: {dead}\n{self.tail()}"
            return condition()

        until(holds, seconds=seconds, why=lambda: f"{what}\n{self.tail()}")

    def tail(self) -> str:
        """The last part of each log."""
        logs = sorted((self.folder / "log").iterdir())
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)

    def _common(self) -> list[str]:
        return ["-c", str(self.folder / "ceph.conf")]

    def _start(self, gateways: int) -> None:
        for name in ("run", "crash", "log", "mon", "osd"):
            (self.folder / name).mkdir()
        (mon_port,) = free_ports(1, SYSTEM_CLOCK)
        fsid = str(uuid.uuid4())
        (self.folder / "ceph.conf").write_text(
            _CONFIGURATION.format(fsid=fsid, folder=self.folder, mon_port=mon_port)
        )
        address = f"[v2:127.0.0.1:{mon_port}/0]"
        monmap = str(self.folder / "monmap")
        self.run("monmaptool", "--create", "--addv", "a", address, "--fsid", fsid, monmap)
        self.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap)
        self.spawn("ceph-mon", "-f", "-i", "a")
        osd = str(uuid.uuid4())
        assert self.run("ceph", "osd", "new", osd).strip() == "0"
        self.run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", osd)
        self.spawn("ceph-osd", "-f", "-i", "0")
        self.wait(
            "OSD", lambda: json.loads(self.run("ceph", "osd", "stat", "-f", "json"))["num_up_osds"] == 1, 60
        )
        user = ("--uid", "test", "--display-name", "test")
        keys = ("--access-key", self.access_key_id, "--secret-key", self.secret_access_key)
        self.run("radosgw-admin", "user", "create", *user, *keys)
        for _ in range(gateways):
            self.add_gateway()

    def _stop(self) -> None:
        """Stops the gateways first, then the OSD and the monitor. Waits until all have ended."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        for file in self._files:
            file.close()


@contextlib.contextmanager
def running_ceph(folder: Path, *, gateways: int = 1) -> Iterator[Ceph]:
    """A running cluster, whose data are in `folder`. The folder must be new."""
    ceph = Ceph(folder=folder)
    try:
        ceph._start(gateways)
        yield ceph
    finally:
        ceph._stop()


def _came_by_tls(request: Any, **_: Any) -> None:
    request.headers["X-Forwarded-Proto"] = "https"


def _answers(url: str) -> bool:
    client = boto3.client(
        "s3", endpoint_url=url, region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x"
    )
    try:
        client.list_buckets()
    except ClientError:
        return True
    except BotoCoreError:
        return False
    finally:
        client.close()
    return True
