"""Decides which objects of a bucket are the platform's own. Listings, inlets, publishers and policies all use this
rule.
"""

from typing import Final

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.stores.config import OWN_PREFIX
from s3notify_platform.table.known import KNOWN

USUAL: Final = (OWN_PREFIX, f"{KNOWN}/")
"""The platform's prefixes in every bucket."""


def prefixes_of(text: str) -> tuple[str, ...]:
    """Returns the prefixes in `other_platform_prefixes`.

    `UsageError`: a prefix does not end in '/', so it could also match keys of other objects.
    """
    found = tuple(filter(None, text.split("|")))
    if not all(prefix.endswith("/") for prefix in found):
        raise UsageError(f"other_platform_prefixes {text!r}: end each prefix with '/'")
    return found


def own_prefixes(
    bucket: str, *, platform_bucket: str, platform_prefix: str, keyspace_prefix: str, queue_prefix: str
) -> tuple[str, ...]:
    """Returns the prefixes of the platform's objects in `bucket`: the usual prefixes, and the prefixes of a source with
    these settings. Pure.

    Sources do not read objects below these prefixes. Inlets do not report these objects, and publishers do not write
    them. The settings have the names of `Location`'s fields, and include default values. Two buckets with the same name
    are treated as one bucket, because a store may have several URLs.
    """
    if bucket != platform_bucket:
        return USUAL
    return tuple(dict.fromkeys((platform_prefix, keyspace_prefix, queue_prefix, *USUAL)))
