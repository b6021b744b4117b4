"""A listing in several chains of LISTs, on real servers. Wherever the keys are cut, the chains together return the same
keys as a single chain, and each key once.
"""

from collections.abc import Iterator

import pytest

from s3notify_platform.kernel.ports import ObjectStore, list_all
from s3notify_platform.protocols.source_enumerator import quantiles
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.fast import FastObjectStore
from tests.support.listing import parallel_listing

PREFIX = "raw/"
FOLDERS = (
    "a",
    "a-b",
    "a.b",
    "a/b",
    "a/b-c",
    "a/b/c",
    "a+b",
    "a b",
    "Z",
    "a\U0001f642",
    "日本語",
    "a\uffee",
    "a\U00010000",
)
"""Names that are ordered differently by bytes, by path, by UTF-16, and by the encoding of `+` and space."""


class ListingSuite:
    """Subclasses define the fixture `store`, an empty bucket. `odd`: keys that the server accepts."""

    odd: tuple[str, ...] = ("new\nline", "tab\t", "per%20cent", "double//slash", "trailing/", "back\\slash")

    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        raise NotImplementedError

    @pytest.fixture
    def names(self, store: ObjectStore) -> set[str]:
        names = {
            f"{PREFIX}{folder}/{number}{tail}"
            for folder in FOLDERS
            for number in range(6)
            for tail in ("", "-x", "+")
        }
        names |= {f"{PREFIX}{folder}-{number}" for folder in FOLDERS for number in range(3)}
        names |= {f"{PREFIX}{key}" for key in self.odd}
        for key in (*names, "other", "rax", "raw-not"):
            store.put(key, b"x")
        return names

    def test_several_chains_list_the_same_as_one(self, store: ObjectStore, names: set[str]) -> None:
        """A cut is a key at which one chain ends and the next chain begins. If a chain ended too early, a
        sweep would take existing objects for deleted objects, and would miss new objects. If a chain did not
        stop at its cut, the sweep would list many keys twice.
        """
        assert {meta.key for meta in list_all(store, PREFIX)} == names
        for parts in (2, 5, 16):
            found, cuts = parallel_listing(store, PREFIX, quantiles(names, parts))
            assert cuts == parts - 1
            assert dict(found) == dict.fromkeys(names, 1)

    def test_chains_may_begin_after_every_odd_key(self, store: ObjectStore, names: set[str]) -> None:
        """The test asks for a chain after each odd key, even if no object has the key. A server may begin a
        LIST after such a key at another place. If a chain began there, a sweep would miss objects, or would
        list objects twice.
        """
        odd = [f"{PREFIX}{key}" for key in self.odd]
        odd += [f"{PREFIX}{folder}" for folder in FOLDERS] + [f"{PREFIX}{folder}/3" for folder in FOLDERS]
        found, cuts = parallel_listing(store, PREFIX, odd)
        assert cuts > len(FOLDERS)
        assert dict(found) == dict.fromkeys(names, 1)


class TestMemory(ListingSuite):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryObjectStore()


class TestMoto(ListingSuite):
    # The server rejects a key with a newline.
    odd = tuple(key for key in ListingSuite.odd if "\n" not in key)

    @pytest.fixture
    def store(self, moto_store: S3ObjectStore) -> ObjectStore:
        return moto_store


@pytest.mark.server
class TestMinistack(ListingSuite):
    @pytest.fixture
    def store(self, ministack) -> ObjectStore:
        return FastObjectStore(ministack.config(ministack.make_bucket()))


@pytest.mark.server
class TestSeaweed(ListingSuite):
    """SeaweedFS lists by paths, not by bytes."""

    odd = ("new\nline", "tab\t", "per%20cent")

    @pytest.fixture
    def store(self, seaweed) -> ObjectStore:
        return FastObjectStore(seaweed.config(seaweed.make_bucket()))
