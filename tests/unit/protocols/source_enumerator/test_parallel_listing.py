"""Listing in several chains: complete whatever the server's order, and whatever it makes of `start_after`."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import Page, list_all
from s3notify_platform.protocols.source_enumerator import choose_cuts, quantiles
from s3notify_platform.protocols.source_enumerator.parallel_listing import HANDOVER_KEYS
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.listing import ServerOfItsOwn, by_names, listed_in_chains, parallel_listing

keys = st.sets(st.text("ab/-.\n+\uffff\U00010000", min_size=1, max_size=6), max_size=HANDOVER_KEYS)
ORDERS = {
    "UTF-8": lambda key: key.encode(),
    "UTF-16": lambda key: key.encode("utf-16-be"),
    "names": by_names,
    "backwards": lambda key: [-byte for byte in key.encode()] + [1],
    "none at all": hash,
}
"""Of UTF-16, U+FFFF comes after U+10000; of UTF-8, before it."""


def filled(store: MemoryObjectStore, names: set[str]) -> MemoryObjectStore:
    for key in names:
        store.put(key, b"x")
    return store


@given(
    keys,
    st.sets(st.text("ab/-.\uffff", min_size=1, max_size=6), max_size=6),
    st.sampled_from([*ORDERS]),
    st.data(),
)
def test_every_key_is_listed_in_any_order(
    names: set[str], others: set[str], order: str, data: st.DataObject
) -> None:
    """Once, where the cuts are there; twice at most otherwise. No order of keys is presumed."""
    store = filled(ServerOfItsOwn(ORDERS[order], page=3), names)
    cuts = data.draw(st.sets(st.sampled_from(sorted(names)), max_size=5)) if names else set()
    found, overran = listed_in_chains(store, "", cuts)
    assert found == Counter(names)
    assert overran == 0
    found, _ = listed_in_chains(store, "", cuts | others)
    assert set(found) == names, "cuts that are not there, or no longer"


BROKEN = {
    "ignores it": lambda _key, _start: True,
    "takes it in again": lambda key, start: key.split("/") >= start.split("/"),
    "compares bytes, and lists by names": lambda key, start: key.encode() > start.encode(),
    "knows nothing after it": lambda _key, _start: False,
}


@pytest.mark.parametrize("what", [*BROKEN])
@given(names=keys, data=st.data())
def test_a_server_that_cannot_begin_after_a_key_is_listed_in_one_chain(
    what: str, names: set[str], data: st.DataObject
) -> None:
    """Cuts from which it does not go on as it should are not chosen; if it is so by then, they are passed over."""
    store = filled(ServerOfItsOwn(by_names, page=50, after=BROKEN[what]), names)
    wanted = data.draw(st.lists(st.sampled_from(sorted(names)), max_size=5)) if names else []
    found, _ = listed_in_chains(store, "", wanted)
    assert set(found) == names
    found, _ = parallel_listing(store, "", wanted)
    assert set(found) == names


def test_chains_and_requests() -> None:
    """2 LISTs for each cut to choose it, 1 when it is met, and 1 for each 1000 objects of a chain."""
    names = {f"raw/{number:05d}" for number in range(8000)}
    memory = filled(filled(MemoryObjectStore(), names), {"other", "zz"})
    store = CountingStore(memory)
    sample = [f"raw/{number:05d}" for number in range(0, 8000, 97)]
    cuts = choose_cuts(store, "raw/", quantiles(sample, 4))
    assert len(cuts) == 3
    assert all(cut in names for cut in cuts)
    assert store.counts == {"LIST": 6}
    found, overran = listed_in_chains(store, "raw/", cuts)
    assert found == Counter(names)
    assert overran == 0
    assert store.counts["LIST"] <= 6 + 3 + 8 + 4


def test_cuts_that_come_to_the_same_key_are_one() -> None:
    """Of keys that are gone, or at the very end; and below the prefix only."""
    store = filled(MemoryObjectStore(), {"raw/5", "raw/9", "z"})
    assert choose_cuts(store, "raw/", ["raw/1", "raw/2", "raw/5", "raw/9"]) == ["raw/5", "raw/9"]
    assert choose_cuts(store, "raw/", []) == []


def test_a_cut_that_vanishes_costs_no_key() -> None:
    """What lies behind it is listed twice."""
    names = {f"{number:04d}" for number in range(4000)}
    store = filled(MemoryObjectStore(), names)
    cuts = choose_cuts(store, "", ["1000", "2000", "3000"])
    assert cuts == ["1001", "2001", "3001"]
    store.delete("2001")
    found, overran = listed_in_chains(store, "", cuts)
    assert set(found) == names - {"2001"}
    assert overran == 0
    assert {key for key, times in found.items() if times > 1} == {f"{n:04d}" for n in range(2002, 3002)}


def test_a_key_that_appears_behind_a_cut_meanwhile() -> None:
    """The chain does not trust the next one with it, and goes on. Nothing is lost."""

    class Written(MemoryObjectStore):
        def list(self, prefix: str, **arguments: object) -> Page:
            if arguments.get("limit") == HANDOVER_KEYS:
                self.put("0005+", b"x")
            return super().list(prefix, **arguments)  # type: ignore[arg-type]

    names = {f"{number:04d}" for number in range(20)}
    store = filled(Written(), names)
    found, overran = listed_in_chains(store, "", ["0005"])
    assert names <= set(found)
    assert overran == 1


@given(st.lists(st.text(max_size=3), max_size=30), st.integers(1, 9))
@example([str(number) for number in range(30)], 4)
def test_quantiles(sample: list[str], parts: int) -> None:
    """In the order of bytes, of the sample, and about equally far apart."""
    found = quantiles(sample, parts)
    order = sorted(set(sample), key=str.encode)
    assert len(found) <= parts - 1
    assert found == [key for key in order if key in found]
    if len(order) >= 2 * parts:
        places = [0, *(order.index(key) for key in found), len(order)]
        sizes = [after - before for before, after in pairwise(places)]
        assert max(sizes) - min(sizes) <= 1
    with pytest.raises(UsageError, match="parts=0"):
        quantiles(sample, 0)


def test_without_cuts_it_is_a_plain_listing() -> None:
    """1 LIST for each 1000 objects."""
    store = CountingStore(filled(MemoryObjectStore(), {f"{n:04d}" for n in range(2500)}))
    found, _ = listed_in_chains(store, "", [])
    assert sorted(found) == [meta.key for meta in list_all(store.store, "")]
    assert store.counts == {"LIST": 3}
