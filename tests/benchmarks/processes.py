"""A process and all its descendants, from Linux's /proc."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process. `stat`: the fields of `/proc/PID/stat` that follow the process's name. `stat[11:15]` are the CPU ticks
    of the process and of its children.
    """

    pid: int
    stat: list[str]

    @property
    def command(self) -> bytes:
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return b""


def tree(root: int) -> Iterator[Process]:
    """The process `root`, and all its descendants."""
    below: dict[int, list[Process]] = {}
    waiting: list[Process] = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may contain any character.
            stat = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        process = Process(pid=int(place.parent.name), stat=stat)
        below.setdefault(int(stat[1]), []).append(process)
        if process.pid == root:
            waiting.append(process)
    while waiting:
        process = waiting.pop()
        yield process
        waiting += below.get(process.pid, ())
