"""Helpers that run several requests at the same time and show their progress."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Track(Protocol):
    """Shows the progress of long work, and yields its `items`. `total`: the number of items. `what`: the name of the
    work.
    """

    def __call__(self, items: Iterable[T], total: int, what: str) -> Iterable[T]:
        """Yields the items, and shows how many are done."""
        ...


def untracked(items: Iterable[T], total: int, what: str) -> Iterable[T]:  # noqa: ARG001 - as `Track`
    """Returns the items. This is a `Track` that shows nothing."""
    return items


@contextmanager
def readers(at_once: int, name: str = "") -> Iterator[ThreadPoolExecutor]:
    """Starts threads that read in advance for a generator. When the generator ends or fails, reads that have not begun
    are cancelled.

    If the generator is closed before its end, reads in flight continue, and nothing waits for them.
    """
    pool = ThreadPoolExecutor(at_once, thread_name_prefix=name)
    wait = True
    try:
        yield pool
    except GeneratorExit:
        # The garbage collector may close the generator in a thread that has a lock. If this thread waited, it could
        # wait forever.
        wait = False
        raise
    finally:
        pool.shutdown(wait=wait, cancel_futures=True)


def in_parallel(
    function: Callable[[T], R],
    items: Iterable[T],
    at_once: int,
    *,
    track: Track = untracked,
    what: str = "",
) -> list[R]:
    """Returns the results in the order of `items`, from at most `at_once` concurrent calls.

    If only one call may run at a time, the calls run in this thread.
    """
    wanted = list(items)
    if (threads := min(at_once, len(wanted))) <= 1:
        return [function(item) for item in track(wanted, len(wanted), what)]
    with ThreadPoolExecutor(threads) as pool:
        return list(track(pool.map(function, wanted), len(wanted), what))
