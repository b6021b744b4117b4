"""`S3NotifyComponent`: a source in YAML. Thin: every part is built by a plain function beside it."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Literal

import dagster as dg
from dagster_aws.s3 import S3Resource
from pydantic import ConfigDict, Field, create_model

from s3notify_platform.channels.registry import SERVICES
from s3notify_platform.errors import UsageError
from s3notify_platform.formats.registry import AUTO, FORMATS
from s3notify_platform.ingest.scheduler import BatchSettings
from s3notify_platform.ingest.source import MAX_BYTES, MAX_OBJECTS, MAX_SECONDS, SPLIT_BYTES
from s3notify_platform.orchestration.assets import SlotAsset, SourceAssets, build_slot_assets
from s3notify_platform.orchestration.automation import SlotAutomationSensor
from s3notify_platform.orchestration.channels import build_channels, queue_spec, service_fields
from s3notify_platform.orchestration.checks import build_checks
from s3notify_platform.orchestration.delta_assets import build_delta
from s3notify_platform.orchestration.explain_job import build_explain
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.quarantine_retry import build_retry
from s3notify_platform.orchestration.resources import DynamoTables, SlotSpark
from s3notify_platform.orchestration.sensor import build_sensor
from s3notify_platform.orchestration.summary import build_summary
from s3notify_platform.slots import SLOT_COUNT
from s3notify_platform.stores.queue_records import QUEUE_PREFIX


class SparkSettings(dg.Model, dg.Resolvable):
    """Where Spark runs. Default: embedded, `local[*]`."""

    master: str | None = Field(default=None, description="local[*], spark://host:7077, yarn, …")
    remote: str | None = Field(default=None, description="Spark Connect instead: sc://host:15002")
    config: dict[str, Any] = Field(default={}, description="Further Spark properties")


class _AwsSettings(dg.Model, dg.Resolvable):
    """How to reach a service. Default: boto3's own chain (environment, profile, instance role).

    Credentials of its own are given by the names of environment variables, so that no secret is ever part of
    the definitions, which Dagster shows.
    """

    # An unknown field is refused; a secret given by value would be one.
    model_config = ConfigDict(extra="forbid")

    endpoint_url: str | None = None
    region_name: str | None = None
    access_key_id_env: str | None = Field(default=None, description="Environment variable with the key id")
    secret_access_key_env: str | None = Field(
        default=None, description="Environment variable with the secret"
    )
    session_token_env: str | None = Field(default=None, description="Environment variable with the token")

    def _fields(self) -> dict[str, Any]:
        """As dagster-aws' resources name them; the variables are looked up when a resource is used."""
        return {
            "endpoint_url": self.endpoint_url,
            "region_name": self.region_name,
            "aws_access_key_id": _variable(self.access_key_id_env),
            "aws_secret_access_key": _variable(self.secret_access_key_env),
            "aws_session_token": _variable(self.session_token_env),
        }


class S3Settings(_AwsSettings):
    """How to reach S3."""

    def resource(self) -> S3Resource:
        """dagster-aws' resource."""
        return S3Resource(**self._fields())


class DynamoSettings(_AwsSettings):
    """DynamoDB tables, made by `s3notify init`. Default: none, and the bucket carries everything."""

    records_table: str | None = Field(default=None, description="Table of ack chains and heartbeats")
    lease_table: str | None = Field(
        default=None, description="Table that keeps commits apart, one for each bucket"
    )

    def resource(self) -> DynamoTables:
        """The tables, and how to reach them."""
        return DynamoTables(records_table=self.records_table, lease_table=self.lease_table, **self._fields())


def _variable(name: str | None) -> str | None:
    return dg.EnvVar(name) if name else None


_Services = create_model("_Services", __base__=dg.Model, **service_fields())
"""The registered services, a field for each."""


class S3NotifyComponent(dg.Component, _Services, dg.Resolvable):  # type: ignore[misc,valid-type]
    """A bucket prefix as a slot-partitioned, committed table.

    Gives the ingest asset, its slot assets, quarantine and summary, the sensor, the sweep with its checks, the queue's
    reconciler, and the inlets and the outlet that are set.
    """

    # Dagster resolves a quoted "1" to a number, so a text may come as one.
    model_config = ConfigDict(populate_by_name=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = Field(description="Name of the source and of its asset: a-z, 0-9, _")
    bucket: str = Field(description="Bucket to watch")
    prefix: str = Field(default="", description="Only keys that begin with it")
    format: str = Field(
        default=AUTO, description="auto goes by suffix", json_schema_extra={"enum": [AUTO, *FORMATS]}
    )
    row_schema: str | None = Field(
        default=None,
        alias="schema",
        description='Columns as Spark DDL, like "id bigint, at timestamp"; inferred if missing',
    )
    mismatches: Literal["quarantine", "rescue"] = Field(
        default="quarantine",
        description="Of a record with values that do not fit: quarantine it, or rescue them to the column _rescued",
    )
    encoding: str = Field(
        default="utf-8", description="Of texts without a byte order mark: utf-8, cp1252, latin-1, …"
    )
    transform: str | None = Field(
        default=None, description="Import path of a (DataFrame) -> DataFrame that keeps lineage"
    )
    code_version: str | None = Field(
        default=None,
        description="Of the transform. Change it, and a slot's objects are read again when it is next asked for: "
        "all of them by a backfill",
    )
    slot_assets: list[str] = Field(
        default=[], description="Import paths of s3_slot_asset functions of this source"
    )
    description: str | None = None
    owners: list[str] = Field(default=[], description="Of its assets: user@example.com or team:name")
    group: str | None = None
    platform_bucket: str | None = Field(
        default=None, description="Bucket of the platform's own objects; default: the same"
    )
    platform_prefix: str | None = Field(default=None, description="Default: _s3notify/{name}/")
    keyspace_prefix: str | None = Field(
        default=None, description="Prefix of the signals; default: {platform_prefix}keyspace/"
    )
    queue_prefix: str = Field(
        default=QUEUE_PREFIX,
        description="Prefix of the notification queue in the platform's bucket; the same for all that share it",
    )
    queue_capacity: int = Field(
        default=10_000, description="Changes that wait to be taken in at most; a writer beyond is refused"
    )
    queue_shards: int = Field(default=8, description="Parts of the topic: more for more writers at once")
    slots: int = SLOT_COUNT
    max_objects: int = Field(default=MAX_OBJECTS, description="Objects that are read before a commit")
    max_bytes: int = Field(
        default=MAX_BYTES, description="Bytes that are read before a commit; bigger objects in parts"
    )
    max_seconds: float = Field(
        default=MAX_SECONDS, description="After so long a run leaves the rest to the next batch"
    )
    split_bytes: int = Field(
        default=SPLIT_BYTES, description="Size of the parts that big objects are read in"
    )
    interval_seconds: int = Field(default=5, description="Seconds between polls; 1 or more")
    parallel_runs: int = Field(default=1, description="Runs that a batch is split into")
    max_open: int = Field(default=1, description="Batches in flight at once; their slots are disjoint")
    max_attempts: int = Field(
        default=5,
        description="Batches a slot may fail in: the last gives up objects that cannot be read to quarantine; a slot "
        "that fails otherwise is parked",
    )
    backoff_seconds: float = Field(
        default=10.0, description="Before a slot that failed is tried again; doubles"
    )
    parked_seconds: float = Field(
        default=3600.0, description="Before a parked slot is tried again; as soon as it changes, too"
    )
    silence_seconds: float = Field(
        default=30.0, description="A run without heartbeat for this long is given up"
    )
    list_seconds: float = Field(
        default=10.0,
        description="Between listings of the bucket, if a writer does not queue; raise it for large buckets",
    )
    delta: bool = Field(
        default=False,
        description="Keep a Delta Lake view of the table, and of each slot asset's, for other engines: {name}_delta",
    )
    sweep_cron: str = Field(default="0 3 * * *", description="When bucket and state are compared as a whole")
    running: bool = Field(default=True, description="Whether sensor, sweep and automation start switched on")
    commit: Literal["auto", "native", "dynamodb"] = Field(
        default="auto",
        description="auto: native where the store can, else dynamodb if there is a lease_table",
    )
    s3: S3Settings = S3Settings()
    dynamodb: DynamoSettings = DynamoSettings()
    spark: SparkSettings = SparkSettings()

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002 - the base's signature
        """The definitions of this source."""
        return self.definitions()

    def definitions(self) -> dg.Definitions:
        """The same without a component tree, for `dg.Definitions.merge`."""
        assets = self.assets()
        slot_assets = build_slot_assets(assets)
        summary = build_summary(assets)
        views = build_delta(assets) if self.delta else []
        checks = build_checks(assets)
        ingest_job = dg.define_asset_job(
            f"{self.name}_ingest",
            selection=dg.AssetSelection.assets(slot_assets).without_checks(),
            description=f"Ingests slots of {self.name!r}; requested by its sensor.",
            # One step: a second process would only start Python and Spark's client again.
            executor_def=dg.in_process_executor,
        )
        sweep_job = dg.define_asset_job(
            f"{self.name}_sweep",
            selection=dg.AssetSelection.checks(checks),
            description=f"Compares the whole source {self.name!r} with its committed state, and repairs.",
            executor_def=dg.in_process_executor,
        )
        on = self.running
        sensor = build_sensor(
            assets,
            ingest_job,
            settings=BatchSettings(
                parallel_runs=self.parallel_runs,
                max_open=self.max_open,
                max_attempts=self.max_attempts,
                backoff_seconds=self.backoff_seconds,
                parked_seconds=self.parked_seconds,
                silence_seconds=self.silence_seconds,
                list_seconds=self.list_seconds,
            ),
            interval_seconds=self.interval_seconds,
            status=dg.DefaultSensorStatus.RUNNING if on else dg.DefaultSensorStatus.STOPPED,
        )
        automation = dg.AutomationConditionSensorDefinition(
            f"{self.name}_automation",
            target=dg.AssetSelection.assets(summary, *views),
            minimum_interval_seconds=max(5, self.interval_seconds),
            default_status=dg.DefaultSensorStatus.RUNNING if on else dg.DefaultSensorStatus.STOPPED,
        )
        following = SlotAutomationSensor(
            f"{self.name}_slot_automation",
            source=self.name,
            op_name=assets.op_name,
            slot_assets=[asset.name for asset in assets.slot_assets],
            minimum_interval_seconds=max(5, self.interval_seconds),
            default_status=dg.DefaultSensorStatus.RUNNING if on else dg.DefaultSensorStatus.STOPPED,
        )
        sweep = dg.ScheduleDefinition(
            name=f"{self.name}_sweep_schedule",
            job=sweep_job,
            cron_schedule=self.sweep_cron,
            default_status=dg.DefaultScheduleStatus.RUNNING if on else dg.DefaultScheduleStatus.STOPPED,
        )
        services = {name: getattr(self, name) for name in SERVICES}
        jobs, sensors = build_channels(assets, services, running=on)
        return dg.Definitions(
            assets=[slot_assets, summary, queue_spec(assets), *views],
            asset_checks=[checks],
            jobs=[ingest_job, sweep_job, build_explain(assets), build_retry(assets), *jobs],
            sensors=[sensor, automation, *([following] if assets.slot_assets else []), *sensors],
            schedules=[sweep],
            resources={assets.io_key: assets.io},
        )

    def assets(self) -> SourceAssets:
        """What the parts are built from; `UsageError` for settings that cannot work."""
        for limit in ("interval_seconds", "parallel_runs", "max_open", "max_attempts"):
            if getattr(self, limit) < 1:
                raise UsageError(f"source {self.name!r}: {limit}={getattr(self, limit)} must be at least 1")
        io = SlotIOManager(
            s3=self.s3.resource(),
            dynamodb=self.dynamodb.resource(),
            commit_mode=self.commit,
            spark=SlotSpark(
                master=self.spark.master, remote=self.spark.remote, spark_config=self.spark.config
            ),
            source_name=self.name,
            bucket=self.bucket,
            prefix=self.prefix,
            format=self.format,
            row_schema=self.row_schema,
            encoding=self.encoding,
            platform_bucket=self.platform_bucket,
            platform_prefix=self.platform_prefix or "",
            keyspace_prefix=self.keyspace_prefix or "",
            queue_prefix=self.queue_prefix,
            queue_capacity=self.queue_capacity,
            queue_shards=self.queue_shards,
            slots=self.slots,
            max_objects=self.max_objects,
            mismatches=self.mismatches,
            max_bytes=self.max_bytes,
            max_seconds=self.max_seconds,
            split_bytes=self.split_bytes,
            code_version=self.code_version,
        )
        _ = io.source  # its own checks, before anything is built
        return SourceAssets(
            io=io,
            transform=_imported(self.transform) if self.transform else None,
            slot_assets=_slot_assets(self.slot_assets),
            description=self.description,
            owners=self.owners,
            group=self.group,
        )


def _slot_assets(paths: Sequence[str]) -> list[SlotAsset]:
    found = [_imported(path) for path in paths]
    for path, asset in zip(paths, found, strict=True):
        if not isinstance(asset, SlotAsset):
            raise UsageError(
                f"{path} is not a slot asset: decorate the function with @s3_slot_asset(source=…)"
            )
    return found


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"cannot import {path!r}: {error}; give the full path of a function") from error
