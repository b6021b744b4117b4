"""`s3notify init --events` on RGW: changes that a client makes without our code reach the table."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.local.process import free_ports
from s3notify_platform.stores.aws import bucket_notifications
from tests.ceph.test_notifications import FIRST_POST_SECONDS
from tests.contracts.fault_proxy import FaultProxy
from tests.support.ceph import Ceph
from tests.support.event_project import Project
from tests.support.recorder import Recorder
from tests.support.waiting import until

pytestmark = pytest.mark.ceph

SECRET = "a-secret/of some:length@"
START_SECONDS = 120.0
"""The time to wait until a process has started, and until Spark has committed."""
THEIRS = """<NotificationConfiguration><TopicConfiguration><Id>theirs</Id><Topic>{arn}</Topic>
<Event>s3:ObjectCreated:*</Event><Filter><S3Metadata><FilterRule><Name>x-amz-meta-team</Name><Value>sales</Value>
</FilterRule></S3Metadata></Filter></TopicConfiguration></NotificationConfiguration>"""


@pytest.fixture
def project(ceph: Ceph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A project behind a proxy that does TLS: without TLS a gateway refuses endpoints with a secret."""
    monkeypatch.chdir(tmp_path)
    for name in ("S3NOTIFY_DEFS", "DAGSTER_HOME", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("S3NOTIFY_RECEIVER_SECRET", SECRET)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(bucket_notifications, "SECOND_READ_SECONDS", 0.01)
    with FaultProxy(ceph.server.endpoint_url) as proxy:
        proxy.added["X-Forwarded-Proto"] = "https"
        yield Project(ceph.server, tmp_path, endpoint_url=proxy.url)


def configuration(project: Project, body: str | None = None) -> str:
    """Returns the bucket's notifications in RGW's XML, which has more elements than boto3 shows. With `body`, writes
    this XML instead.
    """
    url = f"{project.endpoint_url}/{project.bucket}?notification"
    request = AWSRequest("PUT" if body else "GET", url, data=(body or "").encode())
    S3SigV4Auth(Credentials("test", "test"), "s3", "default").add_auth(request)
    sent = urllib.request.Request(
        url, data=body.encode() if body else None, headers=dict(request.headers), method=request.method
    )
    with urllib.request.urlopen(sent, timeout=30) as answer:
        return answer.read().decode()


@contextmanager
def typed(*command: str) -> Iterator[None]:
    """Runs a command of `s3notify` in the project's folder, until Ctrl-C."""
    process = subprocess.Popen([sys.executable, "-m", "s3notify_platform.cli", *command])
    try:
        yield
        assert process.poll() is None, command
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, command
    finally:
        process.kill()
        process.wait()


def wait_for(project: Project, key: str, seconds: float) -> None:
    """Waits until the object is in the table."""
    until(
        lambda: project.run("explain", key).exit_code == 0,
        seconds=seconds,
        why=lambda: project.run("explain", key).output,
    )


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_one_command_sets_up_events_of_a_gateway(project: Project, ceph: Ceph) -> None:
    """Otherwise changes would not arrive in the table, or another user's notification would be changed or removed.

    The first batch lists the bucket. So it finds the object that was there before, but only an event can announce the
    other object.
    """
    before, key = "raw/orders/0.jsonl", "raw/orders/1 + ü.jsonl"
    ceph.client("s3").put_object(Bucket=project.bucket, Key=before, Body=b'{"a": 0}\n')
    with Recorder() as recorder:
        arn = ceph.client("sns").create_topic(
            Name=f"t-{project.bucket}", Attributes={"push-endpoint": recorder.url("x")}
        )
        configuration(project, THEIRS.format(arn=arn["TopicArn"]))
        theirs = configuration(project)
        assert "sales" in theirs

        (port,) = free_ports(1, SYSTEM_CLOCK)
        project.write(f"  http: {{port: {port}}}\n")
        receiver = ("--receiver", f"http://127.0.0.1:{port}/")
        assert "give --receiver" in project.init("--yes").output
        asked = project.init(*receiver, answer="n\n")
        assert asked.exit_code == 1
        assert "+ topic 's3notify-orders-" in asked.output
        assert configuration(project) == theirs
        ran = project.init(*receiver, "--yes")
        assert ran.exit_code == 0, ran.output
        assert SECRET not in ran.output
        assert "Everything is there already" in project.init(*receiver, "--yes").output
        assert "sales" in configuration(project)

        with typed("ingest", "orders", "--every", "1"):
            wait_for(project, before, START_SECONDS)
            with typed("inlet", "http"):
                until(lambda: listens(port), seconds=START_SECONDS)
                ceph.client("s3").put_object(Bucket=project.bucket, Key=key, Body=b'{"a": 1}\n')
                wait_for(project, key, FIRST_POST_SECONDS + START_SECONDS)
                rows = map(json.loads, project.run("rows", "orders").output.splitlines())
                assert sorted(row["a"] for row in rows) == [0, 1]
                told = project.run("doctor", "orders")
                assert told.exit_code == 0, told.output
                assert "events: they arrive, " in told.output

        gone = project.init("--remove", "--yes")
        assert gone.exit_code == 0, gone.output
        assert configuration(project) == theirs
        names = [one["TopicArn"].rpartition(":")[2] for one in ceph.client("sns").list_topics()["Topics"]]
        assert not [name for name in names if name.startswith("s3notify-orders-")]
        assert "Nothing is left" in project.init("--remove").output


def test_init_notices_a_changed_receiver_or_secret(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the gateway would still post to the old receiver after a change of receiver or secret."""
    assert project.init("--receiver", "http://127.0.0.1:9/", "--yes").exit_code == 0
    assert "(posts elsewhere)" in project.init("--receiver", "http://127.0.0.1:10/", "--yes").output
    monkeypatch.setenv("S3NOTIFY_RECEIVER_SECRET", "another-secret-of-length")
    assert "(posts elsewhere)" in project.init("--receiver", "http://127.0.0.1:10/", "--yes").output
    assert "Everything is there already" in project.init("--receiver", "http://127.0.0.1:10/", "--yes").output
    project.init("--remove", "--yes")


def test_the_gateways_refusal_without_tls_is_reported(ceph: Ceph, project: Project) -> None:
    project.endpoint_url = ceph.server.endpoint_url
    project.write("")
    ran = project.init("--receiver", "http://127.0.0.1:9/", "--yes")
    assert ran.exit_code == 1
    assert "refused the request" in ran.output
    assert SECRET not in ran.output
