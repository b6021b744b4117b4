"""Delivery in a process of its own, to be measured and killed. Stand-in for `channels.delivery.Delivery`.

`serve` is all that the real one replaces: it is given the queue, and delivers its pushed topics until it is told to
stop. `python -m tests.support.outlet_process` reads where the queue stands from its standard input.
"""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import urllib3

from s3notify_platform.errors import FencedError, UnavailableError, UnknownOutcomeError
from s3notify_platform.protocols.notification_queue import (
    Drain,
    Lease,
    NotificationQueue,
    Worker,
    encode_events,
)
from s3notify_platform.protocols.notification_queue.owners import BEAT_SECONDS
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.stores.queue_records import queue_records

BATCH = 50
IDLE_SECONDS = 0.2
RETRY_CEILING_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a queue stands: a bucket, and a table if its records are not on it."""

    bucket: S3Config
    table: DynamoConfig | None = None

    def queue(self) -> NotificationQueue:
        return NotificationQueue(queue_records(self.bucket, table=self.table))


def endpoint(url: str) -> str:
    """What `TopicSettings.endpoint` holds for this address."""
    return json.dumps({"url": url})


def serve(queue: NotificationQueue, stop: threading.Event) -> None:
    """Deliver every topic that has an endpoint."""
    worker = Worker(queue)
    serving: dict[Lease, threading.Thread] = {}
    pool = urllib3.PoolManager(maxsize=64, retries=False, timeout=10.0)
    while not stop.is_set():
        with contextlib.suppress(UnavailableError, UnknownOutcomeError):
            worker.balance(busy=list(serving))
        for lease in worker.leases:
            if lease not in serving or not serving[lease].is_alive():
                serving[lease] = threading.Thread(
                    target=_drain, args=(worker, lease, pool, stop), daemon=True
                )
                serving[lease].start()
        stop.wait(BEAT_SECONDS)
    for thread in serving.values():
        thread.join()
    worker.stop()


def _drain(worker: Worker, lease: Lease, pool: urllib3.PoolManager, stop: threading.Event) -> None:
    drain = Drain(worker, lease, retry_ceiling_seconds=RETRY_CEILING_SECONDS)
    url = json.loads(worker.topic(lease).settings.endpoint)["url"]
    while not stop.is_set():
        try:
            taken = drain.take(BATCH)
            if not taken:
                stop.wait(IDLE_SECONDS)
                continue
            error = _post(pool, url, encode_events(entry.event for entry in taken))
            if error:
                for entry in taken:
                    drain.failed(entry, error)
            else:
                drain.done(taken)
        except FencedError:
            return
        except (UnavailableError, UnknownOutcomeError):
            stop.wait(IDLE_SECONDS)


def _post(pool: urllib3.PoolManager, url: str, body: bytes) -> str:
    """Why it was not taken; empty if it was."""
    try:
        answer = pool.request("POST", url, body=body, headers={"content-type": "application/json"})
    except urllib3.exceptions.HTTPError as error:
        return type(error).__name__
    return "" if 200 <= answer.status < 300 else str(answer.status)


@contextlib.contextmanager
def delivering(place: Place) -> Iterator[subprocess.Popen[str]]:
    """A process that serves the place's queue; killed at the end, if it still lives."""
    command = [sys.executable, "-m", "tests.support.outlet_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(_as_json(place)) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def _as_json(place: Place) -> dict[str, Any]:
    return {"bucket": asdict(place.bucket), "table": asdict(place.table) if place.table else None}


def _main() -> None:
    told = json.loads(sys.stdin.readline())
    table = DynamoConfig(**told["table"]) if told["table"] else None
    queue = Place(bucket=S3Config(**told["bucket"]), table=table).queue()
    print("ready", flush=True)
    serve(queue, threading.Event())


if __name__ == "__main__":
    _main()
