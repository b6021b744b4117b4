"""The one tree of errors. A class exists only where a caller acts differently.

| class | who acts | how |
|---|---|---|
| `UsageError` | the programmer or operator | fix the call or the configuration it names |
| `RefusedError` | caller | the store refuses this request: find out whether it is for one key alone |
| `NotFoundError` | caller | the named thing does not exist |
| `ConflictError` | caller | another writer was first: read again, decide again |
| `FencedError` | worker | a newer generation exists: stop |
| `QuotaExceededError` | caller | back off for `retry_after_seconds` |
| `UnavailableError` | caller | nothing was applied: retry later |
| `UnknownOutcomeError` | caller | it may have been applied: look before doing it again |
| `CorruptError` | operator | stored bytes contradict an invariant: call a person |

Ordinary contention is a returned outcome (`ports.Conflict`), not an exception. Every class pickles, so that
an error reaches the Spark driver from a worker unchanged.
"""


class S3NotifyError(Exception):
    """Base of every error this package raises."""


class UsageError(S3NotifyError, ValueError):
    """The call or the configuration is wrong; nothing was written. The message names the thing and the fix."""


class RefusedError(UsageError):
    """The store refuses what was asked for (a 4xx): a fault of this one key, or of bucket or credentials as a whole."""


class NotFoundError(S3NotifyError, LookupError):
    """The named thing does not exist."""


class ConflictError(S3NotifyError):
    """Another writer changed it first: read again and decide again."""


class FencedError(S3NotifyError):
    """A newer generation exists: this process must stop, and write nothing more."""


class QuotaExceededError(S3NotifyError):
    """A limit is reached; nothing was written. Retry after `retry_after_seconds`."""

    def __init__(self, message: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message, retry_after_seconds)
        self.retry_after_seconds = retry_after_seconds


class UnavailableError(S3NotifyError):
    """The store is unreachable, or refused for now; nothing was applied. Retry later."""


class UnknownOutcomeError(S3NotifyError):
    """The request may or may not have been applied: look before doing it again."""


OUTAGES = (UnavailableError, UnknownOutcomeError)
"""No verdict on what was asked for: it may go well the next time."""


class CorruptError(S3NotifyError):
    """Stored bytes contradict an invariant. Nothing was written; a person has to look."""


# The named errors of xor-ack, each below the class that says what to do.


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
    """The chain kept changing while it was being stamped: stamp again."""
