"""The kinds of store. A new kind is a file, and an item here. The modules of a kind are imported at first use."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of store, by the import paths of its functions. Each function takes an `S3Config`, and sends no request.

    `store`: makes the `ports.ObjectStore`. `obstore`, if given: makes the client of the hot read path. Without this
    client, objects are read through the `ObjectStore`. `tags`, if given: makes the reader and writer of object tags
    (`open_store.Tags`).
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
"""The kinds of store by the scheme of their URLs. A source names its kind of store by the setting `scheme`."""
