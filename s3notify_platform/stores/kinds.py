"""The kinds of store. Another one is a file, and an item here. It is imported when it is used."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of store, by import paths of what is made of an `S3Config`, without a request.

    `store`: its `ports.ObjectStore`. `obstore`, if given: the client of the hot read path; else objects are read
    through the `ObjectStore`. `tags`, if given: the tags of its objects (`stores.s3.tags.ObjectTags`).
    """

    store: str
    obstore: str = ""
    tags: str = ""


KINDS: Final[dict[str, Kind]] = {
    "s3": Kind(
        store="s3notify_platform.stores.s3.fast:FastObjectStore",
        obstore="s3notify_platform.stores.s3.obstore_client:obstore_store",
        tags="s3notify_platform.stores.s3.tags:ObjectTags",
    )
}
"""By the scheme of their URLs, which is also the setting `scheme` of a source."""
