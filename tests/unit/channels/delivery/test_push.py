"""One endpoint over real sockets: answers, and limits of time and size."""

import socket
import threading
import time

import pytest

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.http import HttpPush
from s3notify_platform.channels.delivery.push import Delivered, Down, Rejected
from tests.support.endpoints import Receiver, hang, raw_endpoint, read_request
from tests.support.pushing import LOOPBACK, entry, post, pusher
from tests.support.waiting import until


def test_what_a_receiver_gets(monkeypatch):
    """The S3 event message, one id for each record, a signature of both, over one kept connection."""
    monkeypatch.setenv("S3NOTIFY_PUSH_KEY", "0123456789abcdef")
    with Receiver(secret=b"0123456789abcdef").serving() as server:
        with pusher(server.url, secret_env="S3NOTIFY_PUSH_KEY") as made:
            for _ in range(3):
                assert made.post("t", [entry(1), entry(2)]) == Delivered()
        assert server.connections == 1
        assert server.seen == {"id.1": 3, "id.2": 3}
        headers, _ = server.requests[0]
        named = {name.lower(): value for name, value in headers.items()}
        assert named["host"] == f"127.0.0.1:{server.port}"
        assert named["content-type"] == "application/json"
        assert named["s3notify-topic"] == "t"
        assert "0123456789abcdef" not in repr(headers)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_accepted(status):
    """By any 2xx."""
    with Receiver(lambda _: status).serving() as server:
        assert post(server.url) == Delivered()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 413, 422, 500, 501])
def test_refused(status):
    """With the beginning of what it says, printable."""
    with Receiver(lambda _: status, body=b"no\r\n\x1b[31m" + b"x" * 9000).serving() as server:
        answer = post(server.url)
    assert isinstance(answer, Rejected)
    assert answer.error.startswith(f"HTTP {status} no   [31mxx")
    assert len(answer.error) <= 210


@pytest.mark.parametrize(
    ("status", "header", "reached", "wait"),
    [
        (429, "7", False, 7.0),
        (503, "100000", False, 300.0),
        (503, "Wed, 21 Oct 2026 07:28:00 GMT", False, 0.0),
        (503, "²", False, 0.0),
        (502, "7", True, 0.0),
        (504, None, True, 0.0),
        (408, None, True, 0.0),
    ],
)
def test_down_by_its_own_word(status, header, reached, wait):
    """Only what says "not now" takes the attempt back; a wait is honoured within bounds."""
    headers = {} if header is None else {"retry-after": header.encode().decode("latin-1")}
    with Receiver(lambda _: status, headers=headers).serving() as server:
        answer = post(server.url)
    assert isinstance(answer, Down)
    assert (answer.reached, answer.retry_after_seconds) == (reached, wait)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status):
    """Wherever they lead."""
    with Receiver().serving() as other:
        headers = {"location": other.url}
        with Receiver(lambda _: status, headers=headers).serving() as server:
            answer = post(server.url)
        assert isinstance(answer, Down)
        assert "redirects are not followed" in answer.error
        assert other.tries == 0


def test_an_endpoint_that_is_not_there():
    """Nothing was looked at."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    answer = post(f"http://127.0.0.1:{port}/")
    assert isinstance(answer, Down)
    assert "ConnectionRefusedError" in answer.error
    assert not answer.reached
    answer = post("http://nothing.invalid/")
    assert isinstance(answer, Down)
    assert not answer.reached


def trickle(connection):
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for _ in range(100):
        connection.sendall(b"x: y\r\n")
        time.sleep(0.1)


def continue_for_ever(connection):
    read_request(connection)
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.05)


def take_nothing(connection):
    time.sleep(5)


@pytest.mark.parametrize("behave", [hang, trickle, continue_for_ever, take_nothing])
def test_one_deadline_for_the_whole_request(behave):
    """However the endpoint spreads its bytes."""
    with raw_endpoint(behave) as port:
        started = time.monotonic()
        answer = post(f"http://127.0.0.1:{port}/", timeout_seconds=0.6)
        assert time.monotonic() - started < 1.5
    assert isinstance(answer, Down)
    assert answer.reached
    assert "timed out" in answer.error


def test_the_deadline_covers_the_handshake():
    """An endpoint that accepts and then says nothing to TLS."""
    with raw_endpoint(hang) as port:
        started = time.monotonic()
        answer = post(f"https://127.0.0.1:{port}/", timeout_seconds=0.6)
        assert time.monotonic() - started < 1.5
    assert isinstance(answer, Down)
    assert not answer.reached


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 " + b"x" * 100_000,
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 500 + b"\r\n",
        b"\x00" * 1000,
    ],
)
def test_answers_that_are_none(said):
    """Closed, nonsense, or headers without end: the attempt counts, the worker goes on."""

    def behave(connection):
        read_request(connection)
        connection.sendall(said)

    with raw_endpoint(behave) as port:
        answer = post(f"http://127.0.0.1:{port}/")
    assert isinstance(answer, Down)
    assert answer.reached


def huge(connection):
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000000\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65536)


def endless_chunks(connection):
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")


def stop_in_the_body(connection):
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nx")
    hang(connection)


def cut_the_body(connection):
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nx")


@pytest.mark.parametrize("behave", [huge, endless_chunks, stop_in_the_body, cut_the_body])
def test_the_status_is_the_answer(behave):
    """What comes after it is read within bounds, and never used again if it is not whole."""
    with raw_endpoint(behave) as port, pusher(f"http://127.0.0.1:{port}/") as made:
        started = time.monotonic()
        assert made.post("t", [entry()]) == Delivered()
        assert time.monotonic() - started < 2.5
        assert made._idle == []
        assert made._open == set()


def test_an_answer_that_ends_with_the_connection():
    """HTTP/1.0 without a length."""

    def behave(connection):
        read_request(connection)
        connection.sendall(b"HTTP/1.0 500 Oh\r\n\r\nwhat was wrong")

    with raw_endpoint(behave) as port:
        answer = post(f"http://127.0.0.1:{port}/")
    assert answer == Rejected(error="HTTP 500 what was wrong")


def test_a_kept_connection_that_is_gone_is_made_again():
    """Endpoints close idle ones; that is no failure."""
    lives = []

    def behave(connection):
        lives.append(connection)
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    with raw_endpoint(behave) as port, pusher(f"http://127.0.0.1:{port}/") as made:
        assert [made.post("t", [entry()]) for _ in range(3)] == [Delivered()] * 3
    assert len(lives) == 3


def test_no_more_requests_in_flight_than_allowed():
    """Over all callers."""
    with Receiver(delay=0.05).serving() as server, pusher(server.url, concurrency=3) as made:
        batches = [[entry(n)] for n in range(6)]
        callers = [threading.Thread(target=made.post_many, args=("t", batches)) for _ in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert server.most_in_flight == 3
        assert server.tries == 18


def test_closing_ends_what_is_in_flight():
    """At once, as not answered; a later post is answered likewise."""
    with raw_endpoint(hang) as port:
        made = HttpPush(Endpoint(url=f"http://127.0.0.1:{port}/", timeout_seconds=30), LOOPBACK)
        answers = []
        caller = threading.Thread(target=lambda: answers.extend(made.post_many("t", [[entry()]])))
        caller.start()
        until(lambda: made._open)
        made.close()
        caller.join(3)
        assert not caller.is_alive()
        assert isinstance(answers[0], Down)
        assert isinstance(made.post_many("t", [[entry()]])[0], Down)
