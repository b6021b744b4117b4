"""Writers that are killed. A separate process forks the writers.

    python -m tests.support.programs.dying_writer steps      one writer after another; each is killed at its nth store
                                                             call, where n is one more than for the previous writer
    python -m tests.support.programs.dying_writer streams    as steps, with streams that are uploaded
    python -m tests.support.programs.dying_writer files      as steps, with files, in parts
    python -m tests.support.programs.dying_writer copies     as steps, with copies of `SOURCE` by one request
    python -m tests.support.programs.dying_writer parts      as steps, with copies of `SOURCE` as an upload
    python -m tests.support.programs.dying_writer loop       one writer that publishes batches until it is killed

Reads a bucket's configuration as JSON from its standard input. Writers are killed by SIGKILL, so no handler runs.
"""

import io
import itertools
import json
import os
import signal
import sys
import tempfile

from s3notify_platform.channels.publish.pending_change import Refused
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.ports import ABSENT, Written
from s3notify_platform.protocols.keyspace import Delete, Publisher, Put, uploads
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings, keys_recur
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.config import QUEUE_PREFIX, S3Config
from s3notify_platform.stores.s3.fast import FastObjectStore

KS = "ks/"
STALE_SECONDS = 6.0
SOURCE = "source"
"""The key of the object that is copied."""
TOPICS = {
    "all": TopicSettings(capacity=2000, shards=2),
    "raw": TopicSettings(capacity=2000, shards=1, prefix="raw/"),
}


class DyingStore:
    """A wrapper of a store. The process of the wrapper dies before the nth call."""

    def __init__(self, store, calls):
        self._store = store
        self._left = calls

    def __getattr__(self, method):
        function = getattr(self._store, method)

        def call(*args, **kwargs):
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call


def publisher_of(store, calls=None, parallelism=16):
    bucket, store = store.config.bucket, DyingStore(store, calls)
    records = ObjectRecordStore(store, QUEUE_PREFIX, keys_recur=keys_recur)
    queue = NotificationQueue(records, parallelism=parallelism, stale_seconds=STALE_SECONDS)
    plain = Publisher(store, prefix=KS, parallelism=parallelism)
    return QueuedPublisher(plain, queue, bucket=bucket)


def persistent(publisher, changes):
    """Publishes again until all changes are written. On a slow machine, the publisher may refuse changes that are too
    late.
    """
    while changes:
        outcomes = publisher.publish(changes)
        changes = [c for c, outcome in zip(changes, outcomes, strict=True) if isinstance(outcome, Refused)]
        SYSTEM_CLOCK.sleep(0.1 if changes else 0)


def batch(publisher, calls):
    persistent(
        publisher,
        [
            Put(key=f"raw/{calls}", body=b"%d" % calls),
            Put(key=f"else/{calls}", body=b"%d" % calls),
            Delete(key=f"raw/old {calls}"),
        ],
    )


def upload(publisher, calls):
    uploads.PART_BYTES = 4  # so the body has only one part, because all parts except the last need 5 MiB
    assert isinstance(publisher.put_stream(f"raw/{calls}", io.BytesIO(b"%04d" % calls)), Written)


def put_file(publisher, calls):
    """Puts a file. The file has no name in a folder, because after a kill no process would remove it."""
    with tempfile.TemporaryFile() as file:
        file.write(b"%04d" % calls)
        file.truncate(uploads.PART_BYTES + 1)
        file.seek(0)
        assert isinstance(publisher.put_file(f"raw/{calls}", f"/dev/fd/{file.fileno()}"), Written)


def copy(publisher, calls):
    assert isinstance(publisher.copy(f"raw/{calls}", "", SOURCE), Written)


def copy_parts(publisher, calls):
    """Copies with a precondition. A copy with a precondition is done as an upload."""
    assert isinstance(publisher.copy(f"raw/{calls}", "", SOURCE, precondition=ABSENT), Written)


def steps(config, act):
    """Forks one writer after another, until a writer succeeds. Prints the number of killed writers."""
    # The store is made only once, because this takes long. No connection is open when a child is forked.
    store = FastObjectStore(config)
    assert store.store.client
    for calls in itertools.count():
        child = os.fork()
        if child == 0:
            act(publisher_of(store, calls, parallelism=1), calls)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            print(calls if os.WEXITSTATUS(status) == 0 else "failed", flush=True)
            return


def loop(config):
    publisher = publisher_of(FastObjectStore(config))
    name = os.getpid()
    for number in itertools.count():
        changes = [Put(key=f"raw/{name}.{number}.{n}", body=b"%d" % n) for n in range(5)]
        changes += [Put(key=f"raw/{name}", body=b"%d" % number), Put(key=f"else/{name}", body=b"%d" % number)]
        if number > 1:
            changes.append(Delete(key=f"raw/{name}.{number - 1}.0"))
        persistent(publisher, changes)
        print(number, flush=True)


if __name__ == "__main__":
    acts = {"steps": batch, "streams": upload, "files": put_file, "copies": copy, "parts": copy_parts}
    place = S3Config(**json.loads(sys.stdin.readline()))
    if sys.argv[1] == "loop":
        loop(place)
    else:
        steps(place, acts[sys.argv[1]])
