"""`ObjectStore` over the S3 API, by boto3: AWS, Ceph RGW and others. The hot path is in `fast`.

Guarantees. A conditional write is sent once, and has one of three outcomes: applied, refused, unknown (see the table in
`stores.faults`). A conditional write is sent again only if the store certainly did not apply it. Reads and
unconditional writes are sent up to `attempts` times, with backoff and jitter. An unconditional write that was sent
twice may take effect twice; if that matters, write under a condition.

Requests: one for each call, plus retries. A HEAD does not distinguish a missing key from a missing bucket. So the first
HEAD that finds no object is followed by one request for the bucket.

ETags are sent unquoted in If-Match of PUT and DELETE: Ceph RGW answers 412 to a quoted ETag, and other stores accept
both forms.
"""

from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import ClientError

from s3notify_platform.kernel.errors import ConflictError, NotFoundError, RefusedError, UnavailableError
from s3notify_platform.kernel.ports import (
    Absent,
    Conflict,
    CopySource,
    ETag,
    IfMatch,
    Metadata,
    NotModified,
    ObjectMeta,
    Page,
    Precondition,
    StoredObject,
    WriteOutcome,
    Written,
)
from s3notify_platform.stores.faults import Fault, Verdict
from s3notify_platform.stores.rules import check_copy, check_key, check_metadata, check_page_limit
from s3notify_platform.stores.s3.list_pages import PAGE
from s3notify_platform.stores.s3.multipart import S3Uploads, meta_of
from s3notify_platform.stores.s3.requests import etag_of
from s3notify_platform.stores.sdk import answer_of


class S3ObjectStore(S3Uploads):
    """One bucket. Thread-safe."""

    def get(
        self, key: str, *, if_match: ETag | None = None, if_none_match: ETag | None = None
    ) -> StoredObject | NotModified | Conflict | None:
        """See `ObjectStore.get`. Body and metadata belong to one version."""
        arguments: dict[str, Any] = {}
        if if_match is not None:
            arguments["IfMatch"] = f'"{if_match}"'
        if if_none_match is not None:
            arguments["IfNoneMatch"] = f'"{if_none_match}"'

        def read() -> StoredObject:
            answer = self.client.get_object(Bucket=self.config.bucket, Key=check_key(key), **arguments)
            with answer["Body"] as stream:
                body = stream.read()
            return StoredObject(meta=meta_of(key, answer), body=body)

        found = self._send(read)
        if not isinstance(found, Fault):
            return found
        match found.verdict:
            case Verdict.MISSING:
                return None
            case Verdict.PRECONDITION:
                return Conflict()
            case Verdict.NOT_MODIFIED:
                return NotModified()
            case _:
                raise self._unavailable(found)

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """See `Ranged.get_range`."""

        def read() -> bytes:
            try:
                answer = self.client.get_object(
                    Bucket=self.config.bucket, Key=check_key(key), Range=f"bytes={start}-{end - 1}"
                )
            except ClientError as error:
                if answer_of(error)[0] == 416:
                    return b""
                raise
            with answer["Body"] as stream:
                return stream.read()

        found = self._send(read)
        if not isinstance(found, Fault):
            return found
        if found.verdict is Verdict.MISSING:
            return None
        raise self._unavailable(found)

    def refusal(self, key: str) -> str:
        """The reason why the store refuses to return the object; "" if the store does not refuse. Cost: 1 GET; the body
        is not read.

        `UnavailableError` if the store cannot give the reason now, or if an encryption key cannot be used.
        """

        def begin() -> None:
            self.client.get_object(Bucket=self.config.bucket, Key=check_key(key))["Body"].close()

        try:
            fault = self._send(begin, attempts=1)
        except RefusedError as error:
            return str(error)
        if isinstance(fault, Fault) and fault.verdict is not Verdict.MISSING:
            raise self._unavailable(fault)
        return ""

    def head(self, key: str) -> ObjectMeta | None:
        found: Any = self._send(
            lambda: self.client.head_object(Bucket=self.config.bucket, Key=check_key(key))
        )
        if not isinstance(found, Fault):
            return meta_of(key, found)
        if found.verdict is not Verdict.MISSING:
            raise self._unavailable(found)
        self._check_bucket()
        return None

    def put(
        self, key: str, body: bytes, *, precondition: Precondition | None = None, metadata: Metadata = None
    ) -> WriteOutcome:
        arguments: dict[str, Any] = {"Metadata": check_metadata(key, metadata)}
        if self.config.kms_key_id is not None:
            arguments |= {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self.config.kms_key_id}
        match precondition:
            case Absent():
                arguments["IfNoneMatch"] = "*"
            case IfMatch(etag=etag):
                arguments["IfMatch"] = etag
        written: Any = self._send(
            lambda: self.client.put_object(
                Bucket=self.config.bucket, Key=check_key(key), Body=body, **arguments
            ),
            conditional=precondition is not None,
        )
        return self._outcome(written) if isinstance(written, Fault) else Written(etag=etag_of(written))

    def delete(self, key: str, *, precondition: IfMatch | None = None) -> WriteOutcome:
        """See `ObjectStore.delete`. Some stores ignore the condition: `stores.probe` finds these stores."""
        arguments: dict[str, Any] = {} if precondition is None else {"IfMatch": precondition.etag}
        deleted: Any = self._send(
            lambda: self.client.delete_object(Bucket=self.config.bucket, Key=check_key(key), **arguments),
            conditional=precondition is not None,
        )
        if not isinstance(deleted, Fault):
            return Written(etag=None)
        if deleted.verdict is Verdict.MISSING and precondition is None:
            return Written(etag=None)
        return self._outcome(deleted)

    def copy(
        self,
        source: str | CopySource,
        target: str,
        *,
        precondition: Absent | None = None,
        metadata: Metadata = None,
    ) -> WriteOutcome:
        """See `ObjectStore.copy`. Up to 5 GB. Some stores ignore the condition.

        If `metadata` is given and the source is overwritten meanwhile, the copy may have the body of one version and
        the headers of the previous one. A `CopySource` names one version of the source, so body and headers of its copy
        are from this version.
        """
        arguments: dict[str, Any] = {} if precondition is None else {"IfNoneMatch": "*"}
        origin = source if isinstance(source, CopySource) else None
        if isinstance(source, str):
            check_copy(check_key(source), check_key(target))
            place: Any = {"Bucket": self.config.bucket, "Key": source}
            if metadata is not None and (origin := self.source("", source)) is None:
                raise self._no_source(source)
        else:
            check_key(target)
            place = {"Bucket": source.bucket or self.config.bucket, "Key": source.meta.key}
            arguments["CopySourceIfMatch"] = source.meta.etag
        if origin is not None and metadata is not None:
            kept = origin.meta.metadata if origin is not source else {}
            # The request also contains the metadata and headers to keep, because REPLACE replaces all metadata and
            # headers.
            arguments |= {
                "MetadataDirective": "REPLACE",
                "Metadata": check_metadata(target, {**kept, **(metadata or {})}),
                **origin.headers,
            }
        copied: Any = self._send(
            lambda: self.client.copy_object(
                Bucket=self.config.bucket, Key=target, CopySource=place, **arguments
            ),
            # A copy of one version is sent only once: after a lost answer, a second copy could find a changed source.
            conditional=precondition is not None or isinstance(source, CopySource),
        )
        if not isinstance(copied, Fault):
            return Written(etag=etag_of(copied["CopyObjectResult"]))
        if copied.verdict is Verdict.MISSING:
            raise self._no_source(place["Key"])
        if copied.verdict is Verdict.PRECONDITION and precondition is None:
            raise ConflictError(f"copy: {place['Key']!r} has changed since it was read; copy it again")
        return self._outcome(copied)

    def list(
        self, prefix: str, *, start_after: str | None = None, token: str | None = None, limit: int = 1000
    ) -> Page:
        """See `ObjectStore.list`: ListObjectsV2. Keys are requested URL-encoded."""
        arguments: dict[str, Any] = {"Prefix": prefix, "MaxKeys": check_page_limit(limit)}
        if token is not None:
            arguments["ContinuationToken"] = token
        elif start_after is not None:
            arguments["StartAfter"] = start_after
        answer = self._send(lambda: self.client.list_objects_v2(Bucket=self.config.bucket, **arguments))
        if isinstance(answer, Fault):
            raise self._unavailable(answer)
        if isinstance(page := answer.get(PAGE), Page):
            return page
        token = answer.get("NextContinuationToken")
        if answer["IsTruncated"] and not token:
            raise UnavailableError(
                f"{self.config.place}: a truncated listing has no continuation token: try again"
            )
        objects = tuple(
            ObjectMeta(
                key=entry["Key"],
                etag=etag_of(entry),
                size=entry["Size"],
                modified_ms=int(entry["LastModified"].timestamp() * 1000),
            )
            for entry in answer.get("Contents", ())
        )
        return Page(objects=objects, next_token=token if answer["IsTruncated"] else None)

    def create_bucket(self) -> None:
        """Creates the bucket unless this account owns it already. Cost: 1 request."""
        region = self.config.region
        arguments: dict[str, Any] = {}
        if self.config.endpoint_url is None and region != "us-east-1":
            arguments["CreateBucketConfiguration"] = {"LocationConstraint": region}

        def create() -> None:
            # If the bucket exists, the server answers 409. In other requests, this status means that the outcome is
            # unknown.
            with suppress(self.client.exceptions.BucketAlreadyOwnedByYou):
                self.client.create_bucket(Bucket=self.config.bucket, **arguments)

        created = self._send(create)
        if isinstance(created, Fault):
            raise self._unavailable(created)

    def server_date_ms(self) -> int | None:
        """The server's wall clock to the second, by one HEAD of the bucket; None if the server's time cannot be read
        from an answer.
        """
        answer: Any = self._send(lambda: self.client.head_bucket(Bucket=self.config.bucket))
        if isinstance(answer, Fault):
            return None
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        try:
            return int(parsedate_to_datetime(date).timestamp() * 1000) if date else None
        except ValueError:
            return None

    def _no_source(self, source: str) -> NotFoundError:
        return NotFoundError(f"copy: no object {source!r} in {self.config.place}")
