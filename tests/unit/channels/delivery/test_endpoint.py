"""Endpoints: valid settings, permitted addresses, and signatures."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.delivery.endpoint import (
    BATCH_MAX,
    Endpoint,
    check_secret,
    sign,
    verify_signature,
)
from s3notify_platform.channels.delivery.messages import FORMATS, MessageFormat
from s3notify_platform.kernel.errors import UsageError
from tests.support.pushing import entry

REFUSED = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "100.100.100.200",  # Alibaba's metadata
    "169.254.169.254",  # metadata of most clouds
    "168.63.129.16",  # Azure's services
    "192.0.0.192",  # Oracle's metadata
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::808:808",
    "2002:7f00:1::",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "3fff::1",
    "fc00::1",
    "fd00:ec2::254",  # AWS's metadata
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "5f00::1",
]
PERMITTED = ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]


@pytest.mark.parametrize("address", REFUSED)
def test_addresses_that_are_not_public_are_refused(address):
    """Otherwise a topic could make the worker send requests to its own network, or read a cloud's metadata."""
    assert not Egress().permits(address)


@pytest.mark.parametrize("address", PERMITTED)
def test_public_addresses_are_permitted(address):
    assert Egress().permits(address)


@given(st.ip_addresses(v=6, network="2000::/3") | st.ip_addresses(v=4))
def test_the_operator_can_permit_every_network(address):
    """Otherwise the operator could not deliver to a private network."""
    assert Egress.of(["0.0.0.0/0", "::/0"]).permits(str(address))


def test_only_the_operators_networks_are_permitted():
    """Otherwise the operator's rule for an address would not apply to another notation of the same address."""
    egress = Egress.of(["10.1.0.0/16", "::1/128"])
    assert egress.permits("10.1.2.3")
    assert egress.permits("::ffff:10.1.2.3")
    assert egress.permits("::1")
    assert not egress.permits("10.2.0.1")
    assert not egress.permits("127.0.0.1")
    with pytest.raises(UsageError, match="not a valid network"):
        Egress.of(["10.1.0.1/16"])


URL = "https://hooks.example.com/events?team=1"


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "ftp://example.com/"},
        {"url": "file:///etc/passwd"},
        {"url": "//example.com/"},
        {"url": "https:///path"},
        {"url": "https://user:password@example.com/"},
        {"url": "https://example.com/#part"},
        {"url": "https://example.com:0/"},
        {"url": "https://example.com:99999/"},
        {"url": "https://[::1/"},
        {"url": "https://example.com\\@127.0.0.1/"},
        {"url": "https://example.com/ HTTP/1.1\r\nhost: other"},
        {"url": "https://bücher.example/"},
        {"url": ""},
        {"secret_env": "AWS_SECRET_ACCESS_KEY"},
        {"secret_env": "S3NOTIFY_PUSH_"},
        {"batch_size": 0},
        {"batch_size": BATCH_MAX + 1},
        {"concurrency": 0},
        {"concurrency": 65},
        {"timeout_seconds": 0},
        {"timeout_seconds": 1000},
    ],
)
def test_invalid_settings_of_an_endpoint_are_refused(fields):
    """Otherwise a topic could read secrets of the worker, or name a host that two parsers read differently."""
    with pytest.raises(UsageError):
        Endpoint(**({"url": URL} | fields))
    with pytest.raises(UsageError):
        Endpoint.loads(json.dumps({"url": URL} | fields))


def test_endpoints_are_stored_as_json_without_defaults():
    """Otherwise an endpoint would change when its topic is read again, or an invalid text would be read as an
    endpoint.
    """
    endpoint = Endpoint(url=URL, secret_env="S3NOTIFY_PUSH_A", batch_size=7, verify=False)
    assert Endpoint.loads(endpoint.dumps()) == endpoint
    assert Endpoint(url=URL).dumps() == json.dumps({"url": URL}, separators=(",", ":"))
    for text in ("", "{}", "[]", "1", '"x"', '{"url": 1}', '{"url": "https://x/", "proxy": "y"}'):
        with pytest.raises(UsageError):
            Endpoint.loads(text)


def test_plain_http_and_unverified_tls_need_the_operators_permission():
    """Otherwise a topic could send events without encryption, or to a host whose certificate was not verified."""
    http, unverified = Endpoint(url="http://example.com/"), Endpoint(url=URL, verify=False)
    for endpoint in (http, unverified, Endpoint(url="HTTP://example.com/")):
        with pytest.raises(UsageError, match="does not allow http"):
            Egress().check(endpoint)
        Egress(allow_http=True).check(endpoint)
    Egress().check(Endpoint(url=URL))


SECRET = b"0123456789abcdef0123456789abcdef"
BODY = b'{"Records":[]}'
IDS = "018c-aa,018c-bb"
VECTOR = "t=1700000000,v1=e357dad97b48e722fdbf72e2286ad3497a62cccbda0dded22b29da4f47671ab8"


def verify(header=None, body=BODY, *, ids=IDS, secrets=(SECRET,), now=1_700_000_000):
    header = header if header is not None else sign(SECRET, BODY, event_ids=IDS, seconds=1_700_000_000)
    return verify_signature(header, body, event_ids=ids, secrets=secrets, now_seconds=now)


def test_signatures_equal_those_of_openssl():
    """Otherwise endpoints that verify signatures with standard tools would refuse every request. The expected signature
    is the output of `printf '1700000000.018c-aa,018c-bb.{"Records":[]}' | openssl dgst -sha256 -hmac …`.
    """
    assert sign(SECRET, BODY, event_ids=IDS, seconds=1_700_000_000) == VECTOR


def test_a_signature_is_valid_only_for_its_secret_body_ids_and_time():
    """Otherwise a receiver would accept forged, changed or old requests, or would refuse requests while a secret is
    replaced.
    """
    assert verify()
    assert verify(secrets=(b"x" * 16, SECRET))
    assert verify(now=1_700_000_300)
    assert verify(now=1_699_999_700)
    assert not verify(now=1_700_000_301)
    assert not verify(now=1_699_999_699)
    assert not verify(body=BODY + b" ")
    assert not verify(ids="018c-aa")
    assert not verify(secrets=())
    assert not verify(secrets=(b"x" * 16,))
    good = sign(SECRET, BODY, event_ids=IDS, seconds=1_700_000_000)
    assert verify(good + ",v1=00,v2=later")
    assert verify("v1=00," + good)
    assert verify(good + ",v1=é")
    for header in (
        "",
        "t=1700000000",
        good.partition(",")[2],
        good.replace("t=1700000000", "t=1700000001"),
        good + ",t=1700000000",
        good.replace("t=", "t=-"),
        good.replace("v1=", "v0="),
        good[:-1],
        "t=1700000000," + ",".join(["v1=00"] * 11),
    ):
        assert not verify(header), header


@given(st.text(), st.binary(), st.text())
def test_malformed_signatures_are_refused_without_an_error(header, body, ids):
    """Otherwise a malformed header from the network could crash a receiver."""
    assert not verify_signature(header, body, event_ids=ids, secrets=[SECRET], now_seconds=1_700_000_000)


def test_a_short_key_is_refused():
    """Otherwise an attacker who sees one request could find a short key by trying all keys."""
    assert check_secret(SECRET) == SECRET
    with pytest.raises(UsageError, match="16 or more"):
        check_secret(b"short")


def test_a_format_must_be_registered():
    """Otherwise a topic with an unknown format would be accepted, and never be delivered."""
    for name in FORMATS:
        assert Endpoint(url="https://a/", format=name).format == name
    with pytest.raises(UsageError, match=re.escape(f"use one of {', '.join(FORMATS)}")):
        Endpoint(url="https://a/", format="xml")


def test_a_new_format_needs_only_an_item_of_the_registry(monkeypatch):
    new = MessageFormat(batch=lambda entries, _: ("a/b", b""), single=lambda entry, _: ("a/b", b""))
    monkeypatch.setitem(FORMATS, "new", new)
    assert Endpoint(url="https://a/", format="new").format == "new"


@pytest.mark.parametrize("messages", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("opaque", ["", "for me, 日本"])
def test_opaque_data_is_in_every_message(messages, opaque):
    """Otherwise receivers would miss the topic's opaque data in batches, or in messages to brokers."""
    bodies = [
        messages.batch([entry(0), entry(1)], opaque)[1],
        messages.single(entry(0), opaque)[1],
    ]
    for body, number in zip(map(json.loads, bodies), (2, 1), strict=True):
        events = body if isinstance(body, list) else [body]
        records = [event["data"] for event in events] if "data" in events[0] else body["Records"]
        assert [record.get("opaqueData", "") for record in records] == [opaque] * number
