"""A format whose parser kills its process, or raises an error, for some objects. The tasks that read a `deadly` source
register the format, too.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from s3notify_platform.engine.stage import staging as stage
from s3notify_platform.formats.base import Limits, SplitRecords
from s3notify_platform.formats.json.jsonl import Jsonl
from s3notify_platform.formats.object_bytes import ObjectBytes
from s3notify_platform.formats.records import Parsed, Target
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.source.source import Input, Source
from s3notify_platform.table.packs.pack_file import NewPack

KILLS = b'{"id":-9}\n'
"""This record simulates a process that is killed because it uses too much memory."""

ABORTS = b'{"id":-6}\n'
"""This record simulates a segmentation fault."""


RAISES = b'{"id":-1}\n'
"""This record simulates a defect of a parser."""

UNWRITABLE = b'{"id":-7}\n'
"""This record simulates a defect in the writing of files: see `break_writer`."""


class Deadly(Jsonl):
    """JSON lines with deadly records."""

    name = "deadly"
    suffixes = frozenset({"deadly"})

    def parse(
        self, objects: Sequence[tuple[str, bytes]], target: Target, *, encoding: str = "utf-8"
    ) -> Iterator[Parsed]:
        for _, body in objects:
            _die(body)
        return super().parse(objects, target, encoding=encoding)

    def records(
        self, source: ObjectBytes, split: Split, target: Target, *, encoding: str, limits: Limits
    ) -> SplitRecords:
        end = yield from super().records(source, split, target, encoding=encoding, limits=limits)
        _die(source.read(0, source.size))
        return end

    def schemas(self, source: ObjectBytes, key: str, encoding: str) -> Iterator[pa.Schema]:
        _die(source.read(0, source.size))
        return super().schemas(source, key, encoding)


def _die(body: bytes) -> None:
    if KILLS in body:
        os.kill(os.getpid(), signal.SIGKILL)
    if ABORTS in body:
        os.abort()
    if RAISES in body:
        raise KeyError("nobody foresaw it")


def break_writer() -> None:
    """Makes this process fail if it writes a file with the row of `UNWRITABLE`. Other files are written normally."""
    written = stage.write
    if written.__name__ == "write":

        def broken(tables: Sequence[pa.Table], *arguments: Any) -> Iterator[NewPack]:
            for rows in tables:
                if "id" in rows.schema.names and -7 in rows["id"].to_pylist():
                    raise pa.ArrowNotImplementedError("nobody foresaw it")
            return written(tables, *arguments)

        stage.write = broken  # type: ignore[assignment] - called in one way only


@dataclass(frozen=True, kw_only=True)
class DeadlyInput(Input):
    """Registers the format when a task unpickles this object."""

    format: str = "deadly"

    def __setstate__(self, state: dict[str, object]) -> None:
        FORMATS[Deadly.name] = Deadly()
        break_writer()
        self.__dict__.update(state)


def deadly(source: Source) -> Source:
    """The same source, with this format."""
    given = asdict(source.input) | {"bucket": source.input.bucket, "format": Deadly.name}
    return replace(source, input=DeadlyInput(**given))
