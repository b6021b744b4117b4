"""Interprets the errors of failing Spark jobs, and extracts from each error the lines that a person needs."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from s3notify_platform.engine.values.results import Progress
from s3notify_platform.engine.values.task_rows import FailedSlot
from s3notify_platform.engine.values.unforeseen import (
    bounded,
    described,
    is_outage,
    speaks_of_outage,
    trace_of,
)
from s3notify_platform.kernel import errors
from s3notify_platform.kernel.errors import OUTAGES, S3NotifyError
from s3notify_platform.kernel.slots import Slot

T = TypeVar("T")
R = TypeVar("R")

MAX_JOBS: Final = 128
"""Maximum number of jobs that search for the slots at fault in a failing batch."""

MAX_FAILED_JOBS: Final = 12
"""Number of failed jobs after which all slots count as at fault, if no job has succeeded."""


class TransformError(Exception):
    """A user's transform raised an exception when it was called with rows. `__cause__` has the user's exception."""


JOB_ERRORS: Final = (PySparkException, Py4JError, TransformError)
"""The exceptions that a failing job raises. A Py4JError is an exception of the JVM for which PySpark has no class."""

_SPARKS_WORDS: Final = (
    r"\A(?:\t(?:at |\.\.\.)[^\n]*\n|\s|:|Caused by:|Driver stacktrace:|\(?org\.apache\.spark\.[\w.$]+[:)]"
    r"|An error occurred while calling [\w.]+|Exception thrown in awaitResult:"
    r"|Job aborted due to stage failure:|Task \d+ in stage [\d.]+ failed \d+ times?[,:]"
    r"|most recent failure: Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^()\n]*\):"
    r"|\[PYTHON_EXCEPTION\]|An exception was thrown from the Python worker[.:]"
    r"|Please see the stack trace below\.)*+"
)
"""Matches the fixed words with which Spark begins an error. The patterns below begin with these words, because all
later text may have values of records, even with line ends. So the text of a record cannot look like an outage.
"""

_OF_CLUSTER: Final = re.compile(
    rf"{_SPARKS_WORDS}(?:java[\w.]+: )?(?:Job \d+ cancelled|\[SPARK_JOB_CANCELLED\]|\[OPERATION_CANCELED\]"
    r"|FetchFailed\(|(?:Result|ShuffleMap)Stage \d+ \([^\n]*\) has failed the maximum allowable number"
    r'|Cannot call methods on a stopped SparkContext|Cannot invoke "org\.apache\.spark\.scheduler'
    r"|<_\w+ of RPC that terminated with:\s+status = StatusCode\.(?:CANCELLED|UNAVAILABLE)"
    r"|No space left on device|/[^\n:(]* \(No space left on device\))"
)
"""Matches errors that are independent of the rows that a job read."""

_PYTHON: Final = re.compile(
    rf"{_SPARKS_WORDS}Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n)*+([^\s:]+)(?:: ([^\n]*))?"
)
"""Matches the error of a Python worker: the full name of its class, and its message's first line. PySpark omits the
causes of this error.
"""


def reason_of(error: Exception) -> str:
    """Returns the line of a Spark error that a person needs: the last line with a Python error, or else the first line.

    An error of this package is returned completely.
    """
    if isinstance(error, S3NotifyError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (python[-1] if python else lines[0] if lines else type(error).__name__)[:1000]


def own_error(error: Exception) -> S3NotifyError | None:
    """Returns the error of this package with which a task ended; None for other errors."""
    if isinstance(error, S3NotifyError):
        return error
    if (found := _python(error)) is None:
        return None
    module, _, name = found[1].rpartition(".")
    kind = getattr(errors, name, None) if module == errors.__name__ else None
    return kind(found[2] or "") if isinstance(kind, type) and issubclass(kind, S3NotifyError) else None


def _python(error: Exception) -> re.Match[str] | None:
    return _PYTHON.match(str(_of_spark(error)))


def _of_spark(error: Exception) -> BaseException:
    """Returns the error of the Spark job that a transform has started, if this job failed; otherwise `error`."""
    cause = error.__cause__ if isinstance(error, TransformError) else None
    return cause if isinstance(cause, JOB_ERRORS) else error


def _is_of_cluster(error: Exception) -> bool:
    if (python := _python(error)) is not None:
        return (python[1], (python[2] or "")[:10]) == ("OSError", "[Errno 28]")
    found = _of_spark(error)
    return isinstance(found, Py4JNetworkError) or _OF_CLUSTER.match(str(found)) is not None


def is_death(error: Exception) -> bool:
    """True if a job failed because the process of a task died, by a signal or for lack of memory."""
    return (
        re.search(r"Python worker exited|ExecutorLostFailure|OutOfMemoryError|\bMemoryError", str(error))
        is not None
    )


def task_of(error: Exception) -> int | None:
    """Returns the number of a job's failed task within its Spark stage; None if the error does not contain it."""
    found = re.search(r"Task (\d+) in stage", str(error))
    return int(found[1]) if found else None


def failed_slot(slot: Slot, error: Exception) -> FailedSlot:
    """Returns the failure of a slot of a failed job. See `failure_of`."""
    found = failure_of(error)
    return FailedSlot(slot=slot, error=found.reason, outage=found.outage, trace=found.trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason of an error, whether the error is an outage, and its traceback ("" if the data is not at fault)."""

    reason: str
    outage: bool = False
    trace: str = ""


def failure_of(error: Exception) -> Failure:
    """Describes an error of a job, or of the code around the job.

    The failure has a traceback only if the job's data may be at fault.
    """
    own = own_error(error)
    if own is None and not isinstance(error, JOB_ERRORS):
        return Failure(reason=described(error), outage=is_outage(error), trace=trace_of(error))
    reason = f"the reader's process ended: {reason_of(error)}" if is_death(error) else reason_of(error)
    if own is not None or (not is_death(error) and _is_of_cluster(error)):
        return Failure(reason=reason, outage=isinstance(own, OUTAGES))
    if isinstance(error, TransformError) and (cause := error.__cause__) is not None:
        return Failure(reason=reason, outage=is_outage(cause), trace=trace_of(cause))
    # The traceback of a Python worker, without the lines of Java.
    text = re.search(
        r"^Traceback \(most recent.*?(?=^\s*at [\w.$]+\(|\Z)", str(error), re.MULTILINE | re.DOTALL
    )
    outage = (python := _python(error)) is not None and speaks_of_outage(python[1])
    return Failure(reason=reason, outage=outage, trace=bounded(text[0] if text else str(error)))


@contextmanager
def own_errors() -> Iterator[None]:
    """Replaces a job's failure by the error with which the job's task ended, if that error is one of this package."""
    try:
        yield
    except JOB_ERRORS as error:
        if own := own_error(error):
            raise own from error
        raise


def _reason(_: Sequence[T], error: Exception) -> str:
    return reason_of(error)


def in_halves(
    parts: Sequence[Sequence[T]],
    job: Callable[[Sequence[T]], R],
    failed: Callable[[Sequence[T], Exception], R],
    *,
    errors: tuple[type[Exception], ...],
    what: str,
    units: str = "slots",
    progress: Progress,
    suspect: Callable[[Sequence[T], Exception], T | None] = lambda _, __: None,
    reason: Callable[[Sequence[T], Exception], str] = _reason,
) -> Iterator[R]:
    """Yields the result of `job` for each part, last part first. If the job for a part raises one of `errors`, each
    half of the part is tried.

    So an item at fault finally fails alone: `failed` converts the item and its error to a result. If `suspect` returns
    an item, this item is tried alone next, and then all other items together. `what`, `units`: the names of jobs and
    items in progress messages. `reason`: makes the text of a failed job's error for these messages.
    """
    todo = [part for part in parts if part]
    jobs = wrong = 0
    while todo:
        part = todo.pop()
        jobs += 1
        try:
            result = job(part)
        except errors as error:
            wrong += 1
            hopeless = wrong == jobs >= MAX_FAILED_JOBS or jobs >= MAX_JOBS
            if len(part) > 1 and not hopeless:
                alone = suspect(part, error)
                how = "halves" if alone is None else "one of them alone"
                progress(f"{what} of {len(part)} {units} failed, trying {how}: {reason(part, error)}")
                middle = len(part) // 2
                halves = [part[middle:], part[:middle]]
                todo += halves if alone is None else [[one for one in part if one is not alone], [alone]]
                continue
            result = failed(part, error)
        yield result
