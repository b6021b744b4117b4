"""Limits of the HTTP inlet for clients without the secret: few connections, little time, few lines of log."""

import contextlib
import http.client
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from s3notify_platform.channels.inlets import http_inlet as inlet_module
from s3notify_platform.channels.inlets.http_server import Limits
from tests.support.http_inlet import HEAD, QUICK, ask, ceph, connect, post, raw, running
from tests.support.intake_site import Site

PATIENT = Limits(connections=8, strangers=2, stranger_seconds=20, request_seconds=20)


@contextlib.contextmanager
def held(receiver, number, sent=b""):
    """Opens `number` connections. Each connection sends `sent`, and then stays open."""
    with contextlib.ExitStack() as open_:
        peers = [open_.enter_context(socket.create_connection(receiver.address, 20)) for _ in range(number)]
        for peer in peers:
            peer.sendall(sent)
        yield peers


def is_turned_away(receiver):
    with socket.create_connection(receiver.address, timeout=20) as peer:
        return peer.recv(100).startswith(b"HTTP/1.1 503 ")


def test_strangers_of_one_address_get_only_their_share():
    """Otherwise clients without the secret could keep out senders at the same address, or at another address."""
    with running(Site(), limits=PATIENT) as receiver, connect(receiver) as friend:
        assert ask(friend, ceph("a"))[0] == 200
        with held(receiver, 2, HEAD):
            assert is_turned_away(receiver)
            assert ask(friend, ceph("b"))[0] == 200
            with connect(receiver, source_address=("127.0.0.2", 0)) as other:
                assert ask(other, ceph("c"))[0] == 200


@pytest.mark.parametrize("request_line", ["GET /health HTTP/1.1", "POST / HTTP/1.1"])
def test_requests_without_the_secret_do_not_keep_a_connection_open(request_line):
    """Otherwise clients without the secret could hold all connections for ever, for example by health checks."""
    with running(Site(), limits=QUICK) as receiver, held(receiver, 1) as (peer,):
        began, answers = time.monotonic(), 0
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 5:
                peer.sendall(f"{request_line}\r\nhost: a\r\n\r\n".encode())
                if not peer.recv(4096):
                    break
                answers += 1
        assert answers > 1
        assert time.monotonic() - began < 3
        with connect(receiver) as other:
            assert ask(other, headers={}, method="GET", path="/health")[0] == 200


def test_many_idle_connections_do_not_block_others():
    """Otherwise 128 idle connections of one address could block an inlet with its default limits."""
    with running(Site()) as receiver, held(receiver, 128):
        began = time.monotonic()
        with connect(receiver, source_address=("127.0.0.2", 0)) as other:
            assert ask(other, ceph("a"))[0] == 200
        assert time.monotonic() - began < 2


def test_a_connection_is_accepted_after_a_stranger_has_left():
    """Otherwise the inlet would accept nobody after some strangers have left or were refused."""
    limits = Limits(connections=1, strangers=1)
    with running(Site(), limits=limits) as receiver:
        for _ in range(3):
            with held(receiver, 1):
                pass
            status = 503
            while status == 503:
                with contextlib.suppress(OSError):
                    status = post(receiver, ceph("a"), {})[0]
            assert status == 401


def test_connections_without_a_handshake_are_counted(certificate):
    """Otherwise clients that never begin TLS could take all connections."""
    cert, key = certificate
    limits = Limits(connections=3, strangers=3, stranger_seconds=2)
    with running(Site(), cert_file=str(cert), key_file=str(key), limits=limits) as receiver:
        with held(receiver, 3) as silent:
            answer, seconds = raw(receiver)
            assert (answer, seconds < 1) == (b"", True)
            assert [peer.recv(1) for peer in silent] == [b""] * 3
        context = ssl.create_default_context(cafile=cert)
        connection = http.client.HTTPSConnection(*receiver.address, timeout=20, context=context)
        with contextlib.closing(connection):
            assert ask(connection, ceph("a"))[0] == 200


def test_a_post_that_waits_too_long_is_dropped(monkeypatch):
    """Otherwise a post that was answered with 503 would be queued later, and again when its sender repeats it."""
    monkeypatch.setattr(inlet_module, "POST_SECONDS", 0.3)
    monkeypatch.setattr(inlet_module, "WORKERS", 1)
    site = Site()
    entered, gate = threading.Event(), threading.Event()
    accept = site.intake.accept

    def slow(events, **arguments):
        entered.set()
        assert gate.wait(20)
        return accept(events, **arguments)

    site.intake.accept = slow
    with running(site) as receiver, ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, receiver, ceph("first"))
        assert entered.wait(20)
        assert post(receiver, ceph("second"))[0] == 503
        gate.set()
        assert first.result()[0] == 503
        assert post(receiver, ceph("third"))[0] == 200
    assert sorted(site.keys()) == ["first", "third"]


def test_the_log_does_not_grow_with_failed_posts(caplog):
    """Otherwise senders could fill the disk with log lines. A later line says how many lines were left out."""
    site = Site()
    site.intake.accept = lambda *a, **k: 1 / 0
    with running(site) as receiver:
        assert [post(receiver, ceph("a"))[0] for _ in range(5)] == [503] * 5
    assert len(caplog.records) == 1


def test_the_log_does_not_grow_with_refused_connections(caplog):
    """Otherwise strangers could fill the disk with log lines."""
    with running(Site(), limits=PATIENT) as receiver, held(receiver, 2, HEAD):
        assert all(is_turned_away(receiver) for _ in range(5))
    assert len(caplog.records) <= 1
