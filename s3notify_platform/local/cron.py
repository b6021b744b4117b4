"""Checks cron schedules without importing Dagster, which takes a second. The check accepts only a subset of Dagster's
schedules.
"""

import re
from collections.abc import Iterator
from typing import Final

from s3notify_platform.kernel.errors import UsageError

_NAMED: Final = frozenset({"@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"})
_MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_FIELDS: Final[tuple[tuple[str, int, int, dict[str, int]], ...]] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: n for n, name in enumerate(_MONTHS, 1)}),
    ("day of the week", 0, 7, {name: n for n, name in enumerate(_DAYS)}),
)
_LONGEST: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_ITEM: Final = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)


def check_cron(text: str) -> str:
    """Returns the same text. `UsageError` if the text is not a schedule of five fields, like `0 3 * * *`, or if the
    schedule is never due.
    """
    if text.lower() in _NAMED:
        return text
    parts = text.lower().split()
    if len(parts) != len(_FIELDS):
        raise UsageError(f"invalid cron schedule {text!r}: give five fields, like 0 3 * * *, or @daily")
    fields = []
    for part, (name, low, high, names) in zip(parts, _FIELDS, strict=True):
        try:
            fields.append({n for item in part.split(",") for n in _numbers(item, low, high, names)})
        except ValueError as error:
            raise UsageError(
                f"invalid cron schedule {text!r}: {part!r} is not a {name}: give {low} to {high}, *, a-b, */n"
            ) from error
    days, months = fields[2], fields[3]
    if min(days) > max(_LONGEST[month - 1] for month in months):
        raise UsageError(f"invalid cron schedule {text!r}: there is no such day")
    return text


def _numbers(item: str, low: int, high: int, names: dict[str, int]) -> Iterator[int]:
    """The numbers of a field's item. `ValueError` if the item is invalid."""
    if (found := _ITEM.fullmatch(item)) is None:
        raise ValueError(item)
    first, last, step = found.groups()
    begin = low if first is None else names[first] if first in names else int(first)
    end = high if first is None or (step and not last) else begin
    if last:
        end = names[last] if last in names else int(last)
    if not low <= begin <= end <= high or (step and not 1 <= int(step) <= high):
        raise ValueError(item)
    return iter(range(begin, end + 1, int(step or 1)))
