"""`ObjectStore` over the S3 API: HEAD, PUT and DELETE by `stores.signed`, the rest by boto3. AWS, Ceph RGW and others.

Guarantees. A conditional write is sent once, and has one of three outcomes: applied, refused, unknown (see the table in
`stores.faults`). It is sent again only if the store certainly did nothing with it. Reads and unconditional writes are
sent up to `attempts` times, with backoff and jitter. An unconditional write that was sent twice may take effect twice;
where that matters, write under a condition.

Requests: one a call, plus the retries. The first HEAD that finds no object is followed by one request for the bucket,
because a HEAD does not distinguish a missing key from a missing bucket.

ETags are sent unquoted in If-Match of PUT and DELETE: Ceph RGW answers 412 to a quoted one, and the others accept
both.
"""

from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlsplit

from botocore.awsrequest import HeadersDict
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
from s3notify_platform.stores.connections import Answer
from s3notify_platform.stores.faults import Fault, Verdict
from s3notify_platform.stores.memory import check_copy, check_key, check_page_limit
from s3notify_platform.stores.s3.list_pages import PAGE
from s3notify_platform.stores.s3.multipart import S3Uploads, meta_of
from s3notify_platform.stores.s3.requests import etag_of, metadata_of
from s3notify_platform.stores.sdk import answer_of

_ARGUMENTS = {
    "If-None-Match": "IfNoneMatch",
    "If-Match": "IfMatch",
    "x-amz-server-side-encryption": "ServerSideEncryption",
    "x-amz-server-side-encryption-aws-kms-key-id": "SSEKMSKeyId",
}


class S3ObjectStore(S3Uploads):
    """One bucket. Thread-safe."""

    def get(
        self, key: str, *, if_match: ETag | None = None, if_none_match: ETag | None = None
    ) -> StoredObject | NotModified | Conflict | None:
        """See `ObjectStore.get`. Body and metadata are of one version."""
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
        """Why the store refuses to give the object under `key`; "" if it does not. 1 GET, whose body is not read.

        `UnavailableError` if that cannot be known now, or a key of encryption is in the way.
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
        found = self._send(lambda: self._sent("HeadObject", "HEAD", check_key(key)))
        if not isinstance(found, Fault):
            return _head(key, found.headers)
        if found.verdict is not Verdict.MISSING:
            raise self._unavailable(found)
        self._check_bucket()
        return None

    def put(
        self, key: str, body: bytes, *, precondition: Precondition | None = None, metadata: Metadata = None
    ) -> WriteOutcome:
        meta = metadata_of(key, metadata)
        headers = {f"x-amz-meta-{name}": value for name, value in meta.items()} | self._encrypted
        match precondition:
            case Absent():
                headers["If-None-Match"] = "*"
            case IfMatch(etag=etag):
                headers["If-Match"] = etag
        written = self._send(
            lambda: self._sent("PutObject", "PUT", check_key(key), headers, body),
            conditional=precondition is not None,
        )
        return (
            self._outcome(written) if isinstance(written, Fault) else Written(etag=etag_of(written.headers))
        )

    def delete(self, key: str, *, precondition: IfMatch | None = None) -> WriteOutcome:
        """See `ObjectStore.delete`. Some stores ignore the condition: `stores.probe` finds out."""
        headers = {} if precondition is None else {"If-Match": precondition.etag}
        deleted = self._send(
            lambda: self._sent("DeleteObject", "DELETE", check_key(key), headers),
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

        With `metadata`, a source that is overwritten meanwhile may give the body of one version and the
        headers of the one before; not so a `CopySource`.
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
            # All of it, since replacing one piece of metadata replaces them all.
            arguments |= {
                "MetadataDirective": "REPLACE",
                "Metadata": metadata_of(target, {**kept, **(metadata or {})}),
                **origin.headers,
            }
        copied: Any = self._send(
            lambda: self.client.copy_object(
                Bucket=self.config.bucket, Key=target, CopySource=place, **arguments
            ),
            # A copy of one version is sent once: after an answer that was lost, its source may have changed.
            conditional=precondition is not None or isinstance(source, CopySource),
        )
        if not isinstance(copied, Fault):
            return Written(etag=etag_of(copied["CopyObjectResult"]))
        if copied.verdict is Verdict.MISSING:
            raise self._no_source(place["Key"])
        if copied.verdict is Verdict.PRECONDITION and precondition is None:
            raise ConflictError(f"copy: {place['Key']!r} has changed since it was looked at; copy it again")
        return self._outcome(copied)

    def list(
        self, prefix: str, *, start_after: str | None = None, token: str | None = None, limit: int = 1000
    ) -> Page:
        """See `ObjectStore.list`: ListObjectsV2. Keys are asked for URL-encoded."""
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
            raise UnavailableError(f"{self.config.place}: a listing says that it goes on, and not where")
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
        """Create the bucket, if this account does not own it already. 1 request."""
        region = self.config.region
        arguments: dict[str, Any] = {}
        if self.config.endpoint_url is None and region != "us-east-1":
            arguments["CreateBucketConfiguration"] = {"LocationConstraint": region}

        def create() -> None:
            # Both answer 409, which elsewhere means that the outcome is unknown.
            with suppress(self.client.exceptions.BucketAlreadyOwnedByYou):
                self.client.create_bucket(Bucket=self.config.bucket, **arguments)

        created = self._send(create)
        if isinstance(created, Fault):
            raise self._unavailable(created)

    def server_date_ms(self) -> int | None:
        """The server's wall clock, to the second, from one HEAD of the bucket; None if it does not send its time."""
        answer: Any = self._send(lambda: self.client.head_bucket(Bucket=self.config.bucket))
        if isinstance(answer, Fault):
            return None
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        try:
            return int(parsedate_to_datetime(date).timestamp() * 1000) if date else None
        except ValueError:
            return None

    def _sent(
        self,
        operation: str,
        method: str,
        key: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        signed, headers = self.signed, headers or {}
        if signed is None or self.config.bucket.startswith("arn:"):
            return self._by_client(operation, key, headers, body)
        payer = {"x-amz-request-payer": "requester"} if self.config.requester_pays else {}
        url = f"{bucket_url(signed.endpoint, self.config.bucket)}/{quote(key, safe='/~')}"
        return signed.send(operation, method, url, {**headers, **payer}, body)

    def _by_client(self, operation: str, key: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The same by boto3, which knows the hosts and signatures of access points."""
        arguments: dict[str, Any] = {
            name: headers[header] for header, name in _ARGUMENTS.items() if header in headers
        }
        if operation == "PutObject":
            meta = {name: value for name, value in headers.items() if name.startswith("x-amz-meta-")}
            arguments["Metadata"] = {name.removeprefix("x-amz-meta-"): each for name, each in meta.items()}
            arguments["Body"] = body
        call = {"HeadObject": "head_object", "PutObject": "put_object", "DeleteObject": "delete_object"}
        answer = getattr(self.client, call[operation])(Bucket=self.config.bucket, Key=key, **arguments)
        return Answer(status=200, headers=HeadersDict(answer["ResponseMetadata"]["HTTPHeaders"]), content=b"")

    def _no_source(self, source: str) -> NotFoundError:
        return NotFoundError(f"copy: no object {source!r} in {self.config.place}")


def bucket_url(endpoint: str, bucket: str) -> str:
    """Where a bucket is, without a `/` at its end. Pure.

    By path, but on AWS by host name, unless the bucket's name has a dot, which no certificate covers.
    """
    place = urlsplit(endpoint)
    if (place.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn")) and "." not in bucket:
        return f"{place.scheme}://{bucket}.{place.netloc}"
    return f"{endpoint.rstrip('/')}/{bucket}"


def _head(key: str, headers: Mapping[str, str]) -> ObjectMeta:
    return ObjectMeta(
        key=key,
        etag=etag_of(headers),
        size=int(headers["Content-Length"]),
        modified_ms=int(parsedate_to_datetime(headers["Last-Modified"]).timestamp() * 1000),
        metadata={
            name.lower().removeprefix("x-amz-meta-"): value
            for name, value in headers.items()
            if name.lower().startswith("x-amz-meta-")
        },
        version_id=headers.get("x-amz-version-id"),
    )
