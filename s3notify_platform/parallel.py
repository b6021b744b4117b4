"""Several requests at once."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(function: Callable[[T], R], items: Iterable[T], at_once: int) -> list[R]:
    """The results, in the order of `items`, from at most `at_once` calls at once; in this thread if that is one."""
    wanted = list(items)
    if (threads := min(at_once, len(wanted))) <= 1:
        return [function(item) for item in wanted]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, wanted))
