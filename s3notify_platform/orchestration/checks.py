"""Asset checks of a source: nothing lost (bucket against state), and chains settled."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import dagster as dg

from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.orchestration.assets import SourceAssets
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.resources import purge_heartbeats
from s3notify_platform.spark.plan import plan
from s3notify_platform.spark.session import parallelism, ship_package
from s3notify_platform.spark.task_chain import forget_ended

UNREADABLE_SHOWN: Final = 20

OVERDUE_SECONDS: Final = 3600
"""An open chain older than this is shown; by the wall clock, for people."""


def build_checks(assets: SourceAssets) -> dg.AssetChecksDefinition:
    """Both checks, as one step."""

    @dg.multi_asset_check(
        name=f"{assets.name}_checks",
        specs=[
            dg.AssetCheckSpec(
                "nothing_lost",
                asset=assets.name,
                description="The whole bucket against the committed state: no object found that no signal told of. "
                "What is found is signalled, and so taken in by the next batch.",
            ),
            dg.AssetCheckSpec(
                "chains_settled",
                asset=assets.name,
                description="No batch is open for longer than an hour. Chains that ended a week ago are removed.",
            ),
        ],
        can_subset=True,
        required_resource_keys={assets.io_key},
    )
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        io: SlotIOManager = getattr(context.resources, assets.io_key)
        for key in sorted(context.selected_asset_check_keys):
            yield nothing_lost(io) if key.name == "nothing_lost" else chains_settled(io, context.instance)

    return checks


def nothing_lost(io: SlotIOManager) -> dg.AssetCheckResult:
    """Compare and repair. One LIST for each 1000 objects of the source, 1 LIST and 1 GET for each slot."""
    # Rows that an older code version made are not lost; a backfill makes them anew.
    source = replace(io.source, code_version=None)
    spark = io.spark.spark_session
    ship_package(spark)
    found = plan(spark, source, source.all_slots(), parallelism(spark))
    changed = [slot_plan.changes for slot_plan in found.slots.values() if slot_plan.changes]
    io.ask_again([changes.slot for changes in changed])
    first = next((v.key for c in changed for v in c.read), None) or next(
        (k for c in changed for k in c.gone), ""
    )
    return dg.AssetCheckResult(
        check_name="nothing_lost",
        asset_key=source.name,
        passed=not changed and not found.errors,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "objects_in_bucket": sum(found.listed.values()),
            "found_to_read": sum(len(changes.read) for changes in changed),
            "found_gone": sum(len(changes.gone) for changes in changed),
            "slots_signalled": len(changed),
            "slots_unreadable": dg.MetadataValue.json(
                {str(slot): found.errors[slot] for slot in sorted(found.errors)[:UNREADABLE_SHOWN]}
            ),
            "first_key": first,
            "requests": dg.MetadataValue.json(found.requests),
        },
    )


def chains_settled(io: SlotIOManager, instance: dg.DagsterInstance) -> dg.AssetCheckResult:
    """Look at every chain, and tidy up. 5 LISTs, 2 GETs for each chain that is kept, 2 writes for each that goes."""
    now_ms = SYSTEM_CLOCK.wall_ms()

    def ended(run_id: str) -> bool:
        run = instance.get_run_by_id(run_id)
        return run is None or run.is_finished

    purged = io.chains.purge()
    purge_heartbeats(io.records, ended)
    forget_ended(io.records, ended)
    unsettled = [chain for chain in io.chains.states() if chain.status == "open"]
    overdue = [chain for chain in unsettled if now_ms - chain.created_ms > OVERDUE_SECONDS * 1000]
    return dg.AssetCheckResult(
        check_name="chains_settled",
        asset_key=io.source_name,
        passed=not overdue,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "open": len(unsettled),
            "overdue": len(overdue),
            "purged": purged,
            "overdue_batches": dg.MetadataValue.json([chain.tag for chain in overdue][:20]),
        },
    )
