"""The last line against data that takes more memory than its bounds foresaw: an error in its task, no killed process.

The system refuses the memory, the parser raises, and the object is a reject; its neighbours go on.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from s3notify_platform.ingest.row_schema import Batches
from s3notify_platform.limits import MAX_TASK_BYTES


def limited(task: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    """The function of a task, in whose process `limit_memory` is in force."""

    def run(batches: Batches) -> Batches:
        limit_memory()
        yield from task(batches)

    return run


def limit_memory(most: int = MAX_TASK_BYTES) -> None:
    """Let this process take at most `most` bytes more than it has now. Once for each process; Linux only."""
    if sys.platform != "linux" or getattr(limit_memory, "done", False):
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = pages * resource.getpagesize() + most
    if resource.RLIM_INFINITY in (soft, limit) or limit < soft:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    limit_memory.done = True  # type: ignore[attr-defined]
