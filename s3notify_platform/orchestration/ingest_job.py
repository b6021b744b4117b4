"""The job `{source}_ingest`: its source's sensor requests its runs, and a person launches it to read slots again."""

import dagster as dg

from s3notify_platform.orchestration.dagster_internals import UnresolvedAssetJobDefinition
from s3notify_platform.orchestration.source_assets import SourceAssets


def build_ingest_job(assets: SourceAssets, slot_assets: dg.AssetsDefinition) -> UnresolvedAssetJobDefinition:
    """The job. Its runs also make the source's slot assets. The launchpad shows one field, `choose` (`SlotBatch`)."""
    return dg.define_asset_job(
        f"{assets.name}_ingest",
        description=f"Ingests slots of {assets.name!r}. The sensor requests the slots that changed. To read slots "
        "again in one run, in any combination, launch this job and set choose to slots like 3,17,40-60, or to "
        "failed, stale, quarantine, older than 6h, or all.",
        selection=dg.AssetSelection.assets(slot_assets).without_checks(),
        # The job's one step runs in the run's process: a separate process for the step would start Python and Spark's
        # client a second time.
        executor_def=dg.in_process_executor,
        tags={**assets.run_tags, **assets.warm_tags},
    )
