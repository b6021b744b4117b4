"""Staging: Spark tasks read splits and write the rows to packs, which are not part of any table version yet.

A task gathers the rows of whole objects, sorts them, and writes packs. A pack may have rows of several slots and
objects. A part of a big object has its own packs. These packs are dropped if another part was read from another object
version. Rejects are written to separate packs in the same way. Tasks report outcomes and packs to the driver. A pack of
at most `CARRIED_PACK_BYTES` is sent to the driver, which writes the pack together with the manifest: this saves a
request.

With a transform, the first tasks only read (`reading_task`), and the rows stay in Spark. The driver receives the
outcomes. Then other tasks (`storing_task`) write the rows that the transform has made of completely read objects.

If an attempt of a task is lost or repeated, the packs of this attempt never become part of a table version.

Memory of a task: `GATHERED_BYTES` of Arrow rows, the same amount to sort and write them, and the windows of `fetch`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from s3notify_platform.engine.read.counted import Rejected
from s3notify_platform.engine.read.reader import Found, SplitReader
from s3notify_platform.engine.read.splits import work_of
from s3notify_platform.engine.values.row_schema import Batches
from s3notify_platform.engine.values.task_rows import (
    STAGED,
    ReadObject,
    Requests,
    Staged,
    StoredRows,
    WrittenPack,
)
from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.limits import BATCH_BYTES
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.source.source import Source
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.packs.pack_file import ORDER, NewPack
from s3notify_platform.table.packs.pack_set import PackSet, StagedPack
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.reading import in_slices

GATHERED_BYTES: Final = 128 << 20
"""Number of Arrow bytes of rows that are gathered and sorted together."""

WRITES_IN_FLIGHT: Final = 4

STAGED_COLUMN: Final = "_staged"
"""A column that tasks return before a transform.

The column is null in rows of data. In all other rows, the column has a batch of `STAGED`.
"""


def staging_task(source: Source, reader: SplitReader, label: int) -> Callable[[Batches], Batches]:
    """Returns the function that each task calls.

    The function reads splits (`rows.WORK`), writes packs, and yields rows of `STAGED`.
    """

    def run(batches: Batches) -> Batches:
        splits = work_of(batches)
        table, store = table_of_task(source)
        with ThreadPoolExecutor(WRITES_IN_FLIGHT) as pool:
            rows, gets = _staged(reader, splits, table, label, pool)
            yield STAGED.batch([*rows, Requests(requests=store.counts + Counter(GET=gets))])

    return run


def _staged(
    reader: SplitReader, splits: list[Split], table: LogTable, label: int, pool: ThreadPoolExecutor
) -> tuple[list[Staged], int]:
    whole, big = reader.sorted_out(splits)
    found: list[Staged] = []
    writers = [_Writer.of(table, label, pool)]
    found += writers[0].take(chain.from_iterable(reader.windows(whole)))
    for split in big:
        writers.append(_Writer.of(table, label, pool, split))
        found += writers[-1].take(reader.pieces(split))
    gets = sum(each.outcome.gets for each in found if isinstance(each, ReadObject))
    for writer in writers:
        found += writer.packs()
    return found, gets


def reading_task(source: Source, reader: SplitReader, label: int) -> Callable[[Batches], Batches]:
    """Returns the function that each task calls before a transform.

    The function reads splits and writes rejects to packs. The function yields the rows, and then the outcomes for the
    driver.
    """
    output = pa.schema([*reader.output, (STAGED_COLUMN, pa.binary())])

    def run(batches: Batches) -> Batches:
        splits = work_of(batches)
        table, store = table_of_task(source)
        whole, big = reader.sorted_out(splits)
        found: list[Staged] = []
        with ThreadPoolExecutor(WRITES_IN_FLIGHT) as pool:
            parts: list[tuple[Split | None, Iterator[Found]]] = [
                (None, chain.from_iterable(reader.windows(whole))),
                *((split, reader.pieces(split)) for split in big),
            ]
            for split, pieces in parts:
                writer = _Writer.of(table, label, pool, split)
                for piece in pieces:
                    match piece:
                        case ReadObject():
                            found.append(piece)
                        case Rejected():
                            writer.rejects.add(piece.batch)
                        case _:
                            columns = [*piece.columns, pa.nulls(piece.num_rows, pa.binary())]
                            yield pa.RecordBatch.from_arrays(columns, schema=output)
                found += writer.packs()
        gets = sum(each.outcome.gets for each in found if isinstance(each, ReadObject))
        found.append(Requests(requests=store.counts + Counter(GET=gets)))
        yield from _said(found, output)

    return run


def _said(found: list[Staged], output: pa.Schema) -> Batches:
    """Encodes rows of `STAGED` in column `STAGED_COLUMN` of a transform's input.

    Each row of the input has only some rows of `STAGED`, because the size of a column's value is limited.
    """
    for batch in in_slices(STAGED.batch(found), BATCH_BYTES):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        columns = [pa.nulls(1, each.type) for each in list(output)[:-1]]
        columns.append(pa.array([sink.getvalue().to_pybytes()], pa.binary()))
        yield pa.RecordBatch.from_arrays(columns, schema=output)


def said_of(values: Iterable[bytes]) -> Iterator[Staged]:
    """Decodes values of `STAGED_COLUMN`, which `reading_task` has encoded."""
    for value in values:
        yield from STAGED.read(pa.ipc.open_stream(value))


def storing_task(source: Source, label: int) -> Callable[[Batches], Batches]:
    """Returns the function that each task calls after a transform.

    The function writes the rows to packs, and yields rows of `STAGED`.
    """

    def run(batches: Batches) -> Batches:
        table, store = table_of_task(source)
        counts: Counter[tuple[int, str, str]] = Counter()
        with ThreadPoolExecutor(WRITES_IN_FLIGHT) as pool:
            packs = Packs(packs=table.data, label=label, pool=pool)
            for batch in batches:
                _count(batch, counts)
                packs.add(batch)
            found: list[Staged] = [*packs.written(of_rejects=False, split=None)]
        found += [
            StoredRows(slot=Slot(slot), key=key, etag=etag, rows=n) for (slot, key, etag), n in counts.items()
        ]
        yield STAGED.batch([*found, Requests(requests=store.counts)])

    return run


def _count(rows: pa.RecordBatch, counts: Counter[tuple[int, str, str]]) -> None:
    lineage = pa.Table.from_batches([rows]).select(["_slot", "_key", "_etag"])
    if any(column.null_count for column in lineage.columns):
        raise UsageError(
            "rows without _slot, _key or _etag: a transform must keep _slot, _key, _etag and _offset"
        )
    grouped = lineage.group_by(lineage.column_names).aggregate([([], "count_all")])
    columns = (grouped[name].to_pylist() for name in ("_slot", "_key", "_etag", "count_all"))
    for slot, key, etag, count in zip(*columns, strict=True):
        counts[slot, key, etag] += count


def table_of_task(source: Source, asset: str | None = None) -> tuple[LogTable, CountingStore]:
    """Returns the table for a task, and the store that counts the task's requests."""
    store = CountingStore(open_store(source.location.platform))
    return source.table(asset, store=store), store


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Writes packs of rows, and packs of rejects.

    The packs have rows of whole objects or, with a `split`, of this part of a big object.
    """

    rows: "Packs"
    rejects: "Packs"
    split: Split | None

    @classmethod
    def of(
        cls, table: LogTable, label: int, pool: ThreadPoolExecutor, split: Split | None = None
    ) -> "_Writer":
        return cls(
            rows=Packs(packs=table.data, label=label, pool=pool),
            rejects=Packs(packs=table.quarantine, label=label, pool=pool),
            split=split,
        )

    def take(self, pieces: Iterable[Found]) -> list[ReadObject]:
        """Adds rows and rejects; returns the outcomes."""
        found = []
        for piece in pieces:
            match piece:
                case ReadObject():
                    found.append(piece)
                case Rejected():
                    self.rejects.add(piece.batch)
                case _:
                    self.rows.add(piece)
        return found

    def packs(self) -> Iterator[WrittenPack]:
        """Yields all packs, after they are stored."""
        yield from self.rows.written(of_rejects=False, split=self.split)
        yield from self.rejects.written(of_rejects=True, split=self.split)


@dataclass(slots=True, kw_only=True)
class Packs:
    """Gathers rows and writes them to packs."""

    packs: PackSet
    label: int
    pool: ThreadPoolExecutor
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    stored: list[Future[list[StagedPack]]] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds rows."""
        if rows.num_rows:
            self.waiting.append(rows)
            self.waiting_bytes += rows.nbytes
            if self.waiting_bytes >= GATHERED_BYTES:
                self.flush()

    def flush(self) -> None:
        """Writes the waiting rows in the background."""
        if not self.waiting:
            return
        rows = pa.concat_tables([pa.Table.from_batches([each]) for each in self.waiting])
        rows = in_order(rows, self.packs.sizes.order)
        self.waiting, self.waiting_bytes = [], 0
        for pack in write([rows], self.packs.sizes):
            self.stored.append(self.pool.submit(self._store, pack, rows.schema))
            while len(self.stored) > WRITES_IN_FLIGHT and not self.stored[-WRITES_IN_FLIGHT - 1].done():
                self.stored[-WRITES_IN_FLIGHT - 1].result()

    def written(self, *, of_rejects: bool, split: Split | None) -> list[WrittenPack]:
        """Stores the packs that are not sent to the driver, and then returns all packs."""
        self.flush()
        key, start = (split.version.key, split.start) if split else ("", 0)
        return [
            WrittenPack(of_rejects=of_rejects, key=key, start=start, pack=pack.dumps(), body=pack.body)
            for future in self.stored
            for pack in future.result()
        ]

    def _store(self, pack: NewPack, schema: pa.Schema) -> list[StagedPack]:
        check_readable(pack, schema)
        staged, _ = self.packs.staged([pack], label=self.label)
        return [self.packs.carried(replace(each, body=pack.body)) for each in staged]


def in_order(rows: pa.Table, order: Sequence[str] = ORDER) -> pa.Table:
    """Returns the rows in the order that packs have. Pure."""
    if _is_in_order(rows, order):
        return rows
    return rows.combine_chunks().sort_by([(name, "ascending") for name in order])


def _is_in_order(rows: pa.Table, order: Sequence[str]) -> bool:
    if rows.num_rows < 2:
        return True
    later = np.zeros(rows.num_rows - 1, bool)
    same = np.ones(rows.num_rows - 1, bool)
    for name in order:
        column = rows[name].combine_chunks()
        if column.null_count:
            return False
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        later |= same & pc.greater(after, before).to_numpy(zero_copy_only=False)
        same &= pc.equal(after, before).to_numpy(zero_copy_only=False)
    return bool((later | same).all())


def check_readable(pack: NewPack, schema: pa.Schema) -> None:
    """Raises `CorruptError` for a pack that readers cannot open: such a pack must never become part of a table version.

    The cause is a transform's columns, never an object: without a transform, packs of every schema within `MAX_DEPTH`
    are readable. So the slot fails, and no object of the slot goes to quarantine.
    """
    try:
        read = pq.ParquetFile(pa.BufferReader(pack.body))
        same = read.metadata.num_rows == sum(pack.slots.values()) and read.schema_arrow.names == schema.names
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(
            f"a file of these rows could not be read again ({error}); leave out columns"
        ) from error
    if not same:
        raise CorruptError("a file of these rows would not have the same columns and rows; rename columns")
