"""Sends messages over AMQP 0.9.1 to an exchange of a broker like RabbitMQ. Needs the extra `amqp`.

    amqps://host[:5671][/vhost][?exchange=E&routing_key=K&ack=none|broker|routable]

Each event is one persistent message. An entry leaves the queue only after the broker has confirmed its message
(publisher confirms). Without `exchange`, messages are sent to the default exchange. The default `routing_key` is the
topic's name. With `ack=routable`, the default, a message that reaches no queue is an error (`mandatory`), and is
retried. With `ack=broker` the broker drops a message that reaches no queue. With `ack=none` an entry leaves the queue
after its message was sent: a message that the broker refuses is lost. `message_id` is the event's id. Two messages with
the same id are two deliveries of one entry. The worker authenticates to the broker by the topic's login: `basic`, or
`certificate` by TLS.
"""

from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from amqp import AMQPError, Connection, Message

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


class AmqpPush(PooledPush):
    """The connections of one worker to one broker, at most one for each batch in flight."""

    def __init__(self, endpoint: Endpoint, egress: Egress, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(endpoint, egress, clock=clock)
        parts = urlsplit(endpoint.url)
        query = parse_qs(parts.query)
        self._vhost = unquote(parts.path[1:]) or "/"
        self._exchange = query.get("exchange", [""])[0]
        self._routing_key = query.get("routing_key", [""])[0]
        self._ack = ack_level(endpoint, ACKS)
        self._user, self._password = self._basic() or ("guest", "guest")
        self._certificates = egress.certificates(endpoint)
        self._lock = Lock()
        self._idle: list[tuple[float, Connection]] = []

    def post(self, topic: str, batch: Sequence[Entry]) -> Answer:
        """See `PooledPush.post`. The batch is sent a second time only if the first connection was kept from an earlier
        batch, and fails.
        """
        deadline = self._clock.monotonic() + self.endpoint.timeout_seconds
        if (kept := self._kept()) is not None and self._publish(topic, batch, kept, deadline) is None:
            return Delivered()
        try:
            fresh = self._clock.monotonic(), self._connect(deadline)
        except (AMQPError, OSError, ValueError) as error:
            return Down(error=f"no connection: {described(error)}", reached=False)
        if failure := self._publish(topic, batch, fresh, deadline):
            return Down(error=f"not confirmed: {described(failure)}", reached=True)
        return Delivered()

    def close(self) -> None:
        """See `Push.close`."""
        super().close()
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            _end(connection)

    def _publish(
        self, topic: str, batch: Sequence[Entry], kept: tuple[float, Connection], deadline: float
    ) -> Exception | None:
        """Returns None if the broker has confirmed every message."""
        _, connection = kept
        single, opaque = FORMATS[self.endpoint.format].single, self.endpoint.opaque_data
        try:
            channel = connection.channel()
            for entry in batch:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    raise TimeoutError("timed out")
                content_type, body = single(entry, opaque)
                message = Message(
                    body,
                    content_type=content_type,
                    delivery_mode=PERSISTENT,
                    message_id=entry.id,
                    application_headers={"s3notify-topic": topic},
                )
                # With `confirm_publish` on the connection, this call waits for the broker's confirmation.
                channel.basic_publish(
                    message,
                    exchange=self._exchange,
                    routing_key=self._routing_key or topic,
                    mandatory=self._ack == "routable",
                    timeout=left,
                    **({} if self._ack == "none" else {"confirm_timeout": left}),
                )
            channel.close()
        except (AMQPError, OSError, ValueError) as error:
            _end(connection)
            return error
        with self._lock:
            if not self._closed:
                self._idle.append(kept)
                return None
        _end(connection)
        return None

    def _kept(self) -> tuple[float, Connection] | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                kept = self._idle.pop()
            if self._clock.monotonic() - kept[0] < CONNECTION_SECONDS:
                return kept
            _end(kept[1])

    def _connect(self, deadline: float) -> Connection:
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
            except (AMQPError, OSError):
                _end(connection)
                if number == len(addresses) - 1:
                    raise
            else:
                return connection
        raise AssertionError("every host has at least one address")

    def _tls(self) -> dict[str, Any] | bool:
        if not self.endpoint.scheme.encrypted:
            return False
        options: dict[str, Any] = {"server_hostname": self.endpoint.host}  # TLS verifies this name
        if self._certificates:
            options["ca_certs"] = str(self._certificates)
        if (shown := self._certificate()) is not None:
            options |= {"certfile": shown[0], "keyfile": shown[1]}
        return options


def _end(connection: Connection) -> None:
    """Closes the connection without AMQP's handshake, because the broker may not answer."""
    with suppress(AMQPError, OSError, AttributeError):
        connection.collect()
