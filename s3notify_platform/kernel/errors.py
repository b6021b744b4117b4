"""All errors of the platform, as one class tree. Errors that callers handle in the same way have the same class.

| class | who acts | how |
|---|---|---|
| `UsageError` | programmer or operator | fix the call or the configuration that the message names |
| `RefusedError` | caller | the store refuses this request: find out if the store refuses only this key |
| `NotFoundError` | caller | the object, version or table in the message does not exist |
| `ConflictError` | caller | another writer was first: read again, and decide again |
| `FencedError` | worker | a newer generation exists: stop |
| `QuotaExceededError` | caller | back off for `retry_after_seconds` |
| `UnavailableError` | caller | the request was not applied: retry later |
| `UnknownOutcomeError` | caller | the request may have been applied: find out, and only then repeat the request |
| `CorruptError` | operator | stored bytes contradict an invariant: a person must investigate |

A write that loses against another writer returns `ports.Conflict`, and raises no exception. Every class can be pickled,
so an error of a Spark worker reaches the driver unchanged.
"""


class S3NotifyError(Exception):
    """The base class of every error that this package raises."""


class UsageError(S3NotifyError, ValueError):
    """The call or the configuration is wrong, and nothing was written. The message names the mistake and the
    correction.
    """


class RefusedError(UsageError):
    """The store refuses the request with a status 4xx. The cause is the key, the bucket or the credentials."""


class NotFoundError(S3NotifyError, LookupError):
    """The object, version or table in the message does not exist."""


class ConflictError(S3NotifyError):
    """Another writer was first: the caller must read again, and decide again."""


class FencedError(S3NotifyError):
    """A newer generation exists, so this process must stop its writes."""


class QuotaExceededError(S3NotifyError):
    """A limit is reached, and nothing was written. The caller may retry after `retry_after_seconds`."""

    def __init__(self, message: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message, retry_after_seconds)
        self.retry_after_seconds = retry_after_seconds


class UnavailableError(S3NotifyError):
    """The store is unreachable, or refuses requests for some time. The request was not applied. Retry later."""


class UnknownOutcomeError(S3NotifyError):
    """The request may have been applied. The caller must find out if the request was applied, and only then repeat the
    request.
    """


OUTAGES = (UnavailableError, UnknownOutcomeError)
"""Errors whose cause is not the request itself: the same request may succeed later."""


class CorruptError(S3NotifyError):
    """Stored bytes contradict an invariant. Nothing was written, and a person must investigate."""


# The names of the following errors are from the protocol xor-ack. Each error is a subclass of the platform's error
# class that says what the caller must do.


class LessThanTwoBuffers(UsageError):  # noqa: N818 - the original's name
    """`xor` needs two or more stamps."""


class BufferLengthsUnequal(UsageError):  # noqa: N818 - the original's name
    """The stamps of one chain must have the same length."""


class ZeroBufferNoOp(UsageError):  # noqa: N818 - the original's name
    """A stamp of zeros is refused, because it changes nothing."""


class TagExists(ConflictError):  # noqa: N818 - the original's name
    """A chain with this tag already exists."""


class TagNotFound(NotFoundError):  # noqa: N818 - the original's name
    """No chain has this tag."""


class StaleLocalData(ConflictError):  # noqa: N818 - the original's name
    """Other writers changed the chain in every attempt to stamp it. The caller may stamp again."""
