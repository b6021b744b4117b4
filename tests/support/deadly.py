"""A format whose parser kills its process over some objects. A source of it names it in its tasks, too."""

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from s3notify_platform.formats.jsonl import Jsonl
from s3notify_platform.formats.object_bytes import ObjectBytes
from s3notify_platform.formats.records import Parsed, Target
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.ingest.source import Input

KILLS = b'{"id":-9}\n'
"""Like a process that is killed for the memory it takes."""

ABORTS = b'{"id":-6}\n'
"""Like a segmentation fault."""


class Deadly(Jsonl):
    """JSON lines."""

    name = "deadly"
    suffixes = frozenset({"deadly"})

    def parse(
        self, objects: Sequence[tuple[str, bytes]], target: Target, *, encoding: str = "utf-8"
    ) -> Iterator[Parsed]:
        for _, body in objects:
            _die(body)
        return super().parse(objects, target, encoding=encoding)

    def schemas(self, source: ObjectBytes, key: str, encoding: str) -> Iterator[pa.Schema]:
        _die(source.read(0, source.size))
        return super().schemas(source, key, encoding)


def _die(body: bytes) -> None:
    if KILLS in body:
        os.kill(os.getpid(), signal.SIGKILL)
    if ABORTS in body:
        os.abort()


@dataclass(frozen=True, kw_only=True)
class DeadlyInput(Input):
    """Registers the format where it is unpickled: in a task."""

    format: str = "deadly"

    def __setstate__(self, state: dict[str, object]) -> None:
        FORMATS[Deadly.name] = Deadly()
        self.__dict__.update(state)
