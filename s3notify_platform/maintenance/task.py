"""The port of maintenance: each task plans its work, does it, and reports the result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

KEYS_SHOWN: Final = 5
"""Largest number of keys that a report names."""

COLUMNS_SHOWN: Final = 20
"""Largest number of columns that a report names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a plan or of a run.

    `lines`: the text for people. `document`: the same content as JSON values. `left`: True if some work is left, or
    could not be planned. A line of the text says so. `nothing`: there was nothing to do.
    """

    lines: tuple[str, ...]
    document: Mapping[str, Any] = field(default_factory=dict)
    left: bool = False
    nothing: bool = False


class Task(Protocol):
    """Upkeep of a source, or of one of its tables. A task is safe to repeat, and to kill."""

    @property
    def asks(self) -> str:
        """The question that a person confirms before `run`; "" if the task loses nothing permanently."""
        ...

    def plan(self) -> Report:
        """Reports the work that `run` would do. Writes at most a probe object, to read the store's time."""
        ...

    def run(self) -> Report:
        """Does the work and reports it. An `S3NotifyError` names the part that failed, and the remedy."""
        ...
