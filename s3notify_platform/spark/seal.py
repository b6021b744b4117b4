"""Second job, second half: the rows of each slot become its files and its next commit, in tasks.

The rows of a slot arrive together, its outcomes and rejects first. Files are named at random and uploaded;
whatever a lost or doubled attempt leaves behind is named by no commit. Files that hold rows of overwritten or
deleted objects are rewritten without them, so that live files hold exactly the live rows; small files are
merged when `MAX_SMALL_FILES` have gathered. The commit's body is made here and returned; the driver creates
the object.
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.errors import CorruptError, UnavailableError, UsageError
from s3notify_platform.ports import StoredObject, Written
from s3notify_platform.slots import Slot
from s3notify_platform.spark.read import KIND_OUTCOME, KIND_REJECT, KIND_ROW, SplitReader, splits_of
from s3notify_platform.spark.rescue import added
from s3notify_platform.spark.source import Source
from s3notify_platform.spark.task_chain import TaskChain
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.fast_store import shared_store
from s3notify_platform.table.commit import (
    NextStates,
    ObjectState,
    SlotCommit,
    SlotTable,
    TableFile,
    apply_deltas,
    next_states,
)
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.reader import REJECT_SCHEMA

FILE_BYTES: Final = 64 << 20
"""Arrow bytes gathered before a file is written."""

SMALL_FILE_BYTES: Final = 8 << 20
MAX_SMALL_FILES: Final = 16
"""Small files of one slot that a commit leaves behind; more are merged into one."""

SLOTS_IN_FLIGHT: Final = 48
BYTES_IN_FLIGHT: Final = 256 << 20
"""Arrow bytes of slots that wait to be written, in one task."""

UNKNOWN_SCHEMAS: Final = 8
"""Different sets of unknown fields that a slot tells at once."""

SEALED_SCHEMA: Final = pa.schema(
    [
        ("slot", pa.int32()), ("error", pa.string()), ("body", pa.binary()), ("objects", pa.int64()),
        ("rows", pa.int64()), ("rejects", pa.int64()), ("gone", pa.int64()), ("superseded", pa.int64()),
        ("bytes", pa.int64()), ("failed", pa.string()), ("unknown", pa.string()), ("requests", pa.string()),
        ("unnamed", pa.string()), ("misfits", pa.string()),
    ]
)  # fmt: skip
SEALED_DDL: Final = (
    "slot int, error string, body binary, objects bigint, rows bigint, rejects bigint, gone bigint, "
    "superseded bigint, bytes bigint, failed string, unknown string, requests string, unnamed string, "
    "misfits string"
)

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealContext:
    """What every seal task knows of its batch. `heads` has the planned generation of each of its slots."""

    source: Source
    heads: Mapping[Slot, Generation]
    gone: Mapping[Slot, tuple[str, ...]]
    signals: Mapping[Slot, str]
    batch: str
    schema_generation: int
    transformed: bool
    chain: TaskChain
    """Where a task says that it has sealed its slots."""
    code_version: str = ""
    evolving: bool
    """Whether a slot with fields that the schema lacks waits for another schema, in place of a commit."""


def sealer(context: SealContext) -> Callable[[Batches], Batches]:
    """The function of a seal task: rows sorted by (`_slot`, `_kind`) in, one row for each slot out."""

    def run(batches: Batches) -> Batches:
        with ThreadPoolExecutor(SLOTS_IN_FLIGHT) as pool:
            seals = _Seals.of(context, pool)
            for slot, piece in slot_pieces(batches):
                seals.finish([earlier for earlier in seals.open if earlier != slot])
                seals.add(slot, piece)
            yield seals.result()

    return run


def read_sealer(context: SealContext, reader: SplitReader) -> Callable[[Batches], Batches]:
    """The function of a task that reads and seals: all splits of its slots in, one row for each slot out."""

    def run(batches: Batches) -> Batches:
        slots, versions = splits_of(batches)
        with ThreadPoolExecutor(SLOTS_IN_FLIGHT) as pool:
            seals = _Seals.of(context, pool)
            for window in reader.windows(versions):
                for slot, piece in slot_pieces(window):
                    seals.add(slot, piece)
                # The last slot of a window may go on in the next one.
                seals.finish(sorted(seals.open)[:-1])
            seals.finish([*seals.open])
            seals.finish_empty(set(slots) - {version.slot for version in versions})
            yield seals.result()

    return run


@dataclass(slots=True, kw_only=True)
class _Seals:
    """The slots of one task: fed piece by piece, finished by threads."""

    context: SealContext
    store: CountingStore
    table: SlotTable
    pool: ThreadPoolExecutor
    open: "dict[Slot, SlotSeal]" = field(default_factory=dict)
    pending: list[tuple[int, Future[dict[str, Any]]]] = field(default_factory=list)
    done: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, context: SealContext, pool: ThreadPoolExecutor) -> "_Seals":
        store = CountingStore(shared_store(context.source.platform))
        return cls(context=context, store=store, table=context.source.table(store=store), pool=pool)

    def add(self, slot: Slot, piece: pa.RecordBatch) -> None:
        if slot not in self.open:
            self.open[slot] = SlotSeal.of(slot, self.context, self.table)
        self.open[slot].add(piece)

    def finish(self, slots: Iterable[Slot]) -> None:
        """Write these slots, in the background as long as not too much waits for it."""
        for slot in slots:
            seal = self.open.pop(slot)
            self.pending.append((seal.data.waiting_bytes, self.pool.submit(seal.finish)))
        while len(self.pending) > 4 * SLOTS_IN_FLIGHT or sum(n for n, _ in self.pending) > BYTES_IN_FLIGHT:
            self.done.append(self.pending.pop(0)[1].result())

    def finish_empty(self, slots: Iterable[Slot]) -> None:
        """Slots with nothing to read: objects have left."""
        for slot in slots:
            self.open[slot] = SlotSeal.of(slot, self.context, self.table)
        self.finish([*self.open])

    def result(self) -> pa.RecordBatch:
        """One row for each slot, and one that counts requests."""
        self.finish([*self.open])
        self.done.extend(future.result() for _, future in self.pending)
        if self.done:
            self.context.chain.stamp([row["slot"] for row in self.done], self.store)
        counts = {"slot": -1, "requests": json.dumps(self.store.counts)}
        return pa.RecordBatch.from_pylist([*self.done, counts], schema=SEALED_SCHEMA)


def slot_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Slot, pa.RecordBatch]]:
    """Batches sorted by `_slot`, cut at each new slot."""
    for batch in batches:
        if batch.column("_slot").null_count:
            raise UsageError("rows without _slot: a transform must keep _slot, _key, _etag and _offset")
        for slot, piece in _runs(batch, "_slot"):
            yield Slot(slot), piece


def _runs(batch: pa.RecordBatch, name: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batch, cut where an integer column changes."""
    if batch.num_rows == 0:
        return
    values = batch.column(name).to_numpy(zero_copy_only=False)
    cuts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), batch.num_rows]
    for low, high in pairwise(cuts):
        yield int(values[low]), batch.slice(low, high - low)


def _data_columns(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name not in ("_kind", "_slot", "_note", "_raw")]


@dataclass(slots=True, kw_only=True)
class _Files:
    """New files of one slot, data or rejects: rows gather until one is full. `holds`: the files of a key."""

    table: SlotTable
    key_of: Callable[[str], str]
    clock: Clock
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0
    written: list[TableFile] = field(default_factory=list)
    holds: dict[str, list[str]] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self.waiting.append(rows)
            self.waiting_bytes += rows.nbytes
            if self.waiting_bytes >= FILE_BYTES:
                self.flush()

    def flush(self) -> None:
        if not self.waiting:
            return
        rows = pa.concat_tables(self.waiting, promote_options="default")
        self.waiting, self.waiting_bytes = [], 0
        name = unique_name(self.clock)
        sink = io.BytesIO()
        pq.write_table(rows, sink, compression="zstd")
        body = sink.getvalue()
        _put(self.table, self.key_of(name), body)
        self.written.append(TableFile(name=name, rows=rows.num_rows, bytes=len(body)))
        for key in pc.unique(rows["_key"]).to_pylist():
            self.holds.setdefault(key, []).append(name)

    def rewrite(self, files: Iterable[TableFile], affected: set[str], leaving: set[str]) -> set[str]:
        """Take over what stays of `affected` files, and of small ones if many; returns the names of both."""
        small = [file.name for file in files if file.bytes < SMALL_FILE_BYTES]
        taken = affected | (set(small) if len(small) >= MAX_SMALL_FILES else set())
        for name in sorted(taken):
            key = self.key_of(name)
            found = self.table.store.get(key)
            if not isinstance(found, StoredObject):
                raise CorruptError(f"{key}: named by a commit and missing; restore it")
            # ParquetFile, not read_table: the latter would turn "slot=…" of a path into a column.
            rows = pq.ParquetFile(pa.BufferReader(found.body)).read()
            self.add(rows.filter(pc.invert(pc.is_in(rows["_key"], pa.array(sorted(leaving), pa.string())))))
        self.flush()
        return taken

    def places(self, key: str, earlier: Iterable[str], taken: set[str]) -> tuple[str, ...]:
        """The files that hold rows of `key` after a `rewrite` that took over `taken`."""
        return (*(name for name in earlier if name not in taken), *self.holds.get(key, ()))


@dataclass(slots=True, kw_only=True)
class SlotSeal:
    """One slot on its way to a commit."""

    slot: Slot
    context: SealContext
    table: SlotTable
    data: _Files
    rejects: _Files
    clock: Clock
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)
    arrived: dict[str, int] = field(default_factory=dict)
    error: str | None = None

    @classmethod
    def of(
        cls, slot: Slot, context: SealContext, table: SlotTable, clock: Clock = SYSTEM_CLOCK
    ) -> "SlotSeal":
        """A slot of the batch; `UsageError` for another one."""
        if slot not in context.heads:
            raise UsageError(
                f"rows of slot {slot}, which is not of this batch: a transform must keep _slot as it is"
            )
        return cls(
            slot=slot,
            context=context,
            table=table,
            clock=clock,
            data=_Files(table=table, clock=clock, key_of=lambda name: table.layout.data(slot, name)),
            rejects=_Files(table=table, clock=clock, key_of=lambda name: table.layout.quarantine(slot, name)),
        )

    def add(self, piece: pa.RecordBatch) -> None:
        """Rows of one slot in the order of their kinds: outcomes, rejects, data."""
        if self.error:
            return
        for kind, part in _runs(piece, "_kind"):
            if kind == KIND_OUTCOME:
                columns = (part.column(name).to_pylist() for name in ("_key", "_etag", "_note"))
                for key, etag, note in zip(*columns, strict=True):
                    self.outcomes[key] = {"etag": etag} | json.loads(note)
            elif kind == KIND_REJECT:
                names = ("_key", "_etag", "_offset", "_note", "_raw")
                rejected = [part.column(name) for name in names]
                self.rejects.add(pa.Table.from_arrays(rejected, schema=REJECT_SCHEMA))
            elif kind == KIND_ROW:
                self._check_lineage(part)
                self.data.add(pa.Table.from_batches([part]).select(_data_columns(part.schema)))

    def _check_lineage(self, rows: pa.RecordBatch) -> None:
        origins = pc.binary_join_element_wise(rows.column("_key"), rows.column("_etag"), "\n")
        for origin in pc.value_counts(origins).to_pylist():
            key, _, etag = (origin["values"] or "").rpartition("\n")
            outcome = self.outcomes.get(key)
            if outcome is None or outcome["status"] != "ok" or outcome["etag"] != etag:
                self.error = (
                    f"the transform made rows of {key!r} ({etag}), which is not an object of this batch and "
                    "slot: it must keep _slot, _key, _etag and _offset as they are"
                )
                return
            self.arrived[key] = self.arrived.get(key, 0) + origin["counts"]

    def finish(self) -> dict[str, Any]:
        """The slot's manifest row; every failure becomes an `error` of this slot alone."""
        try:
            return {"slot": self.slot, "error": self.error} if self.error else self._finish()
        except Exception as error:  # noqa: BLE001 - of whatever kind, it must not stop the other slots
            return {"slot": self.slot, "error": f"{type(error).__name__}: {error}"}

    def _finish(self) -> dict[str, Any]:
        generation = self.context.heads[self.slot]
        head = self.table.read(self.slot, generation) if generation else None
        live = self.table.states(head)
        read = {key: o for key, o in self.outcomes.items() if o["status"] == "ok"}
        gone = {key for key in self.context.gone.get(self.slot, ()) if key in live}
        gone |= {key for key, o in self.outcomes.items() if o["status"] == "deleted" and key in live}
        unknown = sorted({o["unknown_field"] for o in read.values() if o["unknown_field"]})
        if self.context.evolving and unknown:
            return {"slot": self.slot, "unknown": json.dumps(unknown[:UNKNOWN_SCHEMAS])}
        self._check_all_arrived(read)
        changed = self._changed(head, live, read, gone) if read or gone else []
        failed = {key: o["reason"] for key, o in self.outcomes.items() if o["status"] == "failed"}
        return {
            "slot": self.slot,
            "body": self._commit_body(head, live, changed) if changed else None,
            "objects": len(read),
            "rows": sum(o["rows"] for o in read.values()),
            "rejects": sum(o["rejects"] for o in read.values()),
            "gone": len(gone),
            "superseded": sum(o["status"] == "superseded" for o in self.outcomes.values()),
            "bytes": sum(o["size"] for o in read.values()),
            "failed": json.dumps(failed) if failed else None,
            "unnamed": json.dumps(added(o["unnamed"] for o in read.values())),
            "misfits": json.dumps(added(o["misfits"] for o in read.values())),
        }

    def _check_all_arrived(self, read: Mapping[str, dict[str, Any]]) -> None:
        if self.context.transformed:
            return
        for key, outcome in read.items():
            if (arrived := self.arrived.get(key, 0)) != outcome["rows"]:
                raise CorruptError(f"{key!r}: {outcome['rows']} rows were parsed and {arrived} arrived")

    def _changed(
        self,
        head: SlotCommit | None,
        live: Mapping[str, ObjectState],
        read: Mapping[str, dict[str, Any]],
        gone: set[str],
    ) -> list[ObjectState]:
        """Writes the files; the states that differ from those of `head`, of objects whose rows moved too."""
        leaving = read.keys() | gone
        left = [live[key] for key in leaving if key in live]
        moved = self.data.rewrite(
            head.files if head else (), {name for state in left for name in state.files}, leaving
        )
        moved_rejects = self.rejects.rewrite(
            head.rejects if head else (), {name for state in left for name in state.rejected_in}, leaving
        )
        changed = [
            replace(
                state,
                files=self.data.places(key, state.files, moved),
                rejected_in=self.rejects.places(key, state.rejected_in, moved_rejects),
            )
            for key, state in live.items()
            if key not in leaving
            and not (moved.isdisjoint(state.files) and moved_rejects.isdisjoint(state.rejected_in))
        ]
        changed += [
            ObjectState(
                key=key,
                etag=outcome["etag"],
                size=outcome["size"],
                offset=outcome["size"],
                rows=outcome["rows"],
                rejects=outcome["rejects"],
                files=self.data.places(key, (), moved),
                rejected_in=self.rejects.places(key, (), moved_rejects),
                code_version=self.context.code_version,
            )
            for key, outcome in read.items()
        ]
        return changed + [ObjectState(key=key, etag="", size=0, gone=True) for key in gone]

    def _commit_body(
        self, head: SlotCommit | None, live: Mapping[str, ObjectState], changed: list[ObjectState]
    ) -> bytes:
        commit_id = unique_name(self.clock)
        after = apply_deltas(live, changed)
        states = next_states(head, after, changed, commit_id)
        self._write_base(states)
        named = {name for state in after.values() for name in state.files}
        quarantined = {name for state in after.values() for name in state.rejected_in}
        return SlotCommit(
            slot=self.slot,
            generation=Generation((head.generation if head else 0) + 1),
            commit_id=commit_id,
            parent_id=head.commit_id if head else None,
            batch=self.context.batch,
            created_ms=self.clock.wall_ms(),
            signal=self.context.signals.get(self.slot) or (head.signal if head else None),
            schema=self.context.schema_generation,
            files=_named(named, head.files if head else (), self.data.written),
            rejects=_named(quarantined, head.rejects if head else (), self.rejects.written),
            base=states.base,
            base_objects=states.base_objects,
            deltas=states.deltas,
        ).dumps()

    def _write_base(self, states: NextStates) -> None:
        if states.base_body is not None and states.base is not None:
            _put(self.table, self.table.layout.state(self.slot, states.base), states.base_body)


def _named(
    names: set[str], earlier: Iterable[TableFile], written: Iterable[TableFile]
) -> tuple[TableFile, ...]:
    return tuple(file for file in (*earlier, *written) if file.name in names)


def _put(table: SlotTable, key: str, body: bytes) -> None:
    # Unconditional and under a fresh name: writing it again is harmless.
    if not isinstance(outcome := table.store.put(key, body), Written):
        raise UnavailableError(f"{key}: {outcome}; the slot is asked for again")
