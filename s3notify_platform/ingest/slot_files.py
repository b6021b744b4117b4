"""New files of one slot: rows gather until a file is full; files that lose rows, or are small, are replaced.

Files are named at random and uploaded; whatever a lost or doubled attempt leaves behind is named by no commit.
"""

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.errors import CorruptError, UnavailableError
from s3notify_platform.ports import StoredObject, Written
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotTable, TableFile, spanning
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.reader import in_slices

FILE_BYTES: Final = 64 << 20
"""Arrow bytes gathered before a file is written, and of rows added at once: a file holds up to twice as many."""

SMALL_FILE_BYTES: Final = 8 << 20
"""Larger files are never merged."""

MERGED_BYTES: Final = 256 << 10
"""Files of a slot up to this size are merged with each commit's rows: reading one costs more than its bytes do."""

LOOKED_AT: Final = 256
"""Rows of a file by which the encoding of its columns is chosen."""

_INTEGERS: Final = (pa.int16(), pa.int32(), pa.int64(), pa.date32(), pa.timestamp("us"))
_DELTAS: Final = {kind.id: "DELTA_BINARY_PACKED" for kind in _INTEGERS} | {
    pa.string().id: "DELTA_BYTE_ARRAY",
    pa.binary().id: "DELTA_BYTE_ARRAY",
}
"""Encodings of values that differ. Spark, DuckDB, Polars and pyarrow read them."""


@dataclass(slots=True, kw_only=True)
class SlotFiles:
    """Files, of data or of rejects, that `generation` of a slot adds."""

    table: SlotTable
    key_of: Callable[[str], str]
    generation: int
    clock: Clock = SYSTEM_CLOCK
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0
    written: list[TableFile] = field(default_factory=list)
    _since: int | None = None
    _until: int = 0

    def add(self, rows: pa.Table, *, since: int | None = None, until: int | None = None) -> None:
        """Rows of this generation, or of those that a replaced file held."""
        for part in in_slices(rows, FILE_BYTES) if rows.num_rows else ():
            self._add(part, since, until)

    def _add(self, rows: pa.Table, since: int | None, until: int | None) -> None:
        since = self.generation if since is None else since
        self._since = since if self._since is None else min(since, self._since)
        self._until = max(self.generation if until is None else until, self._until)
        self.waiting.append(rows)
        self.waiting_bytes += rows.nbytes
        if self.waiting_bytes >= FILE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits. 1 PUT."""
        if not self.waiting:
            return
        rows = pa.concat_tables(self.waiting, promote_options="default")
        name = unique_name(self.clock)
        body = encoded(rows)
        _check_readable(body, rows)
        key = self.key_of(name)
        # Unconditional and under a fresh name: writing it again is harmless.
        if not isinstance(outcome := self.table.store.put(key, body), Written):
            raise UnavailableError(f"{key}: {outcome}; the slot is asked for again")
        self.written.append(
            TableFile(
                name=name, rows=rows.num_rows, bytes=len(body), since=self._since or 0, until=self._until
            )
        )
        self.waiting, self.waiting_bytes, self._since, self._until = [], 0, None, 0

    def replace(
        self, files: Collection[TableFile], left: Iterable[ObjectState], leaving: Collection[str]
    ) -> set[str]:
        """Take over what stays of files that hold rows of `left`, and small files to merge; the names of both.

        `left`: what the head knows of the `leaving` keys. 1 GET for each such file.
        """
        affected = {file.name for file in spanning(files, left)}
        small = {file.name: file.bytes for file in files if file.bytes < SMALL_FILE_BYTES}
        merged = self._merged(small)
        gone = pa.array(sorted(leaving), pa.string())
        replaced: set[str] = set()
        for file in (file for file in files if file.name in affected | merged):
            rows = self._read(file)
            kept = rows.filter(pc.invert(pc.is_in(rows["_key"], gone)))
            if kept.num_rows == rows.num_rows and file.name not in merged:
                continue
            replaced.add(file.name)
            if file.name in small:
                self.add(kept, since=file.since)
            else:
                # By itself, so that it is not looked through for keys of other generations.
                self.flush()
                self.add(kept, since=file.since, until=file.until)
                self.flush()
        self.flush()
        return replaced

    def _merged(self, small: Mapping[str, int]) -> set[str]:
        """Which of these files, by name and bytes, become one with the rows that wait.

        None that is more than twice the rest together: a slot has few, and each row is written again few times.
        """
        found: set[str] = set()
        together = self.waiting_bytes
        for name, size in sorted(small.items(), key=lambda file: file[1]) if self.waiting else ():
            if size > max(2 * together, MERGED_BYTES):
                break
            found.add(name)
            together += size
        return found

    def _read(self, file: TableFile) -> pa.Table:
        key = self.key_of(file.name)
        found = self.table.store.get(key)
        if not isinstance(found, StoredObject):
            raise CorruptError(f"{key}: named by a commit and missing; restore it")
        # ParquetFile, not read_table: the latter would turn "slot=…" of a path into a column.
        return pq.ParquetFile(pa.BufferReader(found.body)).read()


def encoded(rows: pa.Table) -> bytes:
    """A Parquet file. Columns of which most values differ, as far as the first rows tell, have no dictionary."""
    first = rows.slice(0, LOOKED_AT)
    deltas = {
        column.name: encoding
        for column in rows.schema
        if (encoding := _DELTAS.get(column.type.id))
        and pc.count_distinct(first[column.name]).as_py() > len(first) // 2
    }
    dictionaries = [path for column in rows.schema if column.name not in deltas for path in _leaves(column)]
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="zstd", use_dictionary=dictionaries, column_encoding=deltas)
    return sink.getvalue()


def _leaves(column: pa.Field, above: str = "") -> Iterator[str]:
    """The columns of a Parquet file that a column becomes."""
    path, kind = above + column.name, column.type
    if pa.types.is_list(kind):
        yield from _leaves(kind.value_field.with_name("element"), f"{path}.list.")
    elif pa.types.is_map(kind):
        yield from _leaves(kind.key_field.with_name("key"), f"{path}.key_value.")
        yield from _leaves(kind.item_field.with_name("value"), f"{path}.key_value.")
    elif pa.types.is_struct(kind):
        for part in kind:
            yield from _leaves(part, f"{path}.")
    else:
        yield path


def _check_readable(body: bytes, rows: pa.Table) -> None:
    """`CorruptError` for a file that readers could not open: it must never be named by a commit.

    Columns bring it about, of a transform: no object can, since files of every schema within `MAX_DEPTH` are readable.
    So it fails the slot, and no object of it goes to quarantine.
    """
    try:
        read = pq.ParquetFile(pa.BufferReader(body))
        same = read.metadata.num_rows == rows.num_rows and read.schema_arrow.names == rows.schema.names
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(
            f"a file of these rows could not be read again ({error}); leave out columns"
        ) from error
    if not same:
        raise CorruptError("a file of these rows would not hold the same columns and rows; rename columns")


def new_files(
    table: SlotTable, slot: Slot, generation: Generation, clock: Clock = SYSTEM_CLOCK
) -> tuple[SlotFiles, SlotFiles]:
    """Where the rows of a slot go, and where its rejects."""
    data, rejects = partial(table.layout.data, slot), partial(table.layout.quarantine, slot)
    return (
        SlotFiles(table=table, key_of=data, generation=generation, clock=clock),
        SlotFiles(table=table, key_of=rejects, generation=generation, clock=clock),
    )
