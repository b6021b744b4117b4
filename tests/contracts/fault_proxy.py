"""An HTTP proxy in front of a real server. On demand, a request fails: the connection breaks before or after the server
gets the request, or the proxy answers with an error.

The proxy can also drop conditions of writes, as some gateways do. The proxy records every answered request. `before` is
called just before a request reaches the server.
"""

import http.client
import json
import time
from collections import deque
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

Fault = Literal[
    "pass",
    "lose_request",
    "lose_response",
    "409",
    "500",
    "503",
    "slow_down",
    "throttle",
    "transaction_conflict",
    "denied",
]

_DYNAMO = {
    "throttle": (400, "ThrottlingException"),
    "transaction_conflict": (400, "TransactionConflictException"),
    "denied": (400, "AccessDeniedException"),
    "500": (500, "InternalServerError"),
    "503": (503, "ServiceUnavailable"),
}


_ERROR = b"<Error><Code>%s</Code><Message>%s</Message></Error>"
_CONDITIONS = frozenset({"if-match", "if-none-match"})


class Answered(NamedTuple):
    """A request as received, with header names in lower case, and the status and size of its answer."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int
    sent: int
    """The size of the answer's content in bytes."""
    began: float
    ended: float
    """Arrival of the request, and end of the answer, by the monotonic clock."""


def in_sequence(requests: Iterable[Answered]) -> int:
    """The number of sequential round trips; overlapping requests count as one."""
    number, ended = 0, 0.0
    for each in sorted(requests, key=lambda each: each.ended):
        if each.began >= ended:
            number, ended = number + 1, each.ended
    return number


class _Server(ThreadingHTTPServer):
    request_queue_size = 256  # with the default size, 5, Linux would reset further connections


class FaultProxy:
    """Used like `with FaultProxy(url) as proxy: proxy.faults.extend([...])`.

    Each fault is for one request; after the last fault, all requests pass.
    """

    def __init__(self, backend_url: str, *, drops_conditions: bool = False) -> None:
        self.answered: list[Answered] = []
        self.faults: deque[Fault] = deque()
        self.requests: list[str] = []
        self.forbidden: set[str] = set()
        """A GET of a path with one of these endings is refused."""
        self.answers: dict[str, tuple[int, str, bytes]] = {}
        """The answers to GET and HEAD requests, by the ending of the path: status, code, message."""
        self.refuses_names = False
        """If true, requests with keys that S3 does not accept get a 400."""
        self.added: dict[str, str] = {}
        """Headers that are added to each request, as a proxy that terminates TLS does."""
        self.outage = lambda: False
        """While this function returns true, every request gets a 503."""
        self.before = lambda method, path, headers: None
        """Called before a request is forwarded; the request waits until the call returns."""
        backend = urlsplit(backend_url)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments):
                pass

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                proxy.requests.append(self.headers.get("X-Amz-Target", self.command).rpartition(".")[2])
                fault = proxy.faults.popleft() if proxy.faults else "pass"
                if fault == "lose_request":
                    self.close_connection = True
                    return
                if fault in _DYNAMO and "X-Amz-Target" in self.headers:
                    status, code = _DYNAMO[fault]
                    self.answer(status, json.dumps({"__type": f"dynamodb#{code}"}).encode())
                    return
                if self.command == "GET" and self.path.partition("?")[0].endswith((*proxy.forbidden,)):
                    self.answer(403, b"<Error><Code>AccessDenied</Code><Message>forbidden</Message></Error>")
                    return
                if proxy.outage():
                    self.refuse("503")
                    return
                path = unquote(self.path.partition("?")[0])
                given = [found for end, found in proxy.answers.items() if path.endswith(f"/{end}")]
                if proxy.refuses_names and ({*path.split("/")} & {".", ".."} or "\0" in path):
                    given = [(400, "InvalidURI", b"")]
                if given and self.command in ("GET", "HEAD"):
                    status, code, message = given[0]
                    self.answer(status, _ERROR % (code.encode(), message))
                    return
                if fault in ("409", "500", "503", "slow_down"):
                    self.refuse(fault)
                    return
                headers = {name.lower(): value for name, value in self.headers.items()}
                began = time.monotonic()
                proxy.before(self.command, self.path, headers)
                upstream = http.client.HTTPConnection(backend.hostname, backend.port, timeout=30)
                try:
                    upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    dropped = _CONDITIONS if drops_conditions and self.command in ("PUT", "DELETE") else ()
                    for name, value in self.headers.items():
                        if name.lower() not in ("connection", "expect", *dropped):
                            upstream.putheader(name, value)
                    for name, value in proxy.added.items():
                        upstream.putheader(name, value)
                    upstream.endheaders(body or None)
                    answer = upstream.getresponse()
                    content = answer.read()
                    answered = (answer.status, len(content), began, time.monotonic())
                    proxy.answered.append(Answered(self.command, self.path, headers, body, *answered))
                finally:
                    upstream.close()
                if fault == "lose_response":
                    self.close_connection = True
                    return
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                length = answer.getheader("Content-Length") if self.command == "HEAD" else len(content)
                self.send_header("Content-Length", str(length or 0))
                self.end_headers()
                self.wfile.write(content)

            def refuse(self, fault):
                code = {"409": "ConditionalRequestConflict", "slow_down": "SlowDown"}.get(
                    fault, "InternalError"
                )
                content = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
                self.answer(503 if fault == "slow_down" else int(fault), content)

            def answer(self, status, content):
                self.send_response_only(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - http.server's names

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # killed clients are expected here
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
