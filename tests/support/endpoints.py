"""HTTP endpoints on loopback, which can behave in any way, and record the requests that they receive."""

import json
import socket
import ssl
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from s3notify_platform.channels.delivery.endpoint import verify_signature


class Receiver(ThreadingHTTPServer):
    """A real receiver.

    `answer(keys)` returns the status for a request with these keys; `answer` may also wait. `seen` counts the ids of
    events that were answered with 2xx; `keys` counts the keys of these events; `tries` counts all requests.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, answer=lambda _: 200, *, port=0, delay=0.0, headers=None, body=b"", tls=None, secret=None
    ):
        self.answer = answer
        self.delay = delay
        self.headers = headers or {}
        self.body = body
        self.secret = secret
        self.seen = Counter()
        self.keys = Counter()
        self.sizes = []
        self.requests = []
        self.tries = 0
        self.in_flight = self.most_in_flight = 0
        self.connections = 0
        self.live = []
        self.changed = threading.Condition()
        super().__init__(("127.0.0.1", port), _Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.scheme = "https" if tls is not None else "http"

    @property
    def port(self):
        return self.server_address[1]

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.port}/events"

    def get_request(self):
        found = super().get_request()
        self.connections += 1
        self.live.append(found[0])
        return found

    def handle_error(self, request, client_address):
        """Prints no error if a client disconnects, because tests do this on purpose."""

    def wait(self, holds, seconds=30):
        """Waits until `holds(self)` is true. Fails after `seconds`."""
        with self.changed:
            assert self.changed.wait_for(lambda: holds(self), seconds), (len(self.keys), self.tries)

    @contextmanager
    def serving(self):
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            for connection in self.live:  # otherwise the connection's handler would continue to answer
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        server = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        ids = self.headers["s3notify-event-ids"]
        if server.secret:
            assert verify_signature(
                self.headers["s3notify-signature"], body, event_ids=ids, secrets=[server.secret],
                now_seconds=time.time(),
            )  # fmt: skip
        found = json.loads(body)
        records = [event["data"] for event in found] if isinstance(found, list) else found["Records"]
        keys = [record["s3"]["object"]["key"] for record in records]
        with server.changed:
            server.tries += 1
            server.in_flight += 1
            server.most_in_flight = max(server.most_in_flight, server.in_flight)
            server.requests.append((dict(self.headers), body))
        if server.delay:
            time.sleep(server.delay)
        status = server.answer(keys)
        with server.changed:
            server.in_flight -= 1
            if 200 <= status < 300:
                server.seen.update(ids.split(","))
                server.keys.update(keys)
                server.sizes.append(len(keys))
            server.changed.notify_all()
        self.send_response(status)
        for name, value in server.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(server.body)))
        self.end_headers()
        self.wfile.write(server.body)

    def log_message(self, *_):
        pass


@contextmanager
def raw_endpoint(behave):
    """An endpoint without HTTP. For each connection, calls `behave(connection)` in a thread. Returns the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve():
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    def one(connection):
        with connection, suppress(OSError):
            behave(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def hang(connection):
    """Reads until the peer disconnects, and never answers."""
    while connection.recv(65536):
        pass


def read_request(connection):
    """Reads one request. Returns its head and its body."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += connection.recv(65536)
    head, _, body = got.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if b"content-length" in line.lower()
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head, body


def certificate(folder, host):
    """The file of a new CA, and the TLS context of a server with a certificate for `host` from this CA."""
    import datetime as dt
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def name(text):
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    try:
        alternative = x509.IPAddress(ip_address(host))
    except ValueError:
        alternative = x509.DNSName(host)
    now = dt.datetime.now(dt.UTC)
    uses = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )

    def usage(ca):
        of = {"key_cert_sign"} if ca else {"digital_signature"}
        return x509.KeyUsage(**{use: use in of for use in uses})

    def signed(subject, key, *, by, ca):
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("test ca"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
            # Python 3.13 requires this extension.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False
            )
            .add_extension(usage(ca), critical=True)
            .sign(by, hashes.SHA256())
        )

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    ca_file, server_file = folder / f"ca-{host}.pem", folder / f"server-{host}.pem"
    ca_file.write_bytes(signed("test ca", ca_key, by=ca_key, ca=True).public_bytes(pem))
    server_file.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + signed(host, key, by=ca_key, ca=False).public_bytes(pem)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_file)
    return ca_file, context
