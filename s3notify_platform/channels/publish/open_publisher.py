"""A publisher made from the names of a source and its bucket, for programs that write objects."""

from typing import Any

from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.setting import given_of, values_in
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.source.bucket_settings import Keys, bucket_of, platform_of, table_of
from s3notify_platform.source.settings import SETTINGS, LocationSettings
from s3notify_platform.stores.open_store import open_store, queue_records


def open_publisher(
    source: str, *, bucket: str, keys: Keys | None = None, egress: Egress | None = None, **settings: Any
) -> QueuedPublisher:
    """A publisher that writes objects to `bucket`, for the source named `source`. The call makes no request. Share the
    publisher between threads.

    `settings`: the source's settings, like platform_bucket, keyspace_prefix, records_table, slots, region,
    endpoint_url, profile. The credentials are `keys`, or the credentials that boto3 finds. `egress`: the endpoints that
    topics without a queue may have. `UsageError` for invalid settings. For several sources of a bucket use
    `QueuedPublisher`.
    """
    values = values_in({"name": source, "bucket": bucket, **settings}, SETTINGS)
    place = LocationSettings(**given_of(values, LocationSettings))
    config = bucket_of(values, keys)
    platform = platform_of(values, config)
    signals = Publisher(
        open_store(config),
        None if platform == config else open_store(platform),
        prefix=place.keyspace_prefix,
        slots=place.slots,
        own=place.own_prefixes_in(bucket, platform_bucket=platform.bucket),
    )
    queue = NotificationQueue(queue_records(platform, place.queue_prefix, table_of(values, "records_table")))
    return QueuedPublisher(signals, queue, bucket=bucket, topic=source, egress=egress)
