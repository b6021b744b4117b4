"""`s3notify reconcile` with short timeouts for tests: `python -m … S3_ENDPOINT`. Credentials are in the environment."""

import sys

from s3notify_platform.channels.reconcile.reconciler_service import Keyspace, ReconcilerService
from s3notify_platform.cli.ending import run_in_foreground
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.open_store import open_store, queue_records
from tests.support.fuzz.operations import BUCKET, KEYSPACE, PREFIX, STALE_SECONDS


def main(endpoint_url):
    config = S3Config(bucket=BUCKET, endpoint_url=endpoint_url)
    store = open_store(config)
    reconciler = ReconcilerService(
        NotificationQueue(queue_records(config), stale_seconds=STALE_SECONDS),
        store,
        [Keyspace(publisher=Publisher(store, prefix=KEYSPACE), prefix=PREFIX)],
        bucket=BUCKET,
        pass_seconds=2,
        unsignalled_seconds=5,
        doubtful_seconds=20,
    )
    run_in_foreground(reconciler)


if __name__ == "__main__":
    main(sys.argv[1])
