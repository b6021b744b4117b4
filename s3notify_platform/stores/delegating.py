"""The base of object stores that wrap another store, and override only the methods that they change."""

from collections.abc import Sequence
from typing import Literal

from s3notify_platform.kernel.ports import (
    Absent,
    Conflict,
    CopyRange,
    CopySource,
    ETag,
    IfMatch,
    Metadata,
    NotModified,
    ObjectMeta,
    ObjectStore,
    Page,
    Precondition,
    StoredObject,
    UploadId,
    WriteOutcome,
)

Method = Literal["GET", "HEAD", "PUT", "DELETE", "COPY", "LIST", "UPLOAD"]


class DelegatingStore:
    """Passes every call to `store`, unchanged. Thread-safe if `store` is."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def _target(self, _method: Method) -> ObjectStore:
        """The store to which a call goes. A wrapper that treats all methods in the same way overrides only this
        method.
        """
        return self.store

    def get(
        self, key: str, *, if_match: ETag | None = None, if_none_match: ETag | None = None
    ) -> StoredObject | NotModified | Conflict | None:
        return self._target("GET").get(key, if_match=if_match, if_none_match=if_none_match)

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        return self._target("GET").get_range(key, start, end)

    def head(self, key: str) -> ObjectMeta | None:
        return self._target("HEAD").head(key)

    def put(
        self, key: str, body: bytes, *, precondition: Precondition | None = None, metadata: Metadata = None
    ) -> WriteOutcome:
        return self._target("PUT").put(key, body, precondition=precondition, metadata=metadata)

    def delete(self, key: str, *, precondition: IfMatch | None = None) -> WriteOutcome:
        return self._target("DELETE").delete(key, precondition=precondition)

    def copy(
        self,
        source: str | CopySource,
        target: str,
        *,
        precondition: Absent | None = None,
        metadata: Metadata = None,
    ) -> WriteOutcome:
        return self._target("COPY").copy(source, target, precondition=precondition, metadata=metadata)

    def source(self, bucket: str, key: str) -> CopySource | None:
        return self._target("HEAD").source(bucket, key)

    def begin_upload(
        self,
        key: str,
        *,
        precondition: Precondition | None = None,
        metadata: Metadata = None,
        source: CopySource | None = None,
    ) -> UploadId:
        return self._target("UPLOAD").begin_upload(
            key, precondition=precondition, metadata=metadata, source=source
        )

    def send_part(self, key: str, upload: UploadId, number: int, part: bytes | CopyRange) -> ETag:
        return self._target("UPLOAD").send_part(key, upload, number, part)

    def complete_upload(
        self, key: str, upload: UploadId, parts: Sequence[ETag], *, precondition: Precondition | None = None
    ) -> WriteOutcome:
        return self._target("UPLOAD").complete_upload(key, upload, parts, precondition=precondition)

    def abort_upload(self, key: str, upload: UploadId) -> None:
        self._target("UPLOAD").abort_upload(key, upload)

    def empty_uploads(self, key: str) -> tuple[UploadId, ...]:
        return self._target("UPLOAD").empty_uploads(key)

    def list(
        self, prefix: str, *, start_after: str | None = None, token: str | None = None, limit: int = 1000
    ) -> Page:
        return self._target("LIST").list(prefix, start_after=start_after, token=token, limit=limit)
