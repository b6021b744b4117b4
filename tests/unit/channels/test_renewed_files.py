"""Certificates that are renewed while a process runs: new connections use them without a restart."""

import contextlib
import http.client
import logging
import socket
import ssl
import threading
from queue import Queue

import pytest

from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.push import connect
from tests.support.endpoints import certificate
from tests.support.http_inlet import SECRET, ask, ceph, running
from tests.support.intake_site import Site
from tests.support.pushing import entry

NAME = "S3NOTIFY_SEND_OWN"


@pytest.fixture
def issued(tmp_path):
    """Issues two certificates by two CAs. Returns the CA, the certificate with its key, and a server's TLS."""
    found = []
    for name in ("old", "new"):
        folder = tmp_path / name
        folder.mkdir()
        ca, tls = certificate(folder, "127.0.0.1")
        found.append((ca, folder / "server-127.0.0.1.pem", tls))
    return found


def replaced(file, content):
    """Replaces a file in one step, as tools that renew certificates do."""
    file.with_suffix(".part").write_bytes(content)
    file.with_suffix(".part").replace(file)


def test_a_listener_uses_a_renewed_certificate(monkeypatch, tmp_path, issued, caplog):
    """Otherwise senders would refuse an outdated certificate until the inlet is restarted. While the new certificate
    does not match the file of the key, the inlet uses the former certificate.
    """
    monkeypatch.setenv("RECEIVER_SECRET", SECRET)
    (old_ca, old, _), (new_ca, new, _) = issued
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for file in (cert, key):
        replaced(file, old.read_bytes())

    def status(ca, name):
        context = ssl.create_default_context(cafile=ca)
        connection = http.client.HTTPSConnection(*receiver.address, timeout=20, context=context)
        with contextlib.closing(connection):
            return ask(connection, ceph(name))[0]

    with (
        running(Site(), cert_file=str(cert), key_file=str(key)) as receiver,
        caplog.at_level(logging.WARNING),
    ):
        assert status(old_ca, "a") == 200
        replaced(cert, new.read_bytes())
        assert status(old_ca, "b") == 200
        assert status(old_ca, "c") == 200
        replaced(key, new.read_bytes())
        assert status(new_ca, "d") == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            status(old_ca, "e")
    (line,) = caplog.messages
    assert str(cert) in line


class Broker:
    """An HTTP server that requires client certificates, and puts their serial numbers into `shown`."""

    def __init__(self, tls):
        self.tls = tls
        self.shown = Queue()

    def serve(self, listener):
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with (
                    contextlib.suppress(OSError),
                    peer,
                    self.tls.wrap_socket(peer, server_side=True) as wrapped,
                ):
                    self.shown.put(wrapped.getpeercert()["serialNumber"])
                    wrapped.recv(65536)
                    wrapped.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")


@pytest.mark.parametrize("scheme", ["https", "amqps", "kafkas"])
def test_an_outlet_uses_a_renewed_certificate_and_a_renewed_ca(monkeypatch, tmp_path, issued, scheme):
    """Otherwise an endpoint would refuse the worker after the end of its certificate, until the worker is restarted."""
    (old_ca, old, old_tls), (new_ca, new, new_tls) = issued
    own, ca = tmp_path / "own.pem", tmp_path / "ca.pem"
    replaced(own, old.read_bytes())
    (tmp_path / "first.pem").write_bytes(old_ca.read_bytes())
    ca.symlink_to("first.pem")
    monkeypatch.setenv(NAME, f"127.0.0.1 certificate {own} {own}")
    for tls in (old_tls, new_tls):
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_verify_locations(old_ca)
        tls.load_verify_locations(new_ca)
    broker = Broker(old_tls)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=broker.serve, args=(listener,), daemon=True).start()
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/t"
        egress = Egress.of(["127.0.0.0/8"], ca_folder=str(tmp_path), kafka_hosts=["127.0.0.1"])
        made = connect(Endpoint(url=url, login_env=NAME, ca_file=ca.name, timeout_seconds=1.0), egress)
        made.post_many("t", [[entry(1)]])
        first = broker.shown.get(timeout=20)
        # The folder of mounted secrets has links, which are changed when the secrets are renewed.
        (tmp_path / "second.pem").write_bytes(new_ca.read_bytes())
        ca.unlink()
        ca.symlink_to("second.pem")
        (tmp_path / "first.pem").unlink()
        replaced(own, new.read_bytes())
        broker.tls = new_tls
        broker.shown.queue.clear()
        made.post_many("t", [[entry(2)]])
        shown = [broker.shown.get(timeout=20), *broker.shown.queue]
        made.close()
        listener.shutdown(socket.SHUT_RDWR)
    assert shown
    assert first not in shown
