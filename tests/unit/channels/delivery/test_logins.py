"""Logins: sent to the one host that the operator has named, and shown nowhere."""

import json

import pytest

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.push import Delivered, connect
from s3notify_platform.kernel.errors import UsageError
from tests.support.endpoints import Receiver
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
def test_what_is_sent(monkeypatch, login, header, value):
    """Beside the signature."""
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
def test_what_is_refused(monkeypatch, value, said):
    """Before any connection, and without the secret."""
    monkeypatch.setenv(NAME, value)
    with pytest.raises(UsageError, match=said) as refused:
        connect(Endpoint(url="https://evil.example/", login_env=NAME), LOOPBACK)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize("name", ["HOME", "S3NOTIFY_PUSH_KEY", "S3NOTIFY_SEND_", "AWS_SECRET_ACCESS_KEY"])
def test_no_other_variable_can_be_named(name):
    """By a topic."""
    with pytest.raises(UsageError, match="S3NOTIFY_SEND_"):
        Endpoint(url="https://hooks.example.com/", login_env=name)


def test_brokers_take_user_and_password(monkeypatch):
    """Nothing else."""
    monkeypatch.setenv(NAME, "broker.example bearer token")
    with pytest.raises(UsageError, match="basic USER:PASSWORD"):
        connect(Endpoint(url="amqps://broker.example/", login_env=NAME), LOOPBACK)


def test_cloudevents():
    """One JSON batch, in order, with the queue's ids; the S3 record is the data."""
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


def test_what_an_extra_is_needed_for_is_said(monkeypatch):
    """With the command that installs it."""
    monkeypatch.setitem(__import__("sys").modules, "amqp", None)
    monkeypatch.delitem(__import__("sys").modules, "s3notify_platform.channels.delivery.amqp", raising=False)
    with pytest.raises(UsageError, match=r"pip install 's3notify-platform\[amqp\]'"):
        connect(Endpoint(url="amqps://broker.example/"), LOOPBACK)
