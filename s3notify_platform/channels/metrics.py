"""`/metrics` of a long-running process, for Prometheus.

    - s3notify_{service}_{count}_total: the counts of `Service.counts`, like received, queued, delivered, failed.
    - s3notify_{service}_{count}_seconds_total: counts that are kept in milliseconds, and shown in seconds: `waited_ms`
      of deliveries and `behind_ms` of inlets. Such a count divided by the number of events is the mean time. An event
      without a time adds 0.
    - s3notify_requests_total: requests to S3, DynamoDB and SQS by service and operation. Retries inside obstore, and
      requests of Spark's tasks, are not counted.
    - s3notify_repeated_requests_total: the requests that repeat a failed request, by service.
    - s3notify_queue_depth, s3notify_queue_capacity, s3notify_queue_oldest_age_seconds, s3notify_queue_dead: by topic.

Needs the extra `metrics` (prometheus-client).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final

from s3notify_platform.channels.queue_gauges import queue_facts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import S3NotifyError, UsageError
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.stores.sdk import REPEATED, SENT

if TYPE_CHECKING:
    from prometheus_client import Metric

QUEUE_LOOK_SECONDS: Final = 60.0
"""Minimum time between two readings of the queue, even if the page is requested more often."""

KEPT_SECONDS: Final = 3 * QUEUE_LOOK_SECONDS
"""Age after which the numbers of a reading are no longer shown."""

MEASURED_TOPICS_MAX: Final = 100

GAUGES: Final = frozenset({"shards", "unusable_topics", "failing_slots"})
"""Counts that can also decrease."""


class Metrics:
    """A collector for one service. The page never waits for the store: a thread reads the queue's numbers, at most once
    a minute.

    So the queue's numbers are missing from the first page, and from later pages while the queue is not reachable.
    """

    def __init__(
        self,
        service: str,
        counts: Callable[[], Mapping[str, int]],
        queue: NotificationQueue | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._service = service
        self._counts = counts
        self._queue = queue
        self._clock = clock
        self._looking = Lock()
        self._looked_at: float | None = None
        self._topics: Mapping[str, Mapping[str, float]] = {}

    def collect(self) -> Iterator["Metric"]:
        """See `prometheus_client.registry.Collector`."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, number in self._counts().items():
            place, about = (
                f"s3notify_{self._service}_{name}",
                f"{name} of {self._service}, see the service's --help",
            )
            if name in GAUGES:
                yield GaugeMetricFamily(place, about, value=number)
            elif name.endswith("_ms"):
                yield CounterMetricFamily(f"{place.removesuffix('_ms')}_seconds", about, value=number / 1000)
            else:
                yield CounterMetricFamily(place, about, value=number)
        requests = CounterMetricFamily(
            "s3notify_requests", "Requests that were sent", labels=("service", "operation")
        )
        for (service, operation), number in dict(SENT).items():
            requests.add_metric((service, operation), number)
        yield requests
        repeated = CounterMetricFamily(
            "s3notify_repeated_requests", "Requests that repeat a failed request", labels=("service",)
        )
        for service, number in dict(REPEATED).items():
            repeated.add_metric((service,), number)
        yield repeated
        for fact, about in _QUEUE_FACTS.items():
            gauge = GaugeMetricFamily(f"s3notify_queue_{fact}", about, labels=("topic",))
            for topic, facts in self._queue_facts().items():
                gauge.add_metric((topic,), facts[fact])
            yield gauge

    def _queue_facts(self) -> Mapping[str, Mapping[str, float]]:
        """Numbers of each topic from the last reading, if it is recent enough. Starts a new reading if a reading is
        due; never waits.
        """
        age = None if self._looked_at is None else self._clock.monotonic() - self._looked_at
        due = self._queue is not None and (age is None or age >= QUEUE_LOOK_SECONDS)
        if due and self._looking.acquire(blocking=False):
            Thread(target=self._look, name="metrics", daemon=True).start()
        return self._topics if age is not None and age < KEPT_SECONDS else {}

    def _look(self) -> None:
        assert self._queue is not None
        found: dict[str, Mapping[str, float]] = {}
        try:
            for topic in islice(self._queue.topics.all(), MEASURED_TOPICS_MAX):
                with suppress(S3NotifyError):  # an error of one topic does not hide the others
                    found[topic.name] = queue_facts(self._queue, topic)
        except S3NotifyError:
            found = {}
        finally:
            self._topics, self._looked_at = found, self._clock.monotonic()
            self._looking.release()


_QUEUE_FACTS: Final = {
    "depth": "Entries in the queue",
    "capacity": "Maximum number of entries",
    "oldest_age_seconds": "Age of the oldest entry",
    "dead": "Dead letters",
}


@contextmanager
def served(address: str | None, metrics: Metrics) -> Iterator[None]:
    """Serves the metrics at `http://ADDRESS/metrics` within the context; if `address` is None, nothing is served.

    `address`: `HOST:PORT`. `UsageError` if the address is in use, or not an address.
    """
    if address is None:
        yield
        return
    from prometheus_client import CollectorRegistry, start_http_server

    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise UsageError(f"--metrics {address!r}: give HOST:PORT, like 127.0.0.1:9464")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        raise UsageError(f"--metrics {address}: {error.strerror or error}; choose another port") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
