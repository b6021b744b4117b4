"""Lists a prefix in several concurrent chains of LISTs; the result is complete in any order in which the server lists.

Steps
    1. `choose_cuts` takes quantiles of a sample of the keys. A LIST after each quantile finds the key that actually
       comes next: a *cut*. The keys of one slot's committed state are a good sample, because they are spread uniformly
       over all keys.
    2. A `Chain` lists from a cut (the first chain from the beginning), page by page, with the server's own tokens. A
       chain ends with the first cut that it finds, and includes that cut.
    3. Before a chain ends at a cut, the chain LISTs after the cut. This LIST must begin with the keys that come next in
       the chain's own listing. If the check fails, the chain continues past that cut.

Why the result is complete. Take a key that exists all the time, and the last cut before this key in the server's order.
The chain from that cut finds no other cut before the key, so this chain reaches the key. This argument needs no
knowledge of the order of keys or cuts: S3 lists in the order of UTF-8 bytes, SeaweedFS lists `a/x` before `a-x`. The
argument has one condition: a LIST with `start_after` continues with the keys that follow in the server's own listing. A
cut at which this condition does not hold is omitted by step 1, or skipped by step 3. So if a server ignores
`start_after`, or includes the key of `start_after` again, the prefix is listed in one chain.

If a cut is removed or skipped during the listing, the keys after it are listed twice. The caller must accept these
duplicates.

Requests: 1 LIST for each 1000 objects; 2 for each cut, and 1 more when a chain finds the cut.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from typing import Final

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.parallel import in_parallel, readers
from s3notify_platform.kernel.ports import ListedColumns, ObjectStore

HANDOVER_KEYS: Final = 32
"""The number of keys after a cut that a chain compares before it leaves the following keys to another chain."""


def quantiles(sample: Iterable[str], parts: int) -> list[str]:
    """Up to `parts - 1` keys that divide `sample` into equal parts, in the order of UTF-8 bytes. Pure."""
    keys = sorted(set(sample), key=lambda key: key.encode("utf-8"))
    if parts < 1:
        raise UsageError(f"parts={parts}: must be at least 1")
    return list(dict.fromkeys(keys[len(keys) * n // parts] for n in range(1, parts) if keys))


def choose_cuts(store: ObjectStore, prefix: str, wanted: Sequence[str]) -> list[str]:
    """Returns cuts. A cut is the next existing key after a wanted key, if `start_after` works at this next key.

    Cost: 2 LISTs for each wanted key. Up to `REQUESTS_IN_FLIGHT` keys are looked up at the same time.
    """

    def cut_after(key: str) -> str | None:
        found = _keys(store, prefix, key, HANDOVER_KEYS + 1)
        if not found or not hands_over(store, prefix, found[0], found[1:]):
            return None
        return found[0]

    cuts = in_parallel(cut_after, wanted, REQUESTS_IN_FLIGHT)
    return list(dict.fromkeys(cut for cut in cuts if cut is not None))


def hands_over(store: ObjectStore, prefix: str, cut: str, following: Sequence[str]) -> bool:
    """True if a LIST after `cut` begins with the keys `following`. The caller knows that these keys come after `cut`.
    Cost: 1 LIST.
    """
    return _keys(store, prefix, cut, HANDOVER_KEYS)[: len(following)] == list(following[:HANDOVER_KEYS])


def _keys(store: ObjectStore, prefix: str, after: str, limit: int) -> list[str]:
    return [meta.key for meta in store.list(prefix, start_after=after, limit=limit).objects]


class Chain:
    """The part of a listing after a key, or after a token of the server, up to the next cut.

    `overran` counts the skipped cuts; the keys after them are listed twice.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        *,
        cuts: frozenset[str],
        after: str | None = None,
        token: str | None = None,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._cuts = cuts
        self._after = after
        self._token = token
        self.overran = 0

    def pages(self) -> Iterator[ListedColumns]:
        """The objects, page by page. Cost: 1 LIST for each page, and 1 for each cut that the chain finds."""
        page = self._store.list(self._prefix, start_after=self._after, token=self._token)
        met: str | None = None
        while True:
            objects = ListedColumns.of(page.objects)
            for place, key in enumerate(objects.keys):
                if met is not None and self._ends(met, objects.keys[place:]):
                    yield objects[:place]
                    return
                met = key if key in self._cuts else None
            yield objects
            if page.next_token is None:
                return
            page = self._store.list(self._prefix, token=page.next_token)

    def _ends(self, cut: str, following: Sequence[str]) -> bool:
        if hands_over(self._store, self._prefix, cut, following[:HANDOVER_KEYS]):
            return True
        self.overran += 1
        return False


def listed_pages(chains: Iterable[Chain], at_once: int) -> Iterator[ListedColumns]:
    """The pages of all chains as they arrive, from `at_once` chains at a time. Memory: one page of each chain that is
    being read.
    """
    waiting = iter(chains)
    with readers(at_once) as pool:

        def submit(pages: Iterator[ListedColumns]) -> None:
            under_way[pool.submit(next, pages, None)] = pages

        under_way: dict[Future[ListedColumns | None], Iterator[ListedColumns]] = {}
        for chain in islice(waiting, at_once):
            submit(chain.pages())
        while under_way:
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                pages = under_way.pop(future)
                page = future.result()
                if page is None:
                    for chain in islice(waiting, 1):
                        submit(chain.pages())
                else:
                    submit(pages)
                    yield page
