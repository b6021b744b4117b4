"""`ObjectStore` over S3 for many small objects: GET, HEAD and PUT by obstore, at a fraction of boto3's CPU.

Requests that obstore cannot express, and most failures, go to `S3ObjectStore`, which retries and determines the
outcome. A PUT under a condition is sent once. If no answer shows whether the PUT was applied, the outcome is `Unknown`.
ETags are sent unquoted, as Ceph RGW requires.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Final

from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.kernel.ports import (
    Absent,
    Conflict,
    ETag,
    IfMatch,
    Metadata,
    NotModified,
    ObjectMeta,
    Precondition,
    StoredObject,
    Unknown,
    WriteOutcome,
    Written,
)
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.delegating import DelegatingStore
from s3notify_platform.stores.obstore_answers import NOT_METADATA, fits_obstore, meta_of
from s3notify_platform.stores.rules import check_key, check_metadata
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.obstore_client import obstore_store
from s3notify_platform.stores.sdk import count_repeated, count_request

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import S3Store


_NO_KEY: Final = "<Code>NoSuchKey</Code>"
_NO_BUCKET: Final = "NoSuchBucket"
"""Texts in the body of a 404 answer. obstore's error contains this body. If neither text is found, boto3 sends the
request again.
"""


class FastObjectStore(DelegatingStore):
    """One bucket. Thread-safe; no request is sent before the first call.

    This store never deletes by obstore, which supports no condition and sends DeleteObjects. Ceph RGW 16 crashes on
    DeleteObjects in a bucket with notifications.
    """

    def __init__(self, config: S3Config) -> None:
        self._s3 = S3ObjectStore(config)
        super().__init__(self._s3)
        self.config = config
        self._bucket_exists = False
        """True if the bucket has answered before. The bucket may have been removed in the meantime."""

    @property
    def endpoint_url(self) -> str:
        """See `SdkClient.endpoint_url`."""
        return self._s3.endpoint_url

    def server_date_ms(self) -> int | None:
        """See `HasServerClock`."""
        return self._s3.server_date_ms()

    def _fits(self, key: str) -> bool:
        """True if obstore can send this key. Bucket ARNs, and on AWS bucket names with dots, are left to boto3."""
        bucket, dotted = self.config.bucket, "." in self.config.bucket and self.config.endpoint is None
        return fits_obstore(check_key(key)) and not bucket.startswith("arn:") and not dotted

    @cached_property
    def _fast(self) -> "S3Store":
        return obstore_store(self.config)

    @cached_property
    def _once(self) -> "S3Store":
        return obstore_store(self.config, attempts=1)

    def get(
        self, key: str, *, if_match: ETag | None = None, if_none_match: ETag | None = None
    ) -> StoredObject | NotModified | Conflict | None:
        import obstore
        from obstore.exceptions import BaseError

        if if_match is None and if_none_match is None and self._fits(key):
            count_request("s3", "GetObject")
            try:
                found = obstore.get(self._fast, key)
                meta, body = meta_of(key, found), bytes(found.bytes())
                self._bucket_exists = True
            except FileNotFoundError as error:
                if _NO_KEY in str(error) and _NO_BUCKET not in str(error):
                    self._bucket_exists = True
                    return None
            except (BaseError, OSError):
                count_repeated("s3")
            else:
                return StoredObject(meta=meta, body=body)
        return self.store.get(key, if_match=if_match, if_none_match=if_none_match)

    def head(self, key: str) -> ObjectMeta | None:
        import obstore
        from obstore.exceptions import BaseError

        if self._fits(key):
            count_request("s3", "HeadObject")
            try:
                found = meta_of(key, obstore.get(self._fast, key, options={"head": True}))
            except FileNotFoundError:
                # An answer to HEAD has no error code, so a missing bucket looks like a missing object.
                if self._bucket_exists:
                    return None
                count_repeated("s3")
            except (BaseError, OSError):
                count_repeated("s3")
            else:
                self._bucket_exists = True
                return found
        there = self.store.head(key)
        self._bucket_exists = True
        return there

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        import obstore
        from obstore.exceptions import BaseError

        if self._fits(key):
            count_request("s3", "GetObject")
            try:
                return bytes(obstore.get_range(self._fast, key, start=start, end=end))
            except FileNotFoundError as error:
                if _NO_KEY in str(error) and _NO_BUCKET not in str(error):
                    self._bucket_exists = True
                    return None
            except (BaseError, OSError):
                count_repeated("s3")
        return self.store.get_range(key, start, end)

    def refusal(self, key: str) -> str:
        """See `S3ObjectStore.refusal`."""
        return self._s3.refusal(key)

    def put(
        self, key: str, body: bytes, *, precondition: Precondition | None = None, metadata: Metadata = None
    ) -> WriteOutcome:
        import obstore
        from obstore.exceptions import (
            AlreadyExistsError,
            BaseError,
            PermissionDeniedError,
            PreconditionError,
            UnauthenticatedError,
        )

        named = check_metadata(key, metadata)
        # obstore would send metadata of these names as headers.
        if not self._fits(key) or any(name.title() in NOT_METADATA for name in named):
            return self.store.put(key, body, precondition=precondition, metadata=metadata)
        mode: PutMode = "overwrite" if precondition is None else "create"
        if isinstance(precondition, IfMatch):
            if not precondition.etag.isprintable():
                return Conflict()  # no object has such an ETag, and obstore would panic
            mode = {"e_tag": precondition.etag}
        count_request("s3", "PutObject")
        try:
            written = obstore.put(
                self._fast if precondition is None else self._once,
                key,
                body,
                mode=mode,
                attributes=named,
                use_multipart=False,
            )
        except PreconditionError:
            return Conflict()
        except AlreadyExistsError as error:
            # 412, or 409 while another write is in progress. In both cases the creation was not applied.
            return Conflict() if isinstance(precondition, Absent) else _unknown(error)
        except (BaseError, OSError) as error:
            refused = isinstance(error, FileNotFoundError | PermissionDeniedError | UnauthenticatedError)
            if precondition is not None and not refused:
                return _unknown(error)
            # `S3ObjectStore` finds out if the key, the bucket or a permission is missing.
            count_repeated("s3")
            try:
                return self.store.put(key, body, precondition=precondition, metadata=metadata)
            except S3NotifyError:
                # obstore repeats an unconditional PUT itself, and an earlier attempt may have been applied.
                if refused and _REPEATED not in str(error):
                    raise
                return _unknown(error)
        self._bucket_exists = True
        return Written(etag=ETag(str(written["e_tag"]).strip('"')))


_REPEATED: Final = " retries, max_retries: "
"""Part of obstore's message about a request that was sent more than once."""


def _unknown(error: Exception) -> Unknown:
    return Unknown(cause=f"{type(error).__name__}: {str(error)[:200]}")
