"""Which objects of a bucket are the platform's own: one answer for listings, inlets, publishers and policies."""

from typing import Final

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.stores.config import OWN
from s3notify_platform.table.known import KNOWN

USUAL: Final = (OWN, f"{KNOWN}/")
"""Prefixes that are the platform's in every bucket."""


def prefixes_of(text: str) -> tuple[str, ...]:
    """The prefixes of `other_platform_prefixes`. `UsageError` for one that is no folder, which might be of others."""
    found = tuple(filter(None, text.split("|")))
    if not all(prefix.endswith("/") for prefix in found):
        raise UsageError(f"other_platform_prefixes {text!r}: end each with '/'")
    return found


def own_prefixes(
    bucket: str, *, platform_bucket: str, platform_prefix: str, keyspace_prefix: str, queue_prefix: str
) -> tuple[str, ...]:
    """Prefixes of the platform's objects in `bucket`: those of a source with these settings, and the usual ones. Pure.

    No source reads what is below them, no inlet reports it, and no publisher writes it. Settings are those of
    `Location`, with their defaults filled in. Buckets of one name count as the same: a store may be reached by several
    URLs.
    """
    if bucket != platform_bucket:
        return USUAL
    return tuple(dict.fromkeys((platform_prefix, keyspace_prefix, queue_prefix, *USUAL)))
