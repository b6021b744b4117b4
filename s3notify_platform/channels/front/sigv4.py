"""Parses and verifies the AWS Signature Version 4 of a request, in its header or in the query of a presigned URL. Pure.

A request is accepted if
    - its key is known, and its signature over method, path, query, signed headers and body was made with the key's
      secret;
    - `host`, and each `x-amz-…` header of the request, is signed;
    - the request was signed at most `SKEW_SECONDS` before or after the time of this machine's clock, or is presigned
      and has not expired;
    - the body is signed by its hash. Only one kind of request may omit the hash: a presigned request of S3 that has no
      body.

Anybody who can read a request can send it again while the request is valid, so use TLS. Signatures of version 2, signed
chunks, and temporary credentials are refused. Any region may be named.

Source: "Signature Version 4 signing process", AWS General Reference.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal
from urllib.parse import quote, unquote

from s3notify_platform.channels.inlets.http_server import Head

SKEW_SECONDS: Final = 900
EXPIRES_MAX_SECONDS: Final = 7 * 24 * 3600
SIGNED_HEADERS_MAX: Final = 64

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SERVICES: Final = ("s3", "sns")

_UNSIGNED: Final = "UNSIGNED-PAYLOAD"
_BODY_HASH: Final = "x-amz-content-sha256"
_CREDENTIAL: Final = re.compile(
    r"([\w.+=@-]{1,128})/([0-9]{8})/([A-Za-z0-9-]{1,64})/([a-z0-9-]{1,32})/aws4_request"
)
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_NAMES: Final = re.compile(r"[a-z0-9-]+(?:;[a-z0-9-]+)*")
_STAMP: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z")

Reason = Literal["missing", "malformed", "version", "token", "key", "signature", "skew", "expired", "body"]


class DeniedError(Exception):
    """The request is refused: it is not properly signed."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """The parsed signature of a request, not verified yet."""

    key_id: str
    stamp: str
    """Time of the signature, like 20260102T030405Z."""
    scope: str
    service: str
    headers: tuple[str, ...]
    signature: str
    presigned_seconds: int | None
    """Lifetime of a presigned URL; None if the signature is in the header."""

    def check_time(self, now_ms: int) -> None:
        """Raises `DeniedError` if the signature is not valid at this Unix time."""
        try:
            signed = datetime.strptime(self.stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        except ValueError:
            raise DeniedError("malformed", f"{self.stamp} is not a time") from None
        now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=now_ms)
        age = (now - signed).total_seconds()
        good = SKEW_SECONDS if self.presigned_seconds is None else self.presigned_seconds
        if age < -SKEW_SECONDS or (age > good and self.presigned_seconds is None):
            raise DeniedError(
                "skew", "The difference between the request time and the server's time is too large."
            )
        if age > good:
            raise DeniedError("expired", "Request has expired")


def signed_of(head: Head) -> Signed:
    """The signature of a request. `DeniedError` if the request has no signature, or a signature of another kind."""
    query = dict(pairs_of(head.query))
    value = head.headers.get("authorization", "")
    if "x-amz-security-token" in head.headers or "X-Amz-Security-Token" in query:
        raise DeniedError(
            "token", "Temporary credentials are not supported here: sign with a key of this service."
        )
    if value.startswith(f"{ALGORITHM} "):
        fields = dict(_field(part) for part in value[len(ALGORITHM) :].split(","))
        given = {name: fields.get(name, "") for name in ("Credential", "SignedHeaders", "Signature")}
        return _signed(head, given, head.headers.get("x-amz-date", ""), None)
    if value.startswith("AWS ") or "Signature" in query:
        raise DeniedError(
            "version",
            f"The authorization mechanism you have provided is not supported. Please use {ALGORITHM}.",
        )
    if "X-Amz-Algorithm" in query:
        if query["X-Amz-Algorithm"] != ALGORITHM:
            raise DeniedError("malformed", f"X-Amz-Algorithm only supports {ALGORITHM}")
        given = {
            name: query.get(f"X-Amz-{name}", "") for name in ("Credential", "SignedHeaders", "Signature")
        }
        expires = query.get("X-Amz-Expires", "")
        if not re.fullmatch(r"[0-9]{1,6}", expires) or not 0 < int(expires) <= EXPIRES_MAX_SECONDS:
            raise DeniedError("malformed", f"X-Amz-Expires must be from 1 to {EXPIRES_MAX_SECONDS} seconds")
        return _signed(head, given, query.get("X-Amz-Date", ""), int(expires))
    if value:
        raise DeniedError("malformed", f"The authorization header must begin with {ALGORITHM}")
    raise DeniedError("missing", "Access Denied: the request is not signed")


def check_signature(signed: Signed, head: Head, body: bytes, secret: str) -> None:
    """Raises `DeniedError` if head and body were not signed with this secret. The comparison takes the same time for
    any signature.
    """
    actual = hashlib.sha256(body).hexdigest()
    claimed = head.headers.get(_BODY_HASH)
    presigned = signed.presigned_seconds is not None
    if presigned and signed.service == "s3" and claimed is None:
        claimed = _UNSIGNED
    if claimed == _UNSIGNED and presigned and not body:
        actual = _UNSIGNED
    elif claimed is not None and not _HEX.fullmatch(claimed):
        raise DeniedError(
            "body", f"The body must be signed in one piece: {_BODY_HASH} must be its SHA-256 in hex"
        )
    if not hmac.compare_digest(_signature(signed, head, claimed or actual, secret), signed.signature):
        raise DeniedError(
            "signature",
            "The request signature we calculated does not match the signature you provided. Check your key and "
            "signing method, and make sure that a proxy in front does not change the Host header.",
        )
    if claimed not in (None, actual):
        raise DeniedError("body", f"The provided {_BODY_HASH} header does not match what was computed.")


def pairs_of(query: str) -> list[tuple[str, str]]:
    """The decoded names and values of a query. Different bytes remain different texts, even if they are not UTF-8."""
    pairs = (part.partition("=") for part in query.split("&") if part)
    return [(_decoded(name), _decoded(value)) for name, _, value in pairs]


def _signed(head: Head, given: Mapping[str, str], stamp: str, presigned_seconds: int | None) -> Signed:
    credential, names = _CREDENTIAL.fullmatch(given["Credential"]), given["SignedHeaders"]
    if credential is None:
        raise DeniedError(
            "malformed", "The credential is malformed; expecting KEY/YYYYMMDD/REGION/SERVICE/aws4_request"
        )
    if not _NAMES.fullmatch(names) or not _HEX.fullmatch(given["Signature"]):
        raise DeniedError("malformed", "SignedHeaders or Signature is malformed")
    if not _STAMP.fullmatch(stamp) or not stamp.startswith(credential[2]):
        raise DeniedError(
            "malformed", "X-Amz-Date is missing or malformed, or its day differs from the credential's day"
        )
    if credential[4] not in SERVICES:
        raise DeniedError("malformed", f"The credential is for service {credential[4]!r}, not s3 or sns")
    headers = tuple(names.split(";"))
    lacking = {"host", *(name for name in head.headers if name.startswith("x-amz-"))} - {*headers}
    if lacking or len(headers) > SIGNED_HEADERS_MAX or any(name not in head.headers for name in headers):
        raise DeniedError(
            "signature", f"There were headers which were not signed: {', '.join(sorted(lacking))}"
        )
    return Signed(
        key_id=credential[1],
        stamp=stamp,
        scope=credential[0].partition("/")[2],
        service=credential[4],
        headers=headers,
        signature=given["Signature"],
        presigned_seconds=presigned_seconds,
    )


def _field(part: str) -> tuple[str, str]:
    name, _, value = part.strip().partition("=")
    return name, value


def _signature(signed: Signed, head: Head, body_hash: str, secret: str) -> str:
    pairs = (pair for pair in pairs_of(head.query) if pair[0] != "X-Amz-Signature")
    encoded = sorted((_encoded(name), _encoded(value)) for name, value in pairs)
    query = "&".join(f"{name}={value}" for name, value in encoded)
    headers = "".join(f"{name}:{' '.join(head.headers[name].split())}\n" for name in signed.headers)
    path = _encoded(_decoded(head.path), safe="/")
    canonical = "\n".join((head.method, path, query, headers, ";".join(signed.headers), body_hash))
    text = "\n".join((ALGORITHM, signed.stamp, signed.scope, hashlib.sha256(_bytes(canonical)).hexdigest()))
    key = b"AWS4" + secret.encode()
    for part in (*signed.scope.split("/"), text):
        key = hmac.new(key, _bytes(part), hashlib.sha256).digest()
    return key.hex()


def _bytes(text: str) -> bytes:
    return text.encode("latin-1", "replace")  # heads are decoded as latin-1


def _decoded(text: str) -> str:
    return unquote(text, errors="surrogateescape")


def _encoded(text: str, safe: str = "") -> str:
    return quote(text, safe=f"{safe}-_.~", errors="surrogateescape")
