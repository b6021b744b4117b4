"""Logins are sent only to the host that the operator has named, and are never shown."""

import json
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import replace
from queue import Queue

import pytest

from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.push import Delivered, Down, connect
from s3notify_platform.kernel.errors import UsageError
from tests.support.endpoints import Receiver, certificate
from tests.support.pushing import LOOPBACK, entry, pusher

NAME = "S3NOTIFY_SEND_HOOKS"


@pytest.mark.parametrize(
    ("login", "header", "value"),
    [
        ("bearer abc.def", "authorization", "Bearer abc.def"),
        ("basic ada:p:w", "authorization", "Basic YWRhOnA6dw=="),
        ("header X-Api-Key: k e y", "x-api-key", "k e y"),
    ],
)
def test_a_login_is_sent_beside_the_signature(monkeypatch, login, header, value):
    monkeypatch.setenv(NAME, f"127.0.0.1 {login}")
    monkeypatch.setenv("S3NOTIFY_PUSH_KEY", "0123456789abcdef")
    with Receiver(secret=b"0123456789abcdef").serving() as server:
        with pusher(server.url, login_env=NAME, secret_env="S3NOTIFY_PUSH_KEY") as made:
            assert "abc.def" not in repr(vars(made))
            assert made.post("t", [entry(1)]) == Delivered()
        headers, _ = server.requests[0]
    assert {name.lower(): found for name, found in headers.items()}[header] == value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "set S3NOTIFY_SEND_HOOKS"),
        ("hooks.example.com bearer SECRET", "is not for 'evil.example'"),
        ("evil.example.com bearer SECRET", "is not for 'evil.example'"),
        ("evil.example digest SECRET", "give it as"),
        ("evil.example SECRET", "give it as"),
        ("evil.example bearer SECRET\r\nx: y", "give it as"),
        ("evil.example header SECRET", "give it as"),
    ],
)
def test_a_login_for_another_host_or_of_another_form_is_refused(monkeypatch, value, said):
    """Otherwise the worker could send another user's login to the topic's host, or the error could show the secret."""
    monkeypatch.setenv(NAME, value)
    with pytest.raises(UsageError, match=said) as refused:
        connect(Endpoint(url="https://evil.example/", login_env=NAME), LOOPBACK)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize("name", ["HOME", "S3NOTIFY_PUSH_KEY", "S3NOTIFY_SEND_", "AWS_SECRET_ACCESS_KEY"])
def test_a_topic_can_name_only_variables_of_logins(name):
    """Otherwise the creator of a topic could read other secrets of the worker."""
    with pytest.raises(UsageError, match="S3NOTIFY_SEND_"):
        Endpoint(url="https://hooks.example.com/", login_env=name)


def test_only_user_and_password_are_accepted_for_brokers(monkeypatch):
    monkeypatch.setenv(NAME, "broker.example bearer token")
    with pytest.raises(UsageError, match="basic USER:PASSWORD"):
        connect(Endpoint(url="amqps://broker.example/", login_env=NAME), LOOPBACK)


def test_cloudevents_are_one_json_batch():
    """Otherwise receivers could not parse the batch. The batch has ids and S3 records in the queue's order."""
    with Receiver(lambda _: 200).serving() as server, pusher(server.url, format="cloudevents") as made:
        made.post("t", [entry(1), entry(2)])
        headers, body = server.requests[0]
    assert {name.lower(): found for name, found in headers.items()}["content-type"] == (
        "application/cloudevents-batch+json"
    )
    first, second = json.loads(body)
    assert (first["id"], first["subject"], second["id"], second["subject"]) == ("id.1", "k1", "id.2", "k2")
    assert first["specversion"] == "1.0"
    assert first["source"] == "aws:s3.b"
    assert first["type"] == "com.amazonaws.s3.ObjectCreated:Put"
    assert first["data"]["s3"]["object"]["key"] == "k1"


def test_binary_cloudevents_have_their_attributes_in_headers():
    """Otherwise receivers that expect Ceph's CloudEvents could not parse a request. The body of a request is the S3
    record of one event.
    """
    one = entry(1)
    odd = replace(one, event=replace(one.event, key='a "b" é%20.csv'))
    with Receiver(lambda _: 200).serving() as server, pusher(server.url, format="cloudevents-binary") as made:
        assert made.endpoint.events_max == 1
        assert made.post("t", [odd]) == Delivered()
        headers, body = server.requests[0]
    named = {name.lower(): found for name, found in headers.items()}
    assert named["content-type"] == "application/json"
    assert {name: named[f"ce-{name}"] for name in ("specversion", "id", "source", "type", "subject")} == {
        "specversion": "1.0",
        "id": "id.1",
        "source": "aws:s3.b",
        "type": "com.amazonaws.ObjectCreated:Put",
        "subject": "a%20%22b%22%20%C3%A9%2520.csv",
    }
    (record,) = json.loads(body)["Records"]
    assert named["ce-time"] == record["eventTime"]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ({"x-amz-request-id": "tx1.42", "x-amz-id-2": "4155-default"}, "tx1.42.4155-default"),
        ({"x-amz-request-id": "tx1.42"}, "id.1"),
        (None, "id.1"),
    ],
    ids=["both", "one", "none"],
)
def test_binary_cloudevents_of_ceph_have_the_ids_that_ceph_gives(response, expected):
    """Otherwise a receiver would not recognise an event that it knows from Ceph. Ceph gives each request two ids. If
    one id is missing, the entry's id is used, because the other id alone could belong to two events.
    """
    one = entry(1)
    details = {"eventSource": "ceph:s3", "awsRegion": "default"}
    if response:
        details |= {"responseElements": response}
    from_ceph = replace(one, event=replace(one.event, details=details))
    with Receiver(lambda _: 200).serving() as server, pusher(server.url, format="cloudevents-binary") as made:
        made.post("t", [from_ceph])
        headers, body = server.requests[0]
    named = {name.lower(): found for name, found in headers.items()}
    (record,) = json.loads(body)["Records"]
    assert named["ce-id"] == expected
    assert named["ce-type"] == f"com.amazonaws.{record['eventName']}"
    assert named["ce-source"] == f"ceph:s3.{record['awsRegion']}.{record['s3']['bucket']['name']}"


@pytest.mark.parametrize("scheme", ["https", "amqps", "kafkas"])
def test_a_certificate_is_sent_by_tls(monkeypatch, tmp_path, scheme):
    """Otherwise an endpoint that requires mTLS would refuse the worker."""
    ca, tls = certificate(tmp_path, "127.0.0.1")
    own = tmp_path / "server-127.0.0.1.pem"
    monkeypatch.setenv(NAME, f"127.0.0.1 certificate {own} {own}")
    tls.load_verify_locations(ca)
    tls.verify_mode = ssl.CERT_REQUIRED
    shown = Queue()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    with suppress(OSError), tls.wrap_socket(peer, server_side=True) as wrapped:
                        shown.put(wrapped.getpeercert())
                        return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/t"
        egress = Egress.of(["127.0.0.0/8"], ca_folder=str(tmp_path), kafka_hosts=["127.0.0.1"])
        made = connect(Endpoint(url=url, login_env=NAME, ca_file=ca.name, timeout_seconds=2.0), egress)
        answers = made.post_many("t", [[entry(1)]])
        made.close()
        assert shown.get(timeout=20)["subject"]
        thread.join(20)
    assert isinstance(answers[0], Down)  # the listener sends no answer


@pytest.mark.parametrize(
    ("url", "value", "why"),
    [
        ("https://127.0.0.1/", "127.0.0.1 certificate only-one", "give it as"),
        ("https://127.0.0.1/", "127.0.0.1 certificate none.pem none.key", NAME),
        ("http://127.0.0.1/", "127.0.0.1 certificate a.pem a.key", "needs TLS"),
    ],
)
def test_unusable_certificates_are_refused_before_any_connection(monkeypatch, url, value, why):
    monkeypatch.setenv(NAME, value)
    with pytest.raises(UsageError, match=why):
        connect(Endpoint(url=url, login_env=NAME), LOOPBACK)


@pytest.mark.parametrize("url", ["amqp://127.0.0.1/?ack=all", "kafka://127.0.0.1/t?ack=routable"])
def test_unknown_ack_levels_are_refused(url):
    """Otherwise a misspelt ack level would silently mean another ack level."""
    with pytest.raises(UsageError, match="ack must be one of none, broker"):
        connect(Endpoint(url=url), replace(LOOPBACK, kafka_hosts=("127.0.0.1",)))


def test_each_broker_must_be_permitted_by_the_operator():
    """Otherwise a topic could make the worker connect to any host, given as the second broker of an endpoint."""
    endpoint = Endpoint(url="kafka://one.example/t?brokers=Two.example:99,[::1]")
    assert endpoint.brokers == ("one.example:9092", "Two.example:99", "[::1]:9092")
    with pytest.raises(UsageError, match=r"--allow-kafka two\.example"):
        connect(endpoint, replace(LOOPBACK, kafka_hosts=("one.example",)))
    connect(endpoint, replace(LOOPBACK, kafka_hosts=("one.example", "two.example", "::1"))).close()


def test_a_missing_extra_is_reported_with_its_install_command(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "amqp", None)
    monkeypatch.delitem(__import__("sys").modules, "s3notify_platform.channels.delivery.amqp", raising=False)
    with pytest.raises(UsageError, match=r"pip install 's3notify-platform\[amqp\]'"):
        connect(Endpoint(url="amqps://broker.example/"), LOOPBACK)
