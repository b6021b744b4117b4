"""The port of maintenance: each task plans its work, does it, and reports the result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a plan or of a run.

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
        """The question that a person confirms before `run`; "" if nothing is lost for good."""
        ...

    def plan(self) -> Report:
        """The work that `run` would do. A plan writes nothing but a probe object, for the store's time."""
        ...

    def run(self) -> Report:
        """The work, done. An `S3NotifyError` names what could not be done, and the remedy."""
        ...
