"""Sends messages over AMQP 0.9.1 to an exchange of a broker like RabbitMQ. Needs the extra `amqp`.

    amqps://host[:5671][/vhost][?exchange=E&routing_key=K&ack=none|broker|routable]

Each event is one persistent message. An entry leaves the queue only after the broker has confirmed its message
(publisher confirms). Without `exchange`, messages are sent to the default exchange. The default `routing_key` is the
topic's name. With `ack=routable`, the default, a message that reaches no queue is an error (`mandatory`), and is
retried. With `ack=broker` the broker drops a message that reaches no queue. If the broker refuses a message, as
RabbitMQ does for a full queue with `reject-publish`, the endpoint counts as down. With `ack=none` an entry leaves the
queue after its message was sent: a message that the broker refuses is lost. `message_id` is the event's id. Two
messages with the same id are two deliveries of one entry. The worker authenticates to the broker by the topic's login:
`basic`, or `certificate` by TLS.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from amqp import AMQPError, Channel, Connection, Message
from amqp.exceptions import MessageNacked

from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.messages import FORMATS
from s3notify_platform.channels.delivery.push import (
    CONNECTION_SECONDS,
    Answer,
    Delivered,
    Down,
    PooledPush,
    ack_level,
    described,
)
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.protocols.notification_queue import Entry

PERSISTENT: Final = 2
ACKS: Final = ("none", "broker", "routable")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A connection, a new channel of this connection, and the time at which the connection began (`since`)."""

    since: float
    connection: Connection
    channel: Channel


class AmqpPush(PooledPush):
    """The connections of one worker to one broker. Each batch in flight has at most one connection."""

    def __init__(
        self, endpoint: Endpoint, egress: Egress, *, clock: Clock = SYSTEM_CLOCK, once: bool = False
    ) -> None:
        super().__init__(endpoint, egress, clock=clock, once=once)
        parts = urlsplit(endpoint.url)
        query = parse_qs(parts.query)
        self._vhost = unquote(parts.path[1:]) or "/"
        self._exchange = query.get("exchange", [""])[0]
        self._routing_key = query.get("routing_key", [""])[0]
        self._ack = ack_level(endpoint, ACKS)
        egress.certificates(endpoint)  # refuses a file that this worker may not use, before any connection
        self._user, self._password = self._basic() or ("guest", "guest")
        self._lock = Lock()
        self._idle: list[tuple[float, Connection]] = []

    def post(self, topic: str, batch: Sequence[Entry]) -> Answer:
        """See `PooledPush.post`. The batch is sent once, on a connection that has just opened a channel."""
        deadline = self._clock.monotonic() + self.endpoint.timeout_seconds
        messages = [self._message(topic, entry) for entry in batch]
        try:
            opened = self._open(deadline)
        except (AMQPError, OSError, ValueError) as error:
            return Down(error=f"no connection: {described(error)}", reached=False)
        try:
            self._publish(topic, messages, opened, deadline)
        except MessageNacked:
            why = "the broker refused a message (nack), perhaps because a queue is full"
        except (AMQPError, OSError, ValueError) as error:
            why = described(error)
        else:
            return Delivered()
        return Down(error=f"not confirmed: {why}", reached=True)

    def close(self) -> None:
        """See `Push.close`."""
        super().close()
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            _end(connection)

    def _message(self, topic: str, entry: Entry) -> Message:
        content_type, body = FORMATS[self.endpoint.format].single(entry, self.endpoint.opaque_data)
        return Message(
            body,
            content_type=content_type,
            delivery_mode=PERSISTENT,
            message_id=entry.id,
            application_headers={"s3notify-topic": topic},
        )

    def _publish(self, topic: str, messages: Sequence[Message], opened: _Opened, deadline: float) -> None:
        """Returns after the broker has confirmed every message, and keeps the connection. After an error, the
        connection is closed.
        """
        try:
            for message in messages:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    raise TimeoutError("timed out")
                # With `confirm_publish` on the connection, this call waits for the broker's confirmation.
                opened.channel.basic_publish(
                    message,
                    exchange=self._exchange,
                    routing_key=self._routing_key or topic,
                    mandatory=self._ack == "routable",
                    timeout=left,
                    **({} if self._ack == "none" else {"confirm_timeout": left}),
                )
            opened.channel.close()
        except Exception:
            _end(opened.connection)
            raise
        with self._lock:
            if not self._closed:
                self._idle.append((opened.since, opened.connection))
                return
        _end(opened.connection)

    def _open(self, deadline: float) -> _Opened:
        """A channel of a kept connection, if this connection still works, or of a new connection."""
        while self._clock.monotonic() < deadline and (kept := self._kept()) is not None:
            since, connection = kept
            with suppress(AMQPError, OSError, ValueError):
                return _Opened(since=since, connection=connection, channel=connection.channel())
            _end(connection)
        since = self._clock.monotonic()
        connection, channel = self._connect(deadline)
        return _Opened(since=since, connection=connection, channel=channel)

    def _kept(self) -> tuple[float, Connection] | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                kept = self._idle.pop()
            if self._clock.monotonic() - kept[0] < CONNECTION_SECONDS:
                return kept
            _end(kept[1])

    def _connect(self, deadline: float) -> tuple[Connection, Channel]:
        addresses = self._addresses.permitted(deadline)
        for number, address in enumerate(addresses):
            left = max(0.001, deadline - self._clock.monotonic()) / (len(addresses) - number)
            # `address` is an IP address, so the client does not look up the name again.
            literal = f"[{address}]" if ":" in address else address
            connection = Connection(
                host=f"{literal}:{self.endpoint.port}",
                userid=self._user,
                password=self._password,
                virtual_host=self._vhost,
                ssl=self._tls(),
                confirm_publish=self._ack != "none",
                connect_timeout=left,
                read_timeout=left,
                write_timeout=left,
                client_properties={"product": "s3notify"},
            )
            try:
                connection.connect()
                return connection, connection.channel()
            except (AMQPError, OSError):
                _end(connection)
                if number == len(addresses) - 1:
                    raise
        raise AssertionError("every host has at least one address")

    def _tls(self) -> dict[str, Any] | bool:
        if not self.endpoint.scheme.encrypted:
            return False
        options: dict[str, Any] = {"server_hostname": self.endpoint.host}  # TLS verifies this name
        if certificates := self._egress.certificates(self.endpoint):
            options["ca_certs"] = str(certificates)
        if (shown := self._certificate()) is not None:
            options |= {"certfile": shown[0], "keyfile": shown[1]}
        return options


def _end(connection: Connection) -> None:
    """Closes the connection without AMQP's handshake, because the broker may no longer answer."""
    with suppress(AMQPError, OSError, AttributeError):
        connection.collect()
