"""S3's rules for keys, metadata, pages, copies and tags, and the arithmetic of counters, for all adapters. Pure."""

import re
from typing import Final

from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.limits import MAX_KEY_BYTES
from s3notify_platform.kernel.ports import Conflict, Metadata

MAX_PAGE: Final = 1000
"""Maximum number of keys in one page of a listing."""

TAGS_MAX: Final = 10
"""Maximum number of tags of a version, as on S3."""

_NAME: Final = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
"""A name that HTTP allows for a header."""

_TAG: Final = re.compile(r"((?!aws:)[\w .:/+@-]{1,128})=([\w .:/+@-]{0,256})")


def check_page_limit(limit: int) -> int:
    """Returns `limit` if a LIST may return that many keys; `UsageError` otherwise."""
    if not 1 <= limit <= MAX_PAGE:
        raise UsageError(f"limit={limit}: a page has 1 to {MAX_PAGE} objects")
    return limit


def check_key(key: str) -> str:
    """Returns `key` if S3 can hold an object under it; `UsageError` otherwise."""
    if not 1 <= len(key.encode("utf-8")) <= MAX_KEY_BYTES:
        raise UsageError(
            f"key {key[:60]!r} has {len(key.encode('utf-8'))} bytes: 1 to {MAX_KEY_BYTES} are allowed"
        )
    return key


def check_metadata(key: str, metadata: Metadata) -> dict[str, str]:
    """Returns the metadata if it can be stored with the object `key`; `UsageError` otherwise.

    Names and values become headers of requests. With other characters than printable ASCII, obstore panics, or writes
    objects that it cannot read.
    """
    found = dict(metadata or {})
    for name, value in found.items():
        if not _NAME.fullmatch(name):
            raise UsageError(f"metadata of {key!r}: name {name[:60]!r}: use ASCII letters, digits, - and _")
        if not (value.isascii() and value.isprintable()):
            raise UsageError(
                f"metadata of {key!r}: the value of {name[:60]!r} must be printable ASCII: encode it, as URLs do"
            )
    return found


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


def tags_of(text: str) -> dict[str, str]:
    """Parses tags like `archive=yes, team=sales`. `UsageError` for tags that S3 does not accept. Pure."""
    found: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        if (tag := _TAG.fullmatch(pair)) is None:
            raise UsageError(
                f"committed_tags {pair[:200]!r}: write name=value, with at most 128 and 256 letters, digits, "
                "spaces and _.:/+-@; names that begin with aws: are reserved for AWS"
            )
        found[tag[1]] = tag[2]
    if len(found) > TAGS_MAX:
        raise UsageError(f"committed_tags: {len(found)} tags: an object has at most {TAGS_MAX}")
    return found
