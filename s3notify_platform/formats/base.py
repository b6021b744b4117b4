"""The interface of a format, and how a split of an object is read.

Guarantees. An object may be split in any way: its splits return each record once, with the same offset and content as a
read of the whole object. A split that begins at the `SplitEnd.offset` of another split continues exactly there. All
splits are read from one version of the object. If the object is overwritten or deleted in the meantime, the split ends
with the status `superseded` or `deleted`. The split's records are then discarded. No record is dropped silently: a
record that cannot be read is a reject with its offset.

`_offset` is the byte at which a record starts, counted in the object's decoded text. For Parquet, `_offset` is the row
number.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import pyarrow as pa

from s3notify_platform.formats.object_bytes import CHUNK_BYTES, ObjectBytes
from s3notify_platform.formats.records import Parsed, Target
from s3notify_platform.kernel.errors import ConflictError, NotFoundError, RefusedError, UnavailableError
from s3notify_platform.kernel.limits import MAX_RECORD_BYTES
from s3notify_platform.protocols.source_enumerator import Split

PIECE_BYTES: Final = 2 << 20
"""Number of bytes that are parsed together.

Pieces of this size fit into the processor's caches, and are copied a third faster than pieces of `CHUNK_BYTES`.
"""

HEAD_SAMPLE_BYTES: Final = 1 << 20
"""Number of bytes of an object that are read to infer a schema."""

SplitStatus = Literal["ok", "superseded", "deleted", "failed", "by_record"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitEnd:
    """The end of a split, with its status. Discard the split's records if the status is neither `ok` nor `by_record`.

    `offset`: the byte where the first unread record begins; for a split that counts in records, the number of records
    that were read. `reach_end`: the object has no further record. `outage`: the read failed, but not because of the
    object.
    """

    status: SplitStatus
    offset: int = 0
    reach_end: bool = False
    reason: str = ""
    outage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on memory, in bytes."""

    chunk_bytes: int = CHUNK_BYTES
    block_bytes: int = PIECE_BYTES
    record_bytes: int = MAX_RECORD_BYTES


LIMITS: Final = Limits()

SplitRecords = Generator[Parsed, None, SplitEnd]


class Format(ABC):
    """One format. A new format is a subclass in a separate file, and one entry in `registry.FORMATS`.

    Text formats derive from `text_format.TextFormat`, which needs only a parser of records. Formats whose files have
    blocks derive from `block_format.BlockFormat`.
    """

    name: ClassVar[str]
    """The value of a source's setting `format`."""

    suffixes: ClassVar[frozenset[str]] = frozenset()
    """Suffixes of keys, in lower case. A compression suffix behind such a suffix is ignored."""

    fixed_schema: ClassVar[pa.Schema | None] = None
    """The columns of all objects, for a format with fixed columns."""

    emptiness: str = "a file without rows"
    """Describes an undamaged object that has bytes, but neither rows nor rejects."""

    has_records: ClassVar[bool] = False
    """True if rows are made of raw records, which `Parsed.raw` returns."""

    has_notation: ClassVar[bool] = False
    """True if the format's values are texts, so that a `Notation` may describe how they are written."""

    quoted: bool = False
    """True if quoted values may contain line ends. Each split must then begin where the previous split has ended."""

    def configured(self, settings: Any) -> "Format":
        """Returns the format, configured by a source's settings (`source.format_settings`).

        Raises `UsageError` for invalid settings.
        """
        return self

    def may_be_cut(self, key: str, encoding: str) -> bool:
        """True if the object can be read in parts, judged by its key and the source's encoding. Pure."""
        return False

    def has_type(self, kind: pa.DataType) -> bool:
        """True if a column of a declared schema can have this type. Pure."""
        return True

    @abstractmethod
    def parse(
        self, objects: Sequence[tuple[str, bytes]], target: Target, *, encoding: str = "utf-8"
    ) -> Iterator[Parsed]:
        """Parses small objects together; `objects` has their keys and bytes.

        Never raises for bad data. `Parsed.index`: the number of each row's object.
        """

    @abstractmethod
    def records(
        self, source: ObjectBytes, split: Split, target: Target, *, encoding: str, limits: Limits
    ) -> SplitRecords:
        """Implements `read`. Errors that this method raises become the status of the split."""

    @abstractmethod
    def schemas(self, source: ObjectBytes, key: str, encoding: str) -> Iterator[pa.Schema]:
        """Yields schemas that are inferred from the beginning of an object; none if the data is unreadable.

        Reads about `HEAD_SAMPLE_BYTES`. Raises the errors of `ObjectBytes.read`.
        """

    def read(
        self,
        source: ObjectBytes,
        split: Split,
        target: Target,
        *,
        encoding: str = "utf-8",
        limits: Limits = LIMITS,
    ) -> Iterator[Parsed | SplitEnd]:
        """Yields the records of a split, block by block, in order, and at the end one `SplitEnd`.

        Memory: `object_bytes.AHEAD` chunks, and one block of records with its Arrow table. For Parquet, a row group
        takes the place of the block; for binary objects, the whole object. Cost: 1 GET for each `CHUNK_BYTES`, and 1
        GET for the object's beginning if the split begins later.
        """
        try:
            end = yield from self.records(source, split, target, encoding=encoding, limits=limits)
        except ConflictError:
            end = SplitEnd(status="superseded")
        except NotFoundError:
            end = SplitEnd(status="deleted")
        except RefusedError as error:
            end = SplitEnd(status="failed", reason=str(error))
        except UnavailableError as error:
            end = SplitEnd(status="failed", reason=str(error), outage=True)
        yield end


def empty_end(source: ObjectBytes, split: Split) -> SplitEnd:
    """Returns the end of a split in which no record begins."""
    end = min(split.end, source.size)
    return SplitEnd(status="ok", offset=end, reach_end=end >= source.size)
