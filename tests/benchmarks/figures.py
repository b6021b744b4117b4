"""One row of the table of figures, and the measurement of seconds.

Seconds are measured by the clock, and as CPU time. The CPU time of servers is a separate number.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median_low
from typing import TypeVar

from tests.benchmarks.processes import tree

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    what: str
    ours: str
    instead: str
    ratio: str

    def cells(self) -> tuple[str, str, str, str]:
        return self.what, self.ours, self.instead, self.ratio


SERVERS = (b"weed", b"ministack", b"radosgw", b"dynalite", b"simulated_listing", b"slow_proxy")
"""Texts by which the command lines of servers are recognized.

A proxy in threads of the benchmark's own process counts as part of the platform.
"""
TOLD = 0.05
TICK = 1 / os.sysconf("SC_CLK_TCK")


class Seconds(float):
    """Seconds by the clock. `server`: CPU seconds of the servers among the descendants of this process. `cpu`: CPU
    seconds of this process and of its other descendants.

    `cpu` and `server` are 0 if their sum is less than `TOLD`, because ticks of 10 ms cannot measure such a small sum.
    """

    cpu: float = 0.0
    server: float = 0.0

    @classmethod
    def taken(cls, wall: float, before: tuple[float, float], after: tuple[float, float]) -> "Seconds":
        self = cls(wall)
        cpu, server = after[0] - before[0], after[1] - before[1]
        if cpu + server >= TOLD:
            self.cpu, self.server = cpu, server
        return self

    def each(self, count: int) -> "Seconds":
        """The seconds, divided by `count`."""
        found = Seconds(self / count)
        found.cpu, found.server = self.cpu / count, self.server / count
        return found


def cpu_seconds() -> tuple[float, float]:
    """CPU seconds of the platform, and of the servers, until now, in steps of 10 ms.

    Processes that have ended are included if their parent has waited for them.
    """
    ours = servers = 0
    for process in tree(os.getpid()):
        ticks = sum(map(int, process.stat[11:15]))
        if any(name in process.command for name in SERVERS):
            servers += ticks
        else:
            ours += ticks
    return ours * TICK, servers * TICK


@contextmanager
def seconds() -> Iterator[Callable[[], Seconds]]:
    before, started = cpu_seconds(), time.perf_counter()
    ended: list[Seconds] = []

    def until_now() -> Seconds:
        return Seconds.taken(time.perf_counter() - started, before, cpu_seconds())

    yield lambda: ended[0] if ended else until_now()
    ended.append(until_now())


def timed(function: Callable[[], T], repeats: int = 1) -> tuple[Seconds, T]:
    """The median of the seconds of `repeats` calls, and the last call's result. The median of two calls is the lower
    value.
    """
    taken = []
    for _ in range(repeats):
        with seconds() as took:
            result = function()
        taken.append(took())
    return median_low(taken), result


def counted(counts: Mapping[str, int]) -> str:
    return " + ".join(f"{n} {kind}" for kind, n in sorted(counts.items()) if n) or "0 requests"


def short(value: float) -> str:
    """The seconds as text, with the CPU seconds if they were measured."""
    text = f"{value:.1f} s" if value >= 1 else f"{value * 1000:.{0 if value >= 0.01 else 1}f} ms"
    return f"{text} ({cpu(value)})" if isinstance(value, Seconds) and value.cpu + value.server else text


def cpu(spent: Seconds) -> str:
    server = f", server {short(spent.server)}" if spent.server else ""
    return f"CPU {short(spent.cpu)}{server}"


def times(instead: float, ours: float) -> str:
    ratio = instead / ours
    return f"{ratio:.2f}×" if ratio < 1 else f"{ratio:.1f}×" if ratio < 100 else f"{ratio:.0f}×"
