"""The slot map has a character for each slot, which shows the slot's row count or its problem. Pure.

The map has two forms. In a terminal, colours also show the age of each slot's last commit. For Dagster's UI, the map is
a Dagster table, because the UI shows tables without a click.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from s3notify_platform.kernel.slots import Slot

LINE_SLOTS: Final = 40
"""Number of slots in a line of a terminal."""

GROUP: Final = 25
"""Number of slots in a row of the Dagster table: as many as a window of 1500 pixels shows."""

AGES: Final = {
    "under a minute": 60.0,
    "under an hour": 3600.0,
    "under a day": 86_400.0,
    "under a week": 604_800.0,
    "older": math.inf,
}
"""The classes of age, with their limits in seconds since a slot's last commit."""

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

BY_ROWS: Final = {
    "·": "no rows",
    "▂": "up to 10 rows",
    "▃": "up to 100 rows",
    "▅": "up to 1,000 rows",
    "▆": "up to 10,000 rows",
    "█": "more rows",
}
"""The characters for slots, by the number of rows in a slot, each with its meaning."""
MARKS: Final = {"in flight": ">", "failing": "!"}
"""The characters for slots in flight and for failing slots. These characters do not depend on the number of rows."""

LEGEND: Final = {**BY_ROWS, **{mark: state for state, mark in MARKS.items()}}
"""The meaning of each character."""


def age_class(seconds: float) -> str:
    """Returns the name of the class of an age."""
    return next(name for name, limit in AGES.items() if seconds < limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMap:
    """The slots of a source. `ages`: seconds since the last commit, for slots with a commit. `rows`: the number of rows
    of each slot in the table.

    `quarantined`: the number of records and objects in quarantine, by slot.
    """

    slots: int
    ages: Mapping[Slot, float]
    rows: Mapping[Slot, int]
    quarantined: Mapping[Slot, int] = field(default_factory=dict)
    in_flight: Collection[Slot] = field(default=())
    failing: Collection[Slot] = field(default=())

    def states(self) -> list[str]:
        """Returns each slot's state, a key of `COLOURS`. If a slot has several states, "failing" is shown first, then
        "in flight", then the age.
        """

        def of(slot: Slot) -> str:
            if slot in self.failing:
                return "failing"
            if slot in self.in_flight:
                return "in flight"
            return age_class(self.ages[slot]) if slot in self.ages else "no commit"

        return [of(Slot(slot)) for slot in range(self.slots)]

    def characters(self) -> str:
        """Returns the characters of all slots, as in `LEGEND`."""
        signs = [*BY_ROWS]
        counts = (self.rows.get(Slot(slot), 0) for slot in range(self.slots))
        sizes = (min(len(BY_ROWS) - 1, math.ceil(math.log10(n)) or 1) if n else 0 for n in counts)
        return "".join(
            MARKS.get(state, signs[size]) for state, size in zip(self.states(), sizes, strict=True)
        )

    def legend(self) -> str:
        """Returns the meanings of the characters that the map has."""
        there = {*self.characters()}
        return ", ".join(f"{each} {meaning}" for each, meaning in LEGEND.items() if each in there)

    def lines(self) -> Iterator[list[tuple[str, str]]]:
        """Yields the lines for a terminal. A cell is a slot's character and the colour of its state."""
        states, characters = self.states(), self.characters()
        for start in range(0, self.slots, LINE_SLOTS):
            cells = range(start, min(self.slots, start + LINE_SLOTS))
            yield [(characters[slot], COLOURS[states[slot]]) for slot in cells]

    def table(self) -> Iterator[dict[str, str | int]]:
        """Yields a row for each `GROUP` slots: the first slot, the characters of all slots, the counts, and the age of
        the last commit.
        """
        characters = self.characters()
        for start in range(0, self.slots, GROUP):
            group = [Slot(slot) for slot in range(start, min(self.slots, start + GROUP))]
            ages = [self.ages[slot] for slot in group if slot in self.ages]
            yield {
                "slot": str(start),
                "map": characters[start : start + GROUP],
                "committed": len(ages),
                "rows": sum(self.rows.get(slot, 0) for slot in group),
                "last_commit": age_class(min(ages)) if ages else "none",
                "in_flight": len({*group} & {*self.in_flight}),
                "failing": len({*group} & {*self.failing}),
                "in_quarantine": sum(self.quarantined.get(slot, 0) for slot in group),
            }
