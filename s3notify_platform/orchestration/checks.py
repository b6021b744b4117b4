"""Asset checks of a source: missed changes (bucket against state), settled chains, quarantine, schema changes.

The first check is the sweep, which also merges the small files of all tables of the source, and tags committed objects.
The results name slots, but no keys, because Dagster's log cannot be erased.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import dagster as dg

from s3notify_platform.engine.batch.heartbeats import purge_heartbeats
from s3notify_platform.engine.commit.staged import Base
from s3notify_platform.engine.values.withdrawal_guard import refuse_withdrawals
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import CorruptError, S3NotifyError, UsageError
from s3notify_platform.kernel.limits import OVERDUE_SECONDS
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.maintenance.erasure import slot_assets
from s3notify_platform.orchestration.batch_tags import tag_objects
from s3notify_platform.orchestration.check_results import (
    COMPLETE,
    EVALUATED,
    QUARANTINE,
    REPAIRED,
    SCHEMA,
    SETTLED,
    SWEPT,
    VERSION,
    quarantine_facts,
)
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.sensor_views import sensor_state
from s3notify_platform.orchestration.source_assets import SourceAssets
from s3notify_platform.source.source import Source
from s3notify_platform.spark.spark_jobs import SparkJobs
from s3notify_platform.table.pinned_schema import added_fields, schema_of
from s3notify_platform.table.snapshot import Snapshot

SLOTS_SHOWN: Final = 20


def build_checks(assets: SourceAssets) -> dg.AssetChecksDefinition:
    """All checks as one step, which the upkeep's sensor or a person starts. Batches report the checks too
    (`batch_report`).

    If the sweep is refused, no files are merged, and the other checks still have their results.
    """
    about = {
        COMPLETE: "Compares the whole source with the committed state. Fails if a change was not announced, or has "
        "waited for more than an hour. Signals the slots of unannounced changes, so that the next batch reads them. "
        "Each batch repeats the last sweep's result. The sweep also merges small files.",
        SETTLED: "Fails if a batch has been open for more than an hour. The sweep removes chains that ended a week "
        "ago.",
        QUARANTINE: "Fails while a record or an object is in quarantine. All other "
        f"records are committed. `s3notify quarantine list {assets.name}` shows the reasons.",
        SCHEMA: "Shows the fields that a batch added to the schema (existing rows do not change), and the values "
        "that do not fit their columns. Only such values, and rows that break a rule of expect_warn, make the check "
        "fail.",
    }

    @dg.multi_asset_check(
        name=f"{assets.name}_checks",
        specs=[dg.AssetCheckSpec(name, asset=assets.name, description=text) for name, text in about.items()],
        can_subset=True,
        **assets.step,
    )
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        io = assets.io_of(context)
        for key in sorted(context.selected_asset_check_keys):
            match key.name:
                case "complete":
                    swept = completeness(io, context.instance)
                    yield swept
                    if swept.severity != dg.AssetCheckSeverity.ERROR:
                        merge_small_files(io, context.log)
                        tag_objects(context.op_execution_context, io)
                case "chains_settled":
                    yield chains_settled(io, context.instance)
                case "quarantine":
                    yield in_quarantine(io)
                case _:
                    yield schema_changes(io, context.instance)

    return checks


def completeness(io: SlotIOManager, instance: dg.DagsterInstance) -> dg.AssetCheckResult:
    """Compares the bucket with the table, and signals the slots of missed changes. Cost: 1 LIST for each 1000 objects
    of the source, and the requests of `SparkJobs.plan` for states.

    A change with an entry in the queue is pending, not missed, and is overdue after `OVERDUE_SECONDS`. Any other change
    is compared a second time, because a batch may have committed it meanwhile. The second comparison costs the same
    requests again. Changes beyond `max_objects` are only counted; batches and the next sweep read them. Keys that S3
    clients cannot address are counted. An inlet keeps the events of such keys as poison messages, and the objects with
    these keys may be in quarantine.

    The sweep is refused, and repairs nothing, if the table is incomplete, was made with other settings (`open_table`),
    or is not the table that the sensor's cursor names. The sweep is also refused if more objects were deleted than
    `withdraw_share` allows.
    """
    state = sensor_state(instance, io.name, io.clients.records)
    spark = io.spark.spark_session
    started, began = SYSTEM_CLOCK.monotonic(), dg.MetadataValue.timestamp(SYSTEM_CLOCK.wall_ms() / 1000)
    try:
        source = io.settle_commit_mode()
        opened = source.open_table(expected=state.table if state is not None else "", store=io.clients.store)
        jobs, compared = SparkJobs(spark, source), _base(source)
        found = jobs.plan(source.location.all_slots(), compared)
    except (CorruptError, UsageError) as error:
        return _refused(io.name, str(error), {SWEPT: began})
    seconds = SYSTEM_CLOCK.monotonic() - started
    objects = found.total("objects")
    facts: dict[str, Any] = {
        SWEPT: began,
        "objects_in_bucket": objects,
        "seconds": round(seconds, 3),
        "objects_per_second": round(objects / max(seconds, 0.001), 1),
        "ranges": found.chains,
        "cuts_overrun": found.overran,
        "requests": dg.MetadataValue.json(found.requests),
    }
    slots = compared.snapshot.manifest.slot
    now_ms = SYSTEM_CLOCK.wall_ms()
    confirmed = {slot for slot in found.slots if opened.known.confirms(slots(slot).generation, now_ms)}
    if reason := refuse_withdrawals(found, confirmed, source):
        return _refused(source.name, reason, facts)
    pending = sum(len(p.changes.read) + len(p.changes.gone) for p in found.slots.values())
    pending -= sum(map(len, found.unannounced.values()))
    overdue = found.overdue(SYSTEM_CLOCK.wall_ms(), OVERDUE_SECONDS)
    beyond = sum(p.changes.beyond for p in found.slots.values())
    again = jobs.plan(found.unannounced, _base(source)).unannounced if found.unannounced else {}
    missed = {slot: both for slot in again if (both := again[slot] & found.unannounced[slot])}
    io.clients.ask_again(missed)
    unaddressable = [slot for slot, each in found.slots.items() if each.unaddressable_keys]
    lasting = bool(beyond or overdue or found.failed)
    return dg.AssetCheckResult(
        check_name=COMPLETE,
        asset_key=source.name,
        passed=not (missed or lasting),
        severity=dg.AssetCheckSeverity.WARN,
        description="The sweep found changes that nobody had announced, and signalled their slots"
        if missed
        else None,
        metadata={
            REPAIRED: bool(missed) and not lasting,
            "found_by_sweep": sum(map(len, missed.values())),
            "pending": pending,
            "overdue": len(overdue),
            "overdue_seconds": round(max(overdue.values(), default=0.0)),
            "overdue_slots": _slots({slot_of(key, source.location.slots) for key in overdue}),
            "unaddressable": found.total("unaddressable"),
            "unaddressable_slots": _slots(unaddressable),
            "beyond_max_objects": beyond,
            "slots_signalled": len(missed),
            "missed_slots": _slots(missed),
            "slots_unreadable": dg.MetadataValue.json(
                {str(slot): found.failed[slot].error for slot in sorted(found.failed)[:SLOTS_SHOWN]}
            ),
            **facts,
        },
    )


def merge_small_files(io: SlotIOManager, log: dg.DagsterLogManager) -> None:
    """Merges the files of the source's table, its slot assets and its derived tables up to their target sizes.

    If the files of a table cannot be merged now, the next sweep tries again. Cost: 1 LIST for each table, and the
    requests of `compact`.
    """
    source = io.settle_commit_mode()
    for asset in (None, *slot_assets(source.location, io.clients.store)):
        name = asset or source.name
        try:
            done = compact(source.table(asset))
        except S3NotifyError as error:
            log.warning("small files of %s are not merged: %s", name, error)
            continue
        if done.versions:
            merged = done.packs + done.rejects + done.state_files
            log.info("%s: %d files, %d bytes, became %d", name, merged, done.bytes, done.became)


def _base(source: Source) -> Base:
    """The newest snapshot of a table that has been opened, as a base for planning."""
    table = source.table()
    found = table.newest()
    assert isinstance(found, Snapshot), "it was opened"
    return Base(table=table, snapshot=found)


def _slots(found: Iterable[Slot]) -> str:
    """The first few of these slots, as text."""
    ordered = sorted(found)
    return ", ".join(map(str, ordered[:SLOTS_SHOWN])) + (", …" if len(ordered) > SLOTS_SHOWN else "")


def _refused(name: str, reason: str, facts: Mapping[str, Any]) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=COMPLETE,
        asset_key=name,
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"The sweep was refused, and nothing was repaired: {reason}",
        metadata=facts,
    )


def chains_settled(io: SlotIOManager, instance: dg.DagsterInstance) -> dg.AssetCheckResult:
    """Reads every open chain, and removes old chains and their records.

    Cost: 3 LISTs for each 1000 records, 1 GET for each ended chain, 2 requests for each open chain, and 2 requests for
    each removed record.
    """
    now_ms = SYSTEM_CLOCK.wall_ms()

    def ended(run_id: str) -> bool:
        run = instance.get_run_by_id(run_id)
        return run is None or run.is_finished

    purged = io.clients.chains.purge()
    purge_heartbeats(io.clients.records, ended)
    unsettled = list(io.clients.chains.open_states())
    overdue = [chain for chain in unsettled if now_ms - chain.created_ms > OVERDUE_SECONDS * 1000]
    return dg.AssetCheckResult(
        check_name=SETTLED,
        asset_key=io.name,
        passed=not overdue,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "open": len(unsettled),
            "overdue": len(overdue),
            "purged": purged,
            "overdue_batches": dg.MetadataValue.json([chain.tag for chain in overdue][:20]),
        },
    )


def in_quarantine(io: SlotIOManager) -> dg.AssetCheckResult:
    """Counts the quarantine of the newest version. The check fails if the table is refused. Cost: the requests of
    `LogTable.newest`.
    """
    try:
        found = io.source.table().newest()
    except (CorruptError, UsageError) as error:
        refused = {"passed": False, "description": f"Unknown: {error}", "metadata": {}}
        return dg.AssetCheckResult(**quarantine_facts(io.name, None) | refused)
    return dg.AssetCheckResult(**quarantine_facts(io.name, found if isinstance(found, Snapshot) else None))


def schema_changes(io: SlotIOManager, instance: dg.DagsterInstance) -> dg.AssetCheckResult:
    """The result of the last batch in Dagster, and the fields that other runs have added to the schema after that
    batch.

    Dagster's own check of column schemas is not usable: it compares the asset's last two materializations, which belong
    to two slots. Cost: the requests of `LogTable.newest` and `LogReader.as_of`.
    """
    key = dg.AssetCheckKey(dg.AssetKey(io.name), SCHEMA)
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=1, status={*EVALUATED})
    last = records[0].evaluation if records else None
    said: dict[str, Any] = (
        {name: value.value for name, value in last.metadata.items()} if last is not None else {}
    )
    version, others = _added_since(io, int(said.get(VERSION, 0)))
    batch_added = said.get("added", {})
    named = {path: kind for path, kind in others.items() if path not in batch_added}
    return dg.AssetCheckResult(
        check_name=SCHEMA,
        asset_key=io.name,
        passed=last is None or last.passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=last.description if last is not None else None,
        metadata={
            VERSION: version,
            "batch": str(said.get("batch", "")),
            "added": dg.MetadataValue.json(batch_added),
            "added_elsewhere": dg.MetadataValue.json(named),
            "mismatches": dg.MetadataValue.json(said.get("mismatches", {})),
            "broken": dg.MetadataValue.json(said.get("broken", {})),
        },
    )


def _added_since(io: SlotIOManager, seen: int) -> tuple[int, dict[str, str]]:
    """The newest version, and the fields that were added to the schema since version `seen`, with their types.

    A table's first schema adds no fields. A table that is refused adds no fields, and the check `complete` reports the
    refusal.
    """
    table = io.source.table()
    try:
        now, before = table.newest(), table.reader.as_of(seen)
    except (CorruptError, UsageError):
        return seen, {}
    if not isinstance(now, Snapshot):
        return seen, {}
    then, schema = before and schema_of(before.metadata), schema_of(now.metadata)
    return now.version, added_fields(then.rows, schema.rows) if then and schema else {}
