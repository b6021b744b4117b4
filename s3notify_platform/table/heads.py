"""Heads that this process has seen, so that it need not list for them again.

Guarantee: what is recalled was its slot's head less than half of the longest run ago, by this process's own clock.
Vacuum takes no commit that is younger than the longest run. So whatever was committed on top of it since is still
there: who creates the next generation, if absent, meets it, and who asks for the next generation finds it. Of a
hint that is stored this would not hold, since vacuum may have removed what it leads to.

So a recalled generation is either committed on top of, and a conflict makes it forgotten; or, before it is taken for
the current state, the next one is asked for (`SlotTable.stands`). If its own commit is gone (`s3notify table forget`),
the head is listed for.

A note is a fact that stays true, "at this time this was the head". So notes may come in any order; an old one costs a
conflict.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from s3notify_platform.clock import Clock
from s3notify_platform.limits import REMEMBERED_TABLES
from s3notify_platform.slots import Slot
from s3notify_platform.stores.config import S3Config
from s3notify_platform.table.layout import Generation

MAX_RUN_SECONDS: Final = 6 * 3600.0
"""The longest that a run may take from reading a head to its commit; vacuum leaves what is younger."""

NONE_KNOWN: Final[Mapping[Slot, Generation]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """Generations of slots, and the earliest monotonic time at which one of them, or one below it, was the head."""

    heads: Mapping[Slot, Generation] = field(default_factory=dict)
    seen_at: float = float("inf")


class HeadMemory:
    """With which head each slot was last seen, and when; generation 0: without a commit. Thread-safe, no request.

    `seconds`: for how long, at most half of the longest run; 0: nothing is remembered.
    """

    def __init__(self, clock: Clock, *, seconds: float = MAX_RUN_SECONDS / 2) -> None:
        self.seconds = seconds
        self._clock = clock
        self._seen: dict[Slot, tuple[Generation, float]] = {}

    def note(self, heads: Mapping[Slot, Generation], at: float) -> None:
        """These were the heads at this monotonic time, or later."""
        if self.seconds:
            self._seen.update({slot: (generation, at) for slot, generation in heads.items()})

    def drop(self, slot: Slot) -> None:
        """Have the slot's head listed for the next time."""
        self._seen.pop(slot, None)

    def recall(self, slots: Iterable[Slot], known: Mapping[Slot, Generation] = NONE_KNOWN) -> Recalled:
        """Of these slots, those that are remembered.

        `known`: generations that they certainly had. A higher one is taken instead: it, and all that came after it,
        were committed after the slot was seen.
        """
        after = self._clock.monotonic() - self.seconds
        seen = {slot: found for slot in slots if (found := self._seen.get(slot)) and found[1] > after}
        return Recalled(
            heads={
                slot: max(generation, known.get(slot, generation)) for slot, (generation, _) in seen.items()
            },
            seen_at=min((at for _, at in seen.values()), default=float("inf")),
        )


@lru_cache(maxsize=REMEMBERED_TABLES)
def head_memory(_platform: S3Config, _prefix: str, _table: str, clock: Clock) -> HeadMemory:
    """The memory that this process has of one table: its bucket and endpoint, its prefix, its id."""
    return HeadMemory(clock)
