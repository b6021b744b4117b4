"""The crate vnotify from crates.io and the platform use one keyspace: each of them as writer, and each as reader."""

from functools import partial
from pathlib import Path

import pytest

from s3notify_platform.kernel.ports import Written
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import CausalCache, Delete, Publisher, Put, Watcher
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.ingested import Place
from tests.support.servers import S3Server
from tests.support.vnotify_crate import build_peer, running_peer
from tests.support.waiting import until

pytestmark = [
    pytest.mark.server,
    pytest.mark.thorough,
    pytest.mark.registry,
    pytest.mark.timeout(1800),  # the crate is compiled
]

KEYS = ["a", "path/to/object", "日本語/ключ/🙂", " leading space", "a//b", "a+b%20c", "x" * 1000]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_peer(tmp_path_factory.mktemp("vnotify"))


@pytest.mark.parametrize(("prefix", "slots"), [("keyspace/", 1000), ("signals-", 7), ("deep/er/", 1)])
def test_platform_sees_the_crates_writes(ministack: S3Server, program: Path, prefix: str, slots: int) -> None:
    """If the platform looked for the crate's signals in other slots, a source would miss objects that a
    program has written by the crate, and the platform's cache would return former objects.
    """
    config = ministack.config(ministack.make_bucket())
    store = S3ObjectStore(config)
    watcher = Watcher(store, prefix=prefix, slots=slots)
    cache = CausalCache(store, Watcher(store, prefix=prefix, slots=slots), staleness_seconds=0)
    watcher.poll()
    with running_peer(program, config, prefix=prefix, slots=slots) as peer:
        for key in KEYS:
            assert cache.get(key) is None
            peer.put(key, f"1 of {key}")
            assert watcher.poll().changed.keys() == {slot_of(key, slots)}
            assert (found := cache.get(key)) is not None
            assert found.body.decode() == f"1 of {key}"
        assert not watcher.poll().changed


@pytest.mark.parametrize(("prefix", "slots"), [("keyspace/", 1000), ("signals-", 7)])
def test_crate_sees_the_platforms_writes(ministack: S3Server, program: Path, prefix: str, slots: int) -> None:
    """The crate's count of its cached objects is some seconds late. The crate misses changes until the count
    is right, so the test repeats its changes. If the crate did not see the platform's signals, programs that
    use the crate would read overwritten or deleted objects.
    """
    config = ministack.config(ministack.make_bucket())
    publisher = Publisher(S3ObjectStore(config), prefix=prefix, slots=slots)

    def sees(change: Put | Delete, body: str | None) -> bool:
        publisher.publish([change])
        return peer.get(change.key) == body

    with running_peer(program, config, prefix=prefix, slots=slots) as peer:
        publisher.publish([Put(key=key, body=b"1") for key in KEYS])
        assert [peer.get(key) for key in KEYS] == ["1"] * len(KEYS)
        for key in KEYS:
            until(partial(sees, Put(key=key, body=b"2"), "2"))
            until(partial(sees, Delete(key=key), None))


@pytest.mark.parametrize(("prefix", "slots"), [("keyspace/", 1000), ("signals-", 7)])
def test_crate_and_cache_see_each_others_puts(
    ministack: S3Server, program: Path, prefix: str, slots: int
) -> None:
    """If the cache moved other signals than the crate, a program on one side would still read the former object
    after a put on the other side.
    """
    config = ministack.config(ministack.make_bucket())
    store = S3ObjectStore(config)
    cache = CausalCache(
        store,
        Watcher(store, prefix=prefix, slots=slots),
        publisher=Publisher(store, prefix=prefix, slots=slots),
        staleness_seconds=0,
    )

    def sees(key: str, body: str) -> bool:
        assert isinstance(cache.put(key, body.encode()), Written)
        return peer.get(key) == body

    with running_peer(program, config, prefix=prefix, slots=slots) as peer:
        for key in KEYS:
            assert sees(key, "1")  # the crate has not requested this key before
            until(partial(sees, key, "2"))
            assert (ours := cache.get(key)) is not None
            assert ours.body == b"2"
            peer.put(key, "3")
            assert (theirs := cache.get(key)) is not None
            assert theirs.body == b"3"


def test_bucket_of_the_crate_becomes_a_table(ministack: S3Server, program: Path) -> None:
    """The crate's objects are next to its keyspace and the platform's own objects. If the source read signals or its
    own files as data, a batch would fail, or would add false rows. If the source missed the crate's signals, rows
    would be missing.
    """
    place = Place(ministack, prefix="", keyspace_prefix="keyspace/")
    watcher = Watcher(place.store, prefix="keyspace/", slots=4)
    with running_peer(program, place.store.config, prefix="keyspace/", slots=4) as peer:
        for number in range(12):
            peer.put(f"{number % 3}/{number}.jsonl", f'{{"a": {number}}}\n')
        for batch in range(3):
            slots = sorted(watcher.poll().changed)
            result = place.ingest().run(slots, batch=f"{batch}")
            assert all(each.ok for each in result.slots.values())
            assert sum(place.values().values()) == 12
            peer.put("0/0.jsonl", f'{{"a": {100 + batch}}}\n')
        place.run("last")
    assert place.values() == dict.fromkeys([*range(1, 12), 102], 1)
