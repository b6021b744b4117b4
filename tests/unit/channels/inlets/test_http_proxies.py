"""The HTTP inlet behind a proxy: strangers get their share of the connections, and senders are served."""

import contextlib
import http.client

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.channels.inlets.http_server import Limits
from s3notify_platform.channels.inlets.proxies import TrustedProxies, counted
from s3notify_platform.cli.main import main
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.orchestration import S3NotifyComponent
from tests.support.http_inlet import BEARER, ask, ceph, running
from tests.support.intake_site import Site

PROXIES = TrustedProxies.of(["10.0.0.0/8", "fd00::/8", "192.0.2.7"])
PATIENT = Limits(connections=12, strangers=3, stranger_seconds=60)


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ({}, "10.0.0.1"),
        ({"x-forwarded-for": "198.51.100.1"}, "198.51.100.1"),
        ({"x-forwarded-for": "203.0.113.9, 198.51.100.1"}, "198.51.100.1"),
        ({"x-forwarded-for": "203.0.113.9, 198.51.100.1, 192.0.2.7,10.9.9.9"}, "198.51.100.1"),
        ({"x-forwarded-for": "10.1.1.1, 10.2.2.2"}, "10.1.1.1"),
        ({"x-forwarded-for": "198.51.100.1:4711"}, "198.51.100.1"),
        ({"x-forwarded-for": "::ffff:198.51.100.1"}, "198.51.100.1"),
        ({"x-forwarded-for": "2001:db8::1:2"}, "2001:db8::/64"),
        ({"x-forwarded-for": "[2001:db8::1:2]:443, fd00::5"}, "2001:db8::/64"),
        ({"forwarded": 'for="[2001:db8::9]:443";proto=https'}, "2001:db8::/64"),
        ({"forwarded": "For=203.0.113.9, by=10.0.0.1;FOR=198.51.100.1 ; proto=https"}, "198.51.100.1"),
        ({"forwarded": 'for=198.51.100.1;host="a, for=203.0.113.9"'}, "198.51.100.1"),
        ({"forwarded": r'for="198.51.100.\1"'}, "198.51.100.1"),
        ({"forwarded": "for=198.51.100.1", "x-forwarded-for": "198.51.100.1"}, "198.51.100.1"),
        # If a header is malformed or hides the client, or if two headers disagree, the proxy's own address counts as
        # the client's address.
        ({"forwarded": "for=203.0.113.9", "x-forwarded-for": "198.51.100.1"}, "10.0.0.1"),
        ({"forwarded": "garbage", "x-forwarded-for": "198.51.100.1"}, "10.0.0.1"),
        ({"x-forwarded-for": ""}, "10.0.0.1"),
        ({"x-forwarded-for": "198.51.100.1,"}, "10.0.0.1"),
        ({"x-forwarded-for": "198.51.100.1, unknown"}, "10.0.0.1"),
        ({"x-forwarded-for": "198.51.100.1, unknown, 10.3.3.3"}, "10.0.0.1"),
        ({"x-forwarded-for": "198.51.100.1 203.0.113.9"}, "10.0.0.1"),
        ({"x-forwarded-for": "198.51.100.1:80:80"}, "10.0.0.1"),
        ({"forwarded": "for=unknown"}, "10.0.0.1"),
        ({"forwarded": "for=_hidden"}, "10.0.0.1"),
        ({"forwarded": 'for="unix:/run/x.sock"'}, "10.0.0.1"),
        ({"forwarded": "for=198.51.100.1, proto=https"}, "10.0.0.1"),
        ({"forwarded": 'for=198.51.100.1, for="203.0.113.9'}, "10.0.0.1"),
        ({"forwarded": "for=198.51.100.1 for=203.0.113.9"}, "10.0.0.1"),
        ({"forwarded": ""}, "10.0.0.1"),
    ],
)
def test_a_request_counts_for_the_last_address_that_belongs_to_no_proxy(headers, client):
    """Otherwise a client could pretend to be another client by sending a forwarding header."""
    assert PROXIES.client("10.0.0.1", headers) == client


@given(
    st.text(alphabet='for=,;: "\\[]1.:ab\x80', max_size=200),
    st.sampled_from(["forwarded", "x-forwarded-for"]),
)
def test_any_header_yields_an_address(text, name):
    """Otherwise a malformed header could end the inlet, or hide the address that the proxy has appended."""
    assert PROXIES.client("10.0.0.1", {name: text})
    assert PROXIES.client("10.0.0.1", {"x-forwarded-for": f"{text}, 198.51.100.1"}) == "198.51.100.1"


def test_trusted_proxies_are_recognised_by_their_address():
    """Otherwise a proxy whose address has another notation would not be recognised, or every client could count as a
    proxy.
    """
    assert all(map(PROXIES.has, ("10.0.0.1", "::ffff:10.0.0.1", "fd00::1", "192.0.2.7")))
    assert not any(map(PROXIES.has, ("11.0.0.1", "192.0.2.8", "2001:db8::1", "", "localhost")))
    assert not TrustedProxies().has("127.0.0.1")
    for bad in ("proxy.example", "10.0.0.1/8", "0.0.0.0/0", "::/0", "unix:/run/x", ""):
        with pytest.raises(UsageError, match="prox"):
            TrustedProxies.of([bad])
    assert (counted("fe80::1%eth0"), counted("nonsense")) == ("fe80::/64", "nonsense")


def held(receiver, stack, **headers):
    """Opens a connection that stays open after its request. Returns the status of the answer."""
    connection = stack.enter_context(
        contextlib.closing(http.client.HTTPConnection(*receiver.address, timeout=20))
    )
    return ask(connection, headers={name.replace("_", "-"): value for name, value in headers.items()})[0]


@pytest.mark.parametrize("header", ["x_forwarded_for", "forwarded"])
def test_a_stranger_behind_the_proxy_does_not_block_others(header):
    """Otherwise one client without the secret could take all connections of the proxy."""

    def of(address):
        return {header: f"for={address}" if header == "forwarded" else address}

    site = Site()
    with (
        running(site, limits=PATIENT, trusted_proxies=["127.0.0.1"]) as receiver,
        contextlib.ExitStack() as stack,
    ):
        assert [held(receiver, stack, **of("198.51.100.1")) for _ in range(5)] == [401, 401, 401, 503, 503]
        assert held(receiver, stack, **of("198.51.100.2")) == 401
        for key, address in (("a", "198.51.100.1"), ("b", "198.51.100.3")):
            connection = http.client.HTTPConnection(*receiver.address, timeout=20)
            with contextlib.closing(connection):
                assert (
                    ask(connection, ceph(key), BEARER | {header.replace("_", "-"): of(address)[header]})[0]
                    == 200
                )
    assert sorted(site.keys()) == ["a", "b"]


def test_a_connection_of_the_proxy_counts_for_the_client_of_its_last_request():
    """A proxy uses one connection for many clients, and may send several headers. Without this rule, a request would be
    counted as a request of an earlier client of the connection.
    """
    with (
        running(Site(), limits=PATIENT, trusted_proxies=["127.0.0.1"]) as receiver,
        contextlib.ExitStack() as stack,
    ):
        connection = stack.enter_context(
            contextlib.closing(http.client.HTTPConnection(*receiver.address, timeout=20))
        )
        for _ in range(3):
            for client in range(5):
                assert ask(connection, headers={"x-forwarded-for": f"198.51.100.{client}"})[0] == 401
        assert [held(receiver, stack, x_forwarded_for="198.51.100.0") for _ in range(4)] == [
            401,
            401,
            401,
            503,
        ]
        connection.putrequest("POST", "/")
        connection.putheader("X-Forwarded-For", "198.51.100.0")
        connection.putheader("X-Forwarded-For", "127.0.0.1")
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        assert connection.getresponse().status == 503


def test_headers_are_ignored_without_a_trusted_proxy():
    """Otherwise any client could name as many addresses as it likes, and take all connections."""
    with running(Site(), limits=PATIENT) as receiver, contextlib.ExitStack() as stack:
        assert [held(receiver, stack, x_forwarded_for=f"198.51.100.{n}") for n in range(3)] == [401] * 3
        assert held(receiver, stack, x_forwarded_for="198.51.100.9") == 503


def test_plain_http_without_a_trusted_proxy_causes_a_warning_and_no_limit_by_address():
    """Behind a proxy, all connections have the proxy's address. A limit of connections for each address would then make
    the inlet refuse senders.
    """
    site = Site()
    with (
        running(site, host="127.0.0.1", plain_http=True, max_connections=8) as receiver,
        contextlib.ExitStack() as stack,
    ):
        assert [held(receiver, stack) for _ in range(7)] == [401] * 7
        connection = stack.enter_context(
            contextlib.closing(http.client.HTTPConnection(*receiver.address, timeout=20))
        )
        assert ask(connection, ceph("a"), BEARER)[0] == 200
        assert "--trusted-proxy" in receiver.reports[1]
    with running(Site(), plain_http=True, trusted_proxies=["127.0.0.1"]) as receiver:
        assert not any("warning" in line for line in receiver.reports)


def test_an_invalid_proxy_is_refused():
    """Otherwise the inlet would start, and trust no proxy. The command and the component must both have this
    setting.
    """
    flags = [
        "--bucket",
        "b",
        "--keyspace",
        "s/",
        "raw/",
        "--secret-env",
        "RECEIVER_SECRET",
        "--trusted-proxy",
        "x",
    ]
    ran = CliRunner().invoke(main, ["inlet", "http", *flags])
    assert ran.exit_code == 1
    assert "like 10.1.0.0/16" in ran.output
    schema = S3NotifyComponent.get_model_cls().model_json_schema()
    assert "trusted_proxies" in schema["$defs"]["HttpInletSettingsModel"]["properties"]
