"""Shows the events of one object in time order, and formats texts and times. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime
from operator import itemgetter
from typing import Final

REASON_SHOWN: Final = 300
CLOCKS_APART_MS: Final = 60_000
"""Largest assumed difference between the clocks of two machines."""


def timeline(events: Iterable[tuple[int, str]]) -> list[str]:
    """Returns a line for each event, with the event's time, and with the seconds since the previous event. An event is
    given as Unix milliseconds and a text.

    Lines have at most 80 columns. The times are from different clocks: of the store, the writer and the runs.
    """
    lines, before = [], None
    for at, what in sorted(events, key=itemgetter(0)):
        since = "" if before is None else f"+{(at - before) / 1000:.1f} s"
        when = datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        lines.append(f"  {when} {since:>13}  {what if len(what) <= 39 else f'{what[:38]}…'}")
        before = at
    return lines


def first_report(reported: Iterable[tuple[int, int]], version: int, committed_ms: int) -> int | None:
    """Returns the time when Dagster first received this version of a slot, or a later version. Returns None if
    `reported` has no such version.

    Reports that are older than the commit belong to a forgotten table with the same version numbers.
    """
    known = [*reported]
    if not any(n <= version for n, _ in known):
        return None
    since_ms = committed_ms - CLOCKS_APART_MS
    return min((at for n, at in known if n >= version and at >= since_ms), default=None)


def cut(text: str) -> str:
    """Returns a reason as one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= REASON_SHOWN else f"{line[:REASON_SHOWN]}…"


def cut_lines(trace: str) -> list[str]:
    """Returns the lines of a traceback, indented, each of bounded length."""
    return [f"    {line[:REASON_SHOWN]}" for line in trace.splitlines()]


def duration(milliseconds: int) -> str:
    """Returns a time span as text, in a suitable unit."""
    seconds = max(0, milliseconds) / 1000
    for unit, size, limit in (("s", 1, 120), ("min", 60, 120 * 60), ("h", 3600, 48 * 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"
