"""HTTP/1.1 connections to one endpoint that are kept, for small requests: a third of what a general client costs.

A request is sent once, in one piece, on a connection that the server has not closed. Errors are botocore's, as its
clients raise them: their kind says whether a request may have arrived (`stores.sdk`).
"""

import select
import ssl
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from botocore.awsrequest import AWSRequest
from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
    SSLError,
)
from botocore.httpsession import URLLib3Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server answered. Names in `headers` are compared without regard to case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Connections:
    """Thread-safe. `context`: for https. `most`: connections that are kept while nobody uses them."""

    def __init__(
        self,
        url: str,
        *,
        connect_seconds: float,
        read_seconds: float,
        most: int,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._url = url
        self._connect_seconds = connect_seconds
        self._read_seconds = read_seconds
        self._context = context
        self._most = most
        self._idle: deque[HTTPConnection] = deque()
        weakref.finalize(self, _close_all, self._idle)

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer. 1 request."""
        connection = self._kept() or self._connected(url)
        try:
            connection.request(method, "/" + url.split("/", 3)[3], body or None, headers)
            response = connection.getresponse()
            answer = Answer(status=response.status, headers=response.headers, content=response.read())  # type: ignore[arg-type] # a Message reads like one
        except TimeoutError as error:
            connection.close()
            raise ReadTimeoutError(endpoint_url=self._url, error=error) from error
        except (HTTPException, OSError) as error:
            connection.close()
            raise ConnectionClosedError(endpoint_url=self._url, error=error) from error
        if response.will_close or len(self._idle) >= self._most:
            connection.close()
        else:
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        """Close those that nobody uses. So it is done at the end, too."""
        _close_all(self._idle)

    def _kept(self) -> HTTPConnection | None:
        """The connection that was used last, if the server has neither closed it nor said anything."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.sock is not None and not _readable(connection):
                return connection
            connection.close()

    def _connected(self, url: str) -> HTTPConnection:
        place = urlsplit(url)
        connection: HTTPConnection
        if place.scheme == "https":
            connection = HTTPSConnection(place.netloc, timeout=self._connect_seconds, context=self._context)
        else:
            connection = HTTPConnection(place.netloc, timeout=self._connect_seconds)
        try:
            connection.connect()  # without Nagle's delay, as http.client has it
        except ssl.SSLError as error:
            raise SSLError(endpoint_url=self._url, error=error) from error
        except TimeoutError as error:
            raise ConnectTimeoutError(endpoint_url=self._url, error=error) from error
        except OSError as error:
            raise EndpointConnectionError(endpoint_url=self._url, error=error) from error
        connection.sock.settimeout(self._read_seconds)
        return connection


class Proxied:
    """The same through a proxy, by botocore's own client."""

    def __init__(
        self, *, connect_seconds: float, read_seconds: float, most: int, verify: str | None, proxies: Any
    ) -> None:
        timeout: Any = (connect_seconds, read_seconds)
        checked: Any = verify or True
        self._http = URLLib3Session(
            verify=checked, proxies=proxies, timeout=timeout, max_pool_connections=most
        )

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """See `Connections.send`."""
        answer = self._http.send(
            AWSRequest(method=method, url=url, headers=dict(headers), data=body).prepare()
        )
        return Answer(status=answer.status_code, headers=answer.headers, content=answer.content)

    def close(self) -> None:
        """See `Connections.close`."""
        self._http.close()


def _close_all(connections: deque[HTTPConnection]) -> None:
    with suppress(IndexError):
        while True:
            connections.pop().close()


def _readable(connection: HTTPConnection) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
