"""The keys and answers of obstore's clients, for each kind of store that has such a client.

obstore uses paths instead of keys, and some keys are not valid paths. `fits_obstore` says which keys obstore can read.
"""

import re
from typing import TYPE_CHECKING, Final

from s3notify_platform.kernel.ports import ETag, ObjectMeta

if TYPE_CHECKING:
    from obstore import GetResult

_NOT_METADATA: Final = frozenset(
    {
        "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Cache-Control",
        "Storage-Class",
    }
)  # fmt: skip

_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f]|(^|/)\.{0,2}(/|\Z)")


def fits_obstore(key: str) -> bool:
    """True if obstore reads exactly this key. Pure.

    False for control characters, empty segments (so also a `/` at either end) and the segments `.` and `..`.
    All other tested characters work: `%`, `*`, `?`, `#`, spaces, emoji.
    """
    return not _UNFIT.search(key)


def meta_of(key: str, found: "GetResult") -> ObjectMeta:
    """The object's metadata in the headers of a GET, which may have requested only a range. No request."""
    meta = found.meta
    return ObjectMeta(
        key=key,
        etag=ETag(str(meta["e_tag"]).strip('"')),
        size=meta["size"],
        modified_ms=int(meta["last_modified"].timestamp() * 1000),
        metadata={name: value for name, value in found.attributes.items() if name not in _NOT_METADATA},
        version_id=meta["version"],
    )
