"""The port of maintenance: each task plans its work, does it, and reports the result."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.table.log_table import LogTable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Done = TypeVar("Done", bound="DataclassInstance")

KEYS_SHOWN: Final = 5
"""Largest number of keys that a report names."""

COLUMNS_SHOWN: Final = 20
"""Largest number of columns that a report names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a plan or of a run.

    `lines`: the text for people. `document`: the same content as JSON values. `left`: True if some work is left, or
    could not be planned. In this case, a line of the text reports it. `nothing`: there was nothing to do.
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


def of_each_table(
    tables: Mapping[str, LogTable],
    work: Callable[[LogTable], Done],
    lines: Callable[[str, Done], Iterable[str]],
    *,
    done: str,
) -> Report:
    """Does `work` on each of these tables, given by name. If the work on a table fails, the report names the table and
    the reason, and the work continues with the other tables.

    `lines`: the report's lines for a table's name and result. `done`: the work in one word, like "vacuumed".
    """
    said, results, failed = list[str](), dict[str, Any](), dict[str, str]()
    for name, table in tables.items():
        try:
            result = work(table)
        except S3NotifyError as error:
            failed[name] = str(error)
            said.append(f"{name}: not {done}: {error}")
        else:
            results[name] = asdict(result)
            said += lines(name, result)
    return Report(lines=tuple(said), document={"tables": results, "failed": failed}, left=bool(failed))
