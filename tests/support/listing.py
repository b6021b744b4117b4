"""Listings in several chains of LIST requests, and servers that list keys in unusual orders."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from s3notify_platform.kernel.ports import ObjectStore, Page
from s3notify_platform.protocols.source_enumerator import Chain, choose_cuts, listed_pages
from s3notify_platform.stores.memory import MemoryObjectStore


def listed_in_chains(store: ObjectStore, prefix: str, cuts: Iterable[str]) -> tuple[Counter[str], int]:
    """Lists by one chain from the beginning, and by one chain from each cut.

    Returns how many times each key was listed, and the number of cuts at which a chain did not stop.
    """
    every = frozenset(cuts)
    chains = [Chain(store, prefix, cuts=every, after=cut) for cut in (None, *sorted(every))]
    found = Counter(meta.key for page in listed_pages(chains, 4) for meta in page)
    return found, sum(chain.overran for chain in chains)


def parallel_listing(store: ObjectStore, prefix: str, wanted: Iterable[str]) -> tuple[Counter[str], int]:
    """Lists with cuts that are chosen near the `wanted` keys.

    Returns how many times each key was listed, and the number of valid cuts.
    """
    cuts = choose_cuts(store, prefix, list(wanted))
    found, overran = listed_in_chains(store, prefix, cuts)
    return found, len(cuts) - overran


def by_names(key: str) -> Any:
    """The order of a file system: `a/x` comes before `a-x`."""
    return key.split("/")


class ServerOfItsOwn(MemoryObjectStore):
    """A server that lists in the order `by`, in pages of `page` keys. `after(key, start)` is true if a listing that
    starts after `start` must have `key`.

    With a token, a listing continues exactly where a page ended, as on every server.
    """

    def __init__(
        self,
        by: Callable[[str], Any],
        *,
        page: int = 1000,
        after: Callable[[str, str], bool] | None = None,
    ) -> None:
        super().__init__()
        self._by = by
        self._page = page
        self._is_after = after or (lambda key, start: by(key) > by(start))

    def list(
        self, prefix: str, *, start_after: str | None = None, token: str | None = None, limit: int = 1000
    ) -> Page:
        everything, following = [], None
        while everything == [] or following is not None:
            page = super().list(prefix, token=following)
            everything += page.objects
            if (following := page.next_token) is None:
                break
        everything.sort(key=lambda meta: self._by(meta.key))
        if token is not None:
            start, _, place = token.partition("|")
            rest = [m for m in everything if self._by(m.key) > self._by(place)]
            if start:
                rest = [m for m in rest if self._is_after(m.key, start)]
        else:
            rest = [m for m in everything if start_after is None or self._is_after(m.key, start_after)]
            start = start_after or ""
        size = min(limit, self._page)
        more = len(rest) > size
        return Page(objects=tuple(rest[:size]), next_token=f"{start}|{rest[size - 1].key}" if more else None)
