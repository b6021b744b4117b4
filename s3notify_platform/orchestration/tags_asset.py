"""The asset `{source}_tags`: tags of the committed objects, if the source sets any. Automation updates the asset."""

import dagster as dg

from s3notify_platform.maintenance.tagging import tag_committed
from s3notify_platform.orchestration.automation import follow_bucket
from s3notify_platform.orchestration.source_assets import SourceAssets, step_failures


def build_tags(assets: SourceAssets) -> tuple[dg.AssetsDefinition, dg.SensorDefinition]:
    """The asset, and the automation sensor that updates it after the batches."""
    spec = dg.AssetSpec(
        f"{assets.name}_tags",
        deps=[assets.name],
        description=f"Tags of the committed objects of {assets.name!r}: {assets.io.committed_tags}. Quarantined "
        "objects get no tags.",
        kinds={"s3"},
        automation_condition=follow_bucket(),
        **assets.spec,
    )

    @dg.multi_asset(
        name=f"{assets.name}_tags",
        specs=[spec],
        required_resource_keys={assets.io_key},
    )
    def tags(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        with step_failures():
            done = tag_committed(assets.io_of(context).source, progress=context.log.info)
        if done.refused:
            context.log.warning("the store refused tags, like: %s", done.refused)
        return dg.MaterializeResult(metadata={"slots": done.slots, **done.counts})

    automation = dg.AutomationConditionSensorDefinition(
        f"{assets.name}_automation",
        target=dg.AssetSelection.assets(tags),
        # Evaluations are rare, because nobody waits for tags, and each evaluation costs as much as a poll.
        minimum_interval_seconds=max(assets.interval_seconds, 30),
        default_status=assets.sensor_status,
        run_tags={**assets.run_tags},
    )
    return tags, automation
