"""Where the time of batches went: a picture for Dagster's UI, a stacked bar for each batch. Pure."""

import base64
from collections.abc import Mapping
from typing import Final
from xml.sax.saxutils import escape

COLOURS: Final = {
    "poll": "#90a4ae",
    "launch": "#b39ddb",
    "spark_start": "#ffb74d",
    "plan": "#4fc3f7",
    "job": "#1e88e5",
    "commit": "#26a69a",
    "report": "#9ccc65",
}
"""Of a batch's phases, which follow each other; `poll` begins with the first signal, `job` reads and writes files."""

OTHER: Final = "#ef9a9a"
LABEL: Final = 170
"""Pixels for the name of a batch."""
BAR: Final = 420
"""Pixels of the batch that took longest."""
LINE: Final = 18


def stacked(batches: Mapping[str, Mapping[str, float]]) -> str:
    """The seconds of each batch's phases, one behind the other, as an image in Markdown; all to the same scale."""
    longest = max((sum(phases.values()) for phases in batches.values()), default=0.0) or 1.0
    parts = []
    for at, (name, phases) in enumerate(batches.items()):
        y, x, whole = at * LINE, float(LABEL), sum(phases.values())
        parts.append(_text(0, y, name[-26:]))
        for phase, seconds in phases.items():
            wide = seconds / longest * BAR
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 2}" width="{wide:.1f}" height="{LINE - 4}" fill="{_colour(phase)}">'
                f"<title>{escape(phase)} {seconds:.3f} s</title></rect>"
            )
            x += wide
        parts.append(_text(x + 6, y, f"{whole:.2f} s"))
    y, x = len(batches) * LINE + 6, 0
    for phase in dict.fromkeys(phase for phases in batches.values() for phase in phases):
        parts.append(f'<rect x="{x}" y="{y + 4}" width="10" height="10" fill="{_colour(phase)}"/>')
        parts.append(_text(x + 14, y, phase))
        x += 95
    size = f'width="{LABEL + BAR + 80}" height="{y + LINE}"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'
    return f"![seconds by phase](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def _colour(phase: str) -> str:
    return COLOURS.get(phase, OTHER)


def _text(x: float, y: int, text: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y + 13}" font-family="sans-serif" font-size="11" fill="#78909c">'
        f"{escape(text)}</text>"
    )
