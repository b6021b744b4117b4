"""The opener of stores: all code outside `stores` gets its stores here, and uses them through the ports.

A new kind of store is a file, and an item in `kinds.KINDS`.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Final, Literal, Protocol
from urllib.parse import urlsplit

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.ports import ObjectStore, RecordStore
from s3notify_platform.protocols import notification_queue
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.config import QUEUE_PREFIX, DynamoConfig, S3Config
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.dynamodb.record_store import DynamoRecordStore
from s3notify_platform.stores.kinds import KINDS

if TYPE_CHECKING:
    from obstore.store import S3Store


_ALIASES: Final = {"s3a": "s3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The parts of a URL like s3://acme-landing/raw/."""

    scheme: str
    bucket: str
    prefix: str


def place_of(url: str) -> Place:
    """The parts of a URL. `UsageError` if the URL's scheme names no kind of store, or if the URL has no bucket."""
    found = urlsplit(url)
    scheme = _ALIASES.get(found.scheme, found.scheme)
    if scheme not in KINDS or not found.netloc:
        raise UsageError(
            f"{url!r} is not the URL of a bucket: give s3://bucket/prefix (schemes: {', '.join(sorted(KINDS))})"
        )
    return Place(scheme=scheme, bucket=found.netloc, prefix=found.path.removeprefix("/"))


def open_store(place: S3Config | str) -> ObjectStore:
    """The store of a bucket; `place` is its configuration, or a URL like s3://acme-landing. No request.

    Each process keeps one store, with its connections, for each bucket: creating a client takes 0.1 s.
    """
    if isinstance(place, str):
        named = place_of(place)
        if named.prefix:
            raise UsageError(f"{place!r}: a store is a whole bucket: leave out the prefix {named.prefix!r}")
        place = S3Config(bucket=named.bucket, scheme=named.scheme)
    return _opened(place)


class Tags(Protocol):
    """The tags of one bucket's object versions."""

    def check_versioned(self) -> None:
        """Raises `UsageError` if the bucket does not give each new object a version id."""
        ...

    def add(
        self, key: str, version_id: str, tags: Mapping[str, str]
    ) -> Literal["added", "there", "gone", "full"]:
        """Adds tags to this version, and keeps the version's other tags. Returns `full` if the version would have too
        many tags. `UnavailableError`: the tags may have been added; repeat the call.
        """
        ...


def open_tags(config: S3Config) -> Tags:
    """The reader and writer of a bucket's object tags. No request. `UsageError` if the kind of store has no tags."""
    if not (path := KINDS[config.scheme].tags):
        raise UsageError(f"{config.place}: this kind of store has no tags: leave out committed_tags")
    tags: Tags = resolve_name(path)(config)
    return tags


class _Refusing(Protocol):
    def refusal(self, key: str) -> str: ...


def refusal_of(store: ObjectStore | _Refusing, key: str) -> str:
    """The reason why the store refuses to return this object; "" if the store does not refuse, or gives no reasons.
    Cost: 1 GET.
    """
    return store.refusal(key) if hasattr(store, "refusal") else ""


def address_of(place: S3Config) -> str:
    """The URL that the requests to a bucket go to. If the kind of store has no such URL: the bucket's URL. No
    request. `UsageError` if the configuration is invalid, or if credentials are missing.
    """
    return str(getattr(open_store(place), "endpoint_url", place.url()))


@lru_cache(maxsize=32)
def _opened(config: S3Config) -> ObjectStore:
    if config.scheme not in KINDS:
        raise UsageError(f"scheme={config.scheme!r}: use one of {', '.join(sorted(KINDS))}")
    store: ObjectStore = resolve_name(KINDS[config.scheme].store)(config)
    return store


def open_reader(config: S3Config) -> "S3Store | None":
    """A client of obstore, for the hot read path. None if this kind of store has no such client. No request."""
    if not (path := KINDS[config.scheme].obstore):
        return None
    reader: S3Store = resolve_name(path)(config)
    return reader


def open_records(
    bucket: S3Config,
    prefix: str,
    table: DynamoConfig | None = None,
    *,
    store: ObjectStore | None = None,
    keys_recur: bool | Callable[[str], bool] = True,
    parallelism: int = 1,
) -> RecordStore:
    """Records in `table`. Without `table`: records below `prefix` of the bucket; `store` is the bucket's store, if the
    caller has one. No request.

    In the table, names of partitions begin with the bucket and the prefix. `keys_recur`, `parallelism`: see
    `ObjectRecordStore`.
    """
    if table is not None:
        return _in_table(table, f"{bucket.bucket}/{prefix}")
    if store is not None:
        return ObjectRecordStore(
            store,
            prefix,
            keys_recur=keys_recur,
            parallelism=parallelism,
            honours_delete=partial(_HONOUR_DELETE.__contains__, bucket),
        )
    return _on_bucket(bucket, prefix, keys_recur, parallelism)


def note_conditional_delete(bucket: S3Config) -> None:
    """Notes the finding of a probe: the bucket honours conditions on DELETE. So the record stores of this process do
    not test this again. No request.
    """
    _HONOUR_DELETE.add(bucket)


_HONOUR_DELETE: Final[set[S3Config]] = set()
"""The buckets for which `note_conditional_delete` was called."""


@lru_cache(maxsize=32)
def _in_table(config: DynamoConfig, scope: str) -> DynamoRecordStore:
    """One client for each table and process, because creating a client takes 0.1 s."""
    return DynamoRecordStore(config, scope=scope)


@lru_cache(maxsize=32)
def _on_bucket(
    bucket: S3Config, prefix: str, keys_recur: bool | Callable[[str], bool], parallelism: int
) -> ObjectRecordStore:
    """Each process has one `ObjectRecordStore` for each prefix, because such an object caches counters, and remembers
    if the store honours a conditional DELETE.
    """
    return ObjectRecordStore(
        _counting(bucket),
        prefix,
        keys_recur=keys_recur,
        parallelism=parallelism,
        honours_delete=partial(_HONOUR_DELETE.__contains__, bucket),
    )


@lru_cache(maxsize=32)
def _counting(bucket: S3Config) -> CountingStore:
    """Each process has one counter of the requests for all records on a bucket."""
    return CountingStore(open_store(bucket))


def record_requests(bucket: S3Config) -> Counter[str]:
    """The numbers of requests that this process has sent for records on this bucket, by operation. These are the
    records of the queue, ack chains, heartbeats and others. Requests through a caller's own `store` are not counted.
    No request.
    """
    return Counter(_counting(bucket).counts)


def queue_records(
    platform: S3Config,
    prefix: str = QUEUE_PREFIX,
    table: DynamoConfig | None = None,
    *,
    store: ObjectStore | None = None,
) -> RecordStore:
    """The records of a bucket's notification queue: in `table` if given, else below `prefix` of the bucket.

    Writers, inlets, outlets and sources of one bucket must name the same place. The table and the bucket both enforce
    the queue's quota strictly. On a bucket, a counter is changed by compare-and-set, so its writers take turns.
    """
    if not prefix.endswith("/"):
        raise UsageError(f"queue_prefix {prefix!r}: end it with '/'")
    return open_records(
        platform,
        prefix,
        table,
        store=store,
        keys_recur=notification_queue.keys_recur,
        parallelism=REQUESTS_IN_FLIGHT,
    )
