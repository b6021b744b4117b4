"""Destinations of connections: addresses, names, TLS, and the worker's own files and secrets."""

import socket
import threading
from dataclasses import replace

import pytest

from s3notify_platform.channels.delivery import http as http_module
from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.http import HttpPush
from s3notify_platform.channels.delivery.push import Delivered, Down
from s3notify_platform.kernel.errors import UsageError
from tests.support.endpoints import Receiver, certificate
from tests.support.pushing import LOOPBACK, entry, post, pusher


@pytest.fixture
def lookups(monkeypatch):
    """Sets the addresses of host names in this process. If the value of a name is a list, each lookup of this name
    takes the next item.
    """
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

    monkeypatch.setattr(http_module.socket, "getaddrinfo", lookup)
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
def test_every_notation_of_a_private_address_is_refused(host, monkeypatch):
    """Otherwise a topic could reach private hosts by an unusual notation of their address."""
    monkeypatch.setattr(http_module.socket, "create_connection", lambda *_, **__: pytest.fail("connected"))
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
def test_a_name_with_one_private_address_is_refused(addresses, lookups, monkeypatch):
    """Otherwise a name with a public and a private address could lead the worker into its own network."""
    monkeypatch.setattr(http_module.socket, "create_connection", lambda *_, **__: pytest.fail("connected"))
    lookups["evil.example"] = tuple(addresses)
    answer = post("https://evil.example/", egress=Egress())
    assert isinstance(answer, Down)
    assert "is not public" in answer.error


def test_a_name_is_looked_up_only_once(lookups, monkeypatch):
    """Otherwise a second lookup could return a private address that was not checked (DNS rebinding)."""
    lookups["rebind.example"] = [("8.8.8.8",), ("127.0.0.1",)]
    connected = []

    def connect(address, **_):
        connected.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(http_module.socket, "create_connection", connect)
    assert isinstance(post("https://rebind.example/", egress=Egress()), Down)
    assert connected == [("8.8.8.8", 443)]
    assert lookups["asked"] == ["rebind.example"]


def test_the_next_address_is_tried_if_the_first_is_down(lookups):
    lookups["two.example"] = ("127.0.0.9", "127.0.0.1")
    with Receiver().serving() as server:
        assert post(f"http://two.example:{server.port}/") == Delivered()


def test_proxies_of_the_environment_are_not_used(monkeypatch):
    """Otherwise a proxy would connect for the worker, to addresses that were not checked."""
    with Receiver().serving() as proxy, Receiver().serving() as server:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert post(server.url) == Delivered()
        assert (server.tries, proxy.tries) == (1, 0)


# TLS


@pytest.mark.parametrize("host", ["127.0.0.1", "hooks.example"])
def test_the_ca_of_the_topic_must_have_issued_the_certificate(host, lookups, tmp_path):
    """Otherwise events could be sent to a host whose certificate was not issued by the CA that the topic names."""
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


def test_a_certificate_for_another_name_is_refused(lookups, tmp_path):
    """Otherwise any holder of a certificate of the same CA could receive the events. With `verify=False`, the
    certificate is accepted.
    """
    ca_file, context = certificate(tmp_path, "other.example")
    lookups["hooks.example"] = ("127.0.0.1",)
    with Receiver(tls=context).serving() as server:
        url = f"https://hooks.example:{server.port}/"
        answer = post(url, egress=replace(LOOPBACK, ca_folder=tmp_path), ca_file=ca_file.name)
        assert isinstance(answer, Down)
        assert "Hostname mismatch" in answer.error
        assert post(url, verify=False) == Delivered()


@pytest.mark.parametrize("named", ["{outside}", "../outside.pem", "link.pem"])
def test_certificates_are_read_only_from_the_workers_folder(tmp_path, named):
    """Otherwise a user could find out, by means of a topic, which other files the worker has."""
    ca_file, _ = certificate(tmp_path, "example.com")
    folder, outside = tmp_path / "trusted", tmp_path / "outside.pem"
    folder.mkdir()
    ca_file.rename(outside)
    (folder / "link.pem").symlink_to(outside)
    endpoint = Endpoint(url="https://example.com/", ca_file=named.format(outside=outside))
    said = []
    for _ in range(2):
        with pytest.raises(UsageError, match="is not in") as raised:
            HttpPush(endpoint, Egress(ca_folder=folder))
        said.append(str(raised.value))
        outside.unlink(missing_ok=True)
    assert said[0] == said[1]


def test_an_endless_lookup_ends_with_the_requests_deadline(monkeypatch):
    """Otherwise a name server that does not answer would block requests, and delay the end of the worker."""
    asked, gate = [], threading.Event()

    def lookup(host, *_, **__):
        asked.append(host)
        gate.wait(20)
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    monkeypatch.setattr(http_module.socket, "getaddrinfo", lookup)
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


def test_missing_files_keys_and_permissions_are_reported_before_a_request(monkeypatch, tmp_path):
    """Otherwise the operator would learn only from failed deliveries that a key, a file or a permission is missing."""
    monkeypatch.delenv("S3NOTIFY_PUSH_KEY", raising=False)
    with pytest.raises(UsageError, match="set S3NOTIFY_PUSH_KEY"):
        HttpPush(Endpoint(url="https://example.com/", secret_env="S3NOTIFY_PUSH_KEY"), Egress())
    monkeypatch.setenv("S3NOTIFY_PUSH_KEY", "short")
    with pytest.raises(UsageError, match=r"S3NOTIFY_PUSH_KEY.*16 or more") as raised:
        HttpPush(Endpoint(url="https://example.com/", secret_env="S3NOTIFY_PUSH_KEY"), Egress())
    assert "'short'" not in str(raised.value)
    with pytest.raises(UsageError, match="no --ca-folder"):
        HttpPush(Endpoint(url="https://example.com/", ca_file="some.pem"), Egress())
    with pytest.raises(UsageError, match=r"ca_file 'some\.pem'"):
        HttpPush(Endpoint(url="https://example.com/", ca_file="some.pem"), Egress(ca_folder=tmp_path))
    with pytest.raises(UsageError, match="does not allow http"):
        HttpPush(Endpoint(url="http://example.com/"), Egress())
