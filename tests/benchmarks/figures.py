"""One line of the table, and how seconds are taken."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    what: str
    ours: str
    instead: str
    ratio: str

    def cells(self) -> tuple[str, str, str, str]:
        return self.what, self.ours, self.instead, self.ratio


@contextmanager
def seconds() -> Iterator[Callable[[], float]]:
    started = time.perf_counter()
    ended: list[float] = []
    yield lambda: (ended[0] if ended else time.perf_counter()) - started
    ended.append(time.perf_counter())


def timed(function: Callable[[], T], repeats: int = 1) -> tuple[float, T]:
    """Median seconds of `repeats` calls, and the last result."""
    taken = []
    for _ in range(repeats):
        with seconds() as took:
            result = function()
        taken.append(took())
    return median(taken), result


def counted(counts: Mapping[str, int]) -> str:
    return " + ".join(f"{n} {kind}" for kind, n in sorted(counts.items()) if n) or "0 requests"


def short(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def times(instead: float, ours: float) -> str:
    ratio = instead / ours
    return f"{ratio:.2f}×" if ratio < 1 else f"{ratio:.1f}×" if ratio < 100 else f"{ratio:.0f}×"
