"""`S3NotifyComponent`: a source in YAML. The class is thin: functions of the other modules build each part."""

import json
import logging
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
from s3notify_platform.orchestration.checks import build_checks
from s3notify_platform.orchestration.following_assets import build_following
from s3notify_platform.orchestration.ingest_job import build_ingest_job
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.managed_services import ManagedServices
from s3notify_platform.orchestration.resources import S3_NAMES, DynamoTables, NamedS3, SlotSpark
from s3notify_platform.orchestration.scaffold import SourceScaffolder
from s3notify_platform.orchestration.sensor import build_sensor
from s3notify_platform.orchestration.setting_fields import resolvable, values_of
from s3notify_platform.orchestration.source_assets import SlotAsset, SourceAssets
from s3notify_platform.orchestration.source_services import services_of
from s3notify_platform.orchestration.source_summary import summary_spec
from s3notify_platform.orchestration.upkeep import build_upkeep, queue_spec
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.source.bucket_settings import unusual_prefixes
from s3notify_platform.source.settings import LATEST, UNGROUPED, TopicSizeSettings
from s3notify_platform.source.source import Source

_Attributes = resolvable("_Attributes", tuple(attributes_of(*SERVICES).values()))


_LOG: Final = logging.getLogger(__name__)

_SPARK_NAMES: Final = {"config": "spark_config"}
"""Settings that `SlotSpark` has under other names."""


@dg.scaffold_with(SourceScaffolder)
class S3NotifyComponent(dg.Component, _Attributes):  # type: ignore[misc,valid-type]
    """A bucket prefix as a slot-partitioned, committed table.

    Defines the assets (ingest, slot assets, summary, queue), the jobs (ingest, backfill; services, if the YAML has
    inlets or delivery), the sensors (polling, upkeep), and the checks.

    `dg scaffold defs` takes the options --bucket, --prefix, --name, --region and --endpoint-url. `s3notify guide
    options` explains all settings of the YAML.
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions of this source. In the source's bucket, the source does not read objects that belong to other
        sources of the project.
        """
        return self.definitions(context.component_tree.get_all_components(S3NotifyComponent))

    def definitions(self, project: Sequence["S3NotifyComponent"] = ()) -> dg.Definitions:
        """The definitions without a component tree, for `dg.Definitions.merge`. `project`: all sources of
        the project.
        """
        services = self.services(project)
        assets = services.assets
        slot_assets = build_slot_assets(assets)
        checks = build_checks(assets)
        ingest_job = build_ingest_job(assets, slot_assets)
        settings = BatchSettings(**values_of(self, BatchSettings))
        sensors = [
            build_sensor(assets, ingest_job, settings),
            build_upkeep(assets, checks, self.sweep_cron, services),
        ]
        if assets.slot_assets:
            sensors.append(SlotAutomationSensor(assets, settings))
        return dg.Definitions(
            assets=[slot_assets, *build_following(assets), summary_spec(assets), queue_spec(assets)],
            asset_checks=[checks],
            jobs=[ingest_job],  # the upkeep's sensor adds the services' job
            sensors=sensors,
            resources=assets.definitions,
        )

    def services(self, project: Sequence["S3NotifyComponent"] = ()) -> ManagedServices:
        """The services that the YAML enables. `UsageError` for settings that cannot work."""
        settings = {
            name: kind.settings()(**given.model_dump(exclude_unset=True))
            for name, kind in SERVICES.items()
            if (given := getattr(self, name)) is not None
        }
        inlets = any(SERVICES[name].direction == "inlet" for name in settings)
        return services_of(
            self.assets(project), settings, [*self._others_of_inlets(project)] if inlets else []
        )

    def _others_of_inlets(self, project: Sequence["S3NotifyComponent"]) -> Iterator[Source]:
        """The other sources of the project whose changes an inlet of this source may receive. Sources with other
        `resources` are left out, since only a run knows their queue.
        """
        for other in project:
            shared = (other.bucket, other.resources) == (self.bucket, self.resources)
            if shared and other.name != self.name:
                try:
                    yield other.io().source
                except UsageError as error:  # the definitions of the other source report it, too
                    _LOG.warning("inlets of %r do not signal %r: %s", self.name, other.name, error)

    def assets(self, project: Sequence["S3NotifyComponent"] = ()) -> SourceAssets:
        """The values from which the parts of the source are built. `UsageError` for settings that cannot work."""
        io = self.io(project)
        _ = io.source  # checks the settings before anything is built
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

    def io(self, project: Sequence["S3NotifyComponent"] = ()) -> SlotIOManager:
        """The IO manager, without the user's `resources`."""
        s3 = self.s3.model_dump(exclude_unset=True) if self.s3 else {}
        dynamodb = self.dynamodb.model_dump(exclude_unset=True) if self.dynamodb else {}
        spark = self.spark.model_dump(exclude_unset=True) if self.spark else {}
        latest = self.latest.model_dump(exclude_unset=True) if self.latest else {}
        return SlotIOManager(
            s3=NamedS3(**{S3_NAMES.get(name, name): value for name, value in s3.items()}),
            dynamodb=DynamoTables(**dynamodb),
            spark=SlotSpark(**{_SPARK_NAMES.get(name, name): value for name, value in spark.items()}),
            **values_of(self, *UNGROUPED, TopicSizeSettings)
            | {LATEST[name]: value for name, value in latest.items()}
            | {"other_platform_prefixes": "|".join(_other_prefixes(self, project))},
        )


def _other_prefixes(source: S3NotifyComponent, project: Sequence[S3NotifyComponent]) -> Iterator[str]:
    """Prefixes in this source's bucket where other sources keep their own objects."""
    if source.other_platform_prefixes:
        yield source.other_platform_prefixes
    for other in project:
        if other.name != source.name and source.bucket in (other.platform_bucket, other.bucket):
            with suppress(UsageError):  # the definitions of the other source report this error
                yield from unusual_prefixes(values_of(other, *UNGROUPED), source.bucket)


def _tag(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _slot_asset(path: str) -> SlotAsset:
    asset = imported(path)
    if not isinstance(asset, SlotAsset):
        raise UsageError(f"{path} is not a slot asset: decorate the function with @s3_slot_asset(source=…)")
    return replace(asset, code_version=asset.code_version or fingerprint(path))
