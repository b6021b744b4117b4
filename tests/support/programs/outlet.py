"""Delivery as `s3notify deliver` runs it, in a separate process that can be measured and killed.

`python -m tests.support.programs.outlet` reads the queue's place from its standard input, since credentials must not be
arguments.
"""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from s3notify_platform.channels.delivery.delivery_worker import Delivery
from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.stores.open_store import queue_records


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a queue: its bucket, and a DynamoDB table if the queue's records are not in the bucket."""

    bucket: S3Config
    table: DynamoConfig | None = None

    def queue(self) -> NotificationQueue:
        return NotificationQueue(queue_records(self.bucket, table=self.table))


def endpoint(url: str) -> str:
    """The value of `TopicSettings.endpoint` for this address."""
    return Endpoint(url=url).dumps()


@contextlib.contextmanager
def delivering(place: Place) -> Iterator[subprocess.Popen[str]]:
    """A process that delivers from the place's queue. At the end of the block, a running process is killed."""
    command = [sys.executable, "-m", "tests.support.programs.outlet"]
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
    given = json.loads(sys.stdin.readline())
    table = DynamoConfig(**given["table"]) if given["table"] else None
    queue = Place(bucket=S3Config(**given["bucket"]), table=table).queue()
    print("ready", flush=True)
    egress = Egress.of(["127.0.0.0/8"], allow_http=True)
    Delivery(queue, egress=egress).run(threading.Event(), lambda line: print(line, file=sys.stderr))


if __name__ == "__main__":
    _main()
