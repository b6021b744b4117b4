"""One split of one object, however large and however encoded, to rows and rejects, in bounded memory.

Guarantees. The splits of an object, however it is cut, give each of its records once, with the same offset,
and the same as an object read whole; a split that begins at another's `SplitEnd.offset` goes on exactly there.
All is read from one version: what was overwritten or deleted in mid-read ends in that status, and nothing of it
counts. Nothing is lost in silence: what cannot be read is a reject that says where it begins.

Lines, after Hadoop: a split reads the records that begin in it, and reads on for the end of the last. To know
where its first begins, it looks at the byte before. CSV besides has to know whether a quoted value is open there
(`csv_splits`). Of Parquet it reads the row groups whose middle lies in it.

What is compressed or not in UTF-8 (`codecs`) can be read from its beginning only, and is counted in records: the
split with `start` 0 reads it, or with `by_record` any one goes on behind `start` records. Where only the content
tells, the other splits of the object end at once, with nothing.

Memory: `ranges.AHEAD` chunks, one block of records and its table; for Parquet a row group, for binary the object.
Requests: one GET for each `CHUNK_BYTES`, one for the beginning if the split does not begin there.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from s3notify_platform.errors import ConflictError, NotFoundError, UnavailableError, UsageError
from s3notify_platform.formats.codecs import HEAD_BYTES, TEXT_FORMATS, decoded, is_text, peek, slices
from s3notify_platform.formats.csv import (
    HEADER_BYTES,
    CsvRecords,
    csv_cut,
    csv_header_place,
    csv_names,
)
from s3notify_platform.formats.jsonl import JsonLines, filled_lines
from s3notify_platform.formats.parquet import parquet_footer, parquet_records
from s3notify_platform.formats.pieces import (
    RECORD_BYTES,
    Cut,
    Piece,
    cut_lines,
    first_record,
    pieces,
    regrouped,
)
from s3notify_platform.formats.ranges import CHUNK_BYTES, ObjectBytes, RemoteBytes, chunks, chunks_on
from s3notify_platform.formats.records import (
    Parsed,
    Parser,
    Wanted,
    convert_or_halve,
    line_ranges,
    rejected_whole,
)
from s3notify_platform.formats.registry import FORMATS, TextLines, only_column
from s3notify_platform.limits import MAX_OBJECT_BYTES
from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.stores.config import S3Config

PIECE_BYTES: Final = 2 << 20
"""What is parsed at once: pieces that stay in the processor's caches are copied a third faster than `CHUNK_BYTES`."""

SplitStatus = Literal["ok", "superseded", "deleted", "failed", "by_record"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitEnd:
    """How a split ended. Where it is neither `ok` nor `by_record`, nothing that it gave counts.

    `offset`: where the first record begins that was not read; with `by_record`, how many records were. With
    `reach_end` there are none.
    """

    status: SplitStatus
    offset: int = 0
    reach_end: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes that are held at once."""

    chunk_bytes: int = CHUNK_BYTES
    block_bytes: int = PIECE_BYTES
    record_bytes: int = RECORD_BYTES


LIMITS: Final = Limits()

HEAD_SAMPLE_BYTES: Final = 1 << 20
"""Of a large object, what is looked at to infer a schema."""

_Reading = Generator[Parsed, None, SplitEnd]


def read_split(
    config: S3Config, split: Split, fmt: str, wanted: Wanted, *, encoding: str = "utf-8"
) -> Iterator[Parsed | SplitEnd]:
    """The records of a split, block by block, in order; last of all, and only once, its `SplitEnd`.

    `fmt` is one of the formats but `auto`. `Parsed.offset` and the offsets of rejects count bytes of the object;
    for Parquet, rows of the file; by record, bytes of the text as decoded.
    """
    source = RemoteBytes(config, split.version)
    yield from read_bytes(source, split, fmt, wanted, encoding=encoding)


def read_bytes(
    source: ObjectBytes,
    split: Split,
    fmt: str,
    wanted: Wanted,
    *,
    encoding: str = "utf-8",
    limits: Limits = LIMITS,
) -> Iterator[Parsed | SplitEnd]:
    """`read_split` of an object that is read through `source`."""
    try:
        if fmt in TEXT_FORMATS:
            end = yield from _text(source, split, fmt, wanted, encoding=encoding, limits=limits)
        elif fmt == "parquet":
            offset = yield from parquet_records(source, split, wanted)
            end = SplitEnd(status="ok", offset=offset, reach_end=offset >= source.size)
        elif fmt == "binary":
            end = yield from _binary(source, split, wanted, limits)
        else:
            raise UsageError(f"format {fmt!r}: use one of {', '.join(FORMATS[1:])}")
    except ConflictError:
        end = SplitEnd(status="superseded")
    except NotFoundError:
        end = SplitEnd(status="deleted")
    except UnavailableError as error:
        end = SplitEnd(status="failed", reason=str(error))
    yield end


def head_sample(source: ObjectBytes, key: str, fmt: str, encoding: str) -> bytes:
    """What a schema can be inferred from: the first whole lines of the text, or the footer of Parquet.

    Reads about `HEAD_SAMPLE_BYTES`, and gives no more, or nothing if not even one line fits. Raises `ConflictError`,
    `NotFoundError`, `UnavailableError` as `ObjectBytes.read` does.
    """
    if fmt == "parquet":
        return parquet_footer(source)
    if fmt not in TEXT_FORMATS:
        return b""
    raw = chunks(source, 0, source.size, chunk_bytes=HEAD_SAMPLE_BYTES, ahead=1)
    text, _ = peek(decoded(raw, key, encoding), HEAD_SAMPLE_BYTES)
    return text if len(text) < HEAD_SAMPLE_BYTES else text[: text.rfind(b"\n") + 1]


def _binary(source: ObjectBytes, split: Split, wanted: Wanted, limits: Limits) -> _Reading:
    if split.start > 0:
        return _upto(source, split)
    if source.size > MAX_OBJECT_BYTES:
        reason = f"larger than {MAX_OBJECT_BYTES} bytes, which is all that one record holds"
        return SplitEnd(status="failed", reason=reason)
    body = b"".join(chunks(source, 0, source.size, chunk_bytes=limits.chunk_bytes))
    none = np.zeros(1, np.int64)
    rows = wanted.rows(only_column("content", pa.array([body], pa.binary()), wanted.schema))
    yield Parsed(table=rows, index=none, offset=none)
    return SplitEnd(status="ok", offset=source.size, reach_end=True)


def _upto(source: ObjectBytes, split: Split) -> SplitEnd:
    """The end of a split in which no record begins."""
    end = min(split.end, source.size)
    return SplitEnd(status="ok", offset=end, reach_end=end >= source.size)


# Lines


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    """How records are cut and parsed. `header`: where a record begins that is none, but names the columns."""

    cut: Cut
    parser: Parser
    header: int | None = None


def _text(
    source: ObjectBytes,
    split: Split,
    fmt: str,
    wanted: Wanted,
    *,
    encoding: str,
    limits: Limits,
) -> _Reading:
    by_record, place = split.by_record, 0
    head = b""
    if by_record:
        text = chunks(source, 0, source.size, chunk_bytes=limits.chunk_bytes)
    else:
        place = max(split.start - 1, 0)
        text = chunks_on(source, place, min(split.end, source.size), chunk_bytes=limits.chunk_bytes)
        if split.start > 0:
            head = source.read(0, min(HEADER_BYTES if fmt == "csv" else HEAD_BYTES, source.size))
        else:
            head, text = peek(text, HEAD_BYTES)
        by_record = not is_text(head[:HEAD_BYTES], split.version.key, encoding)
        if by_record and split.start > 0:
            return SplitEnd(status="by_record")
    if by_record:
        text = regrouped(decoded(text, split.version.key, encoding), limits.block_bytes)
    if fmt == "csv" and (by_record or split.start == 0):
        head, text = peek(text, HEADER_BYTES)
    form, fault = _format(fmt, head, wanted)
    if form is None:
        if fault and split.start == 0:
            yield rejected_whole(0, head, fault, wanted.output)
        return SplitEnd(status="by_record", offset=1, reach_end=True) if by_record else _upto(source, split)
    if by_record:
        found = _without_header(pieces(text, form.cut, limit=limits.record_bytes), form.header)
        return (yield from _by_record(found, form, split))
    if split.start > 0:
        text, place = first_record(text, place, quoted=split.in_quotes if fmt == "csv" else None)
    found = pieces(slices(text, limits.block_bytes), form.cut, place=place, limit=limits.record_bytes)
    return (yield from _by_place(_without_header(found, form.header), form, split, place))


def _format(fmt: str, head: bytes, wanted: Wanted) -> tuple[_Format | None, str]:
    """How an object that begins with `head` is read, or what is wrong with it, if it is not merely empty."""
    match fmt:
        case "jsonl":
            return _Format(cut=partial(cut_lines, filled_lines), parser=JsonLines(wanted)), ""
        case "text":
            return _Format(cut=partial(cut_lines, line_ranges), parser=TextLines(wanted)), ""
        case _:
            if (header := csv_header_place(head)) is None:
                return None, ""
            names, fault = csv_names(head[slice(*header)], None if wanted.inferred else wanted.schema)
            if fault:
                return None, f"CSV header: {fault}"
            return _Format(cut=csv_cut, parser=CsvRecords(names, wanted), header=header[0]), ""


def _without_header(found: Iterator[Piece], header: int | None) -> Iterator[Piece]:
    for piece in found:
        count = len(piece.begins)
        if count and header == (piece.reject.offset if piece.reject else piece.records.offset[0]):
            yield piece.part(1, count)
        else:
            yield piece


def _by_place(found: Iterator[Piece], form: _Format, split: Split, place: int) -> _Reading:
    """The records that begin before the split's end, from `place` on."""
    if place < split.end:
        for piece in found:
            within = piece.part(0, int(np.searchsorted(piece.begins, split.end)))
            yield from _converted(within, form)
            place = within.next_place
            if place >= split.end:
                break
    return SplitEnd(status="ok", offset=place, reach_end=place >= split.version.size)


def _by_record(found: Iterator[Piece], form: _Format, split: Split) -> _Reading:
    """The records behind the first `split.start`, as many as `limit_bytes` allow."""
    passed = 0
    origin: int | None = None
    for piece in found:
        count = len(piece.begins)
        if passed + count <= split.start or not count:
            passed += count
            continue
        low = max(0, split.start - passed)
        part = piece.part(low, count)
        origin = int(part.begins[0]) if origin is None else origin
        high = len(part.begins)
        if split.limit_bytes:
            ends = np.append(part.begins[1:], part.next_place) - origin
            high = int(np.searchsorted(ends, split.limit_bytes)) + 1
        part = part.part(0, min(high, len(part.begins)))
        yield from _converted(part, form)
        passed += low + len(part.begins)
        if part.next_place - origin >= split.limit_bytes > 0:
            return SplitEnd(status="by_record", offset=passed)
    return SplitEnd(status="by_record", offset=max(passed, split.start), reach_end=True)


def _converted(piece: Piece, form: _Format) -> Iterator[Parsed]:
    if piece.reject:
        none = np.zeros(0, np.int64)
        yield Parsed(
            table=form.parser.wanted.output.empty_table(), index=none, offset=none, rejects=[piece.reject]
        )
    elif len(piece.begins):
        yield convert_or_halve(piece.records, form.parser)
