"""A program that needs only the package without extras. The program publishes to a bucket, follows the changes, and
prints the changed slots.
"""

import json
import sys

from s3notify_platform.channels import open_publisher
from s3notify_platform.protocols.keyspace import Put, Watcher
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.open_store import queue_records
from s3notify_platform.stores.s3 import S3ObjectStore

if __name__ == "__main__":
    bucket = S3Config(bucket=sys.argv[1], endpoint_url=sys.argv[2])
    queue = NotificationQueue(queue_records(bucket))
    queue.topics.create("orders", TopicSettings(bucket=bucket.bucket, prefix="raw/"))
    publisher = open_publisher("orders", bucket=bucket.bucket, endpoint_url=bucket.endpoint_url)
    watcher = Watcher(S3ObjectStore(bucket), prefix="_s3notify/orders/keyspace/")
    watcher.poll()
    publisher.put("raw/1.jsonl", b"{}\n")
    publisher.publish([Put(key=f"raw/{n}.jsonl", body=b"{}\n") for n in range(2, 5)])
    changed = watcher.poll()
    print(json.dumps({"changed": sorted(changed.changed), "pending": queue.stats("orders").depth}))
