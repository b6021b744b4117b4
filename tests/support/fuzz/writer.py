"""A writer of the fuzz run, as a separate process: `python -m … JSON`. After a kill, a new process continues where the
killed one ended.

Credentials are in the environment. The ways to write are:

    queued  `QueuedPublisher`. After a kill nothing is repeated, because the reconciler resolves the outcome.
    sqs     a plain PUT or DELETE, then S3's event message to SQS, repeated after a kill, since S3 would send it again.
    http    a plain PUT or DELETE, then a post to the inlet, repeated until 2xx, as RGW and MinIO do.
    plain   `keyspace.Publisher`, repeated after a kill. Otherwise only the sweep would find an object whose signal was
            not sent.
"""

import base64
import http.client
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote_plus

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from s3notify_platform.channels.publish.pending_change import Refused
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.errors import S3NotifyError, UsageError
from s3notify_platform.kernel.ports import Unknown, Written
from s3notify_platform.protocols.keyspace import NotSignalledError, Publisher
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.open_store import open_store, queue_records
from tests.support.fuzz.operations import (
    BUCKET,
    HTTP,
    KEYSPACE,
    PLAIN,
    QUEUED,
    SECRET_ENV,
    SQS,
    STALE_SECONDS,
    Journal,
    Operation,
    Phase,
    read_journal,
)

PAUSE_SECONDS = 0.2


class Writer:
    def __init__(self, given):
        config = S3Config(bucket=BUCKET, endpoint_url=given["endpoint_url"])
        self.store = open_store(config)
        self.plain = Publisher(self.store, prefix=KEYSPACE)
        queue = NotificationQueue(queue_records(config), stale_seconds=STALE_SECONDS)
        self.queued = QueuedPublisher(self.plain, queue, bucket=BUCKET)
        self.sqs = boto3.client(
            "sqs", endpoint_url=given["sqs_url"], region_name="us-east-1",
            aws_access_key_id="test", aws_secret_access_key="test",
        )  # fmt: skip
        self.queue_url = given["queue_url"]
        self.port = given["http_port"]
        self.connection = None
        self.secret = os.environ[SECRET_ENV]

    def apply(self, operation: Operation) -> bool:
        """Applies the operation. Returns True if the operation is confirmed, and False if the reconciler must resolve
        its outcome.
        """
        if operation.way == QUEUED:
            return self.by_queue(operation)
        if operation.way == PLAIN:
            self.until_done(lambda: self.change(self.plain, operation))
            return True
        self.until_done(lambda: self.change(self.store, operation))
        tell = {SQS: self.by_sqs, HTTP: self.by_http}[operation.way]
        sequencer = f"{time.time_ns():016X}"
        for _ in range(2 if operation.twice else 1):
            tell(operation, sequencer)
        return True

    def change(self, through, operation):
        if operation.body is None:
            return through.delete(operation.key)
        return through.put(operation.key, operation.body)

    def until_done(self, change):
        """Makes a change as an unqueued writer does. A change that failed, or whose outcome is unknown, is repeated."""
        while True:
            try:
                if isinstance(change(), Written):
                    return
            except UsageError:
                raise
            except S3NotifyError:
                pass
            time.sleep(PAUSE_SECONDS)

    def by_queue(self, operation):
        while True:
            try:
                outcome = self.change(self.queued, operation)
            except NotSignalledError:
                return False
            except UsageError:
                raise
            except S3NotifyError:
                time.sleep(PAUSE_SECONDS)  # nothing was reserved or written
                continue
            match outcome:
                case Refused(retry_after_seconds=seconds):
                    time.sleep(seconds)
                case Unknown():
                    return False
                case _:
                    return True

    def by_sqs(self, operation, sequencer):
        body = message(operation, sequencer, "aws:s3", quote_plus(operation.key, safe="/"))
        while True:
            try:
                self.sqs.send_message(QueueUrl=self.queue_url, MessageBody=body)
            except (BotoCoreError, ClientError):
                time.sleep(PAUSE_SECONDS)
            else:
                return

    def by_http(self, operation, sequencer):
        # Ceph sends keys unchanged; MinIO encodes keys. Ceph and MinIO also send the secret in different ways.
        if operation.number % 2:
            body = message(operation, sequencer, "ceph:s3", operation.key)
            authorization = "Basic " + base64.b64encode(f"any:{self.secret}".encode()).decode()
        else:
            body = message(operation, sequencer, "minio:s3", quote_plus(operation.key, safe="/"))
            authorization = f"Bearer {self.secret}"
        while not self.posted(body, authorization):
            time.sleep(PAUSE_SECONDS)

    def posted(self, body, authorization):
        try:
            if self.connection is None:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
            headers = {"authorization": authorization, "content-type": "application/json"}
            self.connection.request("POST", "/", body.encode(), headers)
            answer = self.connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            with suppress(OSError):
                self.connection.close()
            self.connection = None
            return False
        assert answer.status not in (400, 401, 403, 404, 413), answer.status
        return 200 <= answer.status < 300


def message(operation, sequencer, source, key):
    """An event message as S3 and similar servers send it."""
    name = "ObjectCreated:Put" if operation.body is not None else "ObjectRemoved:Delete"
    found = {"key": key, "sequencer": sequencer}
    if operation.body is not None:
        found |= {"size": len(operation.body), "eTag": operation.etag}
    s3 = {"s3SchemaVersion": "1.0", "bucket": {"name": BUCKET}, "object": found}
    record = {"eventVersion": "2.1", "eventSource": source, "eventName": name, "s3": s3}
    return json.dumps({"Records": [record]})


def main(given):
    phase, number = Phase(**given["phase"]), given["writer"]
    path = Path(given["journal"])
    known = {n: what for n, what in read_journal(path).items() if n >= phase.first}
    journal, writer = Journal(path), Writer(given)
    begin = phase.first
    if known:
        last = max(known)
        repeated = known[last] == "begin" and phase.draw(number, last).way != QUEUED
        begin = last if repeated else last + 1
    for n in range(begin, phase.last):
        journal.note("begin", n)
        journal.note("done" if writer.apply(phase.draw(number, n)) else "doubt", n)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
