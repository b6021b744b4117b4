"""Staging: the rows of each slot become its files and its next commit, in tasks.

The rows of a slot arrive together, its outcomes and rejects first; or the files that other tasks have written
them to (`part_writer`). Files that hold rows of overwritten or deleted objects are rewritten without them, so that
live files hold exactly the live rows; small files are merged with the new rows (`slot_files`). The bytes of the commit
are made here; the driver stores them as they are.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import CorruptError, UsageError
from s3notify_platform.formats.rescue import added
from s3notify_platform.ingest.outcome import Outcome, joined
from s3notify_platform.ingest.reader import SplitReader
from s3notify_platform.ingest.results import SlotResult
from s3notify_platform.ingest.row_schema import Batches
from s3notify_platform.ingest.slot_files import SlotFiles, new_files
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.splits import work_of
from s3notify_platform.ingest.task_chain import TaskChain
from s3notify_platform.ingest.unforeseen import REASON_MAX
from s3notify_platform.ingest.wire import (
    KIND_ROW,
    READ,
    STAGED,
    FailedSlot,
    Read,
    ReadObject,
    Requests,
    SharedFiles,
    Staged,
    StagedSlot,
    WiderSlot,
    of_kinds,
    slot_pieces,
)
from s3notify_platform.limits import MAX_UNFORESEEN
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.slots import Slot
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.s3.fast import shared_store
from s3notify_platform.table.commit import FAILING_MAX, SlotCommit, SlotTable, TableFile
from s3notify_platform.table.layout import Generation

SLOTS_IN_FLIGHT: Final = 48
BYTES_IN_FLIGHT: Final = 256 << 20
"""Arrow bytes of slots that wait to be written, in one task."""

UNKNOWN_SCHEMAS: Final = 8
"""Different sets of unknown fields that a slot reports at once."""

TRACES_MAX: Final = 5
"""Tracebacks of objects that a slot reports, beside those of objects in quarantine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """What every task that stages knows of its batch. `heads` has the planned generation of each of its slots."""

    source: Source
    heads: Mapping[Slot, Generation]
    gone: Mapping[Slot, tuple[str, ...]]
    signals: Mapping[Slot, str]
    batch: str
    schema_generation: int
    transformed: bool
    chain: TaskChain
    """Where a task says that it has staged its slots."""
    code_version: str = ""
    expired: frozenset[str] = frozenset()
    """The keys in `gone` whose rows stay."""
    complete: frozenset[Slot] = frozenset()
    """Slots for which everything that has changed is read, or has left."""
    last_attempt: frozenset[Slot] = frozenset()
    """Slots whose objects go to quarantine if their read fails."""
    unread: tuple[ReadObject, ...] = ()
    """What became of objects that no task is to read."""
    seen_ms: int = 0
    planned_ms: int = 0
    """When the batch was opened, and its plan ready: see `SlotCommit`."""
    evolving: bool
    """Whether a slot with fields that the schema lacks waits for another schema, in place of a commit."""


def stager(context: StageContext) -> Callable[[Batches], Batches]:
    """The function of a task that stages: rows sorted by (`_slot`, `_kind`) in, one row for each slot out."""

    def run(batches: Batches) -> Batches:
        with ThreadPoolExecutor(SLOTS_IN_FLIGHT) as pool:
            stages = _Stages(context=context, pool=pool)
            for slot, piece in slot_pieces(batches):
                stages.finish([earlier for earlier in stages.open if earlier != slot])
                stages.stage(slot).add(piece)
            yield stages.result()

    return run


def read_stager(context: StageContext, reader: SplitReader) -> Callable[[Batches], Batches]:
    """The function of a task that reads and stages: all splits of its slots in, one row for each slot out."""

    def run(batches: Batches) -> Batches:
        slots, splits, _ = work_of(batches)
        with ThreadPoolExecutor(SLOTS_IN_FLIGHT) as pool:
            stages = _Stages(context=context, pool=pool)
            for window in reader.windows(splits):
                for found in window:
                    if isinstance(found, ReadObject):
                        stages.stage(found.slot).note([found])
                        continue
                    for slot, piece in slot_pieces([found]):
                        stages.stage(slot).add(piece)
                        stages.relieve()
                # The last slot of a window may go on in the next one.
                stages.finish(sorted(stages.open)[:-1])
            for slot in set(slots) - {split.version.slot for split in splits}:
                stages.stage(slot)  # nothing to read: objects have left
            yield stages.result()

    return run


@dataclass(slots=True, kw_only=True)
class _Stages:
    """The slots of one task: fed piece by piece, finished by threads."""

    context: StageContext
    pool: ThreadPoolExecutor
    store: CountingStore = field(init=False)
    table: SlotTable = field(init=False)
    open: "dict[Slot, SlotStage]" = field(default_factory=dict)
    pending: list[tuple[int, Future[Staged]]] = field(default_factory=list)
    done: list[Staged] = field(default_factory=list)
    gets: int = 0
    """GETs of the source's objects, whichever task sent them."""

    def __post_init__(self) -> None:
        self.store = CountingStore(shared_store(self.context.source.location.platform))
        self.table = self.context.source.table(store=self.store)

    def stage(self, slot: Slot) -> "SlotStage":
        """That of a slot, a new one if it has none."""
        if slot not in self.open:
            self.open[slot] = SlotStage(slot=slot, context=self.context, table=self.table)
        return self.open[slot]

    def relieve(self) -> None:
        """Write what most waits of one slot, if too much waits of all."""
        waiting = [files for stage in self.open.values() for files in (stage.data, stage.rejects)]
        if sum(files.waiting_bytes for files in waiting) > BYTES_IN_FLIGHT // 2:
            max(waiting, key=lambda files: files.waiting_bytes).flush()

    def finish(self, slots: Iterable[Slot]) -> None:
        """Write these slots, in the background as long as not too much waits for it."""
        for slot in slots:
            stage = self.open.pop(slot)
            self.gets += sum(part.gets for parts in stage.parts.values() for part in parts)
            self.pending.append((stage.data.waiting_bytes, self.pool.submit(stage.finish)))
        while len(self.pending) > 4 * SLOTS_IN_FLIGHT or sum(n for n, _ in self.pending) > BYTES_IN_FLIGHT:
            self.done.append(self.pending.pop(0)[1].result())

    def result(self) -> pa.RecordBatch:
        """One row for each slot, and one that counts requests."""
        self.finish([*self.open])
        self.done.extend(future.result() for _, future in self.pending)
        if self.done:
            self.context.chain.stamp([str(row.slot) for row in self.done], self.store)
        requests = self.store.counts + Counter(GET=self.gets)
        return STAGED.batch([*self.done, Requests(requests=requests)])


@dataclass(slots=True, kw_only=True)
class SlotStage:
    """One slot of the batch on its way to a commit; `UsageError` for another one."""

    slot: Slot
    context: StageContext
    table: SlotTable
    clock: Clock = SYSTEM_CLOCK
    data: SlotFiles = field(init=False)
    rejects: SlotFiles = field(init=False)
    parts: dict[str, list[Outcome]] = field(default_factory=dict)
    arrived: dict[tuple[str, str], int] = field(default_factory=dict)
    """Rows by key and ETag."""
    shared_rows: int = 0
    """Rows in files of parts that hold several objects."""
    error: str | None = None
    _outcomes: dict[str, Outcome] = field(default_factory=dict)
    _unsettled: set[str] = field(default_factory=set)
    _not_read: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.slot not in self.context.heads:
            raise UsageError(
                f"rows of slot {self.slot}, which is not of this batch: a transform must keep _slot as it is"
            )
        self.data, self.rejects = new_files(
            self.table, self.slot, Generation(self.context.heads[self.slot] + 1), self.clock
        )
        self.note(row for row in self.context.unread if row.slot == self.slot)

    def add(self, piece: pa.RecordBatch) -> None:
        """A piece of the slot. Outcomes of objects of which a part may not have been read come before their rows."""
        for kind, part, stored in of_kinds(piece):
            if stored is None:
                self.note(READ.read([part]))
                continue
            rows = self._of_whole_objects(stored)
            if kind == KIND_ROW:
                self._count(rows)
            (self.data if kind == KIND_ROW else self.rejects).add(rows)

    def note(self, rows: Iterable[Read]) -> None:
        """Outcomes, and the names of files."""
        for row in rows:
            match row:
                case ReadObject():
                    self.parts.setdefault(row.key, []).append(row.outcome)
                    self._unsettled.add(row.key)
                case SharedFiles():
                    self.data.written += row.data_files
                    self.rejects.written += row.reject_files
                    self.shared_rows += sum(file.rows for file in row.data_files)
                case _:
                    pass

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """What became of each object so far; its rows come after all of its parts' outcomes."""
        whole = self.context.transformed
        for key in sorted(self._unsettled):
            self._outcomes[key] = found = joined(self.parts[key], whole=whole)
            (self._not_read.discard if found.status == "ok" else self._not_read.add)(key)
        self._unsettled.clear()
        return self._outcomes

    def _of_whole_objects(self, rows: pa.Table) -> pa.Table:
        """Without rows of objects one part of which was read and another was not."""
        if not self.outcomes or not self._not_read:
            return rows
        return rows.filter(pc.invert(pc.is_in(rows["_key"], pa.array(sorted(self._not_read), pa.string()))))

    def _count(self, rows: pa.Table) -> None:
        origins = pc.binary_join_element_wise(rows.column("_key"), rows.column("_etag"), "\n")
        for origin in pc.value_counts(origins).to_pylist():
            key, _, etag = (origin["values"] or "").rpartition("\n")
            self.arrived[key, etag] = self.arrived.get((key, etag), 0) + origin["counts"]

    def _check_lineage(self) -> None:
        for key, etag in self.arrived:
            outcome = self.outcomes.get(key)
            if outcome is None or outcome.etag != etag:
                self.error = (
                    f"the transform made rows of {key!r} ({etag}), which is not an object of this batch and "
                    "slot: it must keep _slot, _key, _etag and _offset as they are"
                )

    def finish(self) -> Staged:
        """The slot, staged; every failure becomes an error of this slot alone."""
        try:
            self._check_lineage()
            return FailedSlot(slot=self.slot, error=self.error) if self.error else self._finish()
        except Exception as error:  # noqa: BLE001 - of whatever kind, it must not stop the other slots
            return FailedSlot.of(self.slot, error)

    def _finish(self) -> Staged:
        generation = self.context.heads[self.slot]
        head = self.table.read(self.slot, generation) if generation else None
        left = self.context.gone.get(self.slot, ())
        known = self.table.states(head, {*self.outcomes, *left})
        read = {key: o for key, o in self.outcomes.items() if o.status == "ok"}
        expired = {key for key in self.context.expired.intersection(left) if key in known and known[key].rows}
        gone = {key for key in left if key in known} - expired
        deleted = {key for key, o in self.outcomes.items() if o.status == "deleted" and key in known}
        match self.context.source.input.on_delete:
            case "keep":  # what cannot be read again is not asked for again
                again = {key for key in deleted if self.outcomes[key].etag == known[key].etag}
                expired |= {key for key in again if known[key].rows and not known[key].expired}
            case "keep_expired":
                pass  # an entry, or a listing, will say why
            case _:
                gone |= deleted
        gone |= {key for key in deleted if not known[key].rows}
        unknown = sorted({fields for outcome in read.values() for fields in outcome.new_fields})
        if self.context.evolving and unknown:
            return WiderSlot(slot=self.slot, new_fields=tuple(unknown[:UNKNOWN_SCHEMAS]))
        self._check_all_arrived(read)
        failed = {key: o.reason for key, o in self.outcomes.items() if o.status == "failed"}
        failed |= {key: outcome.failed for key, outcome in read.items() if outcome.failed}
        unavailable = {key: reason for key, reason in failed.items() if self.outcomes[key].outage}
        failed = {key: reason for key, reason in failed.items() if key not in unavailable}
        traces = {key: self.outcomes[key].trace for key in sorted(failed) if self.outcomes[key].trace}
        failing = set(head.failing if head else ()) - read.keys() - gone
        quarantined = self._quarantined(failed, failing, traces.keys())
        moved = read or gone or quarantined or expired
        result = SlotResult(
            slot=self.slot,
            status="committed",
            objects=len(read),
            rows=sum(o.rows for o in read.values()),
            rejects=sum(o.rejects for o in read.values()),
            gone=len(gone),
            superseded=sum(o.status == "superseded" for o in self.outcomes.values()),
            bytes=sum(o.bytes for o in read.values()),
            without_records=sum(
                self._state(key, o, known.get(key)).without_records for key, o in read.items()
            ),
            complete=all(o.reach_end or o.failed for o in read.values()),
            failed_objects={key: reason for key, reason in failed.items() if key not in quarantined},
            unavailable=unavailable,
            quarantined=quarantined,
            traces={key: traces[key] for key in {*[*traces][:TRACES_MAX], *(traces.keys() & quarantined)}},
            unnamed=added(o.unnamed for o in read.values()),
            mismatches=added(o.mismatches for o in read.values()),
        )
        commit = (
            self._commit(
                head, known, read, gone, quarantined=quarantined, traces=traces, expired=expired
            ).staged()
            if moved
            else None
        )
        return StagedSlot(commit=commit, result=result)

    def _quarantined(
        self, failed: Mapping[str, str], failing: set[str], unforeseen: Collection[str]
    ) -> dict[str, str]:
        """The objects that go to quarantine, of those that failed, with their reasons. `failing` are there already.

        At most `MAX_UNFORESEEN` that raise what nobody foresaw: `engine` compares with the other slots.
        """
        if self.slot not in self.context.last_attempt:
            return {}
        room = max(0, FAILING_MAX - len(failing - failed.keys()))
        beyond = sorted(unforeseen)[MAX_UNFORESEEN:]
        wanted = sorted(failed.keys() - beyond)
        return {key: (failed[key] or "it could not be read")[:REASON_MAX] for key in wanted[:room]}

    def _check_all_arrived(self, read: Mapping[str, Outcome]) -> None:
        if self.context.transformed:
            return
        in_files = self.shared_rows + sum(file.rows for o in read.values() for file in o.data)
        parsed = sum(outcome.rows for outcome in read.values())
        if (arrived := in_files + sum(self.arrived.values())) != parsed:
            raise CorruptError(f"slot {self.slot}: {parsed} rows were parsed and {arrived} arrived")

    def _commit(
        self,
        head: SlotCommit | None,
        known: Mapping[str, ObjectState],
        read: Mapping[str, Outcome],
        gone: set[str],
        *,
        quarantined: Mapping[str, str],
        traces: Mapping[str, str],
        expired: set[str],
    ) -> SlotCommit:
        leaving = {key for key, outcome in read.items() if outcome.start == 0} | gone
        unread = {key: self.outcomes[key].etag for key in quarantined if key not in read}
        # What is held of the very version that cannot be read on, or again, stays.
        leaving |= {key for key, etag in unread.items() if key in known and known[key].etag != etag}
        left = [known[key] for key in leaving if key in known]
        for outcome in read.values():
            self.data.written += outcome.data
            self.rejects.written += outcome.rejected
        replaced = self.data.replace(head.files if head else (), left, leaving)
        replaced |= self.rejects.replace(head.rejects if head else (), left, leaving)
        changed = [self._state(key, outcome, known.get(key)) for key, outcome in read.items()]
        changed += [ObjectState(key=key, etag="", size=0, gone=True) for key in gone]
        changed += [replace(known[key], expired=True, reach_end=True, reason="", trace="") for key in expired]
        changed += [self._unread(key, known.get(key)) for key in unread]
        changed = [
            replace(state, reason=quarantined[state.key], trace=traces.get(state.key, ""))
            if state.key in quarantined
            else state
            for state in changed
        ]
        version = self.context.code_version
        done = self.slot in self.context.complete and all(
            key in quarantined or (outcome.status in ("ok", "deleted") and not outcome.failed)
            for key, outcome in self.outcomes.items()
        )
        without = sum(state.without_records for state in changed)
        without -= sum(known[state.key].without_records for state in changed if state.key in known)
        commit = SlotCommit.after(
            head,
            self.slot,
            batch=self.context.batch,
            clock=self.clock,
            states=self.table.carry(self.slot, head, changed),
            files=_live(head.files if head else (), replaced, self.data.written),
            rejects=_live(head.rejects if head else (), replaced, self.rejects.written),
            objects=(head.objects if head else 0)
            + len((read.keys() | unread.keys()) - known.keys())
            - len(gone),
            signal=self.context.signals.get(self.slot),
            schema=self.context.schema_generation,
            code_version=version if head is None or done else None,
            backfill=0 if done else None,
            seen_ms=self.context.seen_ms,
            planned_ms=self.context.planned_ms,
        )
        return replace(commit, without_records=commit.without_records + without)

    def _state(self, key: str, outcome: Outcome, known: ObjectState | None) -> ObjectState:
        """What is known of an object now; `known`: from before, with the rows that this read went on from."""
        generation = self.context.heads[self.slot] + 1
        begun = known if outcome.start else None
        if outcome.start and (begun is None or begun.etag != outcome.etag):
            raise CorruptError(f"{key!r}: read on from {outcome.start}, and no such version is committed")
        return ObjectState(
            key=key,
            etag=outcome.etag,
            size=outcome.size,
            offset=outcome.offset,
            reach_end=outcome.reach_end,
            by_record=outcome.by_record,
            rows=outcome.rows + (begun.rows if begun else 0),
            rejects=outcome.rejects + (begun.rejects if begun else 0),
            since=begun.since if begun else generation,
            until=generation,
            code_version=self.context.code_version,
        )

    def _unread(self, key: str, known: ObjectState | None) -> ObjectState:
        """The state of an object of which nothing could be read: what is known of the version, if anything is."""
        outcome = self.outcomes[key]
        if known is not None and known.etag == outcome.etag:
            return replace(known, expired=False)
        version = self.context.code_version
        return ObjectState(
            key=key, etag=outcome.etag, size=outcome.size, reach_end=False, code_version=version
        )


def _live(
    earlier: Iterable[TableFile], replaced: set[str], written: Iterable[TableFile]
) -> tuple[TableFile, ...]:
    return (*(file for file in earlier if file.name not in replaced), *written)
