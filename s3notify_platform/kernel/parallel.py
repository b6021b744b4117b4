"""Several requests at once, and how far they are."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Track(Protocol):
    """Shows how far long work is: yields the items, of which there are `total`. `what`: is done to them."""

    def __call__(self, items: Iterable[T], total: int, what: str) -> Iterable[T]:
        """The same items."""
        ...


def untracked(items: Iterable[T], total: int, what: str) -> Iterable[T]:  # noqa: ARG001 - as `Track`
    """Shows nothing."""
    return items


@contextmanager
def readers(at_once: int, name: str = "") -> Iterator[ThreadPoolExecutor]:
    """Threads that read ahead for a generator. What has not begun is not read when it ends, in whatever way.

    If the generator is closed before its end, reads in flight go on, and nobody waits for them.
    """
    pool = ThreadPoolExecutor(at_once, thread_name_prefix=name)
    wait = True
    try:
        yield pool
    except GeneratorExit:
        # The garbage collector may close it, in a thread that holds any lock: to wait for threads may be for ever.
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
    """The results, in the order of `items`, from at most `at_once` calls at once; in this thread if that is one."""
    wanted = list(items)
    if (threads := min(at_once, len(wanted))) <= 1:
        return [function(item) for item in track(wanted, len(wanted), what)]
    with ThreadPoolExecutor(threads) as pool:
        return list(track(pool.map(function, wanted), len(wanted), what))
