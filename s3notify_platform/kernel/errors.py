"""The one tree of errors. An error has a class of its own only if callers handle it differently.

| class | who acts | how |
|---|---|---|
| `UsageError` | programmer or operator | fix the call or the configuration that the message names |
| `RefusedError` | caller | the store refuses this request: find out if it refuses only this key |
| `NotFoundError` | caller | the named thing does not exist |
| `ConflictError` | caller | another writer was first: read again, decide again |
| `FencedError` | worker | a newer generation exists: stop |
| `QuotaExceededError` | caller | back off for `retry_after_seconds` |
| `UnavailableError` | caller | the request was not applied: retry later |
| `UnknownOutcomeError` | caller | the request may have been applied: look before repeating it |
| `CorruptError` | operator | stored bytes contradict an invariant: a person must investigate |

Ordinary contention is a returned outcome (`ports.Conflict`), not an exception. Every class can be pickled, so an error
reaches the Spark driver from a worker unchanged.
"""


class S3NotifyError(Exception):
    """Base of every error this package raises."""


class UsageError(S3NotifyError, ValueError):
    """The call or the configuration is wrong; nothing was written. The message names the thing and the fix."""


class RefusedError(UsageError):
    """The store refuses the request with a 4xx. The cause is this one key, or the bucket or credentials as a whole."""


class NotFoundError(S3NotifyError, LookupError):
    """The named thing does not exist."""


class ConflictError(S3NotifyError):
    """Another writer changed the thing first: read again and decide again."""


class FencedError(S3NotifyError):
    """A newer generation exists: this process must stop and write nothing more."""


class QuotaExceededError(S3NotifyError):
    """A limit is reached; nothing was written. Retry after `retry_after_seconds`."""

    def __init__(self, message: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message, retry_after_seconds)
        self.retry_after_seconds = retry_after_seconds


class UnavailableError(S3NotifyError):
    """The store is unreachable or refuses requests for now; the request was not applied. Retry later."""


class UnknownOutcomeError(S3NotifyError):
    """The request may or may not have been applied: look before repeating it."""


OUTAGES = (UnavailableError, UnknownOutcomeError)
"""Errors that say nothing about the request itself: the same request may succeed the next time."""


class CorruptError(S3NotifyError):
    """Stored bytes contradict an invariant. Nothing was written; a person must investigate."""


# Error names of xor-ack. Each is a subclass of the class that says what to do.


class LessThanTwoBuffers(UsageError):  # noqa: N818 - the original's name
    """`xor` needs two or more stamps."""


class BufferLengthsUnequal(UsageError):  # noqa: N818 - the original's name
    """The stamps of one chain must have the same length."""


class ZeroBufferNoOp(UsageError):  # noqa: N818 - the original's name
    """An all-zero stamp would change nothing."""


class TagExists(ConflictError):  # noqa: N818 - the original's name
    """The chain was created before."""


class TagNotFound(NotFoundError):  # noqa: N818 - the original's name
    """No chain has this tag."""


class StaleLocalData(ConflictError):  # noqa: N818 - the original's name
    """The chain kept changing while it was stamped: stamp again."""
