"""Reads Parquet as rows and rejects, one row group after the other, by ranged GETs of the needed parts.

A split reads the row groups whose middle is in the split. If a row group cannot be read completely, its unread rows are
one reject; the other row groups are loaded. A row with a value that does not fit is one reject. A file without a
readable footer, or without any column of a given schema, becomes one reject. The split at the file's beginning reports
this reject. `_offset` is the number of the row in the file.

Memory: the encoded bytes of one row group, and `DECODED_BATCH_BYTES` of decoded rows. Sizes are checked twice: by the
footer before anything is decoded, and during decoding. An object whose rows exceed `most_decoded` bytes is usually one
reject as a whole. If some rows were already returned, the reject begins at the first row that is left out.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from s3notify_platform.formats.arrow_values import count_fields
from s3notify_platform.formats.blocks.arrow_file import ArrowFile, UnreadableError, reading, wanted_columns
from s3notify_platform.formats.blocks.block_format import BlockFormat, bytes_of, first_offset
from s3notify_platform.formats.blocks.parquet_values import fit_rows
from s3notify_platform.formats.codecs import most_decoded
from s3notify_platform.formats.object_bytes import BytesInMemory, ObjectBytes
from s3notify_platform.formats.records import (
    Parsed,
    Reject,
    Target,
    no_rows,
    reason_of,
    rejected_whole,
)
from s3notify_platform.formats.rescue import below, count
from s3notify_platform.kernel.limits import (
    MAX_CELLS,
    MAX_FOOTER_BYTES,
    MAX_RAW_BYTES,
    MAX_ROW_GROUP_BYTES,
    MAX_ROW_GROUP_CELLS,
    MAX_ROWS_PER_BYTE,
    UNLIMITED_ROWS,
)

FOOTER_BYTES: Final = 64 << 10
DECODED_BATCH_ROWS: Final = 1 << 17
DECODED_BATCH_BYTES: Final = 64 << 20
"""Maximum bytes of decoded rows in one Arrow table."""


DECODED_ROWS: Final = 1024
"""Number of rows that are decoded together.

The number is small because the decoded size is known only after decoding.
"""

PROBED_ROWS: Final = 8
"""Number of rows that are decoded to estimate the size of a row. The estimate is made only for an object in memory that
may have large values.
"""

SUSPECT_PER_BYTE: Final = 20
"""Ratio of decoded bytes to the object's bytes. Above this ratio, the size of all rows is checked before more rows are
returned.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """One row group. `begin`, `end`: the group's approximate place in the file. This place decides which split reads
    the group.

    The place is calculated from the sizes of the row groups. The columns' exact offsets are not used, because pyarrow
    26 crashes the process if it reads a column of a damaged footer.
    """

    number: int
    begin: int
    end: int
    first_row: int
    bytes: int
    rows: int

    @property
    def middle(self) -> int:
        """The byte that decides which split reads the row group."""
        return (self.begin + self.end) // 2


class Parquet(BlockFormat):
    """See the module."""

    name = "parquet"
    suffixes = frozenset({"parquet"})

    def rows(self, source: ObjectBytes, start: int, end: int, target: Target) -> Generator[Parsed, None, int]:
        """See `BlockFormat`.

        Cost: 1 GET for the footer (2 GETs if it is long), and 1 GET for adjacent columns of each row group.
        """
        return _rows(source, start, end, target)

    def schemas(self, source: ObjectBytes, key: str, encoding: str) -> Iterator[pa.Schema]:
        """See `Format`. Reads the footer."""
        footer = parquet_footer(source)
        try:
            schema = pq.read_schema(pa.BufferReader(footer))
        except Exception:  # noqa: BLE001 - a damaged file can raise anything; the object becomes a reject
            return
        yield schema


def parquet_footer(source: ObjectBytes) -> bytes:
    """Returns the footer of a file, up to the file's end: enough bytes to read the schema.

    Cost: 1 GET, or 2 GETs for a long footer.
    """
    size = source.size
    end = source.read(max(0, size - FOOTER_BYTES), size)
    length = int.from_bytes(end[-8:-4], "little") + 8
    if len(end) < length <= min(size, MAX_FOOTER_BYTES):
        end = source.read(size - length, size)
    return end[-length:]


def _rows(source: ObjectBytes, start: int, end: int, target: Target) -> Generator[Parsed, None, int]:
    """Yields the rows of the row groups whose middle is from `start` to `end`.

    Returns where the next group begins, or the file's size.
    """
    size = source.size
    if size == 0:
        source.read(0, 0)
        return 0
    try:
        file, reader = _open(source)
        with reading(file):
            present = reader.schema_arrow.names
        names = wanted_columns(present, target)
        groups = _row_groups(reader, size)
    except UnreadableError as error:
        if start == 0:
            yield rejected_whole(0, source.read(0, min(size, MAX_RAW_BYTES)), f"Parquet: {error}", target)
        return min(end, size)
    wanted = [group for group in groups if start <= group.middle < end]
    decoded, counted = 0, False
    for group in wanted:
        for found in _of_group(file, reader, group, names, target):
            decoded += bytes_of(found.table)
            if not counted and decoded > SUSPECT_PER_BYTE * size:
                counted = True
                if _are_more(most_decoded(size), file, reader, wanted, names):
                    row = first_offset(found)
                    reason = f"Parquet: more than {most_decoded(size)} bytes, decoded"
                    reason += ": its rows from here on are left out" if row else ""
                    raw = b"" if row else source.read(0, min(size, MAX_RAW_BYTES))
                    yield no_rows(target, [Reject(index=0, offset=row, reason=reason, raw=raw)])
                    return min(end, size)
            # If a file has several row groups, the raw bytes of one group cannot be cut out. The reason names the row
            # group.
            raw = source.read(0, min(size, MAX_RAW_BYTES)) if found.rejects and len(groups) == 1 else b""
            found.rejects = [
                replace(r, reason=f"Parquet: row group {group.number}: {r.reason}", raw=r.raw or raw)
                for r in found.rejects
            ]
            yield found
    # The returned place must be behind the middle of each row group that was read, even if a tiny row group
    # seems to have no bytes.
    read = max((group.middle + 1 for group in groups if group.middle < end), default=0)
    return max(read, min((group.begin for group in groups if group.middle >= end), default=size))


def _are_more(
    bytes_: int, file: ArrowFile, reader: pq.ParquetFile, groups: Sequence[RowGroup], names: list[str]
) -> bool:
    """True if the readable rows of these groups have more than `bytes_` bytes."""
    for group in groups:
        with suppress(UnreadableError):
            for table in _decoded(file, reader, group, names, len(names)):
                bytes_ -= table.nbytes
                if bytes_ < 0:
                    return True
    return False


def _of_group(
    file: ArrowFile, reader: pq.ParquetFile, group: RowGroup, names: list[str], target: Target
) -> Iterator[Parsed]:
    """Yields the rows of a row group. If the group cannot be read completely, yields one reject for the unread rows."""
    unread = [below("", name) for name in reader.schema_arrow.names if name not in names]
    row = group.first_row
    try:
        for table in _decoded(file, reader, group, names, count_fields(target.output)):
            found = fit_rows(table, target)
            found.offset += row
            found.rejects = [replace(r, offset=row + r.offset) for r in found.rejects]
            if unread and found.table.num_rows:
                count(found.unnamed, 0, unread, found.table.num_rows)
            yield found
            row += table.num_rows
        if (given := row - group.first_row) < group.rows:
            raise UnreadableError(f"{given} rows, but {group.rows} in the footer")
    except UnreadableError as error:
        yield no_rows(target, [Reject(index=0, offset=row, reason=str(error), raw=b"")])


def _open(source: ObjectBytes) -> tuple[ArrowFile, pq.ParquetFile]:
    file = ArrowFile(source)
    with reading(file):
        if isinstance(source, BytesInMemory):
            return file, pq.ParquetFile(pa.BufferReader(source.body), coerce_int96_timestamp_unit="us")
        # The columns of a row group are fetched together, and adjacent columns by one request.
        return file, pq.ParquetFile(file, pre_buffer=True, coerce_int96_timestamp_unit="us")


def _row_groups(reader: pq.ParquetFile, size: int) -> list[RowGroup]:
    try:
        metas = [reader.metadata.row_group(number) for number in range(reader.metadata.num_row_groups)]
        sizes = [max(0, int(meta.total_byte_size)) for meta in metas]
        rows = [int(meta.num_rows) for meta in metas]
        all_rows = int(reader.metadata.num_rows)
    except Exception as error:
        raise UnreadableError(reason_of(error)) from error
    if sum(rows) != all_rows:
        raise UnreadableError(f"{all_rows} rows in the footer, but {sum(rows)} in the row groups")
    if (found := sum(rows)) > max(UNLIMITED_ROWS, size * MAX_ROWS_PER_BYTE):
        raise UnreadableError(f"{found} rows in {size} bytes, more than {MAX_ROWS_PER_BYTE} for each byte")
    total = max(1, sum(sizes))
    borders = [(size - 1) * before // total for before in accumulate(sizes, initial=0)]
    first_rows = accumulate(rows, initial=0)
    return [
        RowGroup(
            number=number, begin=begin, end=end, first_row=first_row, bytes=sizes[number], rows=rows[number]
        )
        for number, ((begin, end), first_row) in enumerate(zip(pairwise(borders), first_rows, strict=False))
    ]


def _decoded(
    file: ArrowFile, reader: pq.ParquetFile, group: RowGroup, names: list[str], columns: int
) -> Iterator[pa.Table]:
    """Yields a row group's rows as Arrow tables. A table has at most about `DECODED_BATCH_BYTES` bytes, and at most
    `DECODED_BATCH_ROWS` rows, or fewer rows if the result has many `columns`.
    """
    if group.bytes > MAX_ROW_GROUP_BYTES:
        raise UnreadableError(f"{group.bytes} bytes: a task reads at most {MAX_ROW_GROUP_BYTES}")
    leaves = max(1, len(reader.schema))
    if group.rows * leaves > MAX_ROW_GROUP_CELLS or (not names and group.rows > DECODED_BATCH_ROWS):
        raise UnreadableError(
            f"{group.rows} rows of {leaves} columns: a task reads at most {MAX_ROW_GROUP_CELLS} values"
        )
    with reading(file):
        if not names:
            yield reader.read_row_group(group.number, columns=names)
            return
        most = max(1, min(DECODED_BATCH_ROWS, MAX_CELLS // max(leaves, columns)))
        at_once = min(DECODED_ROWS, most)
        if file.in_memory and min(group.rows, at_once) * group.bytes > 4 * DECODED_BATCH_BYTES:
            at_once = min(at_once, _fitting_rows(reader, group, names))
        read = reader.iter_batches(at_once, row_groups=[group.number], columns=names, use_threads=False)
        batches = (plain for batch in read for plain in _without_dictionaries(batch))
    waiting: list[pa.RecordBatch] = []
    rows = size = total = 0
    while True:
        with reading(file):
            batch = next(batches, None)
            if batch is not None:
                batch.validate(full=True)
                size, total = size + batch.nbytes, total + batch.nbytes
                rows += batch.num_rows
                waiting.append(batch)
            if total > MAX_ROW_GROUP_BYTES:
                raise pa.ArrowInvalid(f"more than {MAX_ROW_GROUP_BYTES} bytes, decoded")
            full = rows + at_once > most or size > DECODED_BATCH_BYTES
            table = pa.Table.from_batches(waiting) if waiting and (full or batch is None) else None
        if table is not None:
            yield table
            waiting, rows, size = [], 0, 0
        if batch is None:
            return


def _fitting_rows(reader: pq.ParquetFile, group: RowGroup, names: list[str]) -> int:
    """Returns the number of rows that have about `DECODED_BATCH_BYTES`, estimated from the first rows."""
    first = reader.iter_batches(PROBED_ROWS, row_groups=[group.number], columns=names, use_threads=False)
    probed = [plain for batch in islice(first, 1) for plain in _without_dictionaries(batch)]
    size = sum(batch.nbytes for batch in probed)
    rows = sum(int(batch.num_rows) for batch in probed)
    return max(1, DECODED_BATCH_BYTES * rows // max(1, int(size)))


def _without_dictionaries(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Replaces dictionary references by their texts, and yields the rows in parts of at most `DECODED_BATCH_BYTES`."""
    found = [n for n, kind in enumerate(batch.schema.types) if pa.types.is_dictionary(kind)]
    longest = max(
        (batch.column(n).dictionary.nbytes for n in found if len(batch.column(n).dictionary)), default=0
    )
    step = max(1, DECODED_BATCH_BYTES // longest) if longest else max(1, batch.num_rows)
    for low in range(0, max(1, batch.num_rows), step):
        part = batch.slice(low, step)
        columns = [
            column.dictionary_decode() if n in found else column for n, column in enumerate(part.columns)
        ]
        yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
