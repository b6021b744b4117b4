"""Finds the object on which a parser raises an error, if several objects are parsed together. All other objects are
then parsed without this object.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from s3notify_platform.engine.values.unforeseen import described, is_unforeseen, trace_of
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.limits import MAX_REASON

T = TypeVar("T")
Found = TypeVar("Found")

HELD_BYTES: Final = 64 << 20
"""Maximum number of Arrow bytes of results that wait until all objects of a part are parsed without an error."""


def is_verdict(error: Exception) -> bool:
    """True if the object or the parser caused this error, and not the environment. Pure."""
    return isinstance(error, CorruptError) or is_unforeseen(error)


def failure_of(error: Exception) -> dict[str, Any]:
    """Returns the failure of an object on which a parser raises this error, with the traceback. Pure."""
    return {"status": "failed", "reason": described(error)[:MAX_REASON], "trace": trace_of(error)}


def isolated(
    objects: Sequence[T],
    parse: Callable[[Sequence[T]], Iterator[Found]],
    failed: Callable[[T, Exception], Found],
    bytes_of: Callable[[Found], int],
) -> Iterator[Found]:
    """Yields the results of `parse` for `objects`.

    If `parse` raises, the objects are halved, and each part is parsed separately, down to the object at fault. `failed`
    makes the result of this object. The results of a part wait until the whole part is parsed, but at most `HELD_BYTES`
    of results wait. If `parse` raises after some results of the part were yielded, this function raises the error, too.
    Then the Spark task fails, and the objects of its slots are tried one by one (`spark.spark_jobs`).
    """
    todo = [objects]
    while todo:
        part, given, size = todo.pop(), False, 0
        held: list[Found] = []
        try:
            for found in parse(part):
                held.append(found)
                size += bytes_of(found)
                if size > HELD_BYTES:
                    given = True
                    yield from held
                    held = []
        except Exception as error:
            if given or not is_verdict(error):
                raise
            if len(part) > 1:
                middle = len(part) // 2
                todo += [part[middle:], part[:middle]]
                continue
            held = [failed(part[0], error)]
        yield from held
