"""The causal cache on a real S3 server: what it contains after writes that were not signalled."""

import pytest

from s3notify_platform.protocols.keyspace import CausalCache, Publisher, Watcher
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.servers import S3Server

pytestmark = pytest.mark.server

KS = "ks/"


@pytest.mark.parametrize("staleness_seconds", [3600, 0], ids=["not polled", "polled each time"])
def test_evict_shows_writes_without_a_signal(ministack: S3Server, staleness_seconds: float) -> None:
    """A poll finds only signalled writes. Without `evict`, a reader who knows of an unsignalled write would
    still get the former object from the cache.
    """
    store = S3ObjectStore(ministack.config(ministack.make_bucket()))
    counting = CountingStore(store)
    cache = CausalCache(
        counting,
        Watcher(store, prefix=KS),
        publisher=Publisher(store, prefix=KS),
        staleness_seconds=staleness_seconds,
    )

    def bodies() -> dict[str, bytes | None]:
        found = {key: cache.get(key) for key in before}
        return {key: each.body if each is not None else None for key, each in found.items()}

    before = {"overwritten": b"1", "deleted": b"1", "new": None, "put here": b"1", "other": b"1"}
    Publisher(store, prefix=KS).put("overwritten", b"1")
    for key in ("deleted", "other"):
        store.put(key, b"1")
    cache.put("put here", b"1")
    assert bodies() == before

    for key in ("overwritten", "new", "put here", "other"):
        store.put(key, b"2")
    store.delete("deleted")
    counting.counts.clear()
    assert bodies() == before
    changed = {"overwritten": b"2", "deleted": None, "new": b"2", "put here": b"2"}
    for key in changed:
        cache.evict(key)
        assert cache.try_get(key) is None
    cache.evict("the key was never requested")
    assert not counting.counts
    assert bodies() == before | changed
    assert counting.counts == {"GET": len(changed)}
    assert bodies() == before | changed
    assert counting.counts == {"GET": len(changed)}
