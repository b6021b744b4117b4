"""The kinds of store. A new kind is a file, and an item here. The modules of a kind are imported at first use."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of store: import paths of functions that take an `S3Config`, and send no request.

    `store`: makes the `ports.ObjectStore`. `obstore`, if given: makes the client of the hot read path; without it,
    objects are read through the `ObjectStore`. `tags`, if given: makes the reader and writer of object tags
    (`stores.s3.tags.ObjectTags`).
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
"""The kinds by the scheme of their URLs, which is also the setting `scheme` of a source."""
