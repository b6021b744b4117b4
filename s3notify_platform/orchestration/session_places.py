"""Limits how many Spark sessions this machine has at the same time, however the runs are launched.

A session is a JVM of a gigabyte or more. If ten sources change at the same moment, ten runs start. So a process takes
one of `limit` places before it starts a session, and keeps the place until the process ends. Other processes wait. A
place is a locked file, which the kernel unlocks when the process ends for any reason.

Dagster's own limits do not work without configuration. A pool has no limit until a person sets one. A killed run keeps
its place in the pool. A limit in the sensors would not be enough: several sensors could request runs at the same
moment, and would not see runs that a person launches.

Warm workers take no place, because a worker would keep its place as long as the worker runs. The supervisor limits the
number of warm workers (`warm.Limits`).
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.process import locked

PLACES_LOOK_SECONDS: Final = 0.5

_TAKEN: Final[list[IO[str]]] = []


def take_place(
    limit: int,
    say: Callable[[str], None],
    *,
    folder: Path | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Waits until this process has one of the first `limit` places. The process then keeps the place until the process
    ends. Calls `say` once if the process must wait.
    """
    if _TAKEN:
        return
    folder = folder or Path(tempfile.gettempdir()) / f"s3notify-spark-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise UsageError(f"{folder} belongs to another user: remove it, or set another TMPDIR")
    said = False
    while True:
        for number in range(limit):
            if (lock := locked(folder / f"{number}.lock")) is not None:
                _TAKEN.append(lock)
                return
        if not said:
            say(
                f"waiting: {limit} Spark sessions of this machine are in use, as many as `max_sessions` allows"
            )
            said = True
        clock.sleep(PLACES_LOOK_SECONDS)
