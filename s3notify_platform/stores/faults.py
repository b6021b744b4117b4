"""The meaning of an SDK error for the caller. Every failed request of `S3ObjectStore` is judged by this table.

| error | verdict |
|---|---|
| 404 without NoSuchBucket | MISSING |
| 412 | PRECONDITION |
| 304 | NOT_MODIFIED |
| no connection, 429, 503 SlowDown | NOT_APPLIED: certainly not applied, may be sent again |
| 409, other 5xx, timeout, connection lost, unreadable answer | AMBIGUOUS: it may have been applied |
| 400 or 403 that names an encryption key | `UnavailableError`: a person may allow or enable the key |
| 403, other 4xx | `RefusedError`: requests for this object or for all objects are refused |
| everything else, such as 401, 501, NoSuchBucket | `UsageError`: only a person can fix it |
"""

import re
from dataclasses import dataclass
from enum import Enum, auto

from botocore.exceptions import ClientError

from s3notify_platform.kernel.errors import RefusedError, UnavailableError, UsageError
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.sdk import LOST, NEVER_SENT, answer_of, unusable

_THROTTLED = frozenset({"SlowDown", "SlowDownRead", "SlowDownWrite", "RequestLimitExceeded", "Throttling"})


class Verdict(Enum):
    """The kinds of failure that a caller treats differently."""

    MISSING = auto()
    PRECONDITION = auto()
    NOT_MODIFIED = auto()
    NOT_APPLIED = auto()
    AMBIGUOUS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A failed request: its meaning, and its cause as text for people. The text contains no secret."""

    verdict: Verdict
    cause: str


def judge(error: Exception, config: S3Config) -> Fault:
    """The verdict on `error`. If a retry cannot help, raises an error that names the remedy. Pure."""
    if isinstance(error, ClientError):
        return _judge_answer(error, config)
    cause = type(error).__name__
    if isinstance(error, NEVER_SENT):
        return Fault(verdict=Verdict.NOT_APPLIED, cause=cause)
    if isinstance(error, LOST):
        return Fault(verdict=Verdict.AMBIGUOUS, cause=cause)
    raise unusable(error, config) from error


def _judge_answer(error: ClientError, config: S3Config) -> Fault:
    status, code, message = answer_of(error)
    cause = f"{status} {code}"
    if code == "NoSuchBucket":
        raise no_bucket(config) from None
    if status in _PLAIN:
        return Fault(verdict=_PLAIN[status], cause=cause)
    if status in (400, 403) and (code.startswith("KMS") or _OF_ENCRYPTION.search(message)):
        raise UnavailableError(
            f"{config.place}: the object's encryption key cannot be used ({cause} {message[:200]}): enable it, and "
            "allow kms:Decrypt and kms:GenerateDataKey"
        ) from None
    if status in (401, 403):
        raise (RefusedError if status == 403 else UsageError)(_refusal(code, config)) from None
    if status != 501 and (status >= 500 or code == "RequestTimeout"):
        throttled = code in _THROTTLED
        return Fault(verdict=Verdict.NOT_APPLIED if throttled else Verdict.AMBIGUOUS, cause=cause)
    hint = " (the store does not implement this)" if status == 501 else ""
    if status in (301, 307) or code == "AuthorizationHeaderMalformed":
        hint = f" (is region {config.region!r} the bucket's?)"
    refusal = RefusedError if 400 <= status < 500 else UsageError
    raise refusal(f"{config.place} refused the request: {cause} {message}{hint}".rstrip()) from None


_OF_ENCRYPTION = re.compile(r"\bkms:[A-Za-z*]|:kms:|\bKMS\b|ciphertext refers to")
"""Messages about encryption keys. If the caller may not use the encryption key, AWS answers AccessDenied with a message
of this kind.
"""


_PLAIN = {
    304: Verdict.NOT_MODIFIED,
    404: Verdict.MISSING,
    409: Verdict.AMBIGUOUS,
    412: Verdict.PRECONDITION,
    429: Verdict.NOT_APPLIED,
}


def _refusal(code: str, config: S3Config) -> str:
    check = {
        "InvalidAccessKeyId": "check the access key id: it is unknown to this endpoint",
        "SignatureDoesNotMatch": "check the secret access key, and the region",
        "RequestTimeTooSkewed": "check this machine's clock",
        "ExpiredToken": "the session token has expired: get new credentials",
    }.get(code, "check the credentials, and that they may list, read, write and delete in this bucket")
    return f"{config.place} refused access ({code or 'Forbidden'}): {check}"


def no_bucket(config: S3Config) -> UsageError:
    """The error for a bucket that does not exist."""
    return UsageError(f"no {config.place}: create the bucket, or correct its name or the endpoint")
