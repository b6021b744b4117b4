"""`S3NotifyComponent`: a source in YAML. Thin: functions of the other modules build each part."""

import json
from typing import Annotated, Any

import dagster as dg
from pydantic import ConfigDict, Field, create_model

from s3notify_platform.channels.registry import SERVICES
from s3notify_platform.errors import UsageError
from s3notify_platform.ingest.batches import BatchSettings
from s3notify_platform.ingest.settings import (
    SOURCE,
    LeaseTimeSettings,
    TableSettings,
    TopicSizeSettings,
    imported,
)
from s3notify_platform.orchestration.assets import build_slot_assets
from s3notify_platform.orchestration.automation import SlotAutomationSensor
from s3notify_platform.orchestration.bucket_assets import build_delta, build_summary, build_tags
from s3notify_platform.orchestration.channels import build_channels, queue_spec, service_fields
from s3notify_platform.orchestration.checks import build_checks
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.manual_jobs import build_explain, build_retry
from s3notify_platform.orchestration.resources import DynamoTables, NamedS3, SlotSpark
from s3notify_platform.orchestration.scaffold import SourceScaffolder
from s3notify_platform.orchestration.sensor import build_sensor
from s3notify_platform.orchestration.session_places import SESSIONS_MAX
from s3notify_platform.orchestration.setting_fields import described, settings_fields, values_of
from s3notify_platform.orchestration.source_assets import SlotAsset, SourceAssets
from s3notify_platform.setting import check_settings


class SparkSettings(dg.Model, dg.Resolvable):
    """Where Spark runs. Default: embedded, `local[*]`."""

    master: Annotated[str | None, described("Master, like spark://host:7077, yarn; default: local[*]")] = None
    remote: Annotated[str | None, described("Spark Connect instead, like sc://host:15002")] = None
    max_sessions: Annotated[
        int,
        Field(ge=1),
        described(
            "Spark sessions that runs of a machine have at once, besides those of warm workers, whatever the number of "
            "sources; further runs wait. Without effect for remote. Default: 4"
        ),
    ] = SESSIONS_MAX
    config: Annotated[dict[str, Any], described("Further Spark properties")] = Field(default={})


class AwsSettings(dg.Model, dg.Resolvable):
    """How to reach a service. Default: boto3's own chain (environment, profile, instance role).

    Other credentials are given by the names of environment variables or of a profile, so that no secret is ever part
    of the definitions, which Dagster shows, or of Spark's tasks. Dagster's processes and Spark's workers each read
    them for themselves; a profile that changes is read again within a minute, variables only at a start.
    """

    # Unknown fields are refused: among them secrets that are given by value.
    model_config = ConfigDict(extra="forbid")

    endpoint_url: Annotated[str | None, described("Endpoint, like http://127.0.0.1:9000; default: AWS")] = (
        None
    )
    region_name: Annotated[
        str | None,
        described("Region, like eu-west-1; default: AWS_REGION, or the profile's; of dynamodb: s3's"),
    ] = None
    profile_name: Annotated[
        str | None, described("Profile of AWS's files, like landing, on every machine")
    ] = None
    access_key_id_env: Annotated[
        str | None, described("Environment variable with the key id, like MY_KEY_ID")
    ] = None
    secret_access_key_env: Annotated[
        str | None, described("Environment variable with the secret, like SECRET")
    ] = None
    session_token_env: Annotated[
        str | None, described("Environment variable with the token, like MY_TOKEN")
    ] = None
    role_arn: Annotated[
        str | None, described("Role to assume, like arn:aws:iam::123456789012:role/landing")
    ] = None
    external_id: Annotated[
        str | None, described("External id that the role's owner asks for, like acme-7")
    ] = None

    def fields(self) -> dict[str, Any]:
        """The fields as the resources name them; variables are read where a request is sent."""
        return {name: getattr(self, name) for name in _ACCESS}


_ACCESS = (*AwsSettings.model_fields,)


class S3Settings(AwsSettings):
    """How to reach the buckets."""

    requester_pays: Annotated[bool, described("Say with each request that we pay for it")] = False
    kms_key_id: Annotated[
        str | None,
        described("Key of KMS for what the platform writes, like alias/platform; default: the bucket's"),
    ] = None

    def fields(self) -> dict[str, Any]:
        """See `AwsSettings.fields`."""
        return {name: getattr(self, name) for name in S3Settings.model_fields}


_Tables = create_model("_Tables", __base__=AwsSettings, **settings_fields(TableSettings, LeaseTimeSettings))


class DynamoSettings(_Tables):  # type: ignore[misc,valid-type]
    """DynamoDB tables, created by `s3notify init`. Default: none; everything is on the bucket."""


_Settings = create_model(
    "_Settings",
    __base__=dg.Model,
    **settings_fields(*SOURCE, TopicSizeSettings, BatchSettings),
    **service_fields(),
)
"""The declared settings and the registered services, a field for each."""


@dg.scaffold_with(SourceScaffolder)
class S3NotifyComponent(dg.Component, _Settings, dg.Resolvable):  # type: ignore[misc,valid-type]
    """A bucket prefix as a slot-partitioned, committed table.

    Defines the ingest asset, its slot assets, quarantine and summary, the sensor, the sweep with its checks, the
    reconciler of the queue, and the inlets and the outlet that are set.
    """

    # Dagster resolves a quoted "1" to a number, so a string field may get a number.
    model_config = ConfigDict(populate_by_name=True, extra="forbid", coerce_numbers_to_str=True)

    transform: Annotated[
        str | None,
        described(
            "(DataFrame) -> DataFrame that keeps _slot, _key, _etag, _offset, like defs.orders.assets.clean"
        ),
    ] = None
    slot_assets: Annotated[list[str], described("Import paths of s3_slot_asset functions of this source")] = (
        Field(default=[])
    )
    description: Annotated[
        str | None, described("Description of the source's asset, like: Orders of the shop")
    ] = None
    owners: Annotated[list[str], described("Owners of its assets: user@example.com or team:name")] = Field(
        default=[]
    )
    group: Annotated[str | None, described("Group of its assets, like landing; default: {name}")] = None
    interval_seconds: Annotated[
        int, Field(ge=1), described("Seconds between ticks of the sensor; Dagster's own loop takes 5")
    ] = 4
    poll_seconds: Annotated[
        float,
        Field(ge=0),
        described(
            "Seconds between polls within a tick; a tick polls once if 0, if ticks are more than 5 s apart, if the "
            "code location has more than 20 sources, or if dagster.yaml does not have sensors: {use_threads: true}"
        ),
    ] = 0.3
    delta: Annotated[
        bool,
        described(
            "Keep a Delta Lake view of the table and of each slot asset, for other engines: {name}_delta"
        ),
    ] = False
    sweep_cron: Annotated[
        str,
        described("When the sweep compares the whole bucket with the state; once after the first batch, too"),
    ] = "0 3 * * *"
    fresh_seconds: Annotated[
        float,
        Field(gt=0),
        described("The check of freshness fails if a change is not committed for so long (seconds)"),
    ] = 900.0
    running: Annotated[bool, described("Whether sensors, sweep and automation are on from the start")] = True
    run_tags: Annotated[
        dict[str, Any],
        described(
            "Tags of the runs that its sensors, schedules and jobs start, like dagster-k8s/config with the pod's "
            "memory"
        ),
    ] = Field(default={})
    op_tags: Annotated[
        dict[str, Any],
        described("Tags of its steps with Spark, like dagster-k8s/config where each step is a pod"),
    ] = Field(default={})
    pool: Annotated[
        str | None,
        described(
            "Dagster's pool of its steps with Spark, like spark; sources that name the same one share its limit, which "
            "is set in the UI or in dagster.yaml"
        ),
    ] = None
    resources: Annotated[
        dict[str, str],
        described(
            "Keys of the project's own resources to use instead: spark (a PySparkResource that starts on first use), "
            "s3 (an S3Resource without keys), dynamodb (a DynamoTables). Default: {name}_spark, {name}_s3 and "
            "{name}_dynamodb, which are made from what follows"
        ),
    ] = Field(default={})
    s3: Annotated[S3Settings, described("How to reach S3")] = S3Settings()
    dynamodb: Annotated[DynamoSettings, described("DynamoDB tables; default: none")] = DynamoSettings()
    spark: Annotated[SparkSettings, described("Where Spark runs; default: embedded")] = SparkSettings()

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002 - the base's signature
        """The definitions of this source."""
        return self.definitions()

    def definitions(self) -> dg.Definitions:
        """The same without a component tree, for `dg.Definitions.merge`."""
        assets = self.assets()
        slot_assets = build_slot_assets(assets)
        summary = build_summary(assets)
        views = build_delta(assets) if self.delta else []
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
            description=f"Slots of {self.name!r} in one run, however scattered: like 3,17,40-60; failed; older than "
            "6h; all.",
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
            target=dg.AssetSelection.assets(summary, *views, *tags),
            # Readers of a view wait for it. Of a summary nobody does, and each evaluation costs as much as a poll.
            minimum_interval_seconds=self.interval_seconds if views else max(self.interval_seconds, 30),
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
        services = {name: found for name in SERVICES if (found := getattr(self, name)) is not None}
        jobs, sensors = build_channels(assets, services)
        return dg.Definitions(
            assets=[slot_assets, summary, queue_spec(assets), *views, *tags],
            asset_checks=[checks],
            jobs=[ingest_job, backfill_job, sweep_job, build_explain(assets), build_retry(assets), *jobs],
            sensors=[sensor, automation, *following, *sensors],
            schedules=[sweep],
            resources=assets.definitions,
        )

    def assets(self) -> SourceAssets:
        """The inputs of the parts; `UsageError` for settings that cannot work."""
        check_settings(self, TopicSizeSettings, BatchSettings)
        io = SlotIOManager(
            s3=NamedS3(**self.s3.fields()),
            dynamodb=DynamoTables(
                **values_of(self.dynamodb, TableSettings, LeaseTimeSettings), **self.dynamodb.fields()
            ),
            spark=SlotSpark(
                master=self.spark.master,
                remote=self.spark.remote,
                max_sessions=self.spark.max_sessions,
                spark_config=self.spark.config,
            ),
            **values_of(self, *SOURCE, TopicSizeSettings),
        )
        if unknown := self.resources.keys() - {"spark", "s3", "dynamodb"}:
            raise UsageError(f"resources {sorted(unknown)}: only spark, s3 and dynamodb may be replaced")
        _ = io.source  # its own checks, before anything is built
        return SourceAssets(
            io=io,
            transform=imported(self.transform) if self.transform else None,
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


def _tag(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _slot_asset(path: str) -> SlotAsset:
    asset = imported(path)
    if not isinstance(asset, SlotAsset):
        raise UsageError(f"{path} is not a slot asset: decorate the function with @s3_slot_asset(source=…)")
    return asset
