"""Asset checks of a source: no change missed (bucket against state), chains settled, changes of the schema."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import dagster as dg

from s3notify_platform.engine.batch.heartbeats import purge_heartbeats
from s3notify_platform.engine.commit.staged import Base
from s3notify_platform.engine.values.plan import refuse_withdrawals
from s3notify_platform.formats.rescue import added
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.limits import OVERDUE_SECONDS
from s3notify_platform.orchestration.assets import ADDED, MISMATCHES
from s3notify_platform.orchestration.dagster_internals import AssetCheckExecutionRecordStatus
from s3notify_platform.orchestration.freshness import FRESH, freshness
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.manual_jobs import sensor_state
from s3notify_platform.orchestration.source_assets import SourceAssets
from s3notify_platform.source.source import Source
from s3notify_platform.spark.spark_jobs import SparkJobs
from s3notify_platform.table.pinned_schema import added_fields, schema_of
from s3notify_platform.table.snapshot import Snapshot

UNREADABLE_SHOWN: Final = 20

EVENTS_MAX: Final = 5000

VERSION: Final = "table_version"
EVENT: Final = "newest_event"
"""Names of the metadata from which the next evaluation continues."""


def build_checks(assets: SourceAssets) -> dg.AssetChecksDefinition:
    """All checks, as one step."""
    about = {
        "complete": "Compares the whole source with the committed state: no change that was not announced, and none "
        "on its way for longer than an hour. Slots of unannounced changes are signalled, so that the next batch takes "
        "them in.",
        "chains_settled": "No batch is open for longer than an hour. Chains that ended a week ago are removed.",
        "schema_changes": "Since the last check: the fields that were added to the schema, which changes no existing "
        "rows, and values that do not fit their columns. Only such values make the check fail.",
    }

    @dg.multi_asset_check(
        name=f"{assets.name}_checks",
        specs=[
            *(dg.AssetCheckSpec(name, asset=assets.name, description=text) for name, text in about.items()),
            dg.AssetCheckSpec(
                FRESH,
                asset=f"{assets.name}_summary",
                description=f"No change waits for longer than {assets.fresh_seconds:.0f} s before it is committed. The "
                "reconciler's sensor evaluates it, too.",
            ),
        ],
        can_subset=True,
        **assets.step,
    )
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        io = assets.io_of(context)
        for key in sorted(context.selected_asset_check_keys):
            match key.name:
                case "complete":
                    yield completeness(io, context.instance)
                case "chains_settled":
                    yield chains_settled(io, context.instance)
                case "fresh":
                    found = freshness(io, context.instance, assets.fresh_seconds)
                    yield dg.AssetCheckResult(**found.evaluation(io.name))
                case _:
                    yield schema_changes(io, context.instance)

    return checks


def completeness(io: SlotIOManager, instance: dg.DagsterInstance) -> dg.AssetCheckResult:
    """Compare and repair. 1 LIST for each 1000 objects of the source, and for states the requests of `SparkJobs.plan`.

    A change with an entry in the queue is pending, not missed; overdue after `OVERDUE_SECONDS`. Any other is compared a
    second time, for the same requests, since a batch may have committed it in between. Of more than `max_objects`
    changes the rest is only counted; batches, and the next sweep, take them in. Keys that S3 clients cannot address are
    counted and named: an inlet keeps their events as poison, and their objects may be in quarantine.

    Refuses, and repairs nothing, if the table is not the one of the sensor's cursor, not whole, or of other settings
    (`open_table`), or if more objects have left than `withdraw_share` allows.
    """
    state = sensor_state(instance, io.name)
    spark = io.spark.spark_session
    started = SYSTEM_CLOCK.monotonic()
    try:
        source = io.settle_commit_mode()
        opened = source.open_table(expected=state.table if state is not None else "", store=io.clients.store)
        # Rows of an older code version are not missed changes; a backfill makes them again.
        source = replace(source, input=replace(source.input, code_version=None))
        jobs, compared = SparkJobs(spark, source), _base(source)
        found = jobs.plan(source.location.all_slots(), compared)
    except (CorruptError, UsageError) as error:
        return _refused(io.name, str(error))
    seconds = SYSTEM_CLOCK.monotonic() - started
    objects = found.total("objects")
    facts: dict[str, Any] = {
        "objects_in_bucket": objects,
        "seconds": round(seconds, 3),
        "objects_per_second": round(objects / max(seconds, 0.001), 1),
        "ranges": found.chains,
        "cuts_overrun": found.overran,
        "requests": dg.MetadataValue.json(found.requests),
    }
    slots = compared.snapshot.manifest.slot
    confirmed = {slot for slot in found.slots if slots(slot).generation <= opened.known.confirmed}
    if reason := refuse_withdrawals(found, confirmed, source):
        return _refused(source.name, reason, facts)
    pending = sum(len(p.changes.read) + len(p.changes.gone) for p in found.slots.values())
    pending -= sum(map(len, found.unannounced.values()))
    overdue = found.overdue(SYSTEM_CLOCK.wall_ms(), OVERDUE_SECONDS)
    beyond = sum(p.changes.beyond for p in found.slots.values())
    again = jobs.plan(found.unannounced, _base(source)).unannounced if found.unannounced else {}
    missed = {slot: both for slot in again if (both := again[slot] & found.unannounced[slot])}
    io.clients.ask_again(missed)
    unaddressable = [key for each in found.slots.values() for key in each.unaddressable_keys]
    return dg.AssetCheckResult(
        check_name="complete",
        asset_key=source.name,
        passed=not (missed or beyond or overdue or found.failed),
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "found_by_sweep": sum(map(len, missed.values())),
            "pending": pending,
            "overdue": len(overdue),
            "overdue_seconds": round(max(overdue.values(), default=0.0)),
            "overdue_keys": dg.MetadataValue.json(sorted(overdue)[:UNREADABLE_SHOWN]),
            "unaddressable": found.total("unaddressable"),
            "unaddressable_keys": dg.MetadataValue.json(unaddressable[:UNREADABLE_SHOWN]),
            "beyond_max_objects": beyond,
            "slots_signalled": len(missed),
            "slots_unreadable": dg.MetadataValue.json(
                {str(slot): found.failed[slot].error for slot in sorted(found.failed)[:UNREADABLE_SHOWN]}
            ),
            "first_key": min((min(keys) for keys in missed.values()), default=""),
            **facts,
        },
    )


def _base(source: Source) -> Base:
    """The table of a source that was opened, as it is now."""
    table = source.table()
    found = table.newest()
    assert isinstance(found, Snapshot), "it was opened"
    return Base(table=table, snapshot=found)


def _refused(name: str, reason: str, facts: Mapping[str, Any] | None = None) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name="complete",
        asset_key=name,
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"Refused, nothing was repaired: {reason}",
        metadata=facts or {},
    )


def chains_settled(io: SlotIOManager, instance: dg.DagsterInstance) -> dg.AssetCheckResult:
    """Read every open chain, and remove old ones and what they have left.

    3 LISTs for each 1000 records; 1 GET for each chain that has ended; 2 requests for each that has not, and for each
    record removed.
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
        check_name="chains_settled",
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


def schema_changes(io: SlotIOManager, instance: dg.DagsterInstance) -> dg.AssetCheckResult:
    """Compare the schema with the one that the check saw last, and read the batches' mismatches since then.

    Dagster's own check of column schemas would compare the last two materializations, which here are two slots.
    Requests of `LogTable.newest` and `LogReader.as_of`; up to `EVENTS_MAX` events: the last one of each batch has its
    mismatches, and the fields that it added. Fields that no event names are of a run outside Dagster.
    """
    seen_version, seen_event = _last_look(io, instance)
    batches, newest_event = _batches_since(io, instance, seen_event)
    mismatches = added(each[MISMATCHES] for each in batches if MISMATCHES in each)
    changes = [{"batch": each["batch"], "added": each[ADDED]} for each in batches if ADDED in each]
    version, found = _added_since(io, seen_version)
    named = {path for change in changes for path in change["added"]}
    if others := {path: kind for path, kind in found.items() if path not in named}:
        changes.append({"batch": "", "added": others})
    columns = ", ".join(f"{path} ({count})" for path, count in mismatches.items())
    return dg.AssetCheckResult(
        check_name="schema_changes",
        asset_key=io.name,
        passed=not mismatches,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"Values that do not fit their columns: {columns}" if mismatches else None,
        metadata={
            VERSION: version,
            EVENT: newest_event,
            "added": dg.MetadataValue.json(changes),
            "mismatches": dg.MetadataValue.json(mismatches),
        },
    )


def _added_since(io: SlotIOManager, seen: int) -> tuple[int, dict[str, str]]:
    """The newest version, and the fields that the schema has since version `seen`, with their types.

    A table's first schema adds none; nor does a table that is refused, which the check `complete` tells.
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


def _last_look(io: SlotIOManager, instance: dg.DagsterInstance) -> tuple[int, int]:
    """The newest version and event of the check's last evaluation."""
    key = dg.AssetCheckKey(dg.AssetKey(io.name), "schema_changes")
    evaluated = (AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED)
    records = instance.event_log_storage.get_asset_check_execution_history(
        key, limit=1, status=set(evaluated)
    )
    event = records[0].event if records else None
    if event is None or event.dagster_event is None:
        return 0, 0
    metadata = event.dagster_event.asset_check_evaluation_data.metadata
    version, seen = (metadata[name].value for name in (VERSION, EVENT))
    assert isinstance(version, int)
    assert isinstance(seen, int)
    return version, seen


def _batches_since(
    io: SlotIOManager, instance: dg.DagsterInstance, seen: int
) -> tuple[list[dict[str, Any]], int]:
    """What the runs of batches said of the schema after event `seen`, oldest first, and the newest event."""
    wanted = dg.AssetRecordsFilter(dg.AssetKey(io.name), after_storage_id=seen)
    found: dict[str, dict[str, Any]] = {}
    newest = seen
    for record in reversed(instance.fetch_materializations(wanted, limit=EVENTS_MAX).records):
        newest = max(newest, record.storage_id)
        metadata = record.asset_materialization.metadata if record.asset_materialization else {}
        said = {name: metadata[name].value for name in ("batch", ADDED, MISMATCHES) if name in metadata}
        if said:
            found[record.run_id] = said  # a run repeats with each round what it said before
    return [*found.values()], newest
