"""The front over real HTTP on loopback: authentication, limits, keys, command."""

import contextlib
import http.client
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner

from s3notify_platform.channels.front import notification_front
from s3notify_platform.channels.front.front_keys import keys_of
from s3notify_platform.channels.front.notification_front import FrontSettings, NotificationFront
from s3notify_platform.channels.inlets.http_server import Limits
from s3notify_platform.channels.service import ServiceContext
from s3notify_platform.cli.main import main
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.support.front import BUCKET, KEY_ID, SECRET, Front, running_front

TARGET = f"/{BUCKET}?notification"
QUICK = Limits(
    connections=4, strangers=2, head_bytes=4096, body_bytes=4096, stranger_seconds=0.5, request_seconds=0.5,
    idle_seconds=20,
)  # fmt: skip


def code_of(text: str) -> str:
    return text.partition("<Code>")[2].partition("</Code>")[0]


@pytest.mark.parametrize(
    ("service", "given", "code"),
    [
        ("s3", {"key": "AKIDOTHER"}, "InvalidAccessKeyId"),
        ("s3", {"secret": "x" * 40}, "SignatureDoesNotMatch"),
        ("sns", {"key": "AKIDOTHER"}, "InvalidClientTokenId"),
        ("sns", {"secret": "x" * 40}, "SignatureDoesNotMatch"),
    ],
)
def test_requests_without_a_valid_key_are_refused(
    front: Front, service: str, given: dict[str, str], code: str
) -> None:
    """Otherwise clients would not recognise the error, or the front would read topics for clients without a key."""
    client = front.client(service, **given)
    calls = {
        "s3": lambda: client.get_bucket_notification_configuration(Bucket=BUCKET),
        "sns": lambda: client.create_topic(Name="t"),
    }
    with pytest.raises(ClientError) as error:
        calls[service]()
    assert error.value.response["Error"]["Code"] == code
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert front.front.counts() == {"ok": 0, "invalid": 0, "denied": 1, "unavailable": 0}
    assert front.queue.topics.all() == ()


@pytest.mark.parametrize(
    ("method", "target", "headers", "status", "code"),
    [
        ("GET", TARGET, {}, 403, "AccessDenied"),
        ("POST", "/", {}, 403, "MissingAuthenticationToken"),
        ("GET", TARGET, {"authorization": "AWS AKID:c2ln"}, 400, "InvalidRequest"),
        ("POST", "/", {"authorization": "AWS AKID:c2ln"}, 400, "IncompleteSignature"),
        ("GET", TARGET, {"authorization": f"Bearer {SECRET}"}, 400, "AuthorizationHeaderMalformed"),
        ("GET", TARGET, {"authorization": SECRET}, 400, "AuthorizationHeaderMalformed"),
        ("GET", TARGET, {"x-amz-security-token": "t"}, 400, "InvalidToken"),
        ("GET", f"{TARGET}&AWSAccessKeyId=a&Signature=b", {}, 400, "InvalidRequest"),
    ],
)
def test_unsigned_requests_are_refused(
    *, front: Front, method: str, target: str, headers: dict[str, str], status: int, code: str
) -> None:
    """Otherwise clients would not recognise the error, or an answer would show a secret."""
    answered, text = front.send(method, target, b"", headers)
    assert (answered, code_of(text)) == (status, code)
    assert SECRET not in text


def test_old_and_changed_requests_are_refused(front: Front) -> None:
    """Otherwise a recorded request could be replayed after a quarter of an hour, or with another body."""
    body = b"<NotificationConfiguration/>"
    headers = front.signed("PUT", TARGET, body)
    assert front.send("PUT", TARGET, body, headers)[0] == 200
    status, text = front.send("PUT", TARGET, b"<NotificationConfiguratioM/>", headers)
    assert (status, code_of(text)) == (400, "XAmzContentSHA256Mismatch")
    status, text = front.send("DELETE", TARGET, b"", headers)
    assert (status, code_of(text)) == (403, "SignatureDoesNotMatch")
    old = datetime.now(UTC) - timedelta(minutes=16)
    stamp = old.strftime("%Y%m%dT%H%M%SZ")
    value = headers["Authorization"].replace(headers["X-Amz-Date"][:8], stamp[:8])
    status, text = front.send("PUT", TARGET, body, {**headers, "X-Amz-Date": stamp, "Authorization": value})
    assert (status, code_of(text)) == (403, "RequestTimeTooSkewed")


def test_presigned_urls_are_accepted_without_a_body(front: Front) -> None:
    """Otherwise a holder of a presigned URL could add a body that was not signed."""
    url = front.client("s3").generate_presigned_url(
        "get_bucket_notification_configuration", Params={"Bucket": BUCKET}, ExpiresIn=60
    )
    assert front.send("GET", url.removeprefix(front.url))[0] == 200
    url = front.client("sns").generate_presigned_url("list_topics", ExpiresIn=60, HttpMethod="POST")
    assert front.send("POST", url.removeprefix(front.url))[0] == 200
    url = front.client("s3").generate_presigned_url(
        "get_bucket_notification_configuration", Params={"Bucket": BUCKET}, ExpiresIn=60
    )
    status, text = front.send("GET", url.removeprefix(front.url), b"<NotificationConfiguration/>")
    assert (status, code_of(text)) == (400, "XAmzContentSHA256Mismatch")


def test_health_needs_no_key(front: Front) -> None:
    assert front.send("GET", "/health") == (200, "ok\n")
    assert front.send("HEAD", "/health") == (200, "")
    assert front.send("POST", "/health")[0] == 403


def raw(front: Front, *parts: bytes) -> bytes:
    """Sends bytes; returns all bytes that arrive until the connection ends."""
    with socket.create_connection(front.front.address, timeout=20) as peer:
        for part in parts:
            peer.sendall(part)
        found = b""
        with contextlib.suppress(OSError):
            while data := peer.recv(65536):
                found += data
        return found


def signed_head(front: Front, body: bytes) -> bytes:
    headers = front.signed("PUT", TARGET, body)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    host = ":".join(map(str, front.front.address))
    return f"PUT {TARGET} HTTP/1.1\r\nhost: {host}\r\n{lines}".encode()


def test_large_and_slow_bodies_are_refused() -> None:
    """Otherwise strangers could fill the memory or hold connections, since a body is read before its signature is
    verified.
    """
    with running_front(QUICK) as front:
        head = signed_head(front, b"x")
        assert raw(front, head + b"content-length: 4097\r\n\r\n").startswith(b"HTTP/1.1 413 ")
        began = time.monotonic()
        assert raw(front, head + b"content-length: 4000\r\n\r\n<a").startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began < 10
        assert raw(front, b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 431 ")
        assert raw(front, b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n").startswith(
            b"HTTP/1.1 403 "
        )
        assert front.ask("GET", TARGET)[0] == 200


def test_a_connection_counts_for_its_address_until_a_signature_is_verified() -> None:
    """Otherwise a stranger who knows only the id of a key, which is not secret, could take all connections."""
    patient = Limits(connections=8, strangers=2, stranger_seconds=20, request_seconds=20)
    with running_front(patient) as front, contextlib.ExitStack() as held:
        friend = held.enter_context(
            contextlib.closing(http.client.HTTPConnection(*front.front.address, timeout=20))
        )

        def asked() -> int:
            friend.request("GET", TARGET, headers=front.signed("GET", TARGET))
            answer = friend.getresponse()
            answer.read()
            return answer.status

        assert asked() == 200
        for _ in range(2):
            peer = held.enter_context(socket.create_connection(front.front.address, 20))
            peer.sendall(signed_head(front, b"other") + b"content-length: 5\r\n\r\n<")
        with socket.create_connection(front.front.address, timeout=20) as turned_away:
            assert turned_away.recv(100).startswith(b"HTTP/1.1 503 ")
        assert asked() == 200


def test_requests_to_a_slow_store_are_answered_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise clients would wait without an answer, or requests would pile up."""
    monkeypatch.setattr(notification_front, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(notification_front, "WAITING_MAX", 1)
    with running_front() as front:
        entered, gate = threading.Event(), threading.Event()
        find = front.queue.topics.all

        def slow(**more: object) -> object:
            entered.set()
            assert gate.wait(20)
            return find(**more)  # type: ignore[arg-type]

        front.queue.topics.all = slow  # type: ignore[method-assign, assignment]
        status, text = front.ask("GET", TARGET)
        assert (status, code_of(text)) == (503, "ServiceUnavailable")
        assert entered.is_set()
        status, text = front.ask("GET", TARGET)
        assert (status, "too many requests" in text) == (503, True)
        gate.set()
        front.queue.topics.all = find  # type: ignore[method-assign]
        status = 503
        while status == 503:
            status, _ = front.ask("GET", TARGET)
        assert status == 200


def test_keys_are_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a key could not be changed without interruption."""
    file = tmp_path / "keys"
    file.write_text(f"# of this year\nAKIDNEXT {'n' * 40}\n\nAKIDLAST   {'l' * 40}\n")
    file.chmod(0o600)
    with running_front(keys_file=str(file)) as front:
        for key, secret in (("AKIDNEXT", "n" * 40), ("AKIDLAST", "l" * 40), (KEY_ID, SECRET)):
            assert front.client("sns", key=key, secret=secret).list_topics()["Topics"] == []
        assert SECRET not in repr(front.reports)
    monkeypatch.delenv("S3NOTIFY_FRONT_KEY_ID")
    monkeypatch.delenv("S3NOTIFY_FRONT_SECRET")
    assert keys_of("S3NOTIFY_FRONT_KEY_ID", "S3NOTIFY_FRONT_SECRET", str(file)) == {
        "AKIDNEXT": "n" * 40,
        "AKIDLAST": "l" * 40,
    }


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        ("AKIDNEXT\n", 0o600, "lines KEY_ID SECRET"),
        ("AKIDNEXT a b\n", 0o600, "lines KEY_ID SECRET"),
        (f"AKIDNEXT {'n' * 40}\n", 0o644, "other users may read it: chmod 600"),
        ("AKIDNEXT short\n", 0o600, "at least 16 characters"),
        (f"A/B {'n' * 40}\n", 0o600, "a key id must have"),
        (None, 0o600, "No such file"),
    ],
)
def test_invalid_keys_files_are_refused(tmp_path: Path, content: str | None, mode: int, why: str) -> None:
    """Otherwise the front would start with keys that other users can read. The error must not show a secret."""
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    with pytest.raises(UsageError, match=why) as error:
        FrontSettings(keys_file=str(file)).build(context_of())
    assert "n" * 40 not in str(error.value)


def context_of() -> ServiceContext:
    queue = NotificationQueue(MemoryRecordStore())
    return ServiceContext(
        name="serve-notifications",
        queue=queue,
        platform=S3Config(bucket="p", region="eu-central-1"),
        bucket=BUCKET,
    )


@pytest.mark.parametrize(
    ("lacking", "why"),
    [
        (("S3NOTIFY_FRONT_KEY_ID", "S3NOTIFY_FRONT_SECRET"), "no key is set: set S3NOTIFY_FRONT_KEY_ID"),
        (("S3NOTIFY_FRONT_SECRET",), "S3NOTIFY_FRONT_SECRET is not set"),
        (("S3NOTIFY_FRONT_KEY_ID",), "S3NOTIFY_FRONT_KEY_ID is not set"),
    ],
)
def test_a_missing_key_is_refused(
    monkeypatch: pytest.MonkeyPatch, lacking: tuple[str, ...], why: str
) -> None:
    for name in lacking:
        monkeypatch.delenv(name)
    with pytest.raises(UsageError, match=why):
        FrontSettings().build(context_of())


def test_other_addresses_than_loopback_need_tls() -> None:
    """Otherwise requests could be recorded and replayed on the network. Plain HTTP is permitted if a proxy in front
    does TLS.
    """
    with pytest.raises(UsageError, match="not a loopback address"):
        FrontSettings(host="0.0.0.0").build(context_of())
    assert isinstance(FrontSettings(host="0.0.0.0", plain_http=True).build(context_of()), NotificationFront)


def test_arns_have_the_buckets_region_or_the_given_one() -> None:
    """The front refuses an ARN with another region. Without the setting `arn_region`, clients of Ceph, which expect
    their zone group as the region, would be refused.
    """
    for given, region in (("", "eu-central-1"), ("zg", "zg")):
        made = FrontSettings(arn_region=given).build(context_of())
        assert isinstance(made, NotificationFront)
        assert made._topics.arn("t") == f"arn:aws:sns:{region}::t"


def test_the_front_has_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a setting would be missing from the command, or a key could be given on the command line."""
    ran: list[NotificationFront] = []
    monkeypatch.setattr(
        "s3notify_platform.cli.services.run_in_foreground", lambda service, **_: ran.append(service)
    )
    given = ["serve-notifications", "--bucket", "b", "--region", "r", "--on-put", "merge", "--port", "0"]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 0, result.output
    assert [front.name for front in ran] == ["serve-notifications"]
    shown = " ".join(CliRunner().invoke(main, ["serve-notifications", "--help"]).stdout.split())
    assert "Put-, Get- and DeleteBucketNotificationConfiguration" in shown
    assert "--secret " not in shown
    result = CliRunner().invoke(main, [*given, "--on-put", "add"])
    assert result.exit_code == 2
    assert "--on-put='add': use one of replace, merge" in result.stderr
