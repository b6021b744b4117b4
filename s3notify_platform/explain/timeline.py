"""What happened to one object, in time order. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime
from operator import itemgetter


def timeline(events: Iterable[tuple[int, str]]) -> list[str]:
    """A line for each event, given as Unix milliseconds and text: when, and how many seconds after the one before.

    At most 80 columns. Times are of the clocks of store, writer and runs, as each has noted them.
    """
    lines, before = [], None
    for at, what in sorted(events, key=itemgetter(0)):
        since = "" if before is None else f"+{(at - before) / 1000:.1f} s"
        when = datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        lines.append(f"  {when} {since:>13}  {what if len(what) <= 39 else f'{what[:38]}…'}")
        before = at
    return lines
