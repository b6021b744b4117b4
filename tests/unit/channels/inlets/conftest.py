"""A secret and a certificate for inlets that listen."""

import subprocess

import pytest

from s3notify_platform.channels.inlets import http_server as http1
from tests.support.http_inlet import SECRET


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv("RECEIVER_SECRET", SECRET)
    monkeypatch.setattr(http1, "_UNREAD_SECONDS", 0.1)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    extra = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command, *extra], check=True, capture_output=True)
    return cert, key
