"""The jobs of a source: `{source}_ingest`, which its sensor requests, and `{source}_backfill`, which a person launches.

Both jobs also make the source's slot assets. The launchpad shows the one field `choose` (`SlotBatch`).
"""

from typing import Any

import dagster as dg

from s3notify_platform.orchestration.dagster_internals import UnresolvedAssetJobDefinition
from s3notify_platform.orchestration.source_assets import SourceAssets


def build_jobs(
    assets: SourceAssets, slot_assets: dg.AssetsDefinition
) -> tuple[UnresolvedAssetJobDefinition, UnresolvedAssetJobDefinition]:
    """The two jobs."""
    common: dict[str, Any] = {
        "selection": dg.AssetSelection.assets(slot_assets).without_checks(),
        # The job's one step runs in the run's process: a separate process for the step would start Python and Spark's
        # client a second time.
        "executor_def": dg.in_process_executor,
        "tags": {**assets.run_tags, **assets.warm_tags},
    }

    ingest = dg.define_asset_job(
        f"{assets.name}_ingest",
        description=f"Ingests slots of {assets.name!r}; requested by its sensor.",
        **common,
    )
    backfill = dg.define_asset_job(
        f"{assets.name}_backfill",
        description=f"Reads slots of {assets.name!r} again in one run, in any combination. Set choose to slots like "
        "3,17,40-60, or to failed, stale, quarantine, older than 6h, or all.",
        config={"ops": {assets.io_key: {"config": {"choose": "failed"}}}},
        **common,
    )
    return ingest, backfill
