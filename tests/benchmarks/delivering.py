"""(6) Delivery to an HTTP endpoint, by `s3notify deliver` on a bucket alone: a backlog, outages, an owner killed."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from s3notify_platform.channels.endpoint import Endpoint
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, TopicSettings
from s3notify_platform.stores.queue_records import queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.benchmarks.figures import Figure, short
from tests.support.endpoints import Receiver

BATCH = 500
OUTAGES = (1, 10, 60)


class Place:
    """A bucket of its own with one topic of 8 shards, pushed to a receiver on loopback."""

    def __init__(self, server: LocalS3Server, bucket: str, url: str) -> None:
        config = server.config(bucket)
        with closing(S3ObjectStore(config)) as store:
            store.create_bucket()
        self.queue = NotificationQueue(queue_records(config))
        self.queue.topics.create(
            "t", TopicSettings(capacity=100_000, endpoint=Endpoint(url=url).dumps(), max_attempts=3)
        )
        self._command = [
            *(sys.executable, "-m", "s3notify_platform.cli", "deliver", "--bucket", bucket),
            *("--endpoint-url", server.endpoint_url, "--allow-network", "127.0.0.0/8", "--allow-http"),
        ]
        self._environment = os.environ | {
            "AWS_ACCESS_KEY_ID": config.access_key_id or "",
            "AWS_SECRET_ACCESS_KEY": config.secret_access_key or "",
        }
        self._pushed = 0

    def push(self, count: int) -> None:
        for first in range(self._pushed, self._pushed + count, BATCH):
            last = min(first + BATCH, self._pushed + count)
            self.queue.push_many("t", [Event(key=f"raw/{n:06}", bucket="b") for n in range(first, last)])
        self._pushed += count

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        with subprocess.Popen(self._command, env=self._environment, stderr=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.terminate()


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    outages = OUTAGES[:1] if small else OUTAGES
    return [
        _backlog(server, 100 if small else 2000),
        *(_outage(server, down, 50 if small else 500) for down in outages),
        _killed(server, 50 if small else 500),
    ]


def _backlog(server: LocalS3Server, count: int) -> Figure:
    with Receiver().serving() as hook:
        place = Place(server, "deliver-backlog", hook.url)
        started = time.perf_counter()
        place.push(count)
        pushed = time.perf_counter() - started
        with place.worker():
            hook.wait(lambda seen: len(seen.keys) > 0, 60)
            started, before = time.perf_counter(), len(hook.keys)
            hook.wait(lambda seen: len(seen.keys) == count, 600)
            taken = time.perf_counter() - started
    return Figure(
        what=f"{count:,} entries on a bucket alone: reserve + commit, then delivered by one worker",
        ours=f"{count / pushed:.0f}/s in, {(count - before) / taken:.0f}/s out",
        instead="–",
        ratio="–",
    )


def _outage(server: LocalS3Server, down: int, count: int) -> Figure:
    first, closing_first = Receiver(), ExitStack()
    closing_first.enter_context(first.serving())
    place = Place(server, f"deliver-outage-{down}", first.url)
    with place.worker():
        place.push(20)
        while place.queue.stats("t").depth:
            time.sleep(0.1)
        closing_first.close()
        ends = time.perf_counter() + down
        place.push(count)
        time.sleep(max(0.0, ends - time.perf_counter()))
        with Receiver(port=first.port).serving() as again:
            started = time.perf_counter()
            again.wait(lambda seen: len(seen.keys) == count, 600)
            taken = time.perf_counter() - started
            time.sleep(1)  # for removals, and for what would come twice
    stats = place.queue.stats("t")
    twice = sum(again.seen.values()) - count
    return Figure(
        what=f"endpoint down for {down} s, {count} entries written meanwhile: until all are delivered",
        ours=f"{short(taken)}; {stats.depth + stats.dead} lost, {twice} twice",
        instead="–",
        ratio="–",
    )


def _killed(server: LocalS3Server, count: int) -> Figure:
    with Receiver(delay=0.02).serving() as hook:
        place = Place(server, "deliver-killed", hook.url)
        with place.worker() as owner:
            place.push(count)
            hook.wait(lambda seen: len(seen.keys) > 10, 60)
            with place.worker():
                owner.kill()
                killed = time.perf_counter()
                owner.wait()
                place.push(16)
                hook.wait(lambda seen: len(seen.keys) == count + 16, 600)
                taken = time.perf_counter() - killed
        twice = sum(hook.seen.values()) - count - 16
    return Figure(
        what="the only owner killed (SIGKILL), another one there: until all is delivered that was and is written",
        ours=f"{short(taken)}; 0 lost, {twice} twice",
        instead="–",
        ratio="–",
    )


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder, LocalS3Server(Path(folder)) as local:
        for figure in run(local, small="--small" in sys.argv):
            print(" | ".join(figure.cells()), flush=True)
