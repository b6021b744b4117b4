"""Common base of binary formats whose blocks can be found from any place: row groups, stripes, blocks with markers."""

from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence

import pyarrow as pa

from s3notify_platform.formats.base import Format, Limits, SplitEnd, SplitRecords
from s3notify_platform.formats.codecs import most_decoded
from s3notify_platform.formats.object_bytes import BytesInMemory, ObjectBytes
from s3notify_platform.formats.records import Parsed, Reject, Target, no_rows
from s3notify_platform.protocols.source_enumerator import Split


def bytes_of(rows: pa.Table) -> int:
    """Returns the number of bytes of these rows, without columns that are all null.

    A column that is all null may be missing in the file itself.
    """
    return sum(column.nbytes for column in rows.columns if column.null_count < rows.num_rows)


def first_offset(found: Parsed) -> int:
    """Returns the offset of the first row or reject; 0 if there is neither."""
    return min([*found.offset[:1].tolist(), *(reject.offset for reject in found.rejects[:1])], default=0)


class BlockFormat(Format):
    """A format whose files have blocks. Each split reads the blocks that belong to it."""

    def bounded(
        self, source: ObjectBytes, start: int, end: int, target: Target
    ) -> Generator[Parsed, None, int]:
        """Yields the result of `rows`.

        If the rows exceed `most_decoded` bytes, the remaining rows become one reject.
        """
        decoded, most, rows = 0, most_decoded(source.size), self.rows(source, start, end, target)
        while True:
            try:
                found = next(rows)
            except StopIteration as stop:
                return int(stop.value)
            decoded += bytes_of(found.table)
            if decoded > most:
                reason = f"{self.name}: its rows from here on are more than {most} bytes, decoded"
                yield no_rows(target, [Reject(index=0, offset=first_offset(found), reason=reason, raw=b"")])
                return min(end, source.size)
            yield found

    @abstractmethod
    def rows(self, source: ObjectBytes, start: int, end: int, target: Target) -> Generator[Parsed, None, int]:
        """Yields the rows of a split's blocks. Returns where the next block begins, or the file's size.

        An empty file has no rows.
        """

    def may_be_cut(self, key: str, encoding: str) -> bool:
        """See `Format`."""
        return True

    def parse(
        self, objects: Sequence[tuple[str, bytes]], target: Target, *, encoding: str = "utf-8"
    ) -> Iterator[Parsed]:
        """See `Format`."""
        for number, (_, body) in enumerate(objects):
            for parsed in self.bounded(BytesInMemory(body), 0, len(body), target):
                yield parsed.of(number)

    def records(
        self, source: ObjectBytes, split: Split, target: Target, *, encoding: str, limits: Limits
    ) -> SplitRecords:
        """See `Format`. Requests: see `rows`."""
        offset = yield from self.bounded(source, split.start, split.end, target)
        return SplitEnd(status="ok", offset=offset, reach_end=offset >= source.size)
