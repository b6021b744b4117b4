"""A small HTTP/1.1 server for posts: every phase of a connection has a deadline, and every size a bound.

Why not one of the usual servers: uvicorn and the standard library have no deadline for a slow client's request head or
body, and waitress has no TLS. h11 implements the protocol; this module adds connections, deadlines and bounds.

| what | bound |
|---|---|
| connections | `Limits.connections`; one more is answered 503 and closed |
| TLS handshake; a request, from its first byte to its last | `request_seconds` for each |
| request head; body | about `head_bytes` (431); `body_bytes` (413), and never more than its declared length |
| before the first request, writing an answer; between two requests | `request_seconds`; `idle_seconds` |

A request is admitted by its head alone: the body of a refused one is not read.
"""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Protocol

import h11

_CHUNK: Final = 64 * 1024
_DRAIN_SECONDS: Final = 1.0
_DRAIN_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a server; see the table above. A body is held in memory: `connections * body_bytes` at most."""

    connections: int = 128
    head_bytes: int = 16 * 1024
    body_bytes: int = 1024 * 1024
    request_seconds: float = 10.0
    idle_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Method, path without query, and headers by lower-case name; of several with one name, the last."""

    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a request."""

    status: HTTPStatus
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class Application(Protocol):
    """The application of a server. Both methods are called on its event loop."""

    def admit(self, head: Head) -> Answer | None:
        """The answer, if the body need not be read; None to go on."""
        ...

    async def handle(self, head: Head, body: bytes) -> Answer:
        """The answer to an admitted request. The application limits its time itself."""
        ...


class _RefusedError(Exception):
    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.answer = answer


class HttpServer:
    """Serves an application on one address, until it is closed."""

    def __init__(self, application: Application, limits: Limits) -> None:
        self._application = application
        self._limits = limits
        self._open: set[asyncio.Task[None]] = set()
        self._busy: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._closing = False

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> tuple[str, int]:
        """Listen; returns the actual address. `OSError` if it cannot listen there."""
        arguments = {} if tls is None else {"ssl_handshake_timeout": self._limits.request_seconds}
        self._server = await asyncio.start_server(
            self._connected, host, port, ssl=tls, limit=_CHUNK, backlog=256, **arguments
        )
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def close(self, grace_seconds: float) -> None:
        """Accept no more connections, close the idle ones, and the busy ones after `grace_seconds`."""
        self._closing = True
        assert self._server is not None, "started before"
        self._server.close()
        for task in self._open - self._busy:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=grace_seconds)
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=1.0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "the server makes one for each connection"
        connection = _Connection(reader, writer, self._limits)
        try:
            if len(self._open) >= self._limits.connections:
                await connection.refuse(_error(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections"))
                return
            self._open.add(task)
            wait = self._limits.request_seconds
            while not self._closing and await connection.await_request(wait):
                self._busy.add(task)
                if not await self._serve(connection):
                    return
                self._busy.discard(task)
                wait = self._limits.idle_seconds
        except (OSError, TimeoutError, h11.ProtocolError, asyncio.CancelledError):
            pass  # the connection ends: the peer sends again what was not answered
        finally:
            self._open.discard(task)
            self._busy.discard(task)
            await _close(writer)

    async def _serve(self, connection: "_Connection") -> bool:
        """Serve one request; whether the connection can have another one."""
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                head = await connection.head()
                early = self._application.admit(head)
                if early is not None and head.has_body:
                    raise _RefusedError(early)
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
        answer = early or await self._application.handle(head, body)
        return await connection.answer(answer, keep=not self._closing)


class _Connection:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits) -> None:
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)

    async def await_request(self, seconds: float) -> bool:
        """Wait for the first byte of a request; False if there is none in time, or the peer has disconnected."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        if self._http.trailing_data[0]:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                data = await self._reader.read(self._limits.head_bytes)
            if data:
                self._http.receive_data(data)
                return True
        return False

    async def head(self) -> Head:
        """The request's head."""
        event = await self._next()
        if not isinstance(event, h11.Request):
            raise h11.RemoteProtocolError("no request")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        path = event.target.decode("latin-1").partition("?")[0]
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._limits.body_bytes:
            raise _RefusedError(self._too_large())
        return Head(method=event.method.decode("latin-1"), path=path, headers=headers)

    async def body(self) -> bytes:
        """The whole body; first answers 100 if the peer waits for that."""
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
        """Answer; whether the connection can have another request."""
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
        """Answer, and close. Reads for a moment what the peer still sends, or it might never see the answer."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        await self.answer(answer)
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                read = 0
                while read < _DRAIN_BYTES and (data := await self._reader.read(_CHUNK)):
                    read += len(data)

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            # At most `head_bytes` at once, or h11 would accept a complete head of any size.
            self._http.receive_data(await self._reader.read(self._limits.head_bytes))
        return event

    async def _send(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            self._writer.write(data)
            await self._writer.drain()

    def _too_large(self) -> Answer:
        return _error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {self._limits.body_bytes} bytes")


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close, after the answer was sent, if the peer reads it soon."""
    writer.close()
    with suppress(OSError, TimeoutError, asyncio.CancelledError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            await writer.wait_closed()
    writer.transport.abort()


def _error(status: HTTPStatus, text: str) -> Answer:
    return Answer(status=status, text=text, headers={"retry-after": "1"} if status == 503 else {})
