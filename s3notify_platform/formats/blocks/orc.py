"""Reads ORC stripe by stripe as rows and rejects, by ranged GETs of the needed parts.

For splits, the file's bytes are divided into equal shares, one for each stripe, wherever the stripes are stored. A
split reads each stripe whose share begins in the split. A stripe that cannot be read is one reject; a row with a value
that does not fit is one reject. A file without a readable tail, or without any column of a given schema, becomes one
reject. The split at the file's beginning reports this reject. `_offset` is 2**32 times the number of the stripe, plus
the number of the row in the stripe. The reader, pyarrow, reads a stripe only as a whole. The reader converts times to
nanoseconds, which reach from the year 1677 to 2262. So a stripe with a time outside of these years is one reject:
pyarrow does not say which row has this time.

Memory: one decoded stripe, whose size is known only after decoding. The number of the file's rows is checked before
decoding. An object in memory is decoded twice if it has texts, lists or very many values. The first decoding only
counts bytes. The count is necessary because ORC stores a repeated text once, but the decoded rows repeat the text.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.orc as pa_orc

from s3notify_platform.formats.arrow_values import count_fields
from s3notify_platform.formats.blocks.arrow_file import ArrowFile, UnreadableError, reading, wanted_columns
from s3notify_platform.formats.blocks.block_format import BlockFormat
from s3notify_platform.formats.blocks.parquet import DECODED_BATCH_ROWS
from s3notify_platform.formats.blocks.parquet_values import fit_rows
from s3notify_platform.formats.codecs import most_decoded
from s3notify_platform.formats.object_bytes import BytesInMemory, ObjectBytes
from s3notify_platform.formats.records import Parsed, Reject, Target, no_rows, rejected_whole
from s3notify_platform.kernel.limits import (
    MAX_CELLS,
    MAX_ORC_BLOCK_BYTES,
    MAX_RAW_BYTES,
    MAX_ROWS_PER_BYTE,
    UNLIMITED_ROWS,
)

COUNTED_ROWS: Final = 128
"""Number of rows that are decoded together to count their bytes."""

ROW_BITS: Final = 32


class Orc(BlockFormat):
    """See the module."""

    name = "orc"
    suffixes = frozenset({"orc"})

    def rows(self, source: ObjectBytes, start: int, end: int, target: Target) -> Generator[Parsed, None, int]:
        """See `BlockFormat`.

        Cost: some GETs for the file's tail, and 1 GET for each group of adjacent columns of a stripe.
        """
        return _rows(source, start, end, target)

    def schemas(self, source: ObjectBytes, key: str, encoding: str) -> Iterator[pa.Schema]:
        """See `Format`. Reads the file's tail."""
        try:
            file, reader = _open(source)
            with reading(file):
                schema = reader.schema
                _ = schema.names  # raises if a damaged name is not text
        except UnreadableError:
            return
        yield schema


def _open(source: ObjectBytes) -> tuple[ArrowFile, pa_orc.ORCFile]:
    file = ArrowFile(source)
    with reading(file):
        _check_block_size(source.read(max(0, source.size - 256), source.size))
        if isinstance(source, BytesInMemory):
            return file, pa_orc.ORCFile(pa.BufferReader(source.body))
        return file, pa_orc.ORCFile(file)


def _check_block_size(end: bytes) -> None:
    """Raises for a file whose compressed blocks are too large.

    The size is in the file's postscript, the protobuf message before the last byte.
    """
    post = iter(end[-1 - end[-1] : -1])

    def number() -> int:
        found = shift = 0
        for octet in post:
            found |= (octet & 127) << shift
            shift += 7
            if octet < 128:
                break
        return found

    while key := number():
        length = number()
        if key == 3 << 3 and length > MAX_ORC_BLOCK_BYTES:
            raise UnreadableError(
                f"compressed blocks of {length} bytes: at most {MAX_ORC_BLOCK_BYTES} are allowed"
            )
        if key & 7 == 2:
            deque(islice(post, length), 0)


def _are_more(bytes_: int, file: ArrowFile, source: BytesInMemory, kinds: Sequence[pa.Field]) -> bool:
    """True if the readable rows of these columns have more than `bytes_` bytes."""
    columns = {column.name: ds.field(column.name) for column in kinds}
    with suppress(UnreadableError), reading(file):
        # A thread of Arrow may free the file after this function has returned. The thread must not need Python's lock
        # for that, because in an exiting process the thread never gets this lock (apache/arrow#39862). So the file is a
        # copy in Arrow's memory.
        body = pa.BufferOutputStream()
        body.write(source.body)
        whole = ds.OrcFileFormat().make_fragment(pa.BufferReader(body.getvalue()))
        read = whole.scanner(
            columns=columns,
            batch_size=COUNTED_ROWS,
            use_threads=False,
            batch_readahead=0,
            fragment_readahead=0,
        )
        for batch in read.to_batches():
            bytes_ -= batch.nbytes
            if bytes_ < 0:
                return True
    return False


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def _rows(source: ObjectBytes, start: int, end: int, target: Target) -> Generator[Parsed, None, int]:
    """Yields the rows of each stripe whose share of the file's bytes begins at or after `start`, and before `end`.

    Returns the next share's start, or the file's size.
    """
    size = source.size
    if size == 0:
        source.read(0, 0)
        return 0
    try:
        file, reader = _open(source)
        with reading(file):
            present = reader.schema.names
        names = wanted_columns(present, target)
        stripes = _stripes(file, reader, size)
        kinds, most = [reader.schema.field(name) for name in names], most_decoded(size)
        vary = not all(_is_fixed(column.type) for column in kinds) or 16 * reader.nrows * len(kinds) > most
        if vary and isinstance(source, BytesInMemory) and _are_more(most, file, source, kinds):
            raise UnreadableError(f"more than {most} bytes, decoded")
    except UnreadableError as error:
        if start == 0:
            yield rejected_whole(0, source.read(0, min(size, MAX_RAW_BYTES)), f"ORC: {error}", target)
        return min(end, size)
    begins = [size * number // stripes for number in range(stripes)]
    wanted = [number for number, begin in enumerate(begins) if start <= begin < end]
    rows = 0
    for number in wanted:
        try:
            for found in _of_stripe(file, reader, number, names, target):
                rows += found.table.num_rows + len(found.rejects)
                yield found
        except UnreadableError as error:
            rows = reader.nrows
            raw = source.read(0, min(size, MAX_RAW_BYTES)) if stripes == 1 else b""
            yield _rejected(number, f"stripe {number}: {error}", raw, target)
    if len(wanted) == stripes and rows < reader.nrows:
        yield _rejected(stripes, f"{rows} rows in the stripes, but {reader.nrows} in the tail", b"", target)
    return min((begin for begin in begins if begin >= end), default=size)


def _rejected(stripe: int, reason: str, raw: bytes, target: Target) -> Parsed:
    return no_rows(target, [Reject(index=0, offset=stripe << ROW_BITS, reason=f"ORC: {reason}", raw=raw)])


def _stripes(file: ArrowFile, reader: pa_orc.ORCFile, size: int) -> int:
    with reading(file):
        rows, stripes, columns = int(reader.nrows), int(reader.nstripes), len(reader.schema.names)
    if rows > max(UNLIMITED_ROWS, size * MAX_ROWS_PER_BYTE) or stripes > size or not columns:
        raise UnreadableError(f"{rows} rows of {columns} columns in {stripes} stripes, but only {size} bytes")
    return max(1, stripes)


def _of_stripe(
    file: ArrowFile, reader: pa_orc.ORCFile, number: int, names: list[str], target: Target
) -> Iterator[Parsed]:
    if number >= reader.nstripes:  # a file without rows
        return
    with reading(file):
        batch = reader.read_stripe(number, columns=names)
        batch.validate(full=True)
    at_once = max(1, min(DECODED_BATCH_ROWS, MAX_CELLS // max(1, count_fields(target.output))))
    table = pa.Table.from_batches([batch])
    for low in range(0, table.num_rows, at_once):
        found, begin = fit_rows(table.slice(low, at_once), target), (number << ROW_BITS) + low
        found.offset += begin
        found.rejects = [
            replace(reject, offset=begin + reject.offset, reason=f"ORC: {reject.reason}")
            for reject in found.rejects
        ]
        yield found
