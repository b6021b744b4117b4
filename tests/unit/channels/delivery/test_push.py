"""One endpoint over real sockets: answers, limits of time and size, TLS, and where connections go."""

import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from s3notify_platform.channels.delivery import push as push_module
from s3notify_platform.channels.delivery.endpoint import Egress, Endpoint
from s3notify_platform.channels.delivery.push import Delivered, Down, Pusher, Rejected
from s3notify_platform.errors import UsageError
from s3notify_platform.protocols.notification_queue import Entry, Event
from tests.support.endpoints import Receiver, certificate, hang, raw_endpoint, read_request
from tests.support.waiting import until

LOOPBACK = Egress.of(["127.0.0.0/8", "::1/128"], allow_http=True)


def entry(number=0):
    event = Event(key=f"k{number}", bucket="b", etag="e", size=1, sequencer="0A")
    return Entry(
        topic="t", shard=0, epoch="e", id=f"id-{number}", slot=0, quota=0, state="committed", event=event
    )


@contextmanager
def pusher(url, *, egress=LOOPBACK, **fields):
    made = Pusher(Endpoint(url=url, **{"timeout_seconds": 5.0, "concurrency": 2} | fields), egress)
    try:
        yield made
    finally:
        made.close()


def post(url, **fields):
    with pusher(url, **fields) as made:
        return made.post("t", [entry()])


def test_what_a_receiver_gets(monkeypatch):
    """The S3 event message, one id for each record, a signature of both, over one kept connection."""
    monkeypatch.setenv("S3NOTIFY_PUSH_KEY", "0123456789abcdef")
    with Receiver(secret=b"0123456789abcdef").serving() as server:
        with pusher(server.url, secret_env="S3NOTIFY_PUSH_KEY") as made:
            for _ in range(3):
                assert made.post("t", [entry(1), entry(2)]) == Delivered()
        assert server.connections == 1
        assert server.seen == {"id-1": 3, "id-2": 3}
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
        made = Pusher(Endpoint(url=f"http://127.0.0.1:{port}/", timeout_seconds=30), LOOPBACK)
        answers = []
        caller = threading.Thread(target=lambda: answers.extend(made.post_many("t", [[entry()]])))
        caller.start()
        until(lambda: made._open)
        made.close()
        caller.join(3)
        assert not caller.is_alive()
        assert isinstance(answers[0], Down)
        assert isinstance(made.post_many("t", [[entry()]])[0], Down)


# Where connections go


@pytest.fixture
def lookups(monkeypatch):
    """What names resolve to, in this process; a list is used up one by one."""
    table, asked = {}, []
    real = socket.getaddrinfo

    def lookup(host, port, *args, **kwargs):
        if host not in table:
            return real(host, port, *args, **kwargs)
        asked.append(host)
        found = table[host]
        addresses = found.pop(0) if isinstance(found, list) else found
        return [
            (socket.AF_INET6 if ":" in a else socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port))
            for a in addresses
        ]

    monkeypatch.setattr(push_module.socket, "getaddrinfo", lookup)
    table["asked"] = asked
    return table


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "169.254.169.254",
        "[fe80::1]",
    ],
)
def test_every_way_to_write_an_address_is_seen_through(host, monkeypatch):
    """No connection is even tried."""
    monkeypatch.setattr(push_module.socket, "create_connection", lambda *_, **__: pytest.fail("connected"))
    answer = post(f"http://{host}/", egress=Egress(allow_http=True))
    assert isinstance(answer, Down)
    assert not answer.reached
    assert "is not public" in answer.error


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["169.254.169.254"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["10.0.0.1"],
        ["8.8.8.8", "10.0.0.1"],
    ],
)
def test_names_are_judged_by_all_their_addresses(addresses, lookups, monkeypatch):
    """One that is not permitted is enough."""
    monkeypatch.setattr(push_module.socket, "create_connection", lambda *_, **__: pytest.fail("connected"))
    lookups["evil.example"] = tuple(addresses)
    answer = post("https://evil.example/", egress=Egress())
    assert isinstance(answer, Down)
    assert "is not public" in answer.error


def test_a_name_that_changes_its_mind_is_looked_up_once(lookups, monkeypatch):
    """What was checked is what is connected to: a second lookup would have led elsewhere."""
    lookups["rebind.example"] = [("8.8.8.8",), ("127.0.0.1",)]
    connected = []

    def connect(address, **_):
        connected.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(push_module.socket, "create_connection", connect)
    assert isinstance(post("https://rebind.example/", egress=Egress()), Down)
    assert connected == [("8.8.8.8", 443)]
    assert lookups["asked"] == ["rebind.example"]


def test_another_address_of_the_name_is_tried(lookups):
    """The first may be down."""
    lookups["two.example"] = ("127.0.0.9", "127.0.0.1")
    with Receiver().serving() as server:
        assert post(f"http://two.example:{server.port}/") == Delivered()


def test_proxies_of_the_environment_are_not_used(monkeypatch):
    """They would connect in our place, to what we did not check."""
    with Receiver().serving() as proxy, Receiver().serving() as server:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert post(server.url) == Delivered()
        assert (server.tries, proxy.tries) == (1, 0)


# TLS


@pytest.mark.parametrize("host", ["127.0.0.1", "hooks.example"])
def test_tls_is_verified_for_the_name_at_the_address_that_was_checked(host, lookups, tmp_path):
    """By the CA that is named; for an IP address too."""
    ca_file, context = certificate(tmp_path, host)
    egress = replace(LOOPBACK, ca_folder=tmp_path)
    lookups["hooks.example"] = ("127.0.0.1",)
    with Receiver(tls=context).serving() as server:
        url = f"https://{host}:{server.port}/"
        assert post(url, egress=egress, ca_file=ca_file.name) == Delivered()
        assert post(url, egress=egress, ca_file=str(ca_file)) == Delivered()
        answer = post(url)
        assert isinstance(answer, Down)
        assert "CERTIFICATE_VERIFY_FAILED" in answer.error
        assert not answer.reached
        assert server.tries == 2


def test_a_certificate_of_another_name_is_refused(lookups, tmp_path):
    """Though it is by a CA that is trusted; unless nothing is to be verified."""
    ca_file, context = certificate(tmp_path, "other.example")
    lookups["hooks.example"] = ("127.0.0.1",)
    with Receiver(tls=context).serving() as server:
        url = f"https://hooks.example:{server.port}/"
        answer = post(url, egress=replace(LOOPBACK, ca_folder=tmp_path), ca_file=ca_file.name)
        assert isinstance(answer, Down)
        assert "Hostname mismatch" in answer.error
        assert post(url, verify=False) == Delivered()


@pytest.mark.parametrize("named", ["{outside}", "../outside.pem", "link.pem"])
def test_certificates_are_read_from_the_workers_folder_only(tmp_path, named):
    """A topic says nothing about other files of the worker: whether they are there, or what is in them."""
    ca_file, _ = certificate(tmp_path, "example.com")
    folder, outside = tmp_path / "trusted", tmp_path / "outside.pem"
    folder.mkdir()
    ca_file.rename(outside)
    (folder / "link.pem").symlink_to(outside)
    endpoint = Endpoint(url="https://example.com/", ca_file=named.format(outside=outside))
    told = []
    for _ in range(2):
        with pytest.raises(UsageError, match="is not in") as raised:
            Pusher(endpoint, Egress(ca_folder=folder))
        told.append(str(raised.value))
        outside.unlink(missing_ok=True)
    assert told[0] == told[1]


def test_a_name_that_is_never_resolved_has_the_requests_deadline(monkeypatch):
    """Requests meanwhile wait for the same lookup, and none delays the worker's end."""
    asked, gate = [], threading.Event()

    def lookup(host, *_, **__):
        asked.append(host)
        gate.wait(20)
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    monkeypatch.setattr(push_module.socket, "getaddrinfo", lookup)
    try:
        with pusher("https://slow.example/", timeout_seconds=0.3) as made:
            for _ in range(2):
                answer = made.post("t", [entry()])
                assert isinstance(answer, Down)
                assert "'slow.example' was not resolved in time" in answer.error
                assert not answer.reached
    finally:
        gate.set()
    assert asked == ["slow.example"]


def test_what_the_worker_lacks_is_said_before_anything_is_sent(monkeypatch, tmp_path):
    """A key that is not set or too short, certificates that are not there, a way that is not allowed."""
    monkeypatch.delenv("S3NOTIFY_PUSH_KEY", raising=False)
    with pytest.raises(UsageError, match="set S3NOTIFY_PUSH_KEY"):
        Pusher(Endpoint(url="https://example.com/", secret_env="S3NOTIFY_PUSH_KEY"), Egress())
    monkeypatch.setenv("S3NOTIFY_PUSH_KEY", "short")
    with pytest.raises(UsageError, match=r"S3NOTIFY_PUSH_KEY.*16 or more") as raised:
        Pusher(Endpoint(url="https://example.com/", secret_env="S3NOTIFY_PUSH_KEY"), Egress())
    assert "'short'" not in str(raised.value)
    with pytest.raises(UsageError, match="no --ca-folder"):
        Pusher(Endpoint(url="https://example.com/", ca_file="some.pem"), Egress())
    with pytest.raises(UsageError, match=r"ca_file 'some\.pem'"):
        Pusher(Endpoint(url="https://example.com/", ca_file="some.pem"), Egress(ca_folder=tmp_path))
    with pytest.raises(UsageError, match="does not allow http"):
        Pusher(Endpoint(url="http://example.com/"), Egress())
