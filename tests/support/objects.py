"""Objects on a real server, as a listing returns them."""

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectVersion
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3 import S3ObjectStore


def put(config: S3Config, key: str, body: bytes, slot: int = 0) -> ObjectVersion:
    """Writes an object by boto3, not by the code under test."""
    store = S3ObjectStore(config)
    store.put(key, body)
    found = store.head(key)
    assert found is not None
    return ObjectVersion(slot=Slot(slot), key=key, etag=found.etag, size=found.size)
