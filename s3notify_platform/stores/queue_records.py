"""Where the notification queue of a bucket is stored: below a prefix of the platform's bucket, or in DynamoDB."""

from functools import lru_cache
from typing import Final

from s3notify_platform.errors import UsageError
from s3notify_platform.ports import ObjectStore, RecordStore
from s3notify_platform.protocols.notification_queue import keys_recur
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.config import QUEUE_PREFIX, DynamoConfig, S3Config
from s3notify_platform.stores.dynamodb.record_store import DynamoRecordStore
from s3notify_platform.stores.s3.fast import shared_store

READS_IN_FLIGHT: Final = 16


def queue_records(
    platform: S3Config,
    prefix: str = QUEUE_PREFIX,
    table: DynamoConfig | None = None,
    *,
    store: ObjectStore | None = None,
) -> RecordStore:
    """The records of the queue: in `table` if there is one, else below `prefix` of the bucket, through `store`.

    Writers, inlets, outlets and sources of one bucket must name the same place. The queue's bound is strict in both. On
    a bucket alone a counter is changed by compare-and-set, so its writers take turns.
    """
    if not prefix.endswith("/"):
        raise UsageError(f"queue_prefix {prefix!r}: end it with '/'")
    if table is not None:
        return records_of(table, f"{platform.bucket}/{prefix}")
    return _on_bucket(store, prefix) if store is not None else _shared(platform, prefix)


@lru_cache(maxsize=32)
def _shared(platform: S3Config, prefix: str) -> ObjectRecordStore:
    """One for each place and process, since it knows what the store honours, and its counters."""
    return _on_bucket(shared_store(platform), prefix)


def _on_bucket(store: ObjectStore, prefix: str) -> ObjectRecordStore:
    return ObjectRecordStore(store, prefix, keys_recur=keys_recur, parallelism=READS_IN_FLIGHT)


@lru_cache(maxsize=32)
def records_of(config: DynamoConfig, scope: str) -> DynamoRecordStore:
    """One client for each table and process: creating one takes 0.1 s."""
    return DynamoRecordStore(config, scope=scope)
