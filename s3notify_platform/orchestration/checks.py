"""Asset checks of a source: nothing lost (bucket against state), and chains settled."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import dagster as dg

from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.orchestration.assets import SourceAssets
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.resources import purge_heartbeats
from s3notify_platform.spark.plan import lost_state, plan
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
    """Compare and repair. One LIST for each 1000 objects of the source (see `plan`), 1 LIST and 1 GET for each slot.

    What is on its way is not lost: a change that has an entry in the queue. What seems lost is looked at again,
    for the same requests, since a batch may have committed it in between. Of more than `max_objects` changes the
    rest is counted only: batches, and the next sweep, get to it.

    Refuses, and repairs nothing, where the committed state of a slot has gone missing.
    """
    # Rows that an older code version made are not lost; a backfill makes them anew.
    source = replace(io.source, code_version=None)
    spark = io.spark.spark_session
    ship_package(spark)
    started = SYSTEM_CLOCK.monotonic()
    found = plan(spark, source, source.all_slots(), parallelism(spark))
    seconds = SYSTEM_CLOCK.monotonic() - started
    objects = sum(found.listed.values())
    told: dict[str, Any] = {
        "objects_in_bucket": objects,
        "seconds": round(seconds, 3),
        "objects_per_second": round(objects / max(seconds, 0.001), 1),
        "ranges": found.chains,
        "cuts_overrun": found.overran,
        "requests": dg.MetadataValue.json(found.requests),
    }
    if found.lost:
        return dg.AssetCheckResult(
            check_name="nothing_lost",
            asset_key=source.name,
            passed=False,
            severity=dg.AssetCheckSeverity.ERROR,
            description=f"Refused, nothing was repaired: {lost_state(source, found.lost)}",
            metadata={"slots_lost": dg.MetadataValue.json(sorted(found.lost)), **told},
        )
    on_their_way = sum(len(p.changes.read) + len(p.changes.gone) for p in found.slots.values())
    on_their_way -= sum(map(len, found.untold.values()))
    beyond = sum(p.changes.beyond for p in found.slots.values())
    again = plan(spark, source, found.untold, parallelism(spark)).untold if found.untold else {}
    both = {slot: keys & again.get(slot, frozenset()) for slot, keys in found.untold.items()}
    lost = {slot: keys for slot, keys in both.items() if keys}
    io.ask_again(lost)
    return dg.AssetCheckResult(
        check_name="nothing_lost",
        asset_key=source.name,
        passed=not (lost or beyond or found.errors),
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "found_by_sweep": sum(map(len, lost.values())),
            "on_their_way": on_their_way,
            "beyond_max_objects": beyond,
            "slots_signalled": len(lost),
            "slots_unreadable": dg.MetadataValue.json(
                {str(slot): found.errors[slot] for slot in sorted(found.errors)[:UNREADABLE_SHOWN]}
            ),
            "first_key": min((min(keys) for keys in lost.values()), default=""),
            **told,
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
