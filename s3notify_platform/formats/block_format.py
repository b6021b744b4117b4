"""What binary formats share whose blocks are found from anywhere: row groups, stripes, blocks behind markers."""

from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence

from s3notify_platform.formats.base import Format, Limits, SplitEnd, SplitRecords
from s3notify_platform.formats.object_bytes import BytesInMemory, ObjectBytes
from s3notify_platform.formats.records import Parsed, Target
from s3notify_platform.protocols.source_enumerator import Split


class BlockFormat(Format):
    """A format of such files. A split reads the blocks that are its own."""

    @abstractmethod
    def rows(self, source: ObjectBytes, start: int, end: int, target: Target) -> Generator[Parsed, None, int]:
        """The rows of the blocks of a split. Returns where the next block begins, or the file's size.

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
            for parsed in self.rows(BytesInMemory(body), 0, len(body), target):
                yield parsed.of(number)

    def records(
        self, source: ObjectBytes, split: Split, target: Target, *, encoding: str, limits: Limits
    ) -> SplitRecords:
        """See `Format`. Requests: see `rows`."""
        offset = yield from self.rows(source, split.start, split.end, target)
        return SplitEnd(status="ok", offset=offset, reach_end=offset >= source.size)
