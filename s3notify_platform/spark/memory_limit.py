"""Limits the memory of a task's process, for data that needs more memory than expected.

At the limit, the system refuses to give more memory, but does not kill the process. So the parser raises an error, and
the object becomes a reject. Other objects are not affected.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from s3notify_platform.engine.values.row_schema import Batches
from s3notify_platform.kernel.limits import MAX_TASK_BYTES, MAX_TASK_SHARE


def limited(task: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    """Wraps the function of a task so that `limit_memory` applies to the task's process."""

    def run(batches: Batches) -> Batches:
        limit_memory()
        yield from task(batches)

    return run


def limit_memory(most: int = MAX_TASK_BYTES) -> None:
    """Allows this process at most `most` bytes, and at most `MAX_TASK_SHARE` of all memory, beyond its present use.

    Only the first call in a process has an effect, and only on Linux.
    """
    if sys.platform != "linux" or getattr(limit_memory, "done", False):
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = pages * resource.getpagesize() + min(most, int(MAX_TASK_SHARE * _memory()))
    if resource.RLIM_INFINITY in (soft, limit) or limit < soft:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    limit_memory.done = True  # type: ignore[attr-defined]


def _memory() -> int:
    """Returns the memory of the machine in bytes, or of the container if the container has less memory."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(machine, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return machine
