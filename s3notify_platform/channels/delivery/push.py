"""The interface `Push`: it sends batches to an endpoint, and returns an answer for each batch. Implementations: `http`,
`amqp`, `kafka`.
"""

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Final, Protocol
from urllib.parse import parse_qs, urlsplit

from s3notify_platform.channels.delivery.egress import Addresses, Egress
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.logins import login
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.extras import remedy
from s3notify_platform.protocols.notification_queue import Entry

CONNECTION_SECONDS: Final = 60.0
"""Lifetime of a connection. Then the host's name is resolved again, and the addresses are checked again."""

ERROR_CHARS: Final = 200

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """2xx: the receiver has the events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The endpoint processed the request and refused it, or the request could not be made. The cause may be one event
    of the request.
    """

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Down:
    """The endpoint accepts nothing now: send nothing until the next probe.

    `reached`: True if the endpoint may have processed the events; then their entries lose an attempt. False if the
    endpoint certainly did not process the events.
    """

    error: str
    reached: bool
    retry_after_seconds: float = 0.0


Answer = Delivered | Rejected | Down


class Push(Protocol):
    """The endpoint's interface for delivery; implemented by `PooledPush`."""

    def post_many(self, topic: str, batches: Sequence[Sequence[Entry]]) -> list[Answer]:
        """Sends one request for each batch, some in parallel; returns an answer for each batch."""
        ...

    def close(self) -> None:
        """Ends the requests in flight, or lets each end by its deadline; begins no other request."""
        ...


class PooledPush:
    """Sends the batches of one worker to one endpoint in threads. Thread-safe. No request is sent before the first
    `post`.

    `once`: True if a request that the endpoint may have processed must not be sent again. `UsageError` if the worker
    must not connect to the endpoint, or lacks the login or certificates that the endpoint names.
    """

    def __init__(
        self, endpoint: Endpoint, egress: Egress, *, clock: Clock = SYSTEM_CLOCK, once: bool = False
    ) -> None:
        egress.check(endpoint)
        self.endpoint = endpoint
        self._egress = egress
        self._clock = clock
        self._once = once
        self._login = login(endpoint.login_env, endpoint.host)
        if self._certificate() is not None and not endpoint.scheme.encrypted:
            raise UsageError(
                f"{endpoint.login_env}: a certificate needs TLS, which {endpoint.url!r} does not use"
            )
        self._addresses = Addresses(endpoint.host, endpoint.port, egress, clock)
        self._pool = ThreadPoolExecutor(endpoint.concurrency, thread_name_prefix="push")
        self._closed = False
        self._logged: set[type[Exception]] = set()

    def _basic(self) -> tuple[str, str] | None:
        """User and password for a broker. `UsageError` if the login is a bearer token or a header."""
        if self._login is None or self._login.certificate is not None:
            return None
        if not self._login.user:
            raise UsageError(
                f"{self.endpoint.login_env}: for a broker give HOST basic USER:PASSWORD, or a certificate"
            )
        return self._login.user, self._login.password

    def _files(self) -> tuple[str | Path, ...]:
        """The files of certificates that connections use: the trusted ones, and the worker's own."""
        folder, name = self._egress.ca_folder, self.endpoint.ca_file
        return (*([folder / name] if folder and name else []), *(self._certificate() or ()))

    def _certificate(self) -> tuple[str, str] | None:
        """The files of the worker's certificate and its key, if the login is a certificate."""
        return self._login.certificate if self._login is not None else None

    @abstractmethod
    def post(self, topic: str, batch: Sequence[Entry]) -> Answer:
        """Sends one batch; network errors are returned as answers, not raised."""

    def post_many(self, topic: str, batches: Sequence[Sequence[Entry]]) -> list[Answer]:
        """See `Push.post_many`. At most `concurrency` requests are in flight at a time, for all callers together.

        An unexpected error of a batch counts as a refusal of this batch alone. So the batch is split until the entry
        that causes the error is alone. Each kind of error is logged once.
        """
        try:
            return list(self._pool.map(lambda batch: self._answer(topic, batch), batches))
        except (RuntimeError, CancelledError):
            if not self._closed:
                raise
            return [Down(error="the worker stops, or the endpoint was changed", reached=True)] * len(batches)

    def _answer(self, topic: str, batch: Sequence[Entry]) -> Answer:
        try:
            return self.post(topic, batch)
        except Exception as error:  # noqa: BLE001 - the error of one entry must not harm the others
            if isinstance(error, MemoryError | RuntimeError) and not isinstance(error, RecursionError):
                return Down(error=described(error), reached=False)  # this process lacks memory or threads
            if type(error) not in self._logged:
                self._logged.add(type(error))
                _LOG.warning("topic %r: %d entries could not be sent", topic, len(batch), exc_info=True)
            return Rejected(error=described(error))

    def close(self) -> None:
        """Ends the requests in flight, or lets each end by its deadline; begins no other request."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)


def connect(endpoint: Endpoint, egress: Egress, *, clock: Clock = SYSTEM_CLOCK, once: bool = False) -> Push:
    """The endpoint's `Push`; `once` as in `PooledPush`. `UsageError` if the worker must not connect to the endpoint, or
    lacks a login, file or library.
    """
    try:
        made: Push = resolve_name(endpoint.scheme.push)(endpoint, egress, clock=clock, once=once)
    except ModuleNotFoundError as error:
        raise UsageError(remedy(error) or str(error)) from error
    return made


def ack_level(endpoint: Endpoint, levels: Sequence[str]) -> str:
    """The value of `ack` in the endpoint's url; by default the last of `levels`. `UsageError` for an unknown level."""
    query: Mapping[str, list[str]] = parse_qs(urlsplit(endpoint.url).query)
    level = query.get("ack", [levels[-1]])[0]
    if level not in levels:
        raise UsageError(f"endpoint {endpoint.url!r}: ack must be one of {', '.join(levels)}")
    return level


def described(error: BaseException) -> str:
    """The error as a short text for a queue entry."""
    return f"{type(error).__name__}: {error}"[:ERROR_CHARS]
