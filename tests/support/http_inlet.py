"""The HTTP inlet on loopback, and posts to it."""

import contextlib
import http.client
import json
import socket
import threading
import time

from s3notify_platform.channels.inlets.http_inlet import HttpInlet, HttpInletSettings
from s3notify_platform.channels.inlets.http_server import Limits

SECRET = "a-secret-of-some-length"
BEARER = {"authorization": f"Bearer {SECRET}"}
QUICK = Limits(
    connections=4, strangers=4, head_bytes=2048, body_bytes=4096, stranger_seconds=0.5, request_seconds=0.5,
    idle_seconds=0.5,
)  # fmt: skip


@contextlib.contextmanager
def running(site, limits=None, **settings):
    settings = HttpInletSettings(secret_envs=["RECEIVER_SECRET", "NEXT"], port=0, **settings)
    with serving(HttpInlet(settings, site.intake, limits)) as receiver:
        yield receiver


@contextlib.contextmanager
def serving(receiver):
    stop, reports, errors = threading.Event(), [], []

    def run():
        try:
            receiver.run(stop, reports.append)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert receiver.ready.wait(20), errors
    receiver.reports, receiver.errors, receiver.thread, receiver.stop = reports, errors, thread, stop
    try:
        yield receiver
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()


def connect(receiver, **arguments):
    return contextlib.closing(http.client.HTTPConnection(*receiver.address, timeout=20, **arguments))


def ask(connection, body=b"", headers=BEARER, method="POST", path="/"):
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read()
    return answer.status, text, answer


def post(receiver, body, headers=BEARER, **arguments):
    with connect(receiver) as connection:
        return ask(connection, body, headers, **arguments)


def ceph(key, sequencer="01"):
    """A post as RGW 16 sends it."""
    record = {
        "eventVersion": "2.2",
        "eventSource": "ceph:s3",
        "awsRegion": "",
        "eventTime": "2026-01-02T03:04:05.678901Z",
        "eventName": "ObjectCreated:Put",
        "s3": {
            "s3SchemaVersion": "1.0",
            "bucket": {"name": "b", "arn": "arn:aws:s3:::b", "id": "x.1"},
            "object": {"key": key, "size": 3, "eTag": "e", "versionId": "", "sequencer": sequencer},
        },
        "eventId": "1.2.e",
        "opaqueData": "",
    }
    return json.dumps({"Records": [record]})


def minio(key):
    """A post as MinIO sends it."""
    record = {
        "eventVersion": "2.0",
        "eventSource": "minio:s3",
        "eventName": "s3:ObjectRemoved:Delete",
        "s3": {"bucket": {"name": "b"}, "object": {"key": key, "sequencer": "17A"}},
    }
    return json.dumps({"EventName": "s3:ObjectRemoved:Delete", "Key": f"b/{key}", "Records": [record]})


def raw(receiver, *parts, wait=0.0):
    """Sends these bytes. Returns the answer, and the seconds until the connection ended."""
    with socket.create_connection(receiver.address, timeout=20) as peer:
        began = time.monotonic()
        found = b""
        with contextlib.suppress(OSError):
            for part in parts:
                peer.sendall(part)
                time.sleep(wait)
        with contextlib.suppress(OSError):
            while data := peer.recv(65536):
                found += data
        return found, time.monotonic() - began


HEAD = f"POST / HTTP/1.1\r\nhost: x\r\nauthorization: {SECRET}\r\n".encode()
