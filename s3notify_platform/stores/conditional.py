"""An object store whose conditional writes go through a `ConditionalCommit`, for stores that ignore conditions.

    bucket = S3Config(bucket="acme-landing")
    store = leased_store(bucket, DynamoConfig(table="acme-landing-leases"), LeaseSettings(timeout_seconds=5))
    store = leased_store(bucket, *leases_of("dynamo:acme-landing-leases:5000", bucket))     # the same
    Publisher(store, prefix=…).put_if_absent(…)

Guarantees. At most one of several writers with the same precondition on a key gets `Written`. All these writers must
use this class. Unconditional writes and all reads go directly to the store. `Unknown` is returned only if the commit
itself could not determine the outcome of a write. Requests: the requests of the commit.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, assert_never

from s3notify_platform.kernel.errors import UnknownOutcomeError, UsageError
from s3notify_platform.kernel.ports import (
    Absent,
    CopySource,
    IfMatch,
    Metadata,
    ObjectStore,
    Precondition,
    Unknown,
    UploadId,
    WriteOutcome,
)
from s3notify_platform.protocols.conditional_commit import (
    DEFAULT_LEASES,
    CommitOutcome,
    ConditionalCommit,
    DynamoCommit,
    LeaseSettings,
    lease_text,
)
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.stores.delegating import DelegatingStore
from s3notify_platform.stores.dynamodb.lease_table import DynamoLeases
from s3notify_platform.stores.s3 import S3ObjectStore

CONNECT_SHARE: Final = 1 / 8
READ_SHARE: Final = 1 / 4
"""Time limits of a connection and of an answer, as shares of the lease's timeout. A write under a lease is sent once,
and waits for its answer at most half of the timeout.
"""


@lru_cache(maxsize=32)
def dynamo_commit(
    bucket: S3Config, leases: DynamoConfig, settings: LeaseSettings = DEFAULT_LEASES
) -> DynamoCommit:
    """The commit for a bucket, with leases in a DynamoDB table. Clients are created once per process. No request."""
    if bucket.scheme != "s3":
        raise UsageError(f"{bucket.place}: leases are for stores of S3's API; use commit: native")
    store = S3ObjectStore(
        bucket,
        attempts=1,
        connect_seconds=settings.timeout_seconds * CONNECT_SHARE,
        read_seconds=settings.timeout_seconds * READ_SHARE,
    )
    return DynamoCommit(store, DynamoLeases(leases), settings=settings)


def leased_store(
    bucket: S3Config, leases: DynamoConfig, settings: LeaseSettings = DEFAULT_LEASES
) -> "ConditionalStore":
    """A bucket whose conditional writes use the leases in a DynamoDB table. No request.

    A lease cannot cancel a write: read "Limits" in `protocols.conditional_commit` before you rely on it.
    """
    return ConditionalStore(S3ObjectStore(bucket), dynamo_commit(bucket, leases, settings))


def leases_of(text: str, bucket: S3Config) -> tuple[DynamoConfig, LeaseSettings]:
    """The lease table and the lease times in a setting `dynamo:TABLE` or `dynamo:TABLE:MS`. Pure.

    The setting has the same meaning as in Rust's object_store. The table has the region, the credentials and the
    endpoint URL of the bucket. `UsageError` for any other text.
    """
    found = lease_text(text)
    table = DynamoConfig(
        table=found.table,
        endpoint_url=bucket.endpoint_url,
        region=bucket.region,
        **bucket.credentials,
    )
    times = {} if found.timeout_seconds is None else {"timeout_seconds": found.timeout_seconds}
    return table, LeaseSettings(**times)


class ConditionalStore(DelegatingStore):
    """A store whose conditional writes go through `commits`. Thread-safe if `store` and `commits` are."""

    def __init__(self, store: ObjectStore, commits: ConditionalCommit) -> None:
        super().__init__(store)
        self._commits = commits

    def put(
        self, key: str, body: bytes, *, precondition: Precondition | None = None, metadata: Metadata = None
    ) -> WriteOutcome:
        """See `ObjectStore.put`. If there is a condition, the object's metadata also names its writer."""
        match precondition:
            case None:
                return self.store.put(key, body, metadata=metadata)
            case Absent():
                return _outcome(lambda: self._commits.put_if_absent(key, body, metadata=metadata))
            case IfMatch(etag=etag):
                return _outcome(lambda: self._commits.put_if_match(key, body, etag, metadata=metadata))
            case _ as unreachable:
                assert_never(unreachable)

    def delete(self, key: str, *, precondition: IfMatch | None = None) -> WriteOutcome:
        if precondition is None:
            return self.store.delete(key)
        return _outcome(lambda: self._commits.delete_if_match(key, precondition.etag))

    def copy(
        self,
        source: str | CopySource,
        target: str,
        *,
        precondition: Absent | None = None,
        metadata: Metadata = None,
    ) -> WriteOutcome:
        """See `ObjectStore.copy`. A copy under a condition keeps the source's metadata. `UsageError` if such a copy has
        `metadata`, or if its `source` is a `CopySource`.
        """
        if precondition is None:
            return self.store.copy(source, target, metadata=metadata)
        if metadata is not None or not isinstance(source, str):
            raise UsageError(
                f"copy of {source!r} under a condition keeps the source's metadata: put the object instead"
            )
        return _outcome(lambda: self._commits.copy_if_absent(source, target))

    def begin_upload(
        self,
        key: str,
        *,
        precondition: Precondition | None = None,
        metadata: Metadata = None,
        source: CopySource | None = None,
    ) -> UploadId:
        """See `Uploads.begin_upload`. `UsageError` if a condition is given, because the completion of an upload may
        take longer than any lease.
        """
        if precondition is not None:
            raise UsageError(
                f"upload of {key!r} under a condition: the store has no conditions for uploads, and a lease is too "
                "short; upload it without a condition, or to a store with such conditions"
            )
        return self.store.begin_upload(key, metadata=metadata, source=source)


def _outcome(commit: Callable[[], CommitOutcome]) -> WriteOutcome:
    try:
        return commit()
    except UnknownOutcomeError as error:
        return Unknown(cause=str(error))
