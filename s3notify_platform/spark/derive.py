"""Builds the tables of slot assets. A user's function computes the rows of these tables from the committed rows of the
source, slot by slot. These tables are committed in the same way as the source's table.

The function receives the rows of the wanted slots as one DataFrame, and must keep the `_slot` column. The rows that the
function returns for a slot replace all rows of that slot in the derived table. For each slot, a derived table stores
the version of the source's table from which the slot was built. So a second build from the same version changes
nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from s3notify_platform.engine.loop import Results, StagedTable
from s3notify_platform.engine.stage.staging import WRITES_IN_FLIGHT, Packs, table_of_task
from s3notify_platform.engine.values.results import Progress, SlotResult, without_keys
from s3notify_platform.engine.values.row_schema import Batches
from s3notify_platform.engine.values.task_rows import STAGED, FailedSlot, WrittenPack
from s3notify_platform.engine.values.unforeseen import trace_of
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import ConflictError, FencedError, S3NotifyError, UsageError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.source.source import Source
from s3notify_platform.spark.any_names import map_in_arrow
from s3notify_platform.spark.batch_schema import Transform
from s3notify_platform.spark.failures import in_halves, reason_of
from s3notify_platform.spark.load import load_slots
from s3notify_platform.spark.session import parallelism
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.derived_round import NewSlot, Replacement
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.open_table import open_table
from s3notify_platform.table.packs.pack_set import StagedPack
from s3notify_platform.table.pinned_schema import NO_SCHEMA, described, grown, is_same, schema_of
from s3notify_platform.table.round import CONFLICT
from s3notify_platform.table.schema_change import check_types
from s3notify_platform.table.snapshot import Absent, Snapshot

SCRUBBED_KEYS: Final = 100_000
"""Maximum number of keys that are searched for in the text of an error. The search for one key takes about 25 µs."""


def derived_tables(
    spark: SparkSession,
    source: Source,
    asset: str,
    function: Transform,
    *,
    snapshot: Snapshot,
    slots: Sequence[Slot],
    batch: str,
    code_version: str = "",
    force: bool = False,
    progress: Progress = lambda _: None,
) -> Iterator[StagedTable]:
    """Stages slots of the slot asset `asset`, built from this snapshot of the source's table. Yields one staged table.
    If the asset's function raises an error or drops `_slot`, the function is called again with each half of the slots,
    so that a slot at fault fails alone. Each part is then a staged table of its own. A slot is skipped if it was
    already built from this or a later generation of its source slot, even if the function's code has changed. With
    `force`, no slot is skipped; `force` is for runs that a person requests. `code_version`: the version of the
    function, which is stored with each slot.

    Cost: the requests of `LogTable.newest`, of `load_slots` and of a commit, and 1 PUT for each pack. Each text of an
    error also costs the requests of `StateReader.of_slots`, which finds the keys to remove from the text. A part with
    more than `SCRUBBED_KEYS` objects costs no such requests.
    """
    generations = {slot: snapshot.manifest.slot(slot).generation for slot in slots}

    def derived(part: Sequence[Slot]) -> StagedTable:
        base = _Base.opened(source, asset, code_version)
        held = base.snapshot.manifest
        wanted = {
            slot: generations[slot]
            for slot in part
            if generations[slot] and (force or held.slot(slot).source < generations[slot])
        }
        if not wanted:
            return base.staged(part, dict)
        try:
            frame = function(load_slots(spark, source, wanted, snapshot=snapshot))
            names = frame.columns
        except S3NotifyError:
            raise
        except Exception as error:
            raise UsageError(f"slot asset {asset!r} raised {type(error).__name__}: {error}") from error
        if "_slot" not in names:
            raise UsageError(
                f"slot asset {asset!r} drops the column _slot, which assigns rows to slots: keep it"
            )
        return _staged(spark, base, frame, part, wanted, batch=batch)

    def scrubbed(text: str, part: Sequence[Slot]) -> str:
        return _without_keys(text, source, asset, snapshot, part)

    def failed(part: Sequence[Slot], error: Exception) -> StagedTable:
        trace = scrubbed(trace_of(error.__cause__), part) if error.__cause__ else ""
        if trace:
            progress(f"{asset} of slot {part[0]}: {trace}")
        reason = scrubbed(f"{asset}: {reason_of(error)}", part)
        results = {slot: SlotResult(slot=slot, status="failed", error=reason, trace=trace) for slot in part}
        return StagedTable(name=asset, commit=lambda: results)

    return in_halves(
        [[*generations]],
        derived,
        failed,
        errors=(S3NotifyError,),
        what=asset,
        progress=progress,
        reason=lambda part, error: scrubbed(reason_of(error), part),
    )


def _without_keys(text: str, source: Source, asset: str, snapshot: Snapshot, part: Sequence[Slot]) -> str:
    """Removes keys from the text of an error that the job of `part` raised. A user's code may put `_key` into an error,
    and `erase` could not remove the key from the text that Dagster keeps.
    """
    if sum(snapshot.manifest.slot(slot).objects for slot in part) > SCRUBBED_KEYS:
        return f"{asset}: the error's text is not shown, because it may have keys, and the slots have too many objects"
    try:
        for _, states in source.table().states.of_slots(snapshot.manifest.states, part):
            text = without_keys(text, states)
    except S3NotifyError as error:
        return f"{asset}: the error's text is not shown, because it may have keys, and the keys were not read: {error}"
    return text


def staged_frame(
    spark: SparkSession,
    source: Source,
    asset: str,
    frame: DataFrame,
    slots: Iterable[Slot],
    *,
    batch: str,
    before: Snapshot | Absent | None = None,
) -> StagedTable:
    """Stages `frame`, which has a `_slot` column, as the whole content of `slots` in the derived table `asset`.

    It is unknown from which version of the source's table the rows were made. So a slot that another run commits
    meanwhile is a conflict. `before`: the derived table as it was before the inputs of `frame` were read. If `before`
    is None, only a slot that another run commits after this call began is a conflict. Raises `UsageError` if there are
    rows of other slots; then no row becomes visible.
    """
    base, made = _Base.opened(source, asset, ""), dict.fromkeys(slots)
    since = None if before is None else 0  # 0: the table was begun after the inputs were read
    if isinstance(before, Snapshot) and before.table == base.snapshot.table:
        since = before.version
    return _staged(spark, base, frame, [*made], made, batch=batch, since=since)


class _Base:
    """A derived table, its snapshot before the commit, and the version of the function's code."""

    def __init__(self, source: Source, asset: str, table: LogTable, snapshot: Snapshot, code: str) -> None:
        self.source, self.asset, self.table, self.snapshot, self.code = source, asset, table, snapshot, code

    @classmethod
    def opened(cls, source: Source, asset: str, code: str) -> "_Base":
        """Opens the table of a slot asset, and creates it if it never existed."""
        table = source.table(asset)
        first = described(NO_SCHEMA, created_ms=table.reader.clock.wall_ms(), derived=True)
        found = open_table(table, source.location.table_name, source.identity, create=first, derived=True)
        assert found.snapshot is not None, "it was created"
        return cls(source, asset, table, found.snapshot, code)

    def staged(self, slots: Sequence[Slot], commit: Callable[[], Results]) -> StagedTable:
        """Returns the staged table. Its `commit` calls the given `commit`, and adds the result "unchanged" for each of
        `slots` that has no result.
        """

        def run() -> Results:
            held = self.snapshot.manifest
            unchanged = {
                slot: SlotResult(
                    slot=slot,
                    status="unchanged",
                    generation=(facts := held.slot(slot)).generation,
                    live_rows=facts.rows,
                    made_by=facts.made_by(self.code),
                    source=facts.source,
                )
                for slot in slots
            }
            return {**unchanged, **commit()}

        return StagedTable(name=self.asset, commit=run)


def _staged(
    spark: SparkSession,
    base: _Base,
    frame: DataFrame,
    part: Sequence[Slot],
    slots: Mapping[Slot, int | None],
    *,
    batch: str,
    since: int | None = None,
) -> StagedTable:
    source, asset, label = base.source, base.asset, base.snapshot.version + 1
    rows = StructType([column for column in frame.schema if column.name != "_slot"])
    known = schema_of(base.snapshot.metadata, derived=True)
    if known is not None:
        check_types(source.name, known.rows, rows.json(), asset=asset)
    schema = grown(known, source="{}", rows=rows.json(), inferred=False)
    metadata, protocol = described(
        schema, created_ms=SYSTEM_CLOCK.wall_ms(), table=base.snapshot.table, derived=True
    )
    packs = _write(spark, frame, source, asset, label)
    counts: dict[int, int] = {}
    for pack in packs:
        for number, count in pack.slots.items():
            counts[number] = counts.get(number, 0) + count
    if foreign := sorted(counts.keys() - slots.keys()):
        raise UsageError(
            f"slot asset {asset!r} made rows of slot {foreign[0]}, which this run does not build: keep _slot unchanged"
        )
    grew = not is_same(schema, known)
    change = Replacement(
        base=base.snapshot,
        slots={
            slot: NewSlot(rows=counts.get(slot, 0), source=made, code_version=base.code)
            for slot, made in slots.items()
        },
        table=base.table,
        since=since,
        rows=packs,
        metadata=metadata if grew else None,
        protocol=protocol if grew else None,
        note={"batch": batch, "rows": sum(counts.values())},
    )
    return base.staged(part, partial(_committed, base, change))


def _committed(base: _Base, change: Replacement) -> Results:
    """Commits slots of a derived table. Returns the result of each slot."""
    try:
        done = base.table.commit(change, base.snapshot)
    except (ConflictError, FencedError) as error:
        return {
            slot: SlotResult(slot=slot, status="conflict", error=f"{CONFLICT}: {error}")
            for slot in change.slots
        }
    except S3NotifyError as error:
        failed = FailedSlot.of(min(change.slots), error)
        return {
            slot: SlotResult(slot=slot, status="failed", error=failed.error, outage=failed.outage)
            for slot in change.slots
        }
    facts = done.snapshot.manifest
    results: Results = {}
    for slot, new in change.slots.items():
        if why := change.dropped.get(slot):
            results[slot] = SlotResult(slot=slot, status="conflict", error=why)
        elif slot in change.done or isinstance(done, Committed):
            now = facts.slot(slot)
            results[slot] = SlotResult(
                slot=slot,
                status="committed",
                generation=now.generation,
                rows=new.rows,
                live_rows=now.rows,
                made_by=now.made_by(base.code),
                source=now.source,
            )
    return results


def _write(spark: SparkSession, frame: DataFrame, source: Source, asset: str, label: int) -> list[StagedPack]:
    def run(batches: Batches) -> Batches:
        table, _ = table_of_task(source, asset)
        with ThreadPoolExecutor(WRITES_IN_FLIGHT) as pool:
            packs = Packs(packs=table.data, label=label, pool=pool)
            for batch in batches:
                if batch.column("_slot").null_count:
                    raise UsageError(
                        f"slot asset {asset!r} made rows without _slot: keep that column unchanged"
                    )
                packs.add(batch)
            yield STAGED.batch(packs.written(of_rejects=False, split=None))

    tasks = max(1, min(parallelism(spark), source.location.slots))
    ordered = frame.select(
        "_slot", *(f"`{name.replace('`', '``')}`" for name in frame.columns if name != "_slot")
    )
    try:
        by_slot = ordered.repartition(tasks, "_slot").sortWithinPartitions("_slot")
        found = map_in_arrow(by_slot, run, STAGED.ddl).toArrow()
    except PySparkException as error:
        lines = [line for line in str(error.getMessage() or error).splitlines() if line.strip()]
        raise UsageError(f"slot asset {asset!r} failed: {lines[-1] if lines else error}") from error
    rows = STAGED.read(found.to_batches())
    return [row.staged for row in rows if isinstance(row, WrittenPack)]
