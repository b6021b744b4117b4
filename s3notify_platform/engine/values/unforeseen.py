"""Unforeseen errors: how they are recognized, and their tracebacks.

The class of an error of this package shows who must act. An outage never counts as a failure of an object. Any other
error is unforeseen: an object has revealed a defect of the parser, of the platform or of a user's function. The error
is stored with its traceback. On the last attempt, the object goes to quarantine (`engine.commit.new_states`). At most
`MAX_UNFORESEEN` objects of a source may be in quarantine for unforeseen errors (`engine.driver`).
"""

import re
import traceback
from typing import Final

from s3notify_platform.kernel.errors import OUTAGES, S3NotifyError
from s3notify_platform.kernel.limits import MAX_TRACE_BYTES

_LINE_MAX: Final = 300
"""Maximum number of characters of one line of a traceback."""

_MESSAGE_CHARS: Final = 1000

_NETWORK: Final = re.compile(
    r"^(obstore|botocore|boto3|urllib3|requests|httpx|aiohttp|grpc|http|ssl|socket)\."
)
_OUTAGE: Final = re.compile(r"Connection|Timeout|TimedOut|Unavailable|Throttl")


def speaks_of_outage(name: str) -> bool:
    """True if the full name of an error's class means that a network fails, or that a service does not answer. Pure."""
    return bool(_NETWORK.search(name) or _OUTAGE.search(name.rpartition(".")[2]))


def is_outage(error: BaseException) -> bool:
    """True if the error is an outage, which is independent of the data: the same work may succeed later. Pure."""
    if isinstance(error, S3NotifyError):
        return isinstance(error, OUTAGES)
    return any(speaks_of_outage(f"{kind.__module__}.{kind.__qualname__}") for kind in type(error).__mro__)


def is_unforeseen(error: BaseException) -> bool:
    """True if the error is not one of this package's own errors, and the cause is neither an outage nor a lack of
    memory. Pure.
    """
    return not (isinstance(error, S3NotifyError | MemoryError) or is_outage(error))


def described(error: BaseException) -> str:
    """Returns an error's class and message. Pure.

    The message is shortened unless the error is one of this package's own errors. Bytes in the message that are not
    text are escaped.
    """
    text = f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()
    return text if isinstance(error, S3NotifyError) else text[:_MESSAGE_CHARS]


def trace_of(error: BaseException) -> str:
    """Returns the traceback of an error, shortened by `bounded`. Pure."""
    return bounded("".join(traceback.format_exception(error)))


def bounded(trace: str) -> str:
    """Shortens a traceback to `MAX_TRACE_BYTES`: removes the ends of long lines, and then the middle. Pure."""
    lines = (
        line if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX]}…" for line in trace.rstrip().splitlines()
    )
    body = "\n".join(lines).encode(errors="backslashreplace")
    if len(body) > MAX_TRACE_BYTES:
        first, last = MAX_TRACE_BYTES // 4, MAX_TRACE_BYTES * 3 // 4 - 8
        body = body[:first] + "\n…\n".encode() + body[-last:]
    return body.decode(errors="ignore")
