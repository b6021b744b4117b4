"""A publisher from names alone, for programs that write."""

from dataclasses import replace
from typing import Any

from s3notify_platform.channels.publisher import QueuedPublisher
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.slots import SLOT_COUNT
from s3notify_platform.stores.config import OWN, QUEUE_PREFIX, DynamoConfig, S3Config
from s3notify_platform.stores.queue_records import queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.own import own_prefixes


def open_publisher(
    source: str,
    *,
    bucket: str,
    platform_bucket: str | None = None,
    platform_prefix: str = "",
    keyspace_prefix: str = "",
    queue_prefix: str = QUEUE_PREFIX,
    records_table: DynamoConfig | None = None,
    slots: int = SLOT_COUNT,
    **access: Any,
) -> QueuedPublisher:
    """A publisher of objects of `bucket` that the source named `source` reads. No request; share it between threads.

    The other settings are those of the source: give those that it has. `access`: fields of `stores.config.S3Config`,
    like region, endpoint_url, profile; credentials are boto3's. Several sources of a bucket: `QueuedPublisher`.
    """
    config = S3Config(bucket=bucket, **access)
    platform = replace(config, bucket=platform_bucket or bucket)
    own_prefix = platform_prefix or f"{OWN}{source}/"
    signals_prefix = keyspace_prefix or f"{own_prefix}keyspace/"
    signals = Publisher(
        S3ObjectStore(config),
        None if platform == config else S3ObjectStore(platform),
        prefix=signals_prefix,
        slots=slots,
        own=own_prefixes(
            bucket,
            platform_bucket=platform.bucket,
            platform_prefix=own_prefix,
            keyspace_prefix=signals_prefix,
            queue_prefix=queue_prefix,
        ),
    )
    queue = NotificationQueue(queue_records(platform, queue_prefix, records_table))
    return QueuedPublisher(signals, queue, bucket=bucket, topic=source)
