"""The slot map: a cell for each slot, 40 in a line, coloured by the age of its last commit, or by its rows.

Pure. As SVG for Dagster's UI: two pictures of one pixel a slot, at most 6 KB for 1000, since each summary keeps one.
"""

import base64
import math
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from s3notify_platform.kernel.slots import Slot

COLUMNS: Final = 40
PIXELS: Final = 9
"""Of a cell's side."""
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
ROWS: Final = ("#eceff1", "#bbdefb", "#64b5f6", "#1e88e5", "#1565c0", "#0d47a1")
"""Colours of a slot without rows, and of one with up to 10, 100, …, and more."""


def age_class(seconds: float) -> str:
    """The class of an age."""
    return next(name for name, limit in AGES.items() if seconds < limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMap:
    """The slots of a source. `ages`: seconds since the last commit of those that have one; `rows`: live ones."""

    slots: int
    ages: Mapping[Slot, float]
    rows: Mapping[Slot, int]
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

    def magnitudes(self) -> list[int]:
        """Each slot's rows as an index of `ROWS`."""
        counts = (self.rows.get(Slot(slot), 0) for slot in range(self.slots))
        return [min(len(ROWS) - 1, math.ceil(math.log10(n)) or 1) if n else 0 for n in counts]

    def by_age(self) -> dict[str, tuple[int, int]]:
        """The numbers of slots and of rows, by class of age."""
        found = dict.fromkeys(AGES, (0, 0))
        for slot, age in self.ages.items():
            slots, rows = found[age_class(age)]
            found[age_class(age)] = (slots + 1, rows + self.rows.get(slot, 0))
        return found

    def lines(self) -> Iterator[list[tuple[str, str]]]:
        """For a terminal: the lines, as cells of a character that grows with the rows and a colour for the state."""
        states, magnitudes = self.states(), self.magnitudes()
        for start in range(0, self.slots, COLUMNS):
            cells = range(start, min(self.slots, start + COLUMNS))
            yield [("·▂▃▅▆█"[magnitudes[slot]], COLOURS[states[slot]]) for slot in cells]

    def svg(self) -> str:
        """Both pictures, with their legends."""
        states, high = self.states(), math.ceil(self.slots / COLUMNS) * PIXELS
        wide, names = COLUMNS * PIXELS, list(COLOURS)
        left = _png([names.index(state) for state in states], [*COLOURS.values()])
        right = _png(self.magnitudes(), ROWS)
        shown = {state: states.count(state) for state in names if state in states}
        labels = ("0 rows", *(f"≤ {10**n:,}" for n in range(1, len(ROWS) - 1)), "more")
        used = {labels[n]: ROWS[n] for n in sorted({*self.magnitudes()})}
        parts = [
            _image(left, 0, wide, high),
            _image(right, wide + 2 * PIXELS, wide, high),
            *_legend({f"{name} ({n})": COLOURS[name] for name, n in shown.items()}, 0, high),
            *_legend(used, wide + 2 * PIXELS, high),
        ]
        size = f'width="{2 * wide + 2 * PIXELS}" height="{high + 14 * len(COLOURS) + 8}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'

    def markdown(self) -> str:
        """The SVG as an image in Markdown."""
        return f"![slots by age and by rows](data:image/svg+xml;base64,{_base64(self.svg().encode())})"


def _image(png: bytes, x: int, wide: int, high: int) -> str:
    return (
        f'<image x="{x}" width="{wide}" height="{high}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{_base64(png)}"/>'
    )


def _legend(colours: Mapping[str, str], x: int, y: int) -> Iterator[str]:
    for at, (text, colour) in enumerate(colours.items()):
        top = y + 8 + 14 * at
        yield f'<rect x="{x}" y="{top}" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 15}" y="{top + 9}" font-family="sans-serif" font-size="11" fill="#78909c">{text}</text>'


def _png(cells: Sequence[int], palette: Sequence[str]) -> bytes:
    """One pixel a cell, `COLUMNS` in a line; behind the last cell the first colour."""
    lines = [bytes(cells[at : at + COLUMNS]).ljust(COLUMNS, b"\0") for at in range(0, len(cells), COLUMNS)]
    head = struct.pack(">IIBBBBB", COLUMNS, len(lines), 8, 3, 0, 0, 0)
    colours = bytes.fromhex("".join(palette).replace("#", ""))
    body = zlib.compress(b"".join(b"\0" + line for line in lines), 9)
    chunks = ((b"IHDR", head), (b"PLTE", colours), (b"IDAT", body), (b"IEND", b""))
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
