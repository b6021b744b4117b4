"""The keys and answers of obstore's clients, for each kind of store that has such a client.

obstore uses paths instead of keys, and some keys are not valid paths. `fits_obstore` says which keys obstore can read.
Only the GET of an object shows if obstore can read the object's headers (`is_unreadable`).
"""

import re
from typing import TYPE_CHECKING, Final

from s3notify_platform.kernel.ports import ETag, ObjectMeta

if TYPE_CHECKING:
    from obstore import GetResult

NOT_METADATA: Final = frozenset(
    {
        "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Cache-Control",
        "Storage-Class",
    }
)  # fmt: skip
"""The names of obstore's attributes that are not metadata. In requests, obstore ignores the case of these names."""

_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f]|(^|/)\.{0,2}(/|\Z)")


def fits_obstore(key: str) -> bool:
    """True if obstore reads exactly this key. Pure.

    False for control characters, empty segments (so also a `/` at either end) and the segments `.` and `..`.
    All other tested characters work: `%`, `*`, `?`, `#`, spaces, emoji.
    """
    return not _UNFIT.search(key)


def is_unreadable(error: Exception) -> bool:
    """True if an object was found, but obstore does not accept its headers because they are not ASCII. Pure.

    Examples are titles and file names that other programs wrote in UTF-8. boto3 can read such an object.
    """
    return str(error).partition("\n")[0].endswith("contained non UTF-8 characters")


def meta_of(key: str, found: "GetResult") -> ObjectMeta:
    """The object's metadata, from the headers of the answer to a GET. The GET may have requested only a range. No
    request.
    """
    meta = found.meta
    return ObjectMeta(
        key=key,
        etag=ETag(str(meta["e_tag"]).strip('"')),
        size=meta["size"],
        modified_ms=int(meta["last_modified"].timestamp() * 1000),
        metadata={name: value for name, value in found.attributes.items() if name not in NOT_METADATA},
        version_id=meta["version"],
    )
