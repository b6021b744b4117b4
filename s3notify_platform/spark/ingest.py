"""Drives one batch: plan, read, seal, commit; slot by slot, each to its own outcome.

The driver holds the batch's splits and manifests, bounded by `Source.max_objects`, and creates the commit
objects. A slot that another run committed meanwhile is planned again. A job that fails as a whole is tried
again in halves, so that a slot that cannot be transformed fails alone. Nothing here raises for one slot.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own idiom
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    StringType,
    StructField,
    StructType,
)

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import ConflictError, CorruptError, S3NotifyError, UsageError
from s3notify_platform.protocols.conditional_commit import Committed, Lost
from s3notify_platform.protocols.notification_queue import Entry
from s3notify_platform.protocols.source_enumerator import CommittedSlots, ObjectVersion, Split, within
from s3notify_platform.slots import Slot
from s3notify_platform.spark.declared import parse_schema
from s3notify_platform.spark.failures import JOB_ERRORS, raise_own, reason_of
from s3notify_platform.spark.formats import FIXED_SCHEMAS
from s3notify_platform.spark.inference import in_spark_types
from s3notify_platform.spark.load import LINEAGE
from s3notify_platform.spark.parts import part_writer
from s3notify_platform.spark.plan import Plan, SlotPlan, plan
from s3notify_platform.spark.read import (
    CONTROL_SCHEMA,
    KIND_ROW,
    LINEAGE_COLUMNS,
    SplitReader,
    infer_schema,
)
from s3notify_platform.spark.rescue import RESCUED
from s3notify_platform.spark.results import BatchResult, SlotResult, added_result
from s3notify_platform.spark.seal import SEALED_DDL, SealContext, read_sealer, sealer
from s3notify_platform.spark.session import parallelism, ship_package
from s3notify_platform.spark.source import Source
from s3notify_platform.spark.splits import Dealt, cut, deal_splits, in_parts, is_big, may_be_cut, splits_frame
from s3notify_platform.spark.task_chain import CHILDREN_MAX, TaskChain, object_children
from s3notify_platform.table.commit import SlotCommit
from s3notify_platform.table.schema import PIN_ATTEMPTS, TableSchema, merged

Transform = Callable[[DataFrame], DataFrame]
Progress = Callable[[str], None]

MAX_LOST_RACES: Final = 6
"""Times one run plans a slot anew because another run committed it first."""

MAX_SPLIT_JOBS: Final = 128
"""Jobs spent on finding out which slots of a failing batch are at fault."""

MAX_FAILED_JOBS: Final = 12
"""Failed jobs, with none that succeeded, after which all slots are held to be at fault."""

MAX_EVOLUTIONS: Final = 3
"""Times that one batch widens its inferred schema for fields not seen before."""

COMMITS_IN_FLIGHT: Final = 48

QUARANTINED_SHOWN: Final = 5
"""Objects of a slot that go to quarantine and are named in the log."""


@dataclass(slots=True)
class _Spent:
    seconds: dict[str, float] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    tasks: int = 0

    def took(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def asked(self, requests: Iterable[tuple[str, int]]) -> None:
        for kind, count in requests:
            self.requests[kind] = self.requests.get(kind, 0) + count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schema:
    """What a batch is parsed with, pinned together with the columns of its data files."""

    source: StructType
    pinned: TableSchema


@dataclass(slots=True, kw_only=True)
class _Run:
    """What one call of `Ingest.run` knows so far."""

    batch: str
    run: str
    signals: Mapping[Slot, str]
    listing: bool
    only_found: bool
    give_up: frozenset[Slot]
    entries: dict[Slot, Sequence[Entry]] = field(default_factory=dict)
    plain: set[Slot] = field(default_factory=set)
    untold: int = 0
    results: dict[Slot, SlotResult] = field(default_factory=dict)
    spent: _Spent = field(default_factory=_Spent)
    lost: Counter[Slot] = field(default_factory=Counter)
    schema_added: dict[str, str] = field(default_factory=dict)
    known: set[Slot] = field(default_factory=set)
    """Slots that are known to have a commit (`CommittedSlots`)."""

    @property
    def skip(self) -> frozenset[str]:
        """Keys whose read failed: not tried again in this run, so that they stand in no other's way."""
        return frozenset(key for result in self.results.values() for key in result.failed_objects)


class Ingest:
    """Turns changed objects of slots into commits. One instance a run; holds a Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        source: Source,
        *,
        transform: Transform | None = None,
        clock: Clock = SYSTEM_CLOCK,
        progress: Progress = lambda _: None,
    ) -> None:
        ship_package(spark)
        self._spark = spark
        self._source = source
        self._transform = transform
        self._clock = clock
        self._progress = progress
        self._table = source.table()
        self._width = parallelism(spark)

    def run(
        self,
        slots: Iterable[Slot],
        *,
        batch: str,
        run: str | None = None,
        signals: Mapping[Slot, str] | None = None,
        listing: bool = True,
        only_found: bool = False,
        give_up: Iterable[Slot] = (),
    ) -> BatchResult:
        """Ingest `slots`. Each has a result; with `only_found`, only if it has objects or a commit.

        In rounds of `Source.max_objects` and `max_bytes`, each of which ends in commits; none begins after
        `max_seconds`. So what a crash costs is one round, and an object may take several.

        An object whose read fails is left out, and its slot is not `ok`; in the slots of `give_up` it goes to
        quarantine instead, by the commit of the slot's other objects: it is not read again until it changes or is sent
        again (`table.quarantine`), and its earlier version's rows leave.

        `listing`: compare with the bucket as a whole; else with what the entries of the source's topic name.
        `run` is whose work it is (default: the batch), so that what it leaves behind if it dies can be told.
        `signals` are the signal ETags seen when the batch was opened; a commit records its slot's. Raises
        `UsageError` before anything is written if bucket, schema or transform are at fault for all slots.
        """
        state = _Run(
            batch=batch,
            run=run or batch,
            signals=signals or {},
            listing=listing,
            only_found=only_found,
            give_up=frozenset(give_up),
        )
        pending = sorted(set(slots))
        started = self._clock.monotonic()
        while pending:
            pending = self._round(pending, state)
            self._remember(state)
            if self._clock.monotonic() - started >= self._source.max_seconds:
                break
        for slot in pending:
            result = state.results.get(slot, SlotResult(slot=slot, status="unchanged"))
            state.results[slot] = replace(result, complete=False)
        spent = state.spent
        return BatchResult(
            slots=state.results,
            entries=state.entries,
            plain=frozenset(state.plain),
            untold=state.untold,
            seconds=spent.seconds,
            requests=spent.requests,
            tasks=spent.tasks,
            schema_added=state.schema_added,
        )

    def _remember(self, state: _Run) -> None:
        """Note slots that are committed for the first time, so that it is noticed if they lose their commits."""
        new = {slot for slot, result in state.results.items() if result.generation} - state.known
        try:
            CommittedSlots(self._source.records()).add(new)
        except S3NotifyError as error:
            self._progress(f"did not note the first commits of {len(new)} slots, the next run will: {error}")
        else:
            state.known |= new

    def _round(self, slots: Sequence[Slot], state: _Run) -> list[Slot]:
        """One plan and what follows from it; the slots that have to be planned again."""
        planned_at = self._clock.monotonic()
        self._progress(f"planning {len(slots)} slots")
        found = self._plan(slots, state)
        state.known |= found.committed
        state.entries.update(found.entries)
        state.plain |= found.plain
        state.untold += sum(map(len, found.untold.values()))
        self._cut(found)
        busy = [slot_plan for slot_plan in found.slots.values() if slot_plan.changes]
        again = [slot for slot, p in found.slots.items() if not p.changes and not p.changes.complete]
        for slot, slot_plan in found.slots.items():
            if not slot_plan.changes:
                self._unchanged(slot_plan, found.listed[slot], state)
        for slot, error in found.errors.items():
            state.results[slot] = added_result(
                state.results.get(slot), SlotResult(slot=slot, status="failed", error=error)
            )
        if not busy:
            return again
        self._progress(
            f"reading {sum(len(p.changes.read) for p in busy)} objects of {len(busy)} slots, "
            f"{sum(len(p.changes.gone) for p in busy)} gone"
        )
        sealed = self._seal(busy, state)
        started = self._clock.monotonic()
        with ThreadPoolExecutor(COMMITS_IN_FLIGHT) as pool:
            outcomes = list(pool.map(lambda row: self._commit(row, found, planned_at), sealed))
        state.spent.took("commit", self._clock.monotonic() - started)
        state.spent.asked([("PUT", sum(1 for row in sealed if row["body"]))])
        for outcome in outcomes:
            slot = outcome.slot
            for key, reason in list(outcome.quarantined.items())[:QUARANTINED_SHOWN]:
                self._progress(f"in quarantine: {key!r}, because {reason}")
            if outcome.error == _LOST:
                state.lost[slot] += 1
                if state.lost[slot] < MAX_LOST_RACES:
                    again.append(slot)
            elif outcome.status != "failed" and not (found.slots[slot].changes.complete and outcome.complete):
                again.append(slot)
            state.results[slot] = added_result(state.results.get(slot), replace(outcome, complete=True))
        return again

    def _cut(self, found: Plan) -> None:
        """Leave what is beyond `max_bytes` for the next round."""
        cut = within(
            [p.changes for p in found.slots.values()],
            self._source.max_bytes,
            least=self._source.split_bytes,
            cuttable=lambda split: split.by_record or may_be_cut(split, self._source),
        )
        for slot_plan, changes in zip([*found.slots.values()], cut, strict=True):
            found.slots[slot_plan.slot] = replace(slot_plan, changes=changes)

    def _plan(self, slots: Sequence[Slot], state: _Run) -> Plan:
        started = self._clock.monotonic()
        try:
            found = plan(
                self._spark, self._source, slots, self._width, listing=state.listing, skip=state.skip
            )
        except JOB_ERRORS as error:
            raise_own(error)
            raise
        state.spent.took("plan", self._clock.monotonic() - started)
        state.spent.asked(found.requests.items())
        return found

    def _unchanged(self, slot_plan: SlotPlan, listed: int, state: _Run) -> None:
        slot = slot_plan.slot
        if state.only_found and not (listed or slot_plan.generation):
            return
        result = SlotResult(
            slot=slot, status="unchanged", generation=slot_plan.generation, live_objects=listed
        )
        earlier = state.results.get(slot)
        state.results[slot] = (
            earlier if earlier and earlier.status == "committed" else added_result(earlier, result)
        )

    def _seal(self, busy: Sequence[SlotPlan], state: _Run) -> list[dict[str, Any]]:
        """Manifest rows of `busy`, one each, sealed with a schema that has the fields of their objects."""
        schema = self._schema(busy, state)
        sealed: list[dict[str, Any]] = []
        evolutions = MAX_EVOLUTIONS if schema.pinned.inferred else 0
        for attempt in range(MAX_EVOLUTIONS + 1):
            evolving = attempt < evolutions
            rows = self._jobs(busy, schema, state, evolving=evolving)
            sealed += [row for row in rows if not row["unknown"]]
            wider = {Slot(row["slot"]): json.loads(row["unknown"]) for row in rows if row["unknown"]}
            if not wider:
                break
            busy = [p for p in busy if p.slot in wider]
            self._progress(f"{len(wider)} slots have new fields")
            told = {fields for of_slot in wider.values() for fields in of_slot}
            earlier = schema.pinned.generation
            schema = self._pinned(
                StructType.fromJson(json.loads(schema.pinned.source)),
                _together(told, self._source.format),
                state,
                inferred=True,
            )
            if schema.pinned.generation == earlier:
                evolutions = 0
        return sealed

    def _jobs(
        self, busy: Sequence[SlotPlan], schema: _Schema, state: _Run, *, evolving: bool
    ) -> list[dict[str, Any]]:
        """Manifest rows. A failing job is halved until the slots at fault stand alone."""
        # Slots with big objects for themselves: the others need no shuffle.
        big = [p for p in busy if any(is_big(split, self._source) for split in p.changes.read)]
        todo: list[Sequence[SlotPlan]] = [big, [p for p in busy if p not in big]]
        todo = [part for part in todo if part]
        sealed: list[dict[str, Any]] = []
        jobs = failed = 0
        started = self._clock.monotonic()
        while todo:
            part = todo.pop()
            jobs += 1
            objects = self._named(part)
            chain = TaskChain.opened(self._source, state.run, [p.slot for p in part], objects.values())
            try:
                with chain.watched(self._progress):
                    frame = self._frame(part, objects, schema, state, chain, evolving=evolving)
                    rows = frame.toArrow().to_pylist()
                unsaid = chain.missing()
            except (*JOB_ERRORS, ConflictError) as error:  # a conflict: the chain was given up, or is gone
                failed += 1
                hopeless = failed == jobs >= MAX_FAILED_JOBS or jobs >= MAX_SPLIT_JOBS
                if len(part) > 1 and not hopeless:
                    self._progress(f"a job of {len(part)} slots failed, trying halves: {reason_of(error)}")
                    middle = len(part) // 2
                    todo += [part[middle:], part[:middle]]
                    continue
                reason = reason_of(error)
                sealed += [{"slot": p.slot, "error": reason, "body": None, "unknown": None} for p in part]
                continue
            finally:
                chain.forget()
            # Whether a row of theirs came along or not.
            sealed += [
                {"slot": slot, "error": _UNSAID, "body": None, "unknown": None} for slot in sorted(unsaid)
            ]
            for row in rows:
                if row["slot"] in unsaid:
                    continue
                if row["slot"] >= 0:
                    sealed.append(row)
                else:
                    state.spent.tasks += 1
                    state.spent.asked(json.loads(row["requests"]).items())
        state.spent.took("job", self._clock.monotonic() - started)
        return sealed

    def _named(self, part: Sequence[SlotPlan]) -> dict[str, str]:
        """The objects that the job's chain names: all; none if tasks seal what they read, or with too many."""
        splits = _splits(part)
        if self._transform is None and self._dealt(part, splits).together:
            return {}
        at_most = len(part) + len(splits) + sum(len(cut(split, self._source)) for split in splits)
        return object_children(splits) if at_most <= CHILDREN_MAX else {}

    def _dealt(self, part: Sequence[SlotPlan], work: Sequence[Split]) -> Dealt:
        slots = [p.slot for p in part]
        return deal_splits(slots, work, self._width, big=lambda split: is_big(split, self._source))

    def _frame(
        self,
        part: Sequence[SlotPlan],
        objects: Mapping[str, str],
        schema: _Schema,
        state: _Run,
        chain: TaskChain,
        *,
        evolving: bool,
    ) -> DataFrame:
        slots = [p.slot for p in part]
        work = in_parts(self._spark, self._source, _splits(part))
        dealt = self._dealt(part, work)
        splits = splits_frame(self._spark, slots, dealt, chain.cut(objects, work) if objects else ())
        reader = SplitReader.of(self._source, schema.source, inferred=schema.pinned.inferred)
        context = SealContext(
            source=self._source,
            heads={p.slot: p.generation for p in part},
            gone={p.slot: p.changes.gone for p in part if p.changes.gone},
            signals={p.slot: state.signals[p.slot] for p in part if p.slot in state.signals},
            batch=state.batch,
            schema_generation=schema.pinned.generation,
            transformed=self._transform is not None,
            code_version=self._source.code_version or "",
            complete=frozenset(p.slot for p in part if p.changes.complete),
            give_up=state.give_up.intersection(slots),
            evolving=evolving,
            chain=chain,
        )
        if self._transform is not None:
            everything = self._transformed(reader.read_frame(splits, chain), self._delivered(schema.source))
        elif dealt.together:
            return splits.mapInArrow(read_sealer(context, reader), SEALED_DDL)
        else:
            everything = splits.mapInArrow(part_writer(context, reader), from_arrow_schema(CONTROL_SCHEMA))
        return (
            everything.repartition(min(self._width, len(part)), "_slot")
            .sortWithinPartitions("_slot", "_kind", "_key", "_offset")
            .mapInArrow(sealer(context), SEALED_DDL)
        )

    def _transformed(self, everything: DataFrame, source: StructType) -> DataFrame:
        assert self._transform is not None
        # Rows and outcomes part here, and have to be of one read: without the checkpoint each would be read
        # for itself, and an object overwritten in between would count as read, without its rows.
        everything = everything.localCheckpoint()
        rows = everything.where(F.col("_kind") == KIND_ROW).select(
            *LINEAGE_COLUMNS, *map(_column, source.names)
        )
        control = everything.where(F.col("_kind") != KIND_ROW).select(*CONTROL_SCHEMA.names)
        marked = self._transform(rows).withColumn("_kind", F.lit(KIND_ROW))
        return marked.unionByName(control, allowMissingColumns=True)

    def _schema(self, busy: Sequence[SlotPlan], state: _Run) -> _Schema:
        """What this batch is parsed with: as declared, as pinned, or inferred from a sample of it."""
        none = StructType()
        if state.known and self._source.schemas().head() is None:
            raise CorruptError(
                f"{self._source.layout.schemas}: the schema of a table with commits is gone; restore it, or accept the "
                f"loss of the whole table: remove what is left below {self._source.layout.prefix!r}, then run "
                f"`s3notify table forget --bucket {self._source.platform.bucket} --platform-prefix "
                f"{self._source.platform_prefix} --slots all`"
            )
        if self._source.schema is not None:
            return self._pinned(none, parse_schema(self._source.schema, self._source), state, inferred=False)
        if self._source.format in FIXED_SCHEMAS:
            fixed = from_arrow_schema(FIXED_SCHEMAS[self._source.format])
            return self._pinned(none, fixed, state, inferred=False)
        head = self._source.schemas().head()
        if head is not None and head.inferred and json.loads(head.source)["fields"]:
            return self._pinned(none, StructType.fromJson(json.loads(head.source)), state, inferred=True)
        self._progress("inferring the schema from a sample")
        return self._pinned(
            none,
            self._inferred([s.version for p in busy for s in p.changes.read], state),
            state,
            inferred=True,
        )

    def _inferred(self, versions: Sequence[ObjectVersion], state: _Run) -> StructType:
        started = self._clock.monotonic()
        try:
            found = infer_schema(self._spark, self._source, versions)
        except JOB_ERRORS as error:
            raise_own(error)
            raise
        state.spent.took("infer", self._clock.monotonic() - started)
        return found or StructType()

    def _pinned(self, known: StructType, found: StructType, state: _Run, *, inferred: bool) -> _Schema:
        """The schema `known`, with what only `found` has, pinned with the columns of the rows it leads to."""
        registry = self._source.schemas()
        source = merged(known.json(), found.json(), strict=False)
        for _ in range(PIN_ATTEMPTS):
            parsing = StructType.fromJson(json.loads(source))
            rows = self._check_transform(self._delivered(parsing)).json()
            pinned = registry.pin(source=source, rows=rows, inferred=inferred, batch=state.batch)
            if pinned is not None:
                if pinned.batch == state.batch:
                    state.schema_added |= pinned.added
                return _Schema(source=parsing, pinned=pinned)
            # Another run was first to infer: what it found stands, and ours adds to it.
            head = registry.head()
            source = merged(head.source, source, strict=False) if head is not None else source
        raise ConflictError("the table's schema kept changing; try again")

    def _delivered(self, source: StructType) -> StructType:
        """The columns that rows have as they are read."""
        rescue = self._source.misfits == "rescue"
        return StructType([*source.fields, StructField(RESCUED.name, StringType())]) if rescue else source

    def _check_transform(self, source: StructType) -> StructType:
        """The columns that data files will have; `UsageError` if the transform raises or loses lineage."""
        given = StructType(LINEAGE.fields + source.fields)
        out = given
        if self._transform is not None:
            whose = f"the transform of source {self._source.name!r}"
            try:
                out = self._transform(self._spark.createDataFrame([], given)).schema
            except JOB_ERRORS as error:
                raise UsageError(f"{whose} fails: {reason_of(error)}") from error
            except Exception as error:
                raise UsageError(f"{whose} raised {type(error).__name__}: {error}") from error
            for column in LINEAGE:
                kept = [f for f in out if f.name == column.name]
                if len(kept) != 1 or kept[0].dataType != column.dataType:
                    raise UsageError(
                        f"{whose} drops or changes the lineage column {column.name!r}: keep "
                        f"{', '.join(LINEAGE_COLUMNS)} as they are (use withColumn, or add them to select)"
                    )
            taken = {*CONTROL_SCHEMA.names} - {*LINEAGE_COLUMNS}
            names = [f.name for f in out]
            if clash := [name for name in names if name in taken or names.count(name) > 1]:
                raise UsageError(f"{whose} makes a column {clash[0]!r}, twice or reserved: rename it")
        return StructType(
            [StructField(f.name, f.dataType, nullable=True) for f in out if f.name not in LINEAGE_COLUMNS]
        )

    def _commit(self, row: dict[str, Any], found: Plan, planned_at: float) -> SlotResult:
        slot = Slot(row["slot"])
        result = SlotResult(
            slot=slot,
            status="unchanged",
            generation=found.slots[slot].generation,
            failed_objects=json.loads(row["failed"]) if row.get("failed") else {},
            superseded=row.get("superseded") or 0,
            live_objects=found.listed[slot],
        )
        if row["error"]:
            return replace(result, status="failed", error=row["error"])
        if row["body"] is None:
            return result
        commit = SlotCommit.loads(row["body"], where=f"sealed commit of slot {slot}")
        try:
            outcome = self._table.commit(commit, planned_at=planned_at)
        except S3NotifyError as error:
            return replace(result, status="failed", error=f"{type(error).__name__}: {error}")
        match outcome:
            case Lost():
                return replace(result, status="failed", error=_LOST)
            case Committed():
                return replace(
                    result,
                    status="committed",
                    generation=commit.generation,
                    objects=row["objects"],
                    rows=row["rows"],
                    rejects=row["rejects"],
                    gone=row["gone"],
                    bytes=row["bytes"],
                    live_rows=commit.rows,
                    live_files=len(commit.files),
                    live_rejects=sum(file.rows for file in commit.rejects),
                    unnamed=json.loads(row["unnamed"]),
                    misfits=json.loads(row["misfits"]),
                    live_failing=len(commit.failing),
                    quarantined=json.loads(row["quarantined"]) if row["quarantined"] else {},
                    complete=not row["unfinished"],
                )


_UNSAID: Final = "a task that read or sealed something of it did not come to its end"
_LOST: Final = "another run committed this slot first"


def _splits(part: Iterable[SlotPlan]) -> list[Split]:
    return [split for slot_plan in part for split in slot_plan.changes.read]


def _together(told: Iterable[str], fmt: str) -> StructType:
    """The new fields that tasks told of, as one schema: of types that differ, the widest."""
    schemas = [to_arrow_schema(StructType.fromJson(json.loads(one)), timezone="UTC") for one in sorted(told)]
    found = in_spark_types(schemas, fmt)
    return from_arrow_schema(found) if found is not None else StructType()


def _column(name: str) -> Any:
    return F.col("`" + name.replace("`", "``") + "`")
