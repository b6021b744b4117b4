"""A store that answers as if requests had no conditions, as some servers do."""

from s3notify_platform.kernel.ports import Absent, IfMatch
from s3notify_platform.stores.counting import CountingStore


class IgnoringStore(CountingStore):
    """Ignores these kinds of conditions: `create`, `match`, `delete`, `copy`, `upload`."""

    def __init__(self, store, ignores):
        super().__init__(store)
        self.ignores = set(ignores)

    def put(self, key, body, *, precondition=None, metadata=None):
        if (isinstance(precondition, Absent) and "create" in self.ignores) or (
            isinstance(precondition, IfMatch) and "match" in self.ignores
        ):
            precondition = None
        return super().put(key, body, precondition=precondition, metadata=metadata)

    def delete(self, key, *, precondition=None):
        return super().delete(key, precondition=None if "delete" in self.ignores else precondition)

    def copy(self, source, target, *, precondition=None, metadata=None):
        precondition = None if "copy" in self.ignores else precondition
        return super().copy(source, target, precondition=precondition, metadata=metadata)

    def complete_upload(self, key, upload, parts, *, precondition=None):
        precondition = None if "upload" in self.ignores else precondition
        return super().complete_upload(key, upload, parts, precondition=precondition)
