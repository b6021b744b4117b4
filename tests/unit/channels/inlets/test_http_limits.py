"""The HTTP inlet under load and misuse: limits, slow peers, stop, TLS, settings."""

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


def test_a_body_over_the_limit_is_refused():
    """Otherwise a sender could fill the memory, by a declared length or by endless chunks."""
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


def test_a_refused_sender_gets_no_100_continue():
    """Otherwise a refused sender would upload its body, and a permitted sender would wait for 100 Continue."""
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
def test_malformed_requests_are_refused(sent, status):
    """Otherwise bytes that are not HTTP could end the inlet."""
    with running(Site(), limits=QUICK) as receiver:
        answer, _ = raw(receiver, sent)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert post(receiver, ceph("a"))[0] == 200


def test_slow_clients_are_disconnected_at_the_deadline():
    """Otherwise a client that sends one byte now and then could hold a connection for ever."""
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
    """Opens `number` connections. Each connection sends `sent`, and then stays open."""
    peers = [stack.enter_context(socket.create_connection(receiver.address, 60)) for _ in range(number)]
    for peer in peers:
        peer.sendall(sent)
    return peers


def test_slow_clients_do_not_delay_others():
    """Otherwise a few slow clients would block all senders. A connection over the limit is answered with 503."""
    site = Site()
    patient = replace(QUICK, stranger_seconds=60, request_seconds=60)
    with running(site, limits=patient) as receiver, contextlib.ExitStack() as stack:
        slow = opened(receiver, stack, 3, HEAD)
        assert post(receiver, ceph("a"))[0] == 200
        for peer in slow:
            peer.setblocking(False)
            with pytest.raises(BlockingIOError):  # the peer still waits
                peer.recv(1)
        # The inlet accepts the first of these two connections if the post's connection has ended already.
        *_, turned_away = opened(receiver, stack, 2)
        assert turned_away.recv(100).startswith(b"HTTP/1.1 503 ")
    assert site.keys() == ["a"]


def test_posts_are_accepted_again_after_the_deadline_of_slow_clients():
    site = Site()
    with running(site, limits=QUICK) as receiver, contextlib.ExitStack() as stack:
        for peer in opened(receiver, stack, QUICK.connections, HEAD):
            while peer.recv(100):
                pass
        # A peer sees the end of its connection a moment before the inlet accepts a new connection. On a slow machine,
        # the next post may time out, too.
        status = 503
        while status in (408, 503):
            with contextlib.suppress(OSError):
                status = post(receiver, ceph("b"))[0]
        assert status == 200
    assert site.keys() == ["b"]


def test_a_peer_that_disconnects_does_no_damage():
    """Otherwise a peer that disconnects within a request could end the inlet."""
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


def test_a_stop_answers_posts_in_progress_and_closes_idle_connections():
    """Otherwise a restart of the inlet would lose posts in progress, or wait for idle connections."""
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


def test_tls_is_served_with_certificate_and_key(certificate):
    """Otherwise secrets would be readable on the network, or a hanging handshake would hold a connection."""
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
        ({"host": "0.0.0.0"}, SECRET, "not a loopback"),
        ({"host": "example.org"}, SECRET, "not a loopback"),
        ({"cert_file": "/nowhere"}, SECRET, "both"),
        ({"cert_file": "/nowhere", "key_file": "/nowhere"}, SECRET, "certificate '/nowhere'"),
    ],
)
def test_unsafe_settings_are_refused(monkeypatch, settings, secret, reason):
    """Otherwise the inlet would listen with a weak secret, or without TLS on a network."""
    monkeypatch.setenv("A", secret)
    with pytest.raises(UsageError, match=reason):
        HttpInlet(HttpInletSettings(secret_envs=["A", "B"], **settings), Site().intake)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_and_plain_http_need_no_tls(host):
    """Otherwise an inlet behind a proxy that does TLS could not be started."""
    HttpInlet(HttpInletSettings(secret_envs=["RECEIVER_SECRET"], host=host), Site().intake)
    HttpInlet(
        HttpInletSettings(secret_envs=["RECEIVER_SECRET"], host="0.0.0.0", plain_http=True), Site().intake
    )


def test_a_port_in_use_is_reported():
    with running(Site()) as receiver:
        settings = HttpInletSettings(secret_envs=["RECEIVER_SECRET"], port=receiver.address[1])
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{receiver.address[1]}"):
            HttpInlet(settings, Site().intake).run(threading.Event(), lambda _: None)
