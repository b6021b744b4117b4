"""Sends messages to a topic of Kafka. Needs the extra `kafka`.

    kafkas://host[:9093][/topic][?brokers=HOST:PORT,HOST:PORT][&sasl=PLAIN|SCRAM-SHA-256|SCRAM-SHA-512][&ack=none|broker]

Each event is one message. The message's key is the object's key, so the changes of one object share a partition of
Kafka's topic. An entry leaves the queue only after all in-sync replicas have acknowledged its message (`acks=all`).
With `ack=none` an entry leaves the queue after its message was sent: a message that the broker refuses is lost. If the
first broker does not answer, the other brokers are tried. If the url has no path, Kafka's topic has the name of our
topic. The header `s3notify-event-id` is the event's id. Two messages with the same id are two deliveries of one entry.
If our topic has a login, the worker authenticates to the broker by this login: `basic` by SASL, `certificate` by TLS.

The client, librdkafka, connects to any address that a broker returns. So the operator of the worker names the hosts
that a topic's url may have (`Egress.kafka_hosts`).
"""

import logging
from collections.abc import Sequence
from threading import Lock
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from confluent_kafka import KafkaError, KafkaException, Producer

from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.messages import FORMATS
from s3notify_platform.channels.delivery.push import (
    Answer,
    Delivered,
    Down,
    PooledPush,
    Rejected,
    ack_level,
    described,
)
from s3notify_platform.channels.renewed_files import state_of
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.notification_queue import Entry

SASL: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
ACKS: Final = ("none", "broker")
KAFKA_POLL_SECONDS: Final = 0.05
_LOG: Final = logging.getLogger(__name__)


class KafkaPush(PooledPush):
    """The producer of one worker for one endpoint."""

    def __init__(
        self, endpoint: Endpoint, egress: Egress, *, clock: Clock = SYSTEM_CLOCK, once: bool = False
    ) -> None:
        super().__init__(endpoint, egress, clock=clock, once=once)
        parts = urlsplit(endpoint.url)
        self._topic = unquote(parts.path[1:])
        sasl = parse_qs(parts.query).get("sasl", [SASL[0]])[0]
        if sasl not in SASL:
            raise UsageError(f"endpoint {endpoint.url!r}: sasl must be one of {', '.join(SASL)}")
        basic = self._basic()
        protocol = ("SASL_" if basic else "") + ("SSL" if endpoint.scheme.encrypted else "PLAINTEXT")
        self._settings: dict[str, Any] = {
            "bootstrap.servers": ",".join(endpoint.brokers),
            "client.id": "s3notify",
            "acks": "all" if (confirmed := ack_level(endpoint, ACKS) == "broker") else "0",
            "enable.idempotence": confirmed,
            "message.timeout.ms": int(endpoint.timeout_seconds * 1000),
            "security.protocol": protocol,
        }
        if basic:
            self._settings |= {
                "sasl.mechanism": sasl,
                "sasl.username": basic[0],
                "sasl.password": basic[1],
            }
        if (shown := self._certificate()) is not None:
            self._settings |= {"ssl.certificate.location": shown[0], "ssl.key.location": shown[1]}
        egress.certificates(endpoint)  # refuses a file that this worker may not use, before any connection
        self._connecting = Lock()
        self._lock = Lock()
        self._producer: Producer | None = None
        self._read = state_of(self._files())
        """The state of the certificate files when the producer read them."""

    def post(self, topic: str, batch: Sequence[Entry]) -> Answer:
        """See `PooledPush.post`."""
        deadline = self._clock.monotonic() + self.endpoint.timeout_seconds
        kafka_topic = self._topic or topic
        try:
            producer = self._connected(kafka_topic, deadline)
        except (KafkaException, TimeoutError, UsageError) as error:
            return Down(error=f"no connection: {described(error)}", reached=False)
        failures: list[KafkaError | None] = []
        single, opaque = FORMATS[self.endpoint.format].single, self.endpoint.opaque_data
        try:
            for entry in batch:
                _, body = single(entry, opaque)
                producer.produce(
                    kafka_topic,
                    body,
                    key=entry.event.key.encode("utf-8", "surrogateescape"),
                    headers={"s3notify-event-id": entry.id, "s3notify-topic": topic},
                    on_delivery=lambda error, _: failures.append(error),
                )
            # Messages that are not acknowledged within `message.timeout.ms` are also reported as failed.
            while (
                len(failures) < len(batch) and self._clock.monotonic() < deadline + 1.0 and not self._closed
            ):
                producer.poll(KAFKA_POLL_SECONDS)
        except (KafkaException, BufferError) as error:
            self._forget(producer)
            return Down(error=f"not acknowledged: {described(error)}", reached=True)
        errors = [error for error in failures if error is not None]
        if len(failures) == len(batch) and not errors:
            return Delivered()
        if errors and all(error.code() == KafkaError.MSG_SIZE_TOO_LARGE for error in errors):
            return Rejected(error=str(errors[0]))
        self._forget(producer)
        why = str(errors[0]) if errors else "timed out"
        return Down(error=f"not acknowledged: {why}", reached=True)

    def close(self) -> None:
        """See `Push.close`."""
        super().close()
        if self._producer is not None:
            self._forget(self._producer)

    def _connected(self, kafka_topic: str, deadline: float) -> Producer:
        """The producer. A new producer requests the topic's metadata first. So if no broker answers, the entries lose
        no attempt. While one request waits for the metadata, the others wait, too, each until its own deadline. If a
        certificate was renewed, the call makes a new producer.
        """
        if not self._connecting.acquire(timeout=max(0.0, deadline - self._clock.monotonic())):
            raise TimeoutError("no broker answers")
        try:
            state = state_of(self._files())
            if (known := self._producer) is not None and state == self._read:
                return known
            if (left := deadline - self._clock.monotonic()) <= 0:
                raise TimeoutError("no broker answers")
            certificates = self._egress.certificates(self.endpoint)
            trusted = {"ssl.ca.location": str(certificates)} if certificates else {}
            made = Producer(self._settings | trusted, logger=_LOG)
            found = made.list_topics(kafka_topic, timeout=left)
            if (error := found.topics[kafka_topic].error) is not None:
                raise KafkaException(error)
            self._producer, self._read = made, state
            return made
        finally:
            self._connecting.release()

    def _forget(self, producer: Producer) -> None:
        with self._lock:
            if self._producer is producer:
                self._producer = None
        producer.purge()
