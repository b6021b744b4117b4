"""The HTTP receiver over real HTTP on loopback: who is believed, what is durable, and how much it puts up with."""

import base64
import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from s3notify_platform.channels.inlets import http_server as http1
from s3notify_platform.channels.inlets.http import HttpInlet, HttpInletSettings
from s3notify_platform.channels.inlets.http_server import Limits
from s3notify_platform.errors import UsageError
from s3notify_platform.protocols.notification_queue import TopicSettings
from tests.support.faults import Fault
from tests.unit.channels.inlets.test_intake import Site, event

SECRET = "a-secret-of-some-length"
BEARER = {"authorization": f"Bearer {SECRET}"}
QUICK = Limits(connections=4, head_bytes=2048, body_bytes=4096, request_seconds=0.5, idle_seconds=0.5)


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv("RECEIVER_SECRET", SECRET)
    monkeypatch.setattr(http1, "_DRAIN_SECONDS", 0.1)


@contextlib.contextmanager
def running(site, limits=None, **settings):
    settings = HttpInletSettings(secret_envs=["RECEIVER_SECRET", "NEXT"], port=0, **settings)
    receiver = HttpInlet(settings, site.intake, limits)
    stop, told, errors = threading.Event(), [], []

    def run():
        try:
            receiver.run(stop, told.append)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert receiver.ready.wait(20), errors
    receiver.told, receiver.errors, receiver.thread, receiver.stop = told, errors, thread, stop
    try:
        yield receiver
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()


def connect(receiver, **arguments):
    return contextlib.closing(http.client.HTTPConnection(*receiver.address, timeout=20, **arguments))


def ask(connection, body=b"", headers=BEARER, method="POST", path="/"):
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read()
    return answer.status, text, answer


def post(receiver, body, headers=BEARER, **arguments):
    with connect(receiver) as connection:
        return ask(connection, body, headers, **arguments)


def ceph(key, sequencer="01"):
    """As RGW 16 posts it."""
    record = {
        "eventVersion": "2.2",
        "eventSource": "ceph:s3",
        "awsRegion": "",
        "eventTime": "2026-01-02T03:04:05.678901Z",
        "eventName": "ObjectCreated:Put",
        "s3": {
            "s3SchemaVersion": "1.0",
            "bucket": {"name": "b", "arn": "arn:aws:s3:::b", "id": "x.1"},
            "object": {"key": key, "size": 3, "eTag": "e", "versionId": "", "sequencer": sequencer},
        },
        "eventId": "1.2.e",
        "opaqueData": "",
    }
    return json.dumps({"Records": [record]})


def minio(key):
    """As MinIO posts it."""
    record = {
        "eventVersion": "2.0",
        "eventSource": "minio:s3",
        "eventName": "s3:ObjectRemoved:Delete",
        "s3": {"bucket": {"name": "b"}, "object": {"key": key, "sequencer": "17A"}},
    }
    return json.dumps({"EventName": "s3:ObjectRemoved:Delete", "Key": f"b/{key}", "Records": [record]})


def test_posts_of_ceph_and_minio():
    """200, and then every change is in the queue and signalled; several posts go over one connection."""
    site = Site()
    with running(site) as receiver, connect(receiver) as connection:
        assert ask(connection, ceph("a+b%2Fc"))[0] == 200
        assert sorted(site.keys()) == ["a+b%2Fc"]
        assert site.signal("a+b%2Fc")
        local = connection.sock.getsockname()
        assert ask(connection, minio("a+b%2Fd"))[0] == 200
        assert ask(connection, ceph("a+b%2Fc"))[0] == 200
        assert connection.sock.getsockname() == local
        assert sorted(site.keys()) == ["a b/d", "a+b%2Fc"]
        counts = receiver.counts()
    assert (counts["posts_ok"], counts["queued"], counts["duplicates"]) == (3, 2, 1)
    assert receiver.told[0].startswith("listening on 127.0.0.1:")


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "headers",
    [
        BEARER,
        {"authorization": f"bearer  {SECRET}"},
        {"authorization": SECRET},
        {"authorization": basic("rgw", SECRET)},
        {"authorization": basic("", SECRET)},
        {"x-s3notify-secret": SECRET},
    ],
)
def test_whoever_knows_the_secret_is_believed(headers):
    """In each form that senders have for it."""
    site = Site()
    with running(site) as receiver:
        assert post(receiver, ceph("a"), headers)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {SECRET}x"},
        {"authorization": f"Bearer {SECRET[:-1]}"},
        {"authorization": basic(SECRET, "")},
        {"authorization": "Basic !!!"},
        {"authorization": "Basic " + base64.b64encode(b"\xff\xff").decode()},
        {"authorization": "RECEIVER_SECRET"},
        {"x-s3notify-secret": "no", "authorization": f"Bearer {SECRET}"},
    ],
)
def test_whoever_does_not_is_refused(headers):
    """Before the body is read; nothing is queued or kept, and no answer shows the secret."""
    site = Site()
    with running(site) as receiver:
        status, text, answer = post(receiver, ceph("a"), headers)
        assert status == 401
        assert SECRET.encode() not in text + str(answer.headers).encode()
        assert receiver.counts()["posts_unauthorized"] == 1
    assert site.keys() == []
    assert site.intake.poison.all() == ()
    assert SECRET not in repr(receiver.told)


def test_a_secret_can_be_changed_without_a_gap(monkeypatch):
    """The old one and the next one are both good."""
    monkeypatch.setenv("NEXT", "the-next-secret-of-all")
    with running(Site()) as receiver:
        assert post(receiver, ceph("a"))[0] == 200
        assert post(receiver, ceph("a"), {"authorization": "Bearer the-next-secret-of-all"})[0] == 200


@pytest.mark.parametrize("body", [b"", b"hello", b"{}", b"[" * 3000])
def test_malformed_posts_are_kept_as_poison(body):
    """400, and the reason is there to be read; the receiver goes on."""
    site = Site()
    with running(site) as receiver:
        assert post(receiver, body)[0] == 400
        assert post(receiver, body)[0] == 400
        assert receiver.counts()["posts_malformed"] == 2
        assert post(receiver, ceph("a"))[0] == 200
    (poison,) = site.intake.poison.all()
    assert (poison.body, poison.origin) == (body, "http")
    assert "no S3 event message" in poison.reason


def test_no_news_is_fine():
    """A test event, another bucket's change."""
    site = Site()
    with running(site) as receiver:
        assert post(receiver, '{"Event": "s3:TestEvent"}')[0] == 200
        assert post(receiver, ceph("a").replace('"name": "b"', '"name": "other"'))[0] == 200
    assert site.keys() == []


def test_other_paths_and_methods():
    """Health without a secret; else a POST to `/`."""
    with running(Site()) as receiver:
        assert post(receiver, b"", {}, method="GET", path="/health")[:2] == (200, b"ok\n")
        assert post(receiver, b"", {}, method="HEAD", path="/health?x=1")[:2] == (200, b"")
        assert post(receiver, b"", {}, method="GET", path="/")[0] == 401
        status, _, answer = post(receiver, b"", method="GET")
        assert (status, answer.getheader("allow")) == (405, "POST")
        assert post(receiver, b"", path="/other")[0] == 404


def test_while_the_store_is_down_posts_are_refused():
    """503 with Retry-After, then success; malformed ones too, as they could not be kept."""
    site = Site()
    with running(site) as receiver:
        for fault in ("records", "signals"):
            site.faults[fault] = Fault.THROTTLED
            status, text, answer = post(receiver, ceph("a"))
            assert (status, int(answer.getheader("retry-after")) >= 1) == (503, True)
            assert b"unavailable" in text
            if fault == "records":
                assert post(receiver, b"hello")[0] == 503
                assert site.signal("a") is None
            site.faults[fault] = Fault.NONE
        assert post(receiver, ceph("a"))[0] == 200
        assert receiver.counts()["posts_refused"] == 3
    assert site.keys() == ["a"]
    assert site.signal("a")


def test_a_full_topic_refuses():
    """503 with Retry-After, until there is room."""
    site = Site(orders=TopicSettings(capacity=1, shards=1))
    with running(site) as receiver:
        assert post(receiver, ceph("a"))[0] == 200
        status, text, answer = post(receiver, ceph("b"))
        assert (status, text) == (503, b"a topic is full\n")
        assert answer.getheader("retry-after") == "1"
        site.queue.remove(site.queue.entries("orders", range(1000)))
        assert post(receiver, ceph("b"))[0] == 200


def test_many_at_once_are_taken_together():
    """Each gets its own answer; those that arrive while others are worked on go into one batch."""
    site = Site(
        targets=[("", "_s/")],
        orders=TopicSettings(prefix="a"),
        full=TopicSettings(capacity=1, shards=1, prefix="b"),
    )
    site.intake.accept([event("b0")])
    batches, gate = [], threading.Semaphore(0)
    accept = site.intake.accept

    def slow(events, **arguments):
        batches.append(len(events))
        assert gate.acquire(timeout=20)
        return accept(events, **arguments)

    site.intake.accept = slow
    keys = [f"{'ab'[n % 2]}{n}" for n in range(1, 31)]
    with running(site) as receiver, ThreadPoolExecutor(len(keys)) as pool:
        posts = [pool.submit(post, receiver, ceph(key)) for key in keys]
        ends = time.monotonic() + 20
        while len(receiver._posts) + sum(batches) < len(keys) and time.monotonic() < ends:
            time.sleep(0.01)
        for _ in keys:
            gate.release()
        statuses = {key: found.result()[0] for key, found in zip(keys, posts, strict=True)}
    assert statuses == {key: 200 if key[0] == "a" else 503 for key in keys}
    assert len(batches) <= 5
    assert sorted(site.keys("orders")) == sorted(key for key in keys if key[0] == "a")


def test_a_defect_is_answered_503():
    """The sender keeps the change; the receiver goes on."""
    site = Site()
    accept = site.intake.accept
    site.intake.accept = lambda *a, **k: 1 / 0
    with running(site) as receiver:
        assert post(receiver, ceph("a"))[0] == 503
        site.intake.accept = accept
        assert post(receiver, ceph("a"))[0] == 200


def test_what_only_an_operator_can_mend_ends_the_service():
    """With what it says; the sender keeps the change."""
    site = Site()

    def broken(*args, **kwargs):
        raise UsageError("no such bucket")

    site.intake.accept = broken
    with running(site) as receiver:
        assert post(receiver, ceph("a"))[0] == 503
        receiver.thread.join(20)
        assert not receiver.thread.is_alive()
    assert [str(error) for error in receiver.errors] == ["no such bucket"]


# Limits


def raw(receiver, *parts, wait=0.0):
    """What is answered to bytes, and after how many seconds the connection ends."""
    with socket.create_connection(receiver.address, timeout=20) as peer:
        began = time.monotonic()
        found = b""
        with contextlib.suppress(OSError):
            for part in parts:
                peer.sendall(part)
                time.sleep(wait)
        with contextlib.suppress(OSError):
            while data := peer.recv(65536):
                found += data
        return found, time.monotonic() - began


HEAD = f"POST / HTTP/1.1\r\nhost: x\r\nauthorization: {SECRET}\r\n".encode()


def test_too_large_a_body_is_refused():
    """By its announced length before it is read, or as soon as it is too long."""
    with running(Site(), limits=QUICK) as receiver:
        answer, _ = raw(receiver, HEAD + b"content-length: 4097\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413 ")
        answer, _ = raw(receiver, HEAD + b"content-length: 99999999999999999999999\r\n\r\n")
        assert answer[:12] in (b"HTTP/1.1 413", b"HTTP/1.1 400")
        chunks = b"".join(b"400\r\n" + b"x" * 1024 + b"\r\n" for _ in range(5))
        answer, _ = raw(receiver, HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert post(receiver, b" " * 4096)[0] == 400
        assert post(receiver, ceph("a"))[0] == 200


def test_a_refused_body_is_not_asked_for():
    """Who waits for 100 Continue gets the refusal instead, or the go-ahead."""
    expect = b"content-length: 5\r\nexpect: 100-continue\r\n\r\n"
    with running(Site(), limits=QUICK) as receiver:
        answer, _ = raw(receiver, b"POST / HTTP/1.1\r\nhost: x\r\n" + expect)
        assert answer.startswith(b"HTTP/1.1 401 ")
        answer, _ = raw(receiver, HEAD + expect, b"hello", wait=0.1)
        assert answer.startswith(b"HTTP/1.1 100 ")
        assert b"HTTP/1.1 400 " in answer


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200 + b"\r\n\r\n", 400),
        (HEAD + b"x: " + b"y" * 8000 + b"\r\n\r\n", 431),
        (HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\n", 400),
        (HEAD + b"content-length: -1\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_is_refused(sent, status):
    """And the receiver goes on."""
    with running(Site(), limits=QUICK) as receiver:
        answer, _ = raw(receiver, sent)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert post(receiver, ceph("a"))[0] == 200


def test_slow_clients_are_cut_off():
    """In the head, in the body, or before they say anything: after the deadline, however they drip."""
    with running(Site(), limits=QUICK) as receiver:
        drip = [bytes([byte]) for byte in HEAD[:40]]
        answer, seconds = raw(receiver, *drip, wait=0.05)
        assert b" 408 " in answer or not answer
        assert seconds < 10
        answer, seconds = raw(receiver, HEAD + b"content-length: 100\r\n\r\n", b"x")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert 0.4 < seconds < 10
        answer, seconds = raw(receiver)
        assert answer == b""
        assert 0.4 < seconds < 10


def test_slow_clients_do_not_keep_others_waiting():
    """Up to as many as there may be connections; one more is told to come again, and gets in when they are cut off."""
    site = Site()
    with running(site, limits=QUICK) as receiver, contextlib.ExitStack() as open_:
        peers = [open_.enter_context(socket.create_connection(receiver.address, 20)) for _ in range(3)]
        for peer in peers:
            peer.sendall(HEAD)
        assert post(receiver, ceph("a"))[0] == 200
        # As long as the slow ones are new.
        idle = [open_.enter_context(socket.create_connection(receiver.address, 20)) for _ in range(8)]
        answers = [peer.recv(100) for peer in idle]
        assert any(answer.startswith(b"HTTP/1.1 503 ") for answer in answers)
        assert post(receiver, ceph("b"))[0] == 200
    assert sorted(site.keys()) == ["a", "b"]


def test_a_peer_that_leaves_is_no_matter():
    """In mid-head, in mid-body, before the answer."""
    site = Site()
    with running(site, limits=QUICK) as receiver:
        body = ceph("a").encode()
        whole = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
        for end in (10, len(HEAD) + 30, len(whole)):
            with socket.create_connection(receiver.address, timeout=20) as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                peer.sendall(whole[:end])
        assert post(receiver, ceph("b"))[0] == 200
    assert {"b"} <= {*site.keys()}


# Stop, TLS, settings


def test_a_stop_ends_what_is_in_hand_and_then_listens_no_more():
    """The post that was sent before is answered; an idle connection is closed."""
    site = Site()
    entered, gate = threading.Event(), threading.Event()
    accept = site.intake.accept

    def slow(events, **arguments):
        entered.set()
        assert gate.wait(20)
        return accept(events, **arguments)

    site.intake.accept = slow
    with running(site) as receiver, ThreadPoolExecutor(1) as pool, connect(receiver) as idle:
        assert ask(idle, b"", method="GET", path="/health")[0] == 200
        sent = pool.submit(post, receiver, ceph("a"))
        assert entered.wait(20)
        receiver.stop.set()
        idle.sock.settimeout(20)
        assert idle.sock.recv(1) == b""
        gate.set()
        status, _, answer = sent.result()
        assert (status, answer.getheader("connection")) == (200, "close")
        receiver.thread.join(20)
        with pytest.raises(OSError), socket.create_connection(receiver.address, timeout=5):
            pass
    assert site.keys() == ["a"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    extra = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command, *extra], check=True, capture_output=True)
    return cert, key


def test_tls(certificate):
    """By certificate and key; plain HTTP gets nothing, and a handshake that hangs is cut off."""
    cert, key = certificate
    site = Site()
    with running(site, cert_file=str(cert), key_file=str(key), limits=QUICK) as receiver:
        context = ssl.create_default_context(cafile=cert)
        connection = http.client.HTTPSConnection(*receiver.address, timeout=20, context=context)
        with contextlib.closing(connection):
            assert ask(connection, ceph("a"))[0] == 200
        answer, _ = raw(receiver, HEAD + b"\r\n")
        assert b"HTTP/1.1" not in answer
        _, seconds = raw(receiver)
        assert seconds < 10
        assert "TLS" in receiver.told[0]
    assert site.keys() == ["a"]


@pytest.mark.parametrize(
    ("settings", "secret", "reason"),
    [
        ({}, "", "set the environment variable A or B"),
        ({}, "short", "at least 16"),
        ({}, "ä" * 20, "ASCII"),
        ({"host": "0.0.0.0"}, SECRET, "no loopback"),
        ({"host": "example.org"}, SECRET, "no loopback"),
        ({"cert_file": "/nowhere"}, SECRET, "both"),
        ({"cert_file": "/nowhere", "key_file": "/nowhere"}, SECRET, "certificate '/nowhere'"),
    ],
)
def test_what_would_not_be_safe_is_refused(monkeypatch, settings, secret, reason):
    """Before it listens."""
    monkeypatch.setenv("A", secret)
    with pytest.raises(UsageError, match=reason):
        HttpInlet(HttpInletSettings(secret_envs=["A", "B"], **settings), Site().intake)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_no_tls(host):
    """Nor does anything else, if something in front does it."""
    HttpInlet(HttpInletSettings(secret_envs=["RECEIVER_SECRET"], host=host), Site().intake)
    HttpInlet(
        HttpInletSettings(secret_envs=["RECEIVER_SECRET"], host="0.0.0.0", plain_http=True), Site().intake
    )


def test_a_taken_port_is_the_operators():
    """And is named."""
    with running(Site()) as receiver:
        settings = HttpInletSettings(secret_envs=["RECEIVER_SECRET"], port=receiver.address[1])
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{receiver.address[1]}"):
            HttpInlet(settings, Site().intake).run(threading.Event(), lambda _: None)
