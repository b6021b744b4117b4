"""The slot map: a character for each slot, by its rows or by what is wrong with it, with the numbers beside it. Pure.

For a terminal, where a colour adds the age of a slot's last commit, and as a table for Dagster's UI, which shows tables
without a click.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from s3notify_platform.kernel.slots import Slot

COLUMNS: Final = 40
"""Slots of a line in a terminal."""

GROUP: Final = 50
"""Slots of a row of the table; more if it had over `GROUPS` rows."""
GROUPS: Final = 20

AGES: Final = {
    "under a minute": 60.0,
    "under an hour": 3600.0,
    "under a day": 86_400.0,
    "under a week": 604_800.0,
    "older": math.inf,
}
"""Classes of age, in seconds since a slot's last commit."""

COLOURS: Final = {
    "no commit": "#eceff1",
    "under a minute": "#00695c",
    "under an hour": "#26a69a",
    "under a day": "#80cbc4",
    "under a week": "#b2dfdb",
    "older": "#90a4ae",
    "in flight": "#1e88e5",
    "failing": "#e53935",
}

BY_ROWS: Final = "·▂▃▅▆█"
"""Characters of a slot without rows, and of one with up to 10, 100, …, and more."""
MARKS: Final = {"in flight": ">", "failing": "!"}
"""Characters of slots in these states, whatever their rows."""

LEGEND: Final = "· no rows, ▂ up to 10, ▃ 100, ▅ 1,000, ▆ 10,000, █ more; > in flight, ! failing"


def age_class(seconds: float) -> str:
    """The class of an age."""
    return next(name for name, limit in AGES.items() if seconds < limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMap:
    """The slots of a source. `ages`: seconds since the last commit of those that have one; `rows`: live ones.

    `quarantined`: how many records and objects of a slot are in quarantine.
    """

    slots: int
    ages: Mapping[Slot, float]
    rows: Mapping[Slot, int]
    quarantined: Mapping[Slot, int] = field(default_factory=dict)
    in_flight: Collection[Slot] = field(default=())
    failing: Collection[Slot] = field(default=())

    def states(self) -> list[str]:
        """Each slot's state, one of `COLOURS`: what is wrong before what is going on, before its age."""

        def of(slot: Slot) -> str:
            if slot in self.failing:
                return "failing"
            if slot in self.in_flight:
                return "in flight"
            return age_class(self.ages[slot]) if slot in self.ages else "no commit"

        return [of(Slot(slot)) for slot in range(self.slots)]

    def characters(self) -> str:
        """Each slot's character, as `LEGEND` says."""
        counts = (self.rows.get(Slot(slot), 0) for slot in range(self.slots))
        sizes = (min(len(BY_ROWS) - 1, math.ceil(math.log10(n)) or 1) if n else 0 for n in counts)
        return "".join(
            MARKS.get(state, BY_ROWS[size]) for state, size in zip(self.states(), sizes, strict=True)
        )

    def lines(self) -> Iterator[list[tuple[str, str]]]:
        """For a terminal: the lines, as cells of a slot's character and a colour for its state."""
        states, characters = self.states(), self.characters()
        for start in range(0, self.slots, COLUMNS):
            cells = range(start, min(self.slots, start + COLUMNS))
            yield [(characters[slot], COLOURS[states[slot]]) for slot in cells]

    def table(self) -> Iterator[dict[str, str | int]]:
        """At most `GROUPS` rows, each of a range of slots: characters, numbers, and the age of its last commit."""
        characters = self.characters()
        size = max(GROUP, -(-self.slots // GROUPS))
        for start in range(0, self.slots, size):
            group = [Slot(slot) for slot in range(start, min(self.slots, start + size))]
            ages = [self.ages[slot] for slot in group if slot in self.ages]
            yield {
                "slots": f"{group[0]}-{group[-1]}",
                "map": characters[start : start + size],
                "committed": len(ages),
                "rows": sum(self.rows.get(slot, 0) for slot in group),
                "last_commit": age_class(min(ages)) if ages else "none",
                "in_flight": len({*group} & {*self.in_flight}),
                "failing": len({*group} & {*self.failing}),
                "in_quarantine": sum(self.quarantined.get(slot, 0) for slot in group),
            }
