"""The port of maintenance: a task says what it would do, does it, and says what it did."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a task would do, or what it did.

    `lines`: for people. `document`: the same as values of JSON. `left`: something is left to be done, as a line says.
    `nothing`: there is nothing to do.
    """

    lines: tuple[str, ...]
    document: Mapping[str, Any] = field(default_factory=dict)
    left: bool = False
    nothing: bool = False


class Task(Protocol):
    """Upkeep of a source, or of one of its tables. Safe to repeat, and to kill."""

    @property
    def asks(self) -> str:
        """What a person has to confirm before `run`; "" if nothing is lost for good."""
        ...

    def plan(self) -> Report:
        """What `run` would do. Writes nothing, but for a probe object that tells the store's time."""
        ...

    def run(self) -> Report:
        """Do it; raises what the task cannot do."""
        ...
