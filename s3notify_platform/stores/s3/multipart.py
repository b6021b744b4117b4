"""Multipart uploads and the sources of copies over the S3 API, by boto3: `ports.Uploads`."""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote_plus

from s3notify_platform.kernel.errors import ConflictError, NotFoundError, UnknownOutcomeError, UsageError
from s3notify_platform.kernel.ports import (
    UPLOAD_ID_MAX,
    CopyRange,
    CopySource,
    ETag,
    IfMatch,
    Metadata,
    ObjectMeta,
    Precondition,
    Unknown,
    UploadId,
    WriteOutcome,
    Written,
)
from s3notify_platform.stores.faults import Fault, Verdict
from s3notify_platform.stores.rules import check_key, check_metadata
from s3notify_platform.stores.s3.requests import S3Requests, etag_of

_CONTENT_HEADERS: Final = (
    "ContentType", "ContentEncoding", "ContentLanguage", "ContentDisposition", "CacheControl",
)  # fmt: skip


class S3Uploads(S3Requests):
    """Uploads to one bucket. Thread-safe. Requests that may be repeated are sent up to `attempts` times."""

    def source(self, bucket: str, key: str) -> CopySource | None:
        found: Any = self._send(
            lambda: self.client.head_object(Bucket=bucket or self.config.bucket, Key=check_key(key))
        )
        if not isinstance(found, Fault):
            headers = {name: found[name] for name in _CONTENT_HEADERS if found.get(name)}
            return CopySource(bucket=bucket, meta=meta_of(key, found), headers=headers)
        if found.verdict is Verdict.MISSING:
            return None
        raise self._unavailable(found)

    def begin_upload(
        self,
        key: str,
        *,
        precondition: Precondition | None = None,  # noqa: ARG002 - sent when the upload is completed
        metadata: Metadata = None,
        source: CopySource | None = None,
    ) -> UploadId:
        headers: dict[str, Any] = dict(source.headers) if source is not None else {}
        begun: Any = self._send(
            lambda: self.client.create_multipart_upload(
                Bucket=self.config.bucket,
                Key=check_key(key),
                Metadata=check_metadata(key, metadata),
                **headers,
            ),
            conditional=True,
        )
        if isinstance(begun, Fault):
            if begun.verdict is Verdict.AMBIGUOUS:
                raise UnknownOutcomeError(
                    f"upload of {key!r}: it may have begun ({begun.cause}): begin another upload"
                )
            raise self._unavailable(begun)
        upload = str(begun["UploadId"])
        if not 1 <= len(upload) <= UPLOAD_ID_MAX:
            raise UsageError(
                f"{self.config.place}: an upload id of {len(upload)} characters; at most {UPLOAD_ID_MAX} are supported"
            )
        return UploadId(upload)

    def send_part(self, key: str, upload: UploadId, number: int, part: bytes | CopyRange) -> ETag:
        where: Any = {"Bucket": self.config.bucket, "Key": key, "UploadId": upload, "PartNumber": number}

        def send() -> ETag:
            if not isinstance(part, CopyRange):
                return etag_of(self.client.upload_part(**where, Body=part))
            source = part.source
            copied = self.client.upload_part_copy(
                **where,
                CopySource={"Bucket": source.bucket or self.config.bucket, "Key": source.meta.key},
                CopySourceRange=f"bytes={part.start}-{part.start + part.size - 1}",
                CopySourceIfMatch=source.meta.etag,
            )
            return etag_of(copied["CopyPartResult"])

        sent = self._send(send)
        if not isinstance(sent, Fault):
            return sent
        match sent.verdict:
            case Verdict.MISSING:
                raise NotFoundError(f"no upload {upload!r} of {key!r} in {self.config.place} ({sent.cause})")
            case Verdict.PRECONDITION:
                raise ConflictError(f"copy to {key!r}: the source has changed meanwhile; copy it again")
            case _:
                raise self._unavailable(sent)

    def complete_upload(
        self, key: str, upload: UploadId, parts: Sequence[ETag], *, precondition: Precondition | None = None
    ) -> WriteOutcome:
        """See `Uploads.complete_upload`. Some stores ignore the condition."""
        arguments: dict[str, Any] = {}
        if isinstance(precondition, IfMatch):
            arguments["IfMatch"] = precondition.etag
        elif precondition is not None:
            arguments["IfNoneMatch"] = "*"
        completed: Any = self._send(
            lambda: self.client.complete_multipart_upload(
                Bucket=self.config.bucket,
                Key=key,
                UploadId=upload,
                MultipartUpload={
                    "Parts": [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(parts, 1)]
                },
                **arguments,
            ),
            conditional=True,
        )
        if not isinstance(completed, Fault):
            if completed.get("ETag"):
                return Written(etag=etag_of(completed))
            found = self.source("", key)  # Ceph's answer has no ETag
            return Written(etag=found.meta.etag) if found else Unknown(cause="completed, but not found")
        # A 404 can also be the answer to If-Match on an object that no longer exists.
        gone = "NoSuchUpload" in completed.cause or not isinstance(precondition, IfMatch)
        if completed.verdict is Verdict.MISSING and gone:
            raise NotFoundError(f"no upload {upload!r} of {key!r} in {self.config.place}")
        return self._outcome(completed)

    def abort_upload(self, key: str, upload: UploadId) -> None:
        aborted = self._send(
            lambda: self.client.abort_multipart_upload(Bucket=self.config.bucket, Key=key, UploadId=upload)
        )
        if isinstance(aborted, Fault) and aborted.verdict is not Verdict.MISSING:
            raise self._unavailable(aborted)

    def empty_uploads(self, key: str) -> tuple[UploadId, ...]:
        """See `Uploads.empty_uploads`. If there are more than 1000 uploads, only the first 1000 are examined."""
        # The key itself sorts before all keys that begin with it.
        found: Any = self._send(
            lambda: self.client.list_multipart_uploads(
                Bucket=self.config.bucket, Prefix=key, EncodingType="url"
            )
        )
        if isinstance(found, Fault):
            raise self._unavailable(found)
        of_key = [
            UploadId(upload["UploadId"])
            for upload in found.get("Uploads", ())
            if key in (upload["Key"], unquote_plus(upload["Key"]))
        ]
        return tuple(upload for upload in of_key if self._is_empty(key, upload))

    def _is_empty(self, key: str, upload: UploadId) -> bool:
        parts: Any = self._send(
            lambda: self.client.list_parts(Bucket=self.config.bucket, Key=key, UploadId=upload, MaxParts=1)
        )
        if isinstance(parts, Fault):
            if parts.verdict is Verdict.MISSING:
                return False
            raise self._unavailable(parts)
        return not parts.get("Parts")


def meta_of(key: str, answer: Any) -> ObjectMeta:
    """The metadata in the SDK's answer to a GET or HEAD."""
    return ObjectMeta(
        key=key,
        etag=etag_of(answer),
        size=answer["ContentLength"],
        modified_ms=int(answer["LastModified"].timestamp() * 1000),
        metadata={name: _text(value) for name, value in answer.get("Metadata", {}).items()},
        version_id=answer.get("VersionId"),
    )


def _text(header: str) -> str:
    """Returns the text of a header that other programs wrote in UTF-8: the HTTP client reads headers as Latin-1."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header
