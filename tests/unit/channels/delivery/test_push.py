"""One endpoint over real sockets: its answers, and limits of time and size."""

import socket
import threading
import time
from dataclasses import replace

import pytest

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.http import HttpPush
from s3notify_platform.channels.delivery.push import Delivered, Down, Rejected, connect
from s3notify_platform.protocols.notification_queue import Event
from tests.support.endpoints import Receiver, hang, raw_endpoint, read_request
from tests.support.outlets import SteppedDelivery
from tests.support.pushing import LOOPBACK, entry, post, pusher
from tests.support.waiting import until


def test_a_receiver_gets_signed_s3_events_over_one_connection(monkeypatch):
    """Otherwise receivers could not verify events, or recognise repeated events."""
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
def test_an_event_is_accepted_by_any_2xx_status(status):
    with Receiver(lambda _: status).serving() as server:
        assert post(server.url) == Delivered()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 413, 422, 500, 501])
def test_a_status_of_refusal_gives_a_printable_error(status):
    """Otherwise an endpoint could write control characters or long texts into logs and queue entries."""
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
def test_busy_and_failing_gateways_count_as_down(status, header, reached, wait):
    """Otherwise entries would lose attempts, or a long `Retry-After` could stop a topic for days. Statuses 429 and 503
    mean that the endpoint processed nothing.
    """
    headers = {} if header is None else {"retry-after": header.encode().decode("latin-1")}
    with Receiver(lambda _: status, headers=headers).serving() as server:
        answer = post(server.url)
    assert isinstance(answer, Down)
    assert (answer.reached, answer.retry_after_seconds) == (reached, wait)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status):
    """Otherwise an endpoint could redirect the worker to a host that was not checked."""
    with Receiver().serving() as other:
        headers = {"location": other.url}
        with Receiver(lambda _: status, headers=headers).serving() as server:
            answer = post(server.url)
        assert isinstance(answer, Down)
        assert "redirects are not followed" in answer.error
        assert other.tries == 0


def test_a_missing_endpoint_costs_no_attempt():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    answer = post(f"http://127.0.0.1:{port}/")
    assert isinstance(answer, Down)
    assert "ConnectionRefusedError" in answer.error
    assert not answer.reached
    answer = post("http://nothing.invalid/")
    assert isinstance(answer, Down)
    assert not answer.reached


@pytest.mark.parametrize("received", [True, False])
def test_an_event_loses_an_attempt_if_its_endpoint_may_have_received_it_before_it_ended(received):
    """Otherwise an event that crashes its endpoint would be sent again for ever, or each restart of an endpoint would
    cost attempts.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def end():
            peer, _ = listener.accept()
            with peer, listener:
                read_request(peer)
                peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                if received:
                    read_request(peer)

        thread = threading.Thread(target=end)
        thread.start()
        with pusher(f"http://127.0.0.1:{listener.getsockname()[1]}/") as made:
            assert made.post("t", [entry()]) == Delivered()
            if not received:
                thread.join()
            answer = made.post("t", [entry()])
        thread.join()
    assert isinstance(answer, Down)
    assert "ConnectionRefusedError" in answer.error
    assert answer.reached == received


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
def test_the_whole_request_has_one_deadline(behave):
    """Otherwise a slow endpoint could hold a request for ever by sending a byte now and then."""
    with raw_endpoint(behave) as port:
        started = time.monotonic()
        answer = post(f"http://127.0.0.1:{port}/", timeout_seconds=0.6)
        assert time.monotonic() - started < 1.5
    assert isinstance(answer, Down)
    assert answer.reached
    assert "timed out" in answer.error


def test_the_deadline_covers_the_tls_handshake():
    """Otherwise an endpoint that accepts connections, but sends nothing, could hold a request for ever."""
    with raw_endpoint(hang) as port:
        started = time.monotonic()
        answer = post(f"https://127.0.0.1:{port}/", timeout_seconds=0.6)
        assert time.monotonic() - started < 1.5
    assert isinstance(answer, Down)
    assert not answer.reached


def test_requests_to_silent_kafka_brokers_end_at_their_own_deadline():
    """Otherwise each request would wait for the timeouts of all earlier requests, and a turn would last for minutes."""
    with raw_endpoint(hang) as port:
        endpoint = Endpoint(url=f"kafka://127.0.0.1:{port}/t", timeout_seconds=1.0, concurrency=4)
        made = connect(endpoint, replace(LOOPBACK, kafka_hosts=("127.0.0.1",)))
        started = time.monotonic()
        answers = made.post_many("t", [[entry(n)] for n in range(4)])
        assert time.monotonic() - started < 2.5
        made.close()
    assert all(isinstance(answer, Down) and not answer.reached for answer in answers)


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
def test_malformed_answers_count_as_an_attempt(said):
    """Otherwise a malformed answer would end the worker, or the worker would repeat the request for ever."""

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
def test_acceptance_depends_on_the_status_of_an_answer_and_not_on_its_body(behave):
    """Otherwise a long or endless body would hold the worker, or spoil the connection's next answer."""
    with raw_endpoint(behave) as port, pusher(f"http://127.0.0.1:{port}/") as made:
        started = time.monotonic()
        assert made.post("t", [entry()]) == Delivered()
        assert time.monotonic() - started < 2.5
        assert made._idle == []
        assert made._open == set()


def test_an_http_1_0_answer_without_a_length_is_read():

    def behave(connection):
        read_request(connection)
        connection.sendall(b"HTTP/1.0 500 Oh\r\n\r\nwhat was wrong")

    with raw_endpoint(behave) as port:
        answer = post(f"http://127.0.0.1:{port}/")
    assert answer == Rejected(error="HTTP 500 what was wrong")


def test_a_kept_connection_that_was_closed_is_replaced():
    """Endpoints close idle connections. If the event were not sent again on a new connection, each closed connection
    would cost the event one delivery attempt.
    """
    lives = []

    def behave(connection):
        lives.append(connection)
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    with raw_endpoint(behave) as port, pusher(f"http://127.0.0.1:{port}/") as made:
        assert [made.post("t", [entry()]) for _ in range(3)] == [Delivered()] * 3
    assert len(lives) == 3


def test_the_limit_of_requests_in_flight_is_shared_by_all_callers():
    with Receiver(delay=0.05).serving() as server, pusher(server.url, concurrency=3) as made:
        batches = [[entry(n)] for n in range(6)]
        callers = [threading.Thread(target=made.post_many, args=("t", batches)) for _ in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert server.most_in_flight == 3
        assert server.tries == 18


def test_requests_in_flight_end_when_their_pusher_is_closed():
    """Otherwise a clean stop would wait for a slow endpoint."""
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


def test_an_entry_that_cannot_be_written_as_a_message_does_no_harm_to_others(queue, caplog):
    """Otherwise all entries of the same turn would lose an attempt in each turn, and would become dead letters."""
    never = 10**18
    queue.push_many("t", [Event(key=f"k{n}", time_ms=never if n == 5 else 0) for n in range(20)])
    with Receiver().serving() as server, pusher(server.url) as made:
        SteppedDelivery(queue, made).step()
        assert server.keys == {f"k{n}": 1 for n in range(20) if n != 5}
    (left,) = queue.entries("t", range(1000))
    assert (left.event.key, left.attempts) == ("k5", 1)
    assert left.last_error.startswith("OverflowError: ")
    assert len(caplog.records) == 1


def test_a_process_without_free_threads_takes_no_attempt(queue, monkeypatch):
    """The endpoint did not receive the event, and the event is good. The event must be delivered later."""
    queue.push_many("t", [Event(key="k")])
    with Receiver().serving() as server, pusher(server.url) as made:
        with monkeypatch.context() as patched:
            patched.setattr(made, "post", raising(RuntimeError("can't start new thread")))
            SteppedDelivery(queue, made).step()
        (left,) = queue.entries("t", range(1000))
        assert (left.attempts, server.keys) == (0, {})


def raising(error):
    def post(*_):
        raise error

    return post
