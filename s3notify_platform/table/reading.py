"""Reads the rows, or the rejects, of slots as of a snapshot. The result is Arrow record batches. Reading works with and
without Spark.

The driver uses the log to find the packs that may have rows of the slots. The driver distributes these packs to tasks,
evenly by bytes (`plan_read`). A task needs only its `ReadTask`, which is small. Tasks do not read the log. A large pack
is divided among several tasks by ranges of bytes. A row group belongs to the task in whose range it begins.

A task reads the footer of each pack, and then the row groups that may have rows of the task's slots. A task reads only
the requested columns. Packs of other engines are read in the same way if their row groups have statistics of `_slot`.
Otherwise the whole pack is read.

The rows of one pack come in the pack's order: by (`_slot`, `_key`, `_offset`). Packs of other engines may be unsorted.
The rows of a slot, and even of one object, may be in several packs. If the order matters, the caller must sort the
result.

Requests: `plan_read` makes no request. `read` makes 1 GET for each pack up to `PACK_WHOLE_BYTES`. Each part of a larger
pack costs 1 GET of the footer, and 1 GET for each sequence of neighbouring columns. A GET of columns reads at most
`PACK_READ_BYTES`. So a read of one slot from a large pack takes 2 GETs, or more if some columns are left out. A
deletion vector in a file takes 1 GET more.

`read` keeps twice `READ_AHEAD_BYTES`, a row group, and a batch in memory.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.limits import (
    BATCH_BYTES,
    MAX_CELLS,
    PACK_READ_BYTES,
    PACK_STREAM_BYTES,
    PACK_TAIL_BYTES,
    PACK_WHOLE_BYTES,
    REQUESTS_IN_FLIGHT,
)
from s3notify_platform.kernel.parallel import readers
from s3notify_platform.kernel.ports import Ranged
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.delta import vectors
from s3notify_platform.table.delta.actions import ANY_LABEL, Add, Vector
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.packs.pack_file import Rows
from s3notify_platform.table.packs.ranged_file import (
    RangedFile,
    Span,
    ahead,
    chunks_of,
    near,
    parquet_file,
    start_of,
)
from s3notify_platform.table.type_changes import cast

BATCH_ROWS: Final = 50_000


# The plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPart:
    """A part of a live pack: the row groups that begin in the range of bytes `span`.

    `rows`, `slots`, `vector`: as in `Add`, for the whole pack.
    """

    path: str
    size: int
    rows: int
    span: Span
    slots: tuple[int, int] = (0, ANY_LABEL)
    vector: Vector | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """The work of one task: a read of the rows of `slots` (ascending; None: all) in these parts of packs.

    `bytes`: the approximate number of bytes that the task reads.
    """

    parts: tuple[PackPart, ...]
    slots: tuple[int, ...] | None = None
    bytes: int = 0


def plan_read(
    packs: Iterable[Add], slots: Collection[Slot] | None = None, *, tasks: int = 1
) -> list[ReadTask]:
    """Distributes the rows of `slots` (None: all) to at most `tasks` tasks, which read about the same number of bytes.

    Pure. `packs`: the live packs (`Snapshot.packs`, or `Manifest.rejects`). A task reads at least `PACK_WHOLE_BYTES`,
    so there may be fewer tasks. The list is empty if no pack may have rows of the slots.
    """
    wanted = None if slots is None else np.array(sorted(set(slots)), dtype=np.int64)
    shares = [_Share.of(pack, wanted) for pack in packs]
    shares = sorted((each for each in shares if each.weight), key=lambda each: each.order)
    share = max(-(-sum(each.weight for each in shares) // tasks), PACK_WHOLE_BYTES)
    dealt: list[list[tuple[PackPart, float]]] = [[]]
    room: float = share
    for each in shares:
        done: float = 0
        while done < each.weight:
            left = each.weight - done
            if room <= 0:
                dealt.append([])
                room = share
            # A small rest of the pack stays in this task. In another task, the rest would cost a second read of the
            # footer.
            take = left if left <= room + PACK_WHOLE_BYTES else room
            dealt[-1].append((each.part(done, done + take), take))
            done += take
            room -= take
    named = None if wanted is None else tuple(wanted.tolist())
    return [
        ReadTask(
            parts=tuple(part for part, _ in some), slots=named, bytes=round(sum(take for _, take in some))
        )
        for some in dealt
        if some
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """A pack, and the wanted slots in the pack's range of slots (None: the range is unknown).

    `weight`: the approximate number of bytes to read.
    """

    pack: Add
    slots: npt.NDArray[np.int64] | None
    weight: float

    @classmethod
    def of(cls, pack: Add, wanted: npt.NDArray[np.int64] | None) -> "_Share":
        low, high = pack.slots
        if wanted is None or high == ANY_LABEL:
            weight = pack.size if wanted is None or len(wanted) else 0
            return cls(pack=pack, slots=None, weight=weight)
        within = wanted[np.searchsorted(wanted, low) : np.searchsorted(wanted, high, "right")]
        if not len(within):
            return cls(pack=pack, slots=within, weight=0)
        least = min(pack.size, PACK_WHOLE_BYTES)
        return cls(pack=pack, slots=within, weight=max(least, pack.size * len(within) / (high - low + 1)))

    @property
    def order(self) -> tuple[object, ...]:
        return self.pack.slots, self.pack.since, self.pack.path

    def part(self, start: float, end: float) -> PackPart:
        """Returns the part of the pack from the wanted byte number `start` to the wanted byte number `end`."""
        size = self.pack.size
        span = (self._place(start) if start else 0, self._place(end) if end < self.weight else size)
        return PackPart(
            path=self.pack.path,
            size=size,
            rows=self.pack.rows,
            span=span,
            slots=self.pack.slots,
            vector=self.pack.vector,
        )

    def _place(self, weight: float) -> int:
        """Returns the position up to which the pack has `weight` wanted bytes. The estimate assumes that all slots in
        the pack's range are equally large.
        """
        if self.slots is None:
            return int(weight)
        each = self.weight / len(self.slots)
        number = min(int(weight / each), len(self.slots) - 1)
        return int((int(self.slots[number]) - self.pack.slots[0]) * each + (weight - number * each))


# Reading


def read(
    store: Ranged,
    layout: TableLayout,
    task: ReadTask,
    output: pa.Schema,
    *,
    at_once: int = REQUESTS_IN_FLIGHT,
) -> Iterator[pa.RecordBatch]:
    """Yields the live rows of a task. The rows have only the columns of `output`, cast to the types in `output`.

    A column that a pack lacks is null. A batch has at most `BATCH_BYTES`, or a single larger row. `at_once`: the
    largest number of requests in flight. `CorruptError`: a file is missing, or differs from the log.
    """
    columns = pa.schema([each.with_nullable(True) for each in output])
    slots = None if task.slots is None else np.array(task.slots, dtype=np.int64)
    reader = _Reader(store=store, layout=layout, output=columns, slots=slots)
    with readers(at_once, "read") as pool:
        opened = ahead(pool, task.parts, reader.first_requests, lambda part: min(part.size, PACK_WHOLE_BYTES))
        jobs = (job for part, answers in opened for job in reader.jobs(part, answers))
        for job, bodies in ahead(pool, jobs, reader.requests, lambda job: job.bytes):
            yield from reader.batches(job, bodies)


def read_slots(
    store: Ranged,
    layout: TableLayout,
    packs: Iterable[Add],
    slots: Collection[Slot] | None,
    output: pa.Schema,
    *,
    columns: Collection[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Reads the live rows of slots (None: all) in this process, and yields them.

    `columns`: the columns of `output` that are wanted (None: all). See `read`.
    """
    wanted = [each for each in output if columns is None or each.name in columns]
    for task in plan_read(packs, slots):
        yield from read(store, layout, task, pa.schema(wanted))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pack:
    """A pack whose footer was read. `whole`: the whole pack if it is small, or None.

    `hidden`: the rows that the pack's vector hides.
    """

    key: str
    part: PackPart
    metadata: pq.FileMetaData
    columns: Sequence[str]
    whole: bytes | None
    hidden: Rows | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A row group: its number, and the number of its first row.

    `filtered`: True if the row group may have rows of other slots, which are filtered out.
    """

    number: int
    start: int
    filtered: bool


@dataclass(slots=True, kw_only=True)
class _Job:
    """Row groups of a pack that are read together. `spans`: the byte ranges of the wanted columns in these row groups.

    `bytes`: the size of these columns.
    """

    pack: _Pack
    groups: list[_Group] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    bytes: int = 0

    @property
    def streams(self) -> bool:
        """True if the row groups are read while they are decoded."""
        return self.pack.whole is None and self.bytes > PACK_STREAM_BYTES

    @property
    def ranges(self) -> list[Span]:
        """The byte ranges that are read before the row groups are decoded."""
        return [] if self.pack.whole is not None or self.streams else near(self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    store: Ranged
    layout: TableLayout
    output: pa.Schema
    slots: npt.NDArray[np.int64] | None

    def first_requests(self, part: PackPart) -> list[partial[bytes]]:
        """Returns the first requests for a pack: for the whole pack or only its end, and for the pack's vector."""
        key, size = self.layout.file(part.path), part.size
        start = 0 if size <= PACK_WHOLE_BYTES else size - PACK_TAIL_BYTES
        requests = [partial(self._range, key, start, size)]
        if part.vector is not None and (path := vectors.file_of(part.vector)) is not None:
            requests.append(partial(self._range, self.layout.file(path), *vectors.span(part.vector)))
        return requests

    def requests(self, job: _Job) -> list[partial[bytes]]:
        """Returns the requests that a job needs for its rows."""
        return [partial(self._range, job.pack.key, start, end) for start, end in job.ranges]

    def _range(self, key: str, start: int, end: int) -> bytes:
        found = self.store.get_range(key, start, end)
        if found is None:
            raise CorruptError(f"{key}, which the log names, is missing: restore it, or open a newer version")
        if len(found) != end - start:
            raise CorruptError(
                f"{key}: got {len(found)} bytes instead of its bytes {start} to {end}: restore it"
            )
        return found

    def jobs(self, part: PackPart, answers: Sequence[bytes]) -> Iterator[_Job]:
        """Yields the jobs of a pack: the row groups to read, with neighbouring row groups in one job."""
        pack = self._opened(part, answers)
        job = _Job(pack=pack)
        for group in self._groups(pack):
            spans = chunks_of(pack.metadata.row_group(group.number), {*self._names(pack, group)})
            size = sum(end - start for start, end in spans)
            if job.groups and job.bytes + size > PACK_READ_BYTES:
                yield job
                job = _Job(pack=pack)
            job.groups.append(group)
            job.spans += spans
            job.bytes += size
        if job.groups:
            yield job

    def _opened(self, part: PackPart, answers: Sequence[bytes]) -> _Pack:
        key, first = self.layout.file(part.path), answers[0]
        whole = first if len(first) == part.size else None
        source = whole or RangedFile(part.size, [(part.size - len(first), first)], partial(self._range, key))
        try:
            metadata = parquet_file(source).metadata
            columns = metadata.schema.to_arrow_schema().names
        except (pa.ArrowException, OSError) as error:
            raise CorruptError(f"{key}: not a Parquet file ({error}): restore it") from error
        if part.rows not in (metadata.num_rows, -1):
            raise CorruptError(
                f"{key} has {metadata.num_rows} rows, but the log says {part.rows}: restore it"
            )
        hidden: Rows | None = None
        if part.vector is not None:
            stored = answers[1] if len(answers) > 1 else b""
            bitmap = vectors.decode(part.vector, rows=metadata.num_rows, stored=stored, where=key)
            hidden = np.array(bitmap.to_array(), dtype=np.int64)
        return _Pack(key=key, part=part, metadata=metadata, columns=columns, whole=whole, hidden=hidden)

    def _groups(self, pack: _Pack) -> Iterator[_Group]:
        """Yields row groups of the part `pack.part`: the row groups that may have rows of the wanted slots."""
        first, last = pack.part.span
        names = [pack.metadata.schema.column(n).path for n in range(pack.metadata.num_columns)]
        if self.slots is not None and "_slot" not in names:
            raise CorruptError(f"{pack.key} has no column _slot: restore it")
        start = 0
        for number in range(pack.metadata.num_row_groups):
            group = pack.metadata.row_group(number)
            if group.num_rows and first <= start_of(group.column(0)) < last:
                wanted, others = self._slots_of(group, names)
                if wanted:
                    yield _Group(number=number, start=start, filtered=others)
            start += group.num_rows

    def _slots_of(self, group: pq.RowGroupMetaData, names: Sequence[str]) -> tuple[bool, bool]:
        """Returns two flags. The first flag: the row group may have rows of wanted slots. The second flag: the row
        group may have rows of other slots.
        """
        if self.slots is None:
            return True, False
        found = group.column(names.index("_slot")).statistics
        if found is None or not found.has_min_max:
            return True, True
        low, high = found.min, found.max
        count = int(np.searchsorted(self.slots, high, "right") - np.searchsorted(self.slots, low))
        return count > 0, count < high - low + 1

    def batches(self, job: _Job, bodies: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a job."""
        pack = job.pack
        parts = [(start, body) for (start, _), body in zip(job.ranges, bodies, strict=True)]
        source = pack.whole or RangedFile(pack.part.size, parts, partial(self._range, pack.key))
        file = parquet_file(source, pack.metadata, buffer=PACK_READ_BYTES if job.streams else 0)
        for group in job.groups:
            start = group.start
            for rows in _decoded(file, group.number, self._names(pack, group), pack.key):
                yield from self._shaped(rows, start, group, pack)
                start += rows.num_rows

    def _names(self, pack: _Pack, group: _Group) -> list[str]:
        wanted = {*self.output.names, *(["_slot"] if group.filtered else [])}
        # At least one column is read, because the rows must be counted.
        return [name for name in pack.columns if name in wanted] or [pack.columns[0]]

    def _shaped(
        self, rows: pa.RecordBatch, start: int, group: _Group, pack: _Pack
    ) -> Iterator[pa.RecordBatch]:
        live = np.ones(rows.num_rows, dtype=bool)
        if pack.hidden is not None:
            low, high = np.searchsorted(pack.hidden, (start, start + rows.num_rows))
            live[pack.hidden[low:high] - start] = False
        if group.filtered and self.slots is not None:
            live &= np.isin(rows.column("_slot").to_numpy(zero_copy_only=False), self.slots)
        if not live.all():
            rows = rows.filter(pa.array(live))
        if rows.num_rows:
            given = dict(zip(rows.schema.names, rows.columns, strict=True))
            yield from in_slices(shaped(self.output, rows.num_rows, given), BATCH_BYTES)


def _decoded(file: pq.ParquetFile, group: int, names: Sequence[str], key: str) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a row group, in batches."""
    metadata = file.metadata.row_group(group)
    fitting = BATCH_BYTES * metadata.num_rows // max(metadata.total_byte_size, 1)
    count = max(1, min(BATCH_ROWS, MAX_CELLS // len(names), fitting))
    try:
        yield from file.iter_batches(batch_size=count, row_groups=[group], columns=names)
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(f"{key} is damaged ({error}): restore it") from error


def in_slices(rows: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows in order, in slices of at most `most_bytes`. A single row that is larger becomes one slice.
    Pure.
    """
    waiting = [rows]
    while waiting:
        part = waiting.pop()
        if part.nbytes <= most_bytes or part.num_rows <= 1:
            yield part
        else:
            half = part.num_rows // 2
            waiting += [part.slice(half), part.slice(0, half)]


def shaped(output: pa.Schema, count: int, given: dict[str, Any]) -> pa.RecordBatch:
    """Makes rows with the columns of `output`: given columns are cast to the types in `output`, and missing columns are
    null.

    Pure. Fields that a struct lacks are null, too. `UsageError`: a cast may change a value.
    """

    def column(wanted: pa.Field) -> pa.Array:
        values = given.get(wanted.name)
        if values is None:
            return pa.nulls(count, wanted.type)
        try:
            return cast(values, wanted.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(
                f"column {wanted.name!r} is read as {wanted.type}, but is {values.type} in a file ({error}), because "
                "the table's type was changed: restart the stream with its checkpoint, or load the table again"
            ) from error

    return pa.RecordBatch.from_arrays([*map(column, output)], schema=output)
