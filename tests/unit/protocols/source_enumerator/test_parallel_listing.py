"""Listing in several chains of LISTs. Each chain except the first begins behind a key, which is called the chain's cut.
The result is complete for any order of the server, and for any behaviour of `start_after`.
"""

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
    "no order": hash,
}
"""U+FFFF comes after U+10000 in UTF-16, and before it in UTF-8."""


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
def test_every_key_is_found_in_whatever_order_the_server_lists(
    names: set[str], others: set[str], order: str, data: st.DataObject
) -> None:
    """Otherwise a sweep would miss objects on servers that list in another order than UTF-8, and would withdraw the
    rows of these objects.
    """
    store = filled(ServerOfItsOwn(ORDERS[order], page=3), names)
    cuts = data.draw(st.sets(st.sampled_from(sorted(names)), max_size=5)) if names else set()
    found, overran = listed_in_chains(store, "", cuts)
    assert found == Counter(names)
    assert overran == 0
    found, _ = listed_in_chains(store, "", cuts | others)
    assert set(found) == names, "missing cuts lose no key"


BROKEN = {
    "ignores it": lambda _key, _start: True,
    "includes the key itself": lambda key, start: key.split("/") >= start.split("/"),
    "compares bytes, and lists by names": lambda key, start: key.encode() > start.encode(),
    "finds nothing after it": lambda _key, _start: False,
}


@pytest.mark.parametrize("what", [*BROKEN])
@given(names=keys, data=st.data())
def test_one_chain_lists_everything_if_the_server_cannot_begin_after_a_key(
    what: str, names: set[str], data: st.DataObject
) -> None:
    """Otherwise a sweep would miss objects on a server that implements `start_after` wrongly. The sweep would withdraw
    the rows of these objects.
    """
    store = filled(ServerOfItsOwn(by_names, page=50, after=BROKEN[what]), names)
    wanted = data.draw(st.lists(st.sampled_from(sorted(names)), max_size=5)) if names else []
    found, _ = listed_in_chains(store, "", wanted)
    assert set(found) == names
    found, _ = parallel_listing(store, "", wanted)
    assert set(found) == names


def test_parallel_chains_send_only_the_documented_requests() -> None:
    """Otherwise a listing in chains would cost more requests than documented."""
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


def test_cuts_at_the_same_key_are_merged() -> None:
    """Otherwise two chains would list the same objects."""
    store = filled(MemoryObjectStore(), {"raw/5", "raw/9", "z"})
    assert choose_cuts(store, "raw/", ["raw/1", "raw/2", "raw/5", "raw/9"]) == ["raw/5", "raw/9"]
    assert choose_cuts(store, "raw/", []) == []


def test_no_key_is_lost_if_a_cut_vanishes() -> None:
    """Otherwise a sweep would miss the objects behind a cut that was deleted during the listing."""
    names = {f"{number:04d}" for number in range(4000)}
    store = filled(MemoryObjectStore(), names)
    cuts = choose_cuts(store, "", ["1000", "2000", "3000"])
    assert cuts == ["1001", "2001", "3001"]
    store.delete("2001")
    found, overran = listed_in_chains(store, "", cuts)
    assert set(found) == names - {"2001"}
    assert overran == 0
    assert {key for key, times in found.items() if times > 1} == {f"{n:04d}" for n in range(2002, 3002)}


def test_no_key_is_lost_if_a_new_key_appears_behind_a_cut() -> None:
    """Otherwise a chain would end at a cut although the next chain begins behind keys that are not listed yet."""

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
def test_quantiles_divide_the_sample_evenly(sample: list[str], parts: int) -> None:
    """Otherwise one chain would list most of the bucket."""
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


def test_a_listing_without_cuts_is_a_plain_listing() -> None:
    """Otherwise a small bucket would cost more than 1 LIST for each 1000 objects."""
    store = CountingStore(filled(MemoryObjectStore(), {f"{n:04d}" for n in range(2500)}))
    found, _ = listed_in_chains(store, "", [])
    assert sorted(found) == [meta.key for meta in list_all(store.store, "")]
    assert store.counts == {"LIST": 3}
