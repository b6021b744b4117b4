"""A small HTTP/1.1 server for posts: every phase of a connection has a deadline, and every size a bound.

Common servers do not suffice. Uvicorn and the standard library have no deadline for the request head or body of a slow
client; waitress has no TLS. Here h11 implements the protocol; this module adds connections, deadlines and bounds.

| subject | bound |
|---|---|
| connections, counted when they are accepted | `connections`; others are refused, without TLS by a 503 |
| connections of one address (IPv6: /64) without an admitted request so far | `strangers`; others are refused, too |
| from acceptance to the head of the first admitted request, TLS included | `stranger_seconds` (408) |
| a later request, from its first byte to its last | `request_seconds` (408) |
| the body of the first request; writing an answer | `request_seconds` (408) |
| between two requests, after the first admitted one | `idle_seconds` |
| request head | about `head_bytes` (431) |
| body | `body_bytes` (413), and never more than the declared length |

A request is admitted by its head alone: the body of a refused request is not read. So a client without a secret can
have only `strangers` connections for each of its addresses, and each connection lasts at most `stranger_seconds`. Some
applications also need the body to prove the sender, for example to check a signature. Such an application returns
`UNPROVEN`. Then the body, too, must arrive within `stranger_seconds`, and only an answer with `admits` admits the
request.

A connection of a trusted proxy is counted for the client that sent the connection's last request (`proxies`). Before
the first request, such a connection is counted for no client. This does no damage: HTTP proxies send only whole heads,
so no client can occupy the connection by a slow head. If a client has as many unadmitted connections as `strangers`
permits, its next request is refused with 503. An admitted request is never refused in this way.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Protocol, Self

import h11

from s3notify_platform.channels.inlets.proxies import FORWARDED, NO_PROXIES, TrustedProxies, counted
from s3notify_platform.channels.renewed_files import RenewedTls
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.limits import MAX_UNREAD_BYTES

log = logging.getLogger(__name__)

LOG_SECONDS: Final = 10.0

_ACCEPT_SECONDS: Final = 0.1
_TOO_MANY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 21\r\n\r\ntoo many connections\n"
)
_CHUNK: Final = 64 * 1024
_UNREAD_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a server; see the module's table. Bodies are held in memory: at most `connections * body_bytes`."""

    connections: int = 128
    strangers: int = 32
    head_bytes: int = 16 * 1024
    body_bytes: int = 1024 * 1024
    stranger_seconds: float = 10.0
    request_seconds: float = 10.0
    idle_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The method, the path, the query as the peer sent it, and the headers by lower-case name.

    If a header is repeated, only the last one is kept; but repeated headers of proxies are joined by commas.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    query: str = ""

    @property
    def has_body(self) -> bool:
        """True if a body follows."""
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a request. `admits`: true if the body has proved the sender of the request."""

    status: HTTPStatus
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    admits: bool = False


UNPROVEN: Final = Answer(status=HTTPStatus.CONTINUE)
"""`Application.admit` returns this value if the body is needed first. Then only an answer with `admits` admits the
connection.
"""


class Application(Protocol):
    """The application of a server. `admit` and `handle` are called on the server's event loop."""

    def admit(self, head: Head) -> Answer | None:
        """Judges a request by its head. Returns None if the request is admitted, or `UNPROVEN` if only the body can
        prove the sender. Otherwise, returns the answer, and the body is not read.
        """
        ...

    async def handle(self, head: Head, body: bytes) -> Answer:
        """The answer to a request, given head and body. The application itself limits the time of this call."""
        ...


class _RefusedError(Exception):
    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.answer = answer


@dataclass(slots=True, kw_only=True)
class _Stranger:
    """The peer of a connection, and the address for which the connection is counted until a request is admitted."""

    peer: str
    address: str | None = None


class SparseLog:
    """A logger of at most one line in `LOG_SECONDS`, because clients could otherwise cause any number of lines."""

    def __init__(self, log: logging.Logger, clock: Clock = SYSTEM_CLOCK) -> None:
        self._log = log
        self._clock = clock
        self._next_at = clock.monotonic()
        self._left_out = 0

    def warning(self, text: str, *values: object, exc_info: bool = False) -> None:
        """Either logs this line and the number of earlier lines that were left out, or leaves this line out, too."""
        if self._clock.monotonic() < self._next_at:
            self._left_out += 1
            return
        self._next_at = self._clock.monotonic() + LOG_SECONDS
        self._log.warning(f"{text} (%d lines left out)", *values, self._left_out, exc_info=exc_info)
        self._left_out = 0


class HttpServer:
    """Serves an application on one address until it is closed."""

    def __init__(
        self, application: Application, limits: Limits, proxies: TrustedProxies = NO_PROXIES
    ) -> None:
        self._application = application
        self._limits = limits
        self._proxies = proxies
        self._open: set[asyncio.Task[None]] = set()
        self._busy: set[asyncio.Task[None]] = set()
        self._strangers: Counter[str] = Counter()
        self._listeners: list[socket.socket] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._tls: RenewedTls | None = None
        self._closing = False
        self._log = SparseLog(log)

    async def start(self, host: str, port: int, tls: RenewedTls | None) -> tuple[str, int]:
        """Listens; returns the actual address. `OSError` if it cannot listen at this address."""
        loop = asyncio.get_running_loop()
        self._tls = tls
        try:
            for family, *_, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                self._listeners.append(socket.create_server(address, family=family, backlog=256))
                self._listeners[-1].setblocking(False)
        except OSError:
            self._close_listeners()
            raise
        self._accepting = {asyncio.create_task(self._accept(listener)) for listener in self._listeners}
        actual = self._listeners[0].getsockname()
        return str(actual[0]), int(actual[1])

    async def close(self, grace_seconds: float) -> None:
        """Accepts no more connections; closes idle connections now, and busy connections after `grace_seconds`."""
        self._closing = True
        for task in self._accepting | (self._open - self._busy):
            task.cancel()
        await asyncio.wait(self._accepting)
        self._close_listeners()
        if self._open:
            await asyncio.wait(self._open, timeout=grace_seconds)
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=1.0)

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, (host, *_) = await loop.sock_accept(listener)
            except OSError as error:
                self._log.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(_ACCEPT_SECONDS)  # perhaps no file descriptor is free
                continue
            stranger = _Stranger(peer=host)
            direct = not self._proxies.has(host)
            if len(self._open) >= self._limits.connections or (
                direct and not self._count(stranger, counted(host))
            ):
                _turn_away(peer, plain=self._tls is None)
                continue
            self._open.add(asyncio.create_task(self._connected(peer, stranger)))

    async def _connected(self, peer: socket.socket, stranger: _Stranger) -> None:
        task = asyncio.current_task()
        assert task is not None, "each connection has a task"
        loop = asyncio.get_running_loop()
        connection = None
        try:
            ends = loop.time() + self._limits.stranger_seconds
            async with asyncio.timeout_at(ends):
                tls = self._tls.context() if self._tls is not None else None
                connection = await _Connection.opened(peer, tls, self._limits)
            # Pipelined requests are read without a wait, so no timeout fires. The comparison with `loop.time()` ends
            # the connection of a stranger who sends such requests.
            while not self._closing and loop.time() < ends and await connection.await_request(ends):
                self._busy.add(task)
                if connection.admitted:
                    ends = loop.time() + self._limits.request_seconds
                if not await self._serve(connection, ends, stranger):
                    return
                self._busy.discard(task)
                if connection.admitted:
                    ends = loop.time() + self._limits.idle_seconds
        except (OSError, TimeoutError, h11.ProtocolError, asyncio.CancelledError):
            pass  # the connection ends: the peer sends unanswered requests again
        except Exception:  # noqa: BLE001 - a defect in one connection must not end the others
            self._log.warning("a connection failed", exc_info=True)
        finally:
            if connection is not None:
                await connection.close()
            self._forget(stranger)
            self._busy.discard(task)
            self._open.discard(task)

    def _count(self, stranger: _Stranger, address: str) -> bool:
        """Counts the stranger's connection for `address`, and no longer for the former address.

        Returns False if the address has too many connections. Then the connection is counted for no address.
        """
        self._forget(stranger)
        if self._strangers[address] >= self._limits.strangers:
            return False
        self._strangers[address] += 1
        stranger.address = address
        return True

    def _forget(self, stranger: _Stranger) -> None:
        """Stops counting the stranger's connection for the stranger's address."""
        if (address := stranger.address) is None:
            return
        stranger.address = None
        self._strangers[address] -= 1
        if not self._strangers[address]:
            del self._strangers[address]

    async def _serve(self, connection: "_Connection", ends: float, stranger: _Stranger) -> bool:
        """Serves one request; returns True if another request may follow on the connection."""
        try:
            async with asyncio.timeout_at(ends) as deadline:
                head = await connection.head()
                early = self._application.admit(head)
                if early is not None and not connection.admitted and self._proxies.has(stranger.peer):
                    client = self._proxies.client(stranger.peer, head.headers)
                    if not self._count(stranger, client):
                        raise _RefusedError(_error(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections"))
                if early is not None and early is not UNPROVEN and head.has_body:
                    raise _RefusedError(early)
                if early is None and not connection.admitted:
                    connection.admitted = True
                    self._forget(stranger)
                    deadline.reschedule(asyncio.get_running_loop().time() + self._limits.request_seconds)
                body = await connection.body()
        except TimeoutError:
            await connection.refuse(_error(HTTPStatus.REQUEST_TIMEOUT, "the request took too long"))
            return False
        except _RefusedError as refused:
            await connection.refuse(refused.answer)
            return False
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            await connection.refuse(_error(status, "not HTTP/1.1, or too large"))
            return False
        if early is None or early is UNPROVEN:
            answer = await self._application.handle(head, body)
        else:
            answer = early
        if answer.admits and not connection.admitted:
            connection.admitted = True
            self._forget(stranger)
        return await connection.answer(answer, keep=not self._closing)


class _Connection:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits) -> None:
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self.admitted = False
        """True after a request of this connection was admitted."""
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)

    @classmethod
    async def opened(cls, peer: socket.socket, tls: ssl.SSLContext | None, limits: Limits) -> Self:
        """The connection of an accepted socket, after the TLS handshake. The caller limits the time."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_CHUNK)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, peer, ssl=tls)
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop), limits)

    async def close(self) -> None:
        """Closes the connection after the answer was sent; a peer that reads slowly may lose the answer."""
        self._writer.close()
        with suppress(OSError, TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(_UNREAD_SECONDS):
                await self._writer.wait_closed()
        self._writer.transport.abort()

    async def await_request(self, ends: float) -> bool:
        """Waits for the first byte of a request; False if no byte arrives in time, or the peer has disconnected."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        if self._http.trailing_data[0]:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout_at(ends):
                data = await self._reader.read(self._limits.head_bytes)
            if data:
                self._http.receive_data(data)
                return True
        return False

    async def head(self) -> Head:
        """The head of the request."""
        event = await self._next()
        if not isinstance(event, h11.Request):
            raise h11.RemoteProtocolError("not a request")
        headers: dict[str, str] = {}
        for name, value in (
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers
        ):
            headers[name] = f"{headers[name]},{value}" if name in FORWARDED and name in headers else value
        path, _, query = event.target.decode("latin-1").partition("?")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._limits.body_bytes:
            raise _RefusedError(self._too_large())
        return Head(method=event.method.decode("latin-1"), path=path, headers=headers, query=query)

    async def body(self) -> bytes:
        """The whole body. If the peer waits for the answer 100, this answer is sent first."""
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        body = bytearray()
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise h11.RemoteProtocolError("the body ended early")
            body += event.data
            if len(body) > self._limits.body_bytes:
                raise _RefusedError(self._too_large())
        return bytes(body)

    async def answer(self, answer: Answer, *, keep: bool = False) -> bool:
        """Sends the answer; returns True if another request may follow on the connection."""
        text = f"{answer.text}\n".encode() if answer.text else b""
        headers = {
            "content-type": "text/plain; charset=utf-8",
            "content-length": str(len(text)),
            **answer.headers,
        }
        if not keep:
            headers["connection"] = "close"
        async with asyncio.timeout(self._limits.request_seconds):
            await self._send(h11.Response(status_code=answer.status, headers=list(headers.items())))
            await self._send(h11.Data(data=text))
            await self._send(h11.EndOfMessage())
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def refuse(self, answer: Answer) -> None:
        """Answers and closes. Reads the peer's remaining bytes for a moment. Otherwise, the peer might never see the
        answer.
        """
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        await self.answer(answer)
        with suppress(TimeoutError):
            async with asyncio.timeout(_UNREAD_SECONDS):
                read = 0
                while read < MAX_UNREAD_BYTES and (data := await self._reader.read(_CHUNK)):
                    read += len(data)

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            # At most `head_bytes` per read: otherwise, h11 would accept a complete head of any size.
            self._http.receive_data(await self._reader.read(self._limits.head_bytes))
        return event

    async def _send(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            self._writer.write(data)
            await self._writer.drain()

    def _too_large(self) -> Answer:
        return _error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {self._limits.body_bytes} bytes")


def _turn_away(peer: socket.socket, *, plain: bool) -> None:
    with suppress(OSError):
        if plain:
            peer.send(_TOO_MANY)
    peer.close()


def _error(status: HTTPStatus, text: str) -> Answer:
    return Answer(status=status, text=text, headers={"retry-after": "1"} if status == 503 else {})
