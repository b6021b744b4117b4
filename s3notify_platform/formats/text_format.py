"""Base of text formats: records are separated by line ends, possibly behind a header. A text may be compressed or
encoded.

Whole objects are joined and parsed together. A split is read as in Hadoop: the split has all records that begin in it,
and its last record may end behind the split. A split also reads the byte before its start, to find where its first
record begins. In a quoted format, the search works only if this byte is outside of all quoted values. Only a read of
the text before the byte can show this. So splits of a quoted format are read one after the other.

An object that is compressed, or is not in UTF-8 (`codecs`), can only be read from its beginning. For such an object, an
offset counts records. The split with `start` 0 reads from the beginning. A split with `by_record` skips the first
`start` records, and reads the records behind them. If only the content shows the compression or encoding, the object
may already have splits that begin at byte offsets. These splits return no record, except the split with `start` 0.
"""

from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Final

import numpy as np
import pyarrow as pa

from s3notify_platform.formats.base import (
    HEAD_SAMPLE_BYTES,
    LIMITS,
    Format,
    Limits,
    SplitEnd,
    SplitRecords,
    empty_end,
)
from s3notify_platform.formats.chunked_records import Piece, cut_lines, first_record, pieces, regrouped
from s3notify_platform.formats.codecs import (
    HEAD_BYTES,
    by_record,
    decoded,
    decoded_whole,
    is_text,
    peek,
    slices,
)
from s3notify_platform.formats.object_bytes import ObjectBytes, chunks, chunks_on
from s3notify_platform.formats.records import (
    NO_RECORDS,
    Offsets,
    Parsed,
    Parser,
    Records,
    Target,
    blocks,
    no_rows,
    rejected_whole,
)
from s3notify_platform.formats.row_conversion import converted
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.limits import MAX_HALVED
from s3notify_platform.protocols.source_enumerator import Split

DECODED_BYTES: Final = 64 << 20
"""Maximum total size, decoded, of the compressed or encoded objects that one call parses together."""

SAMPLE_RECORDS: Final = 1000
"""Maximum number of an object's records that inference looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A text whose beginning has been read, up to its header.

    `header`: the offset of the record that has the column names.
    """

    parser: Parser
    header: int | None


class TextFormat(Format):
    """A format whose objects are texts that consist of records."""

    emptiness = "blank lines alone"
    has_records = True

    header_bytes: int = 0
    """Size limit of the header of a text; 0 if texts have no header."""

    @property
    def quote(self) -> str:
        """The character that opens and closes a quoted value."""
        return '"'

    @abstractmethod
    def parser(self, header: bytes, target: Target) -> Parser:
        """Returns the parser of texts with this header. Raises `CorruptError` if the header is invalid."""

    def refusal(self, text: bytes) -> str | None:
        """Returns the reason why the whole text must be one reject, or None. Pure."""
        return None

    def header(self, head: bytes) -> slice | None:
        """Returns the byte range of the header in a text; None if the text is empty.

        `head`: the first `header_bytes` of the text. Raises `CorruptError` if the text has no header.
        """
        return slice(0, 0)

    def cut(self, body: bytes, *, mark: bool, final: bool, limit: int) -> tuple[Offsets, Offsets, int]:
        """See `chunked_records.Cut`. Each line that is not blank is a record, unless a format overrides this method."""
        starts, ends, whole = cut_lines(body, mark=mark, final=final)
        filled = ends > starts
        return starts[filled], ends[filled], whole

    def may_be_cut(self, key: str, encoding: str) -> bool:
        """See `Format`."""
        return not by_record(key, encoding)

    # Whole objects

    def parse(
        self, objects: Sequence[tuple[str, bytes]], target: Target, *, encoding: str = "utf-8"
    ) -> Iterator[Parsed]:
        """See `Format`. Objects that are damaged, or longer than `DECODED_BYTES`, are parsed one by one."""
        found: list[tuple[bytes, int, bytes]] = []
        streamed: list[int] = []
        left = DECODED_BYTES
        for number, (key, body) in enumerate(objects):
            text = decoded_whole(body, key, encoding, left)
            if text is None:
                streamed.append(number)
                continue
            if text is not body:
                left -= len(text)
            if reason := self.refusal(text):
                yield rejected_whole(number, text, reason, target)
                continue
            try:
                place = self.header(text[: self.header_bytes])
            except CorruptError as error:
                yield rejected_whole(number, text, str(error), target)
                continue
            if place is not None:
                found.append((text[place], number, text))
        for header, group in groupby(found, key=itemgetter(0)):
            yield from self._joined(header, [(number, text) for _, number, text in group], target)
        for number in streamed:
            key, body = objects[number]
            for parsed in self._by_record(decoded([body], key, encoding, len(body)), target):
                yield parsed.of(number)

    def _joined(self, header: bytes, texts: Sequence[tuple[int, bytes]], target: Target) -> Iterator[Parsed]:
        """Parses texts with the same header."""
        try:
            parser = self.parser(header, target)
        except CorruptError as error:
            for number, text in texts:
                yield rejected_whole(number, text, str(error), target)
            return
        for records in blocks(texts, self._ranges):
            yield from converted(records, parser)

    def _ranges(self, body: bytes) -> tuple[Offsets, Offsets]:
        """Returns the starts and ends of the records of a text, without the header."""
        starts, ends, _ = self.cut(body, mark=True, final=True, limit=len(body))
        first = int(self.header_bytes > 0)
        return starts[first:], ends[first:]

    # Splits

    def records(
        self, source: ObjectBytes, split: Split, target: Target, *, encoding: str, limits: Limits
    ) -> SplitRecords:
        """See `Format`."""
        key = split.version.key
        if split.by_record:
            raw = chunks(source, 0, source.size, chunk_bytes=limits.chunk_bytes)
            text = decoded(raw, key, encoding, source.size)
            return (yield from self._by_record(text, target, split, limits))
        place = max(split.start - 1, 0)
        text = chunks_on(source, place, min(split.end, source.size), chunk_bytes=limits.chunk_bytes)
        if split.start > 0:
            head = source.read(0, min(max(HEAD_BYTES, self.header_bytes), source.size))
        else:
            head, text = peek(text, HEAD_BYTES)
        if not is_text(head[:HEAD_BYTES], key, encoding):
            if split.start > 0:
                return SplitEnd(status="by_record")
            text = decoded(text, key, encoding, source.size)
            return (yield from self._by_record(text, target, split, limits))
        if split.start == 0:
            head, text = peek(text, self.header_bytes)
        opened = yield from self._opened(head, target, reject=split.start == 0)
        if opened is None:
            return empty_end(source, split)
        if split.start > 0:
            text, place = first_record(text, place, quoted=self.quoted, quote=self.quote)
        found = pieces(slices(text, limits.block_bytes), self.cut, place=place, limit=limits.record_bytes)
        for piece in _without_header(found, opened.header) if place < split.end else ():
            within = piece.part(0, int(np.searchsorted(piece.begins, split.end)))
            yield from _converted(within, opened.parser)
            place = within.next_place
            if place >= split.end:
                break
        return SplitEnd(status="ok", offset=place, reach_end=place >= split.version.size)

    def _by_record(
        self, text: Iterable[bytes], target: Target, split: Split | None = None, limits: Limits = LIMITS
    ) -> SplitRecords:
        """Skips the first `split.start` records, and yields the following records up to `split.limit_bytes`."""
        start, limit_bytes = (split.start, split.limit_bytes) if split else (0, 0)
        head, text = peek(regrouped(text, limits.block_bytes), self.header_bytes)
        found = pieces(text, self.cut, limit=limits.record_bytes)
        first = [*islice((piece for piece in found if len(piece.begins)), 1)]
        if (
            self.header_bytes and first and first[0].reject
        ):  # the text is damaged before its header is complete
            yield no_rows(target, [first[0].reject] if start == 0 else [])
            return SplitEnd(status="by_record", offset=1, reach_end=True)
        opened = yield from self._opened(head, target, reject=start == 0)
        if opened is None:
            return SplitEnd(status="by_record", offset=1, reach_end=True)
        passed = 0
        origin: int | None = None
        for piece in _without_header(chain(first, found), opened.header):
            count = len(piece.begins)
            if passed + count <= start or not count:
                passed += count
                continue
            low = max(0, start - passed)
            part = piece.part(low, count)
            origin = int(part.begins[0]) if origin is None else origin
            high = len(part.begins)
            if limit_bytes:
                ends = np.append(part.begins[1:], part.next_place) - origin
                high = int(np.searchsorted(ends, limit_bytes)) + 1
            part = part.part(0, min(high, len(part.begins)))
            yield from _converted(part, opened.parser)
            passed += low + len(part.begins)
            if part.next_place - origin >= limit_bytes > 0:
                return SplitEnd(status="by_record", offset=passed)
        return SplitEnd(status="by_record", offset=max(passed, start), reach_end=True)

    def _opened(
        self, head: bytes, target: Target, *, reject: bool
    ) -> Generator[Parsed, None, _Opened | None]:
        """Opens a text that begins with `head`. Returns None if the text is empty, or if its header is invalid.

        If the header is invalid and `reject` is true, yields a reject with the reason.
        """
        try:
            place = self.header(head[: self.header_bytes])
            if place is None:
                return None
            parser = self.parser(head[place], target)
        except CorruptError as error:
            if reject:
                yield rejected_whole(0, head, str(error), target)
            return None
        return _Opened(parser=parser, header=place.start if self.header_bytes else None)

    # Inference

    def schemas(self, source: ObjectBytes, key: str, encoding: str) -> Iterator[pa.Schema]:
        """See `Format`.

        Uses the first `SAMPLE_RECORDS` records.
        """
        if self.fixed_schema is not None:
            yield self.fixed_schema
            return
        text = sample_of(source, key, encoding)
        if self.refusal(text):
            return
        try:
            place = self.header(text[: self.header_bytes])
            if place is None:
                return
            parser = self.parser(text[place], Target(schema=pa.schema([]), inferred=True))
        except CorruptError:
            return
        yield from inferred(parser, NO_RECORDS)
        yield from inferred(parser, next(blocks([(0, text)], self._first_ranges), NO_RECORDS))

    def _first_ranges(self, body: bytes) -> tuple[Offsets, Offsets]:
        starts, ends = self._ranges(body)
        return starts[:SAMPLE_RECORDS], ends[:SAMPLE_RECORDS]


def inferred(parser: Parser, records: Records) -> Iterator[pa.Schema]:
    """Yields the schemas that these records suggest. If the records cannot be read together, they are halved; then a
    single record is halved (`Parser.halves`). At most `MAX_HALVED` reads may fail.
    """
    pending, left = [records], MAX_HALVED
    while pending and left:
        part = pending.pop()
        count = len(part.start)
        try:
            yield parser.infer(part)
        except (pa.ArrowException, UnicodeError):
            left -= 1
            if count > 1:
                pending += [part.part(count // 2, count), part.part(0, count // 2)]
            elif count:
                pending += parser.halves(part)


def sample_of(source: ObjectBytes, key: str, encoding: str) -> bytes:
    """Returns the first complete lines of a text, up to `HEAD_SAMPLE_BYTES`; empty if the first line is longer."""
    raw = chunks(source, 0, source.size, chunk_bytes=HEAD_SAMPLE_BYTES, ahead=1)
    text, _ = peek(decoded(raw, key, encoding, source.size), HEAD_SAMPLE_BYTES)
    return text if len(text) < HEAD_SAMPLE_BYTES else text[: text.rfind(b"\n") + 1]


def _without_header(found: Iterable[Piece], header: int | None) -> Iterator[Piece]:
    for piece in found:
        count = len(piece.begins)
        if count and header == (piece.reject.offset if piece.reject else piece.records.offset[0]):
            yield piece.part(1, count)
        else:
            yield piece


def _converted(piece: Piece, parser: Parser) -> Iterator[Parsed]:
    if piece.reject:
        yield no_rows(parser.target, [piece.reject])
    elif len(piece.begins):
        yield from converted(piece.records, parser)
