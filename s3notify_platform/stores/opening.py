"""The one opener of stores: all that is outside `stores` gets its stores here, and knows them as ports.

Another kind of store is a file, with an `ObjectStore` that is made of an `S3Config`, and an item in `OPENERS`: by the
scheme of its URLs, which is also the setting `scheme` of a source. It is imported when it is used.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from s3notify_platform.errors import UsageError

OPENERS: Final[dict[str, str]] = {"s3": "s3notify_platform.stores.s3.fast:FastObjectStore"}
"""Import path of what opens a store, by the scheme of its URLs."""

_ALIASES: Final = {"s3a": "s3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a URL like s3://acme-landing/raw/ names."""

    scheme: str
    bucket: str
    prefix: str


def place_of(url: str) -> Place:
    """The place of a URL. `UsageError` for one of no kind of store, or without a bucket."""
    found = urlsplit(url)
    scheme = _ALIASES.get(found.scheme, found.scheme)
    if scheme not in OPENERS or not found.netloc:
        raise UsageError(f"{url!r}: give s3://bucket/prefix, or another URL of {', '.join(sorted(OPENERS))}")
    return Place(scheme=scheme, bucket=found.netloc, prefix=found.path.removeprefix("/"))
