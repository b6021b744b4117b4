"""`S3NotifyComponent`: a source in YAML. Thin: functions of the other modules build each part."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import dagster as dg

from s3notify_platform.channels.registry import SERVICES
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.attributes import attributes_of, imported
from s3notify_platform.local.fingerprint import fingerprint
from s3notify_platform.orchestration.assets import build_slot_assets
from s3notify_platform.orchestration.automation import SlotAutomationSensor
from s3notify_platform.orchestration.bucket_assets import build_summary, build_tags
from s3notify_platform.orchestration.checks import build_checks
from s3notify_platform.orchestration.following_assets import build_following
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.manual_jobs import build_explain, build_retry
from s3notify_platform.orchestration.resources import S3_NAMES, DynamoTables, NamedS3, SlotSpark
from s3notify_platform.orchestration.scaffold import SourceScaffolder
from s3notify_platform.orchestration.sensor import build_sensor
from s3notify_platform.orchestration.setting_fields import resolvable, values_of
from s3notify_platform.orchestration.source_assets import SlotAsset, SourceAssets
from s3notify_platform.orchestration.source_services import build_channels, queue_spec
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.source.bucket_settings import unusual_prefixes
from s3notify_platform.source.settings import LATEST, UNGROUPED, TopicSizeSettings

_Attributes = resolvable("_Attributes", tuple(attributes_of(*SERVICES).values()))


_SPARK_NAMES: Final = {"config": "spark_config"}
"""Settings that `SlotSpark` has under other names."""


@dg.scaffold_with(SourceScaffolder)
class S3NotifyComponent(dg.Component, _Attributes):  # type: ignore[misc,valid-type]
    """A bucket prefix as a slot-partitioned, committed table.

    Defines the ingest asset, its slot assets, quarantine and summary, the sensor, the sweep with its checks, the
    reconciler of the queue, and the inlets and the outlet that are set.
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions of this source, which leaves the own objects of the project's other sources alone."""
        return self.definitions(context.component_tree.get_all_components(S3NotifyComponent))

    def definitions(self, project: Sequence["S3NotifyComponent"] = ()) -> dg.Definitions:
        """The same without a component tree, for `dg.Definitions.merge`. `project`: all of its sources."""
        assets = self.assets(project)
        slot_assets = build_slot_assets(assets)
        summary = build_summary(assets)
        tags = build_tags(assets)
        checks = build_checks(assets)
        ingest_job = dg.define_asset_job(
            f"{self.name}_ingest",
            selection=dg.AssetSelection.assets(slot_assets).without_checks(),
            description=f"Ingests slots of {self.name!r}; requested by its sensor.",
            # One step: a second process would only start Python and Spark's client again.
            executor_def=dg.in_process_executor,
            tags={**assets.run_tags, **assets.warm_tags},
        )
        backfill_job = dg.define_asset_job(
            f"{self.name}_backfill",
            selection=dg.AssetSelection.assets(slot_assets).without_checks(),
            description=f"Slots of {self.name!r} in one run, however scattered: like 3,17,40-60; failed; stale; older "
            "than 6h; all.",
            executor_def=dg.in_process_executor,
            config={"ops": {assets.io_key: {"config": {"choose": "failed"}}}},
            tags={**assets.run_tags, **assets.warm_tags},
        )
        sweep_job = dg.define_asset_job(
            f"{self.name}_sweep",
            selection=dg.AssetSelection.checks(checks),
            description=f"Compares the whole source {self.name!r} with its committed state, and repairs.",
            executor_def=dg.in_process_executor,
            tags={**assets.run_tags},
        )
        sensor = build_sensor(assets, ingest_job, sweep_job, BatchSettings(**values_of(self, BatchSettings)))
        automation = dg.AutomationConditionSensorDefinition(
            f"{self.name}_automation",
            target=dg.AssetSelection.assets(summary, *tags),
            # Nobody waits for a summary, and each evaluation costs as much as a poll.
            minimum_interval_seconds=max(self.interval_seconds, 30),
            default_status=assets.sensor_status,
            run_tags={**assets.run_tags},
        )
        following = [SlotAutomationSensor(assets)] if assets.slot_assets else []
        sweep = dg.ScheduleDefinition(
            name=f"{self.name}_sweep_schedule",
            job=sweep_job,
            cron_schedule=self.sweep_cron,
            default_status=dg.DefaultScheduleStatus(assets.sensor_status.value),
        )
        services = {
            name: kind.settings()(**given.model_dump(exclude_unset=True))
            for name, kind in SERVICES.items()
            if (given := getattr(self, name)) is not None
        }
        jobs, sensors = build_channels(assets, services)
        return dg.Definitions(
            assets=[slot_assets, *build_following(assets), summary, queue_spec(assets), *tags],
            asset_checks=[checks],
            jobs=[ingest_job, backfill_job, sweep_job, build_explain(assets), build_retry(assets), *jobs],
            sensors=[sensor, automation, *following, *sensors],
            schedules=[sweep],
            resources=assets.definitions,
        )

    def assets(self, project: Sequence["S3NotifyComponent"] = ()) -> SourceAssets:
        """The inputs of the parts; `UsageError` for settings that cannot work."""
        s3 = self.s3.model_dump(exclude_unset=True) if self.s3 else {}
        dynamodb = self.dynamodb.model_dump(exclude_unset=True) if self.dynamodb else {}
        spark = self.spark.model_dump(exclude_unset=True) if self.spark else {}
        latest = self.latest.model_dump(exclude_unset=True) if self.latest else {}
        io = SlotIOManager(
            s3=NamedS3(**{S3_NAMES.get(name, name): value for name, value in s3.items()}),
            dynamodb=DynamoTables(**dynamodb),
            spark=SlotSpark(**{_SPARK_NAMES.get(name, name): value for name, value in spark.items()}),
            **values_of(self, *UNGROUPED, TopicSizeSettings)
            | {LATEST[name]: value for name, value in latest.items()}
            | {"other_platform_prefixes": "|".join(_other_prefixes(self, project))},
        )
        _ = io.source  # its own checks, before anything is built
        return SourceAssets(
            io=io,
            transform=imported(self.transform) if self.transform else None,
            fingerprint=fingerprint(self.transform),
            slot_assets=[_slot_asset(path) for path in self.slot_assets],
            description=self.description,
            owners=self.owners,
            group=self.group,
            interval_seconds=self.interval_seconds,
            poll_seconds=self.poll_seconds,
            running=self.running,
            fresh_seconds=self.fresh_seconds,
            run_tags={name: _tag(value) for name, value in self.run_tags.items()},
            op_tags=self.op_tags,
            pool=self.pool,
            resources=self.resources,
        )


def _other_prefixes(source: S3NotifyComponent, project: Sequence[S3NotifyComponent]) -> Iterator[str]:
    """Where other sources keep their own objects in the bucket of this one."""
    if source.other_platform_prefixes:
        yield source.other_platform_prefixes
    for other in project:
        if other.name != source.name and source.bucket in (other.platform_bucket, other.bucket):
            with suppress(UsageError):  # which the definitions of the other one are refused for
                yield from unusual_prefixes(values_of(other, *UNGROUPED), source.bucket)


def _tag(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _slot_asset(path: str) -> SlotAsset:
    asset = imported(path)
    if not isinstance(asset, SlotAsset):
        raise UsageError(f"{path} is not a slot asset: decorate the function with @s3_slot_asset(source=…)")
    return replace(asset, code_version=asset.code_version or fingerprint(path))
