"""S3's rules for keys, pages and copies, and the arithmetic of counters, shared by all adapters. Pure."""

from typing import Final

from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.limits import MAX_KEY_BYTES
from s3notify_platform.kernel.ports import Conflict

MAX_PAGE: Final = 1000
"""Maximum number of keys in one page of a listing."""


def check_page_limit(limit: int) -> int:
    """Return `limit` if a LIST may return that many keys; `UsageError` otherwise."""
    if not 1 <= limit <= MAX_PAGE:
        raise UsageError(f"limit={limit}: a page has 1 to {MAX_PAGE} objects")
    return limit


def check_key(key: str) -> str:
    """Return `key` if S3 can hold an object under it; `UsageError` otherwise."""
    if not 1 <= len(key.encode("utf-8")) <= MAX_KEY_BYTES:
        raise UsageError(
            f"key {key[:60]!r} has {len(key.encode('utf-8'))} bytes: 1 to {MAX_KEY_BYTES} are allowed"
        )
    return key


def check_copy(source: str, target: str) -> None:
    """`UsageError` if an object would be copied onto itself: S3 refuses such a copy."""
    if source == target:
        raise UsageError(f"copy of {source!r} onto itself: name another target")


def counter_sum(value: bytes | None, amount: int, ceiling: int | None) -> int | Conflict:
    """A counter's next value; `Conflict` if it would fall below 0, or rise above `ceiling`.

    A counter above a lowered ceiling may still be decreased.
    """
    try:
        total = amount + (int(value) if value is not None else 0)
    except ValueError:
        raise CorruptError(f"counter holds {value!r}, not a number") from None
    return Conflict() if total < 0 or (amount > 0 and ceiling is not None and total > ceiling) else total
