"""Sends requests to one endpoint over HTTP(S): only to a checked address, with bounds on time and size.

This module is built on `http.client`, which follows no redirects and uses no proxy. The module adds the check of the
address (`Egress`), one deadline for a whole request, and kept connections.
"""

import http.client
import io
import os
import select
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.delivery.endpoint import Endpoint, check_secret, sign
from s3notify_platform.channels.delivery.logins import Login
from s3notify_platform.channels.delivery.messages import FORMATS
from s3notify_platform.channels.delivery.push import (
    CONNECTION_SECONDS,
    ERROR_CHARS,
    Answer,
    Delivered,
    Down,
    PooledPush,
    Rejected,
    described,
)
from s3notify_platform.channels.renewed_files import RenewedTls
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_ANSWER_BYTES
from s3notify_platform.protocols.notification_queue import Entry

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

BODY_SECONDS: Final = 1.0
"""Time limit for reading the body of an answer. Only the status of an answer matters."""

RETRY_AFTER_MAX_SECONDS: Final = 300.0

_UNANSWERED: Final = Down(error="the connection was closed without an answer", reached=True)
_BUSY: Final = frozenset({429, 503})
_UNWELL: Final = frozenset({408, 425, 502, 504})


class HttpPush(PooledPush):
    """The connections of one worker to one endpoint."""

    def __init__(
        self, endpoint: Endpoint, egress: Egress, *, clock: Clock = SYSTEM_CLOCK, once: bool = False
    ) -> None:
        super().__init__(endpoint, egress, clock=clock, once=once)
        parts = urlsplit(endpoint.url)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._tls = None
        if endpoint.scheme.encrypted:
            self._tls = RenewedTls(lambda: _tls(endpoint, egress, self._login), self._files())
        self._secret = _secret(endpoint)
        self._lock = Lock()
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    def post(self, topic: str, batch: Sequence[Entry]) -> Answer:
        """See `PooledPush.post`. The batch is sent a second time only if the first connection was kept from an earlier
        batch, and was closed without an answer. With `once`, the batch is never sent again.
        """
        messages = FORMATS[self.endpoint.format]
        content_type, body = messages.batch(batch, self.endpoint.opaque_data)
        ids = ",".join(entry.id for entry in batch)
        headers = {
            **dict(self._login.headers if self._login else ()),
            "content-type": content_type,
            "user-agent": "s3notify",
            "s3notify-topic": topic,
            "s3notify-event-ids": ids,
            **(messages.headers(batch[0]) if messages.headers else {}),
        }
        if self._secret:
            seconds = self._clock.wall_ms() // 1000
            headers["s3notify-signature"] = sign(self._secret, body, event_ids=ids, seconds=seconds)
        deadline = self._clock.monotonic() + self.endpoint.timeout_seconds
        kept = self._kept()
        if kept is not None and ((answer := self._ask(kept, body, headers, deadline)) or self._once):
            return answer or _UNANSWERED
        try:
            fresh = self._connect(deadline)
        except (OSError, ValueError) as error:
            # A kept connection ended without an answer, but perhaps the endpoint has already processed the events.
            return Down(error=f"no connection: {described(error)}", reached=kept is not None)
        answer = self._ask(fresh, body, headers, deadline)
        return answer or _UNANSWERED

    def close(self) -> None:
        """Closes every connection; requests in flight end immediately, without an answer."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = self._open - set(idle)
        for connection in idle:
            self._drop(connection)
        for connection in busy:
            connection.cut()
        super().close()

    def _ask(
        self, connection: "_Connection", body: bytes, headers: dict[str, str], deadline: float
    ) -> Answer | None:
        """The answer on this connection; None if the connection was closed before an answer began."""
        connection.deadline(deadline)
        try:
            connection.request("POST", self._target, body=body, headers=headers)
            response = connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            self._drop(connection)
            return None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._drop(connection)
            return Down(error=f"no answer: {described(error)}", reached=True)
        # Only the status matters; the body is read, within bounds, so the connection can be used again.
        connection.deadline(min(deadline, self._clock.monotonic() + BODY_SECONDS))
        text = b""
        try:
            text = response.read(MAX_ANSWER_BYTES)
            whole = response.isclosed() and not response.length
        except (OSError, http.client.HTTPException, ValueError):
            whole = False
        if whole and not response.will_close:
            self._keep(connection)
        else:
            self._drop(connection)
        return _judge(response.status, response.getheader("retry-after"), text)

    def _connect(self, deadline: float) -> "_Connection":
        addresses = self._addresses.permitted(deadline)
        for number, address in enumerate(addresses):
            left = (deadline - self._clock.monotonic()) / (len(addresses) - number)
            try:
                connection = _Connection(
                    self.endpoint.host,
                    self.endpoint.port,
                    address=address,
                    tls=self._tls.context() if self._tls else None,
                    seconds=left,
                    clock=self._clock,
                )
            except OSError:
                if number == len(addresses) - 1:
                    raise
                continue
            with self._lock:
                if self._closed:
                    connection.cut()
                self._open.add(connection)
            return connection
        raise AssertionError("every host has at least one address")

    def _kept(self) -> "_Connection | None":
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if self._clock.monotonic() - connection.born < CONNECTION_SECONDS and not connection.ended():
                return connection
            self._drop(connection)

    def _keep(self, connection: "_Connection") -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        self._drop(connection)

    def _drop(self, connection: "_Connection") -> None:
        with self._lock:
            self._open.discard(connection)
        with suppress(OSError):
            connection.close()


class _Connection(http.client.HTTPConnection):
    """One connection to one address, opened at construction; `host` is the name for TLS and the Host header."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        address: str,
        tls: ssl.SSLContext | None,
        seconds: float,
        clock: Clock,
    ) -> None:
        super().__init__(host, port)
        self.default_port = 443 if tls else 80  # the Host header omits this port
        self.born = clock.monotonic()
        if seconds <= 0:
            raise TimeoutError("timed out")
        # `address` is an IP address, so the name is not looked up again.
        tcp = socket.create_connection((address, port), timeout=seconds)
        try:
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tcp.settimeout(max(0.001, seconds - (clock.monotonic() - self.born)))
            whole = tls.wrap_socket(tcp, server_hostname=host) if tls else tcp
        except BaseException:
            tcp.close()
            raise
        self._timed = _TimedSocket(whole, clock)
        self.sock = self._timed

    def deadline(self, at: float) -> None:
        self._timed.deadline = at

    def connect(self) -> None:
        raise ConnectionResetError("a connection is opened only once, to the address that was checked")

    def ended(self) -> bool:
        """True if the peer has closed the idle connection, or has sent bytes without a request."""
        arrived = select.poll()
        arrived.register(self._timed.inner, select.POLLIN)
        return bool(arrived.poll(0))

    def cut(self) -> None:
        """Closes the connection from another thread."""
        with suppress(OSError):
            self._timed.inner.shutdown(socket.SHUT_RDWR)


class _TimedSocket:
    """A socket for `http.client` with one deadline for all sends and receives, which slow bytes do not extend."""

    def __init__(self, inner: socket.socket, clock: Clock) -> None:
        self.inner = inner
        self.deadline = 0.0
        self._clock = clock
        self._users = 1

    def sendall(self, data: "ReadableBuffer") -> None:
        left = memoryview(data)
        while left:
            self._arm()
            left = left[self.inner.send(left) :]

    def recv_into(self, buffer: "WriteableBuffer") -> int:
        self._arm()
        return self.inner.recv_into(buffer)

    def makefile(self, *_: Any) -> io.BufferedReader:
        self._users += 1
        return io.BufferedReader(_TimedReader(self))

    def close(self) -> None:
        # If an answer declares no length, `http.client` may close the socket before it has read the whole answer.
        self._users -= 1
        if self._users == 0:
            self.inner.close()

    def _arm(self) -> None:
        left = self.deadline - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.inner.settimeout(left)


class _TimedReader(io.RawIOBase):
    def __init__(self, timed: _TimedSocket) -> None:
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        return self._timed.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            self._timed.close()
        super().close()


def _judge(status: int, retry_after: str | None, text: bytes) -> Answer:
    """The `Answer` for an HTTP status. Pure."""
    if 200 <= status < 300:
        return Delivered()
    shown = "".join(c if c.isprintable() else " " for c in text[:ERROR_CHARS].decode("utf-8", "replace"))
    error = f"HTTP {status} {shown}".rstrip()
    if 300 <= status < 400:
        return Down(error=f"HTTP {status}: redirects are not followed", reached=True)
    if status in _BUSY:
        wait = float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdigit() else 0.0
        return Down(error=error, reached=False, retry_after_seconds=min(wait, RETRY_AFTER_MAX_SECONDS))
    if status in _UNWELL:
        return Down(error=error, reached=True)
    return Rejected(error=error)


def _tls(endpoint: Endpoint, egress: Egress, shown: Login | None) -> ssl.SSLContext:
    certificates = egress.certificates(endpoint)
    try:
        context = ssl.create_default_context(cafile=certificates)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"ca_file {endpoint.ca_file!r} of {endpoint.url!r}: {error}") from error
    if shown is not None and shown.certificate is not None:
        try:
            context.load_cert_chain(*shown.certificate)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"{endpoint.login_env}: {error}") from error
    if not endpoint.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _secret(endpoint: Endpoint) -> bytes:
    if not endpoint.secret_env:
        return b""
    value = os.environ.get(endpoint.secret_env, "")
    if not value:
        raise UsageError(
            f"{endpoint.url!r}: set {endpoint.secret_env}, the HMAC key, in the environment of the sender"
        )
    try:
        return check_secret(value.encode())
    except UsageError as error:
        raise UsageError(f"{endpoint.secret_env}: {error}") from None
