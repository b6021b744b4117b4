"""An example of a kind of store. To add a real kind, a contributor writes a file like this one, and an entry in
`stores.kinds`.
"""

from functools import cache

from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.kinds import Kind
from s3notify_platform.stores.memory import MemoryObjectStore

TOY = Kind(store="tests.support.toy_store:ToyStore.of")


class ToyStore(MemoryObjectStore):
    """A bucket in the memory of this process. The same name gives the same bucket."""

    @staticmethod
    @cache
    def of(config: S3Config) -> "ToyStore":
        return ToyStore()
