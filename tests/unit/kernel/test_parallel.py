"""Generators that read ahead. If a generator is dropped before its end, nothing waits for its reads in flight."""

from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest

from s3notify_platform.engine.read import fetch
from s3notify_platform.formats.object_bytes import chunks
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import Chain, ObjectVersion, listed_pages
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.packs import ranged_file
from s3notify_platform.table.reading import read_slots
from tests.support.log_rounds import SCHEMA, Rounds
from tests.support.log_tables import LAYOUT

KEYS = [f"{n:03}/../k" for n in range(fetch.WINDOW_OBJECTS + 8)]
"""Keys of two windows. obstore accepts none of these keys."""


class Slow(CountingStore):
    """A bucket that delays the answers to `held` requests until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__(MemoryObjectStore())
        self.held: Callable[[str], bool] = lambda _: False
        self.go_on, self.late = Event(), Event()

    def wait(self, name: str) -> None:
        if self.held(name):
            self.go_on.wait(20)
            self.late.set()

    def get(self, key: str, **conditions: Any) -> Any:
        self.wait(key)
        return super().get(key, **conditions)

    def get_range(self, key: str, start: int, end: int) -> Any:
        self.wait(key)
        return super().get_range(key, start, end)

    def list(self, prefix: str, **how: Any) -> Any:
        self.wait(prefix)
        return super().list(prefix, **how)


class SlowBytes:
    """An object of which only the beginning arrives."""

    size = 100

    def __init__(self, store: Slow) -> None:
        self.store = store

    def read(self, start: int, end: int) -> bytes:
        self.store.wait(str(start))
        return bytes(end - start)


def of_an_object(store: Slow, _: pytest.MonkeyPatch) -> Iterator[Any]:
    store.held = lambda start: start != "0"
    return chunks(SlowBytes(store), 0, 100, chunk_bytes=10)


def of_objects(store: Slow, patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Reads objects: the first window is yielded while the second is being read."""
    patch.setenv("AWS_ACCESS_KEY_ID", "test")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    patch.setattr(fetch, "open_store", lambda _: store)
    store.held = lambda key: key >= KEYS[fetch.WINDOW_OBJECTS]
    versions = (ObjectVersion(slot=Slot(0), key=key, etag=ETag("e"), size=1) for key in KEYS)
    return fetch.fetch(S3Config(bucket="b", region="r", endpoint_url="http://127.0.0.1:1"), versions)


def of_listings(store: Slow, _: pytest.MonkeyPatch) -> Iterator[Any]:
    store.put("a/1", b"")
    store.held = lambda prefix: prefix == "b/"
    return listed_pages([Chain(store, prefix, cuts=frozenset()) for prefix in ("a/", "b/")], 2)


def of_packs(store: Slow, patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Reads one pack three times: the third read is in flight when the result of the first read is yielded."""
    patch.setattr(ranged_file, "ITEMS_AHEAD", 2)
    rounds = Rounds(store=store)
    done = rounds.commit(rounds.planned({"a": ("e", (1, 2))}))
    held = iter((False, False, True))
    store.held = lambda key: "/data/" in key and next(held)
    return read_slots(store, LAYOUT, [*done.snapshot.packs.values()] * 3, None, SCHEMA)


@pytest.mark.parametrize("begun", [of_an_object, of_objects, of_listings, of_packs])
def test_a_dropped_generator_waits_for_no_reads(
    begun: Callable[[Slow, pytest.MonkeyPatch], Iterator[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector may end a generator in a thread that has a lock. If this thread waited, it could wait for
    ever.
    """
    store = Slow()
    reading = begun(store, monkeypatch)
    next(reading)
    del reading
    assert not store.late.is_set()
    store.go_on.set()
