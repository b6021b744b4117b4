"""The delivery worker: pushes every topic that has an endpoint. Any number of workers may run.

Guarantees
    - At least once: an entry leaves the queue when its endpoint has answered 2xx, or when the entry becomes a dead
      letter. So an event may arrive twice.
    - Unordered, even for one key: shards and retries overtake each other. Endpoints should keep the greatest
      `sequencer` of each key, compared as hexadecimal numbers, and drop events whose `sequencer` is not greater.
    - An endpoint that is down or slow does not delay others: each shard has its own thread. Each endpoint has its own
      connections, limit of requests in flight, and circuit.
    - Other workers take over the shards of a killed worker within 15 s (`Worker`), and of a cleanly stopped worker
      within 2 s. Entries that the killed worker was delivering may be delivered twice, with the same event ids.
    - A worker that cannot use a topic's endpoint leaves the topic to other workers that can use the endpoint.

Requests to the queue: the requests of `Worker` every 2 s, a scan of each idle shard every `poll_seconds`, and about 10
requests for each delivered segment (see `ShardConsumer`). Each second of a delivery costs 4 more requests.
"""

import re
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Annotated, Final

from s3notify_platform.channels.delivery.circuit import Circuit
from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.delivery.egress_settings import EgressSettings
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.push import Push
from s3notify_platform.channels.delivery.push import connect as connect_to
from s3notify_platform.channels.delivery.shard_delivery import POLL_SECONDS, ShardDelivery, TopicEndpoint
from s3notify_platform.channels.service import Progress, Service, ServiceContext
from s3notify_platform.kernel.errors import S3NotifyError, UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.kernel.setting import About
from s3notify_platform.protocols.notification_queue import (
    NotificationQueue,
    ShardConsumer,
    ShardLease,
    Worker,
)
from s3notify_platform.protocols.notification_queue.owners import (
    BALANCE_SECONDS,
    EXPIRY_SECONDS,
    LEASE_SECONDS,
)

DELIVERY_STOP_SECONDS: Final = 3.0
"""At a clean stop, requests in flight get this time to end. After this time, the requests are cut off. The next owner
of the shard delivers the entries again.
"""

PAUSE_SECONDS: Final = 0.2
TROUBLE_SECONDS: Final = 30.0
"""Pause before the next attempt on a shard with unreadable entries."""


class Delivery:
    """The service of this module. `alongside`: other services, like a reconciler, that start and stop with this
    service.

    Threads: one for each owned shard, one for each service in `alongside`, and `concurrency` for each endpoint.
    """

    def __init__(
        self,
        queue: NotificationQueue,
        *,
        egress: Egress | None = None,
        name: str = "deliver",
        worker: str = "",
        poll_seconds: float = POLL_SECONDS,
        lease_seconds: float = LEASE_SECONDS,
        expiry_seconds: float = EXPIRY_SECONDS,
        beat_seconds: float = BALANCE_SECONDS,
        alongside: Sequence[Service] = (),
        connect: Callable[[Endpoint], Push] | None = None,
    ) -> None:
        """`egress`: the permitted networks; default: https to public addresses. `connect`: replaces the connections in
        tests.

        `worker`: the beginning of the name by which this worker owns shards; default: `name`.
        """
        self.name = name
        self.shards: dict[tuple[str, int], ShardDelivery] = {}
        self._queue = queue
        self._worker = Worker(
            queue, name=worker or name, lease_seconds=lease_seconds, expiry_seconds=expiry_seconds
        )
        self._poll_seconds = poll_seconds
        self._beat_seconds = beat_seconds
        self._alongside = tuple(alongside)
        allowed = egress or Egress()

        def pusher(endpoint: Endpoint) -> Push:
            return connect_to(endpoint, allowed, clock=queue.clock)

        self._connect = connect or pusher
        self._progress: Progress = lambda _: None
        self._lock = Lock()
        self._targets: dict[str, TopicEndpoint] = {}
        self._counts: Counter[str] = Counter(delivered=0, failed=0, dead=0, requests=0, waited_ms=0)
        self._threads: dict[ShardDelivery, Thread] = {}
        self._unreadable: dict[tuple[str, int], str] = {}

    def run(self, stop: Event, progress: Progress) -> None:
        """See `Service.run`."""
        self._progress = progress
        helpers = [
            self._started(lambda one=one: self._run_beside(one, stop), one.name)  # type: ignore[misc]
            for one in self._alongside
        ]
        try:
            while not stop.is_set():
                self.beat()
                stop.wait(0 if self._worker.unadopted else self._beat_seconds)
        finally:
            stop.set()
            self._end()
            for helper in helpers:
                helper.join(DELIVERY_STOP_SECONDS)

    def counts(self) -> Mapping[str, int]:
        """The numbers of entries delivered, failed and dead, of requests sent, of shards owned, and of topics whose
        endpoints this worker cannot use. The counts of the services in `alongside` are included.

        `waited_ms`: milliseconds from event to delivery, added up over all delivered entries. The writer's clock gives
        the time of the event, and the worker's clock gives the time of the delivery.
        """
        with self._lock:
            found = dict(self._counts)
        found |= {"shards": len(self.shards), "unusable_topics": len(self._worker.unusable)}
        for service in self._alongside:
            found |= {f"{service.name}_{name}": number for name, number in service.counts().items()}
        return found

    def beat(self) -> None:
        """Renews the leases, and starts the delivery of the leased shards. Store errors are reported, and the next beat
        tries again.
        """
        # A thread takes entries only while it holds its shard's `turning` lock. So no thread takes entries of the
        # shards whose locks this method holds, and these shards can be released.
        still = [shard for shard in self.shards.values() if shard.turning.acquire(blocking=False)]
        busy = [shard.lease for shard in self.shards.values() if shard not in still or shard.consumer.busy]
        try:
            leases = self._worker.balance(busy)
        except (UnavailableError, UnknownOutcomeError) as error:
            self._progress(f"the queue is not reachable: {error}")
            return
        finally:
            for shard in still:
                shard.turning.release()
        for (topic, number), why in self._worker.unreadable.items() - self._unreadable.items():
            self._progress(f"topic {topic!r}, shard {number} is not delivered: {why}")
        self._unreadable = self._worker.unreadable
        for shard in self.shards.values():
            if shard.lease not in leases:
                shard.ended.set()
        self.shards = {key: shard for key, shard in self.shards.items() if not self._over(shard)}
        for lease in leases:
            # A new delivery waits until the shard's earlier delivery has ended. Otherwise, both deliveries could
            # process the same entries.
            if (lease.topic, lease.shard) not in self.shards:
                self.start(self._delivery_of(lease))
        for shard in self.shards.values():
            shard.paused = shard.lease in self._worker.surplus
        self._forget_topics({lease.topic for lease in leases})

    def start(self, shard: ShardDelivery) -> None:
        """Starts a thread that serves a shard."""
        self.shards[shard.lease.topic, shard.lease.shard] = shard
        self._threads[shard] = self._started(
            lambda: self._serve(shard), f"{shard.lease.topic}-{shard.lease.shard}"
        )

    def _over(self, shard: ShardDelivery) -> bool:
        thread = self._threads.get(shard)
        if not shard.ended.is_set() or (thread is not None and thread.is_alive()):
            return False
        self._threads.pop(shard, None)
        return True

    def _delivery_of(self, lease: ShardLease) -> ShardDelivery:
        return ShardDelivery(
            ShardConsumer(self._worker, lease),
            target=lambda: self._target(lease),
            count=self._count,
            valid=lambda: self._worker.valid(lease),
            paused=lambda: self._worker.topic(lease).paused,
            poll_seconds=self._poll_seconds,
        )

    def _serve(self, shard: ShardDelivery) -> None:
        while not shard.ended.is_set():
            wait = PAUSE_SECONDS
            if not shard.paused:
                try:
                    with shard.turning:
                        wait = shard.turn()
                except Exception as error:  # noqa: BLE001 - the error of one shard must not end the others
                    place = f"topic {shard.lease.topic!r}, shard {shard.lease.shard}"
                    self._progress(f"{place}: {type(error).__name__}: {error}")
                    wait = TROUBLE_SECONDS
            shard.ended.wait(wait)

    def _target(self, lease: ShardLease) -> TopicEndpoint:
        """The current endpoint of the lease's topic."""
        text = self._worker.topic(lease).settings.endpoint
        with self._lock:
            known = self._targets.get(lease.topic)
            if known is not None and known.text == text and not self._is_retried(known):
                return known
            made = self._targets[lease.topic] = self._connected(lease.topic, text)
        if known is not None and known.push is not None:
            known.push.close()
        return made

    def _is_retried(self, target: TopicEndpoint) -> bool:
        """True if the worker could not use the endpoint, and should try again. The cause may be over, for example if a
        certificate was just being replaced.
        """
        return target.push is None and self._queue.clock.monotonic() >= target.made + TROUBLE_SECONDS

    def _connected(self, topic: str, text: str) -> TopicEndpoint:
        circuit = Circuit(self._queue.clock, report=lambda text: self._progress(f"topic {topic!r}: {text}"))
        endpoint, push = None, None
        try:
            endpoint = Endpoint.loads(text)
            push = self._connect(endpoint)
            self._worker.unusable.pop(topic, None)
        except UsageError as error:
            if self._worker.unusable.get(topic) != text:
                self._progress(f"topic {topic!r} is not delivered by this worker: {error}")
            self._worker.unusable[topic] = text
        made = self._queue.clock.monotonic()
        return TopicEndpoint(text=text, endpoint=endpoint, push=push, circuit=circuit, made=made)

    def _forget_topics(self, served: set[str]) -> None:
        with self._lock:
            gone = [self._targets.pop(topic) for topic in tuple(self._targets) if topic not in served]
        for target in gone:
            if target.push is not None:
                target.push.close()

    def _count(self, what: str, number: int) -> None:
        with self._lock:
            self._counts[what] += number

    def _run_beside(self, service: Service, stop: Event) -> None:
        while not stop.is_set():
            try:
                service.run(stop, self._progress)
            except Exception as error:  # noqa: BLE001 - the error of a service alongside must not end deliveries
                self._progress(f"{service.name}: {type(error).__name__}: {error}")
                stop.wait(TROUBLE_SECONDS)

    def _end(self) -> None:
        """Ends all deliveries, and releases the shards. Connections of deliveries that have not ended after
        `DELIVERY_STOP_SECONDS` are closed.
        """
        for shard in self.shards.values():
            shard.ended.set()
        clock = self._queue.clock
        deadline = clock.monotonic() + DELIVERY_STOP_SECONDS
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - clock.monotonic()))
        self._forget_topics(set())
        for thread in self._threads.values():
            thread.join(max(0.1, deadline + 1.0 - clock.monotonic()))
        try:
            self._worker.stop()
        except S3NotifyError as error:
            self._progress(
                f"the shards could not be released; other workers get them when the leases expire: {error}"
            )

    @staticmethod
    def _started(run: Callable[[], None], name: str) -> Thread:
        thread = Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread


@dataclass(frozen=True, kw_only=True)
class DeliverySettings(EgressSettings):
    """Push the queued changes of all topics that have an endpoint, until SIGINT or SIGTERM.

    Delivery is at least once and unordered: an event may arrive twice, or after a later event of its key. An endpoint
    should keep the greatest `sequencer` of each key, and drop an event whose `sequencer` is not greater. Sequencers
    are compared as hexadecimal numbers.

    Any number of workers may run: they share the work, and take over from a killed worker within 15 s. Secrets are read
    from environment variables that the topics name: HMAC keys (S3NOTIFY_PUSH_…), and logins (S3NOTIFY_SEND_…). A worker
    that lacks a variable or a permission for a topic's endpoint reports this, and leaves the topic to other workers
    until its own next start. A login begins with the one host that may get it, like `hooks.example.com bearer TOKEN`.
    Other forms are `basic USER:PASSWORD`, `header NAME: VALUE`, and `certificate CERT_FILE KEY_FILE` for mTLS. Renewed
    certificate files are used without a restart.
    """

    poll_seconds: Annotated[
        float,
        About("Longest pause between two scans of an idle shard", unit="seconds", minimum=0.1, maximum=60),
    ] = POLL_SECONDS
    heartbeat_seconds: Annotated[
        float,
        About(
            "Time between renewals of the leases. Another worker takes over a killed worker's shards after at most "
            "seven times as long; a renewal costs a write and three scans",
            unit="seconds",
            minimum=0.5,
            maximum=60,
        ),
    ] = BALANCE_SECONDS

    def build(self, context: ServiceContext) -> Service:
        """See `ServiceSettings.build`."""
        slower = self.heartbeat_seconds / BALANCE_SECONDS
        return Delivery(
            context.queue,
            egress=self.egress(),
            name=context.name,
            worker=f"{context.name}-{re.sub('[^A-Za-z0-9-]', '-', socket.gethostname())[:63]}",
            poll_seconds=self.poll_seconds,
            beat_seconds=self.heartbeat_seconds,
            lease_seconds=slower * LEASE_SECONDS,
            expiry_seconds=slower * EXPIRY_SECONDS,
        )
