"""How much the HTTP inlet puts up with: limits, slow peers, its stop, TLS, settings."""

import contextlib
import http.client
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from s3notify_platform.channels.inlets.http_inlet import HttpInlet, HttpInletSettings
from s3notify_platform.kernel.errors import UsageError
from tests.support.http_inlet import HEAD, QUICK, SECRET, ask, ceph, connect, post, raw, running
from tests.support.intake_site import Site


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


def opened(receiver, stack, number, sent=b""):
    """This many connections that have sent this, and wait."""
    peers = [stack.enter_context(socket.create_connection(receiver.address, 60)) for _ in range(number)]
    for peer in peers:
        peer.sendall(sent)
    return peers


def test_slow_clients_do_not_keep_others_waiting():
    """Up to as many as there may be connections; one more is answered 503."""
    site = Site()
    patient = replace(QUICK, stranger_seconds=60, request_seconds=60)
    with running(site, limits=patient) as receiver, contextlib.ExitStack() as stack:
        slow = opened(receiver, stack, 3, HEAD)
        assert post(receiver, ceph("a"))[0] == 200
        for peer in slow:
            peer.setblocking(False)
            with pytest.raises(BlockingIOError):  # it still waits
                peer.recv(1)
        # The place of the post may be free again, for the first of them.
        *_, turned_away = opened(receiver, stack, 2)
        assert turned_away.recv(100).startswith(b"HTTP/1.1 503 ")
    assert site.keys() == ["a"]


def test_the_places_of_slow_clients_are_free_once_they_are_cut_off():
    site = Site()
    with running(site, limits=QUICK) as receiver, contextlib.ExitStack() as stack:
        for peer in opened(receiver, stack, QUICK.connections, HEAD):
            while peer.recv(100):
                pass
        # A place is free a moment after its peer has seen the end, and a slow machine may be cut off itself.
        status = 503
        while status in (408, 503):
            with contextlib.suppress(OSError):
                status = post(receiver, ceph("b"))[0]
        assert status == 200
    assert site.keys() == ["b"]


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
        assert "TLS" in receiver.reports[0]
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
