"""Inlets, outlet and reconciler of a source, managed by Dagster: what the component's YAML switches on.

The reconciler is a sensor: a pass is short, and the code server, which evaluates sensors, lives as long as what a
reconciler has to remember. Inlets and the outlet are runs that a sensor keeps alive (`services`). How full the queue
is, the reconciler reports as observations of the asset `{source}_queue`, which Dagster plots.
"""

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import dagster as dg
from pydantic import ConfigDict, Field

from s3notify_platform.channels.delivery.endpoint import Egress
from s3notify_platform.channels.delivery.worker import Delivery
from s3notify_platform.channels.inlets.http import Receiver, ReceiverSettings
from s3notify_platform.channels.inlets.intake import Intake, intake_over
from s3notify_platform.channels.inlets.sqs import SqsInlet
from s3notify_platform.channels.reconciler import shared_reconciler
from s3notify_platform.channels.service import Service
from s3notify_platform.orchestration.assets import SourceAssets
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.partitions import SOURCE_TAG
from s3notify_platform.orchestration.services import Make, build_service
from s3notify_platform.stores.sqs import SqsConfig, SqsQueue

CARE_SECONDS = 15
TOPICS_MAX = 20
"""Topics that are observed."""

SCANNED_MAX = 500


class SqsInletSettings(dg.Model, dg.Resolvable):
    """Take in S3's event notifications from an SQS queue, with the source's own credentials."""

    model_config = ConfigDict(extra="forbid")

    queue_url: str
    region_name: str | None = Field(default=None, description="Default: that of the source's S3")
    endpoint_url: str | None = Field(default=None, description="Default: AWS")
    visibility_seconds: int = 60

    def service(self, io: SlotIOManager) -> Service:
        """The inlet."""
        s3 = io.source.location.platform
        config = SqsConfig(
            queue_url=self.queue_url,
            region=self.region_name or s3.region,
            endpoint_url=self.endpoint_url,
            access_key_id=s3.access_key_id,
            secret_access_key=s3.secret_access_key,
            session_token=s3.session_token,
        )
        return SqsInlet(SqsQueue(config), intake_of(io), visibility_seconds=self.visibility_seconds)


class HttpInletSettings(dg.Model, dg.Resolvable):
    """Take in the posts of Ceph RGW and MinIO."""

    model_config = ConfigDict(extra="forbid")

    host: str = "127.0.0.1"
    port: int = 8086
    secret_env: str = Field(
        default="S3NOTIFY_RECEIVER_SECRET", description="Environment variable with the secret"
    )
    cert_file: str | None = None
    key_file: str | None = None

    def service(self, io: SlotIOManager) -> Service:
        """The inlet. `UsageError` without a secret, or off loopback without TLS."""
        settings = ReceiverSettings(
            secret_envs=[self.secret_env],
            host=self.host,
            port=self.port,
            cert_file=Path(self.cert_file) if self.cert_file else None,
            key_file=Path(self.key_file) if self.key_file else None,
        )
        return Receiver(settings, intake_of(io))


class DeliverSettings(dg.Model, dg.Resolvable):
    """Push the topics of the bucket's queue that have an endpoint; one source of a bucket is enough."""

    model_config = ConfigDict(extra="forbid")

    allow_networks: list[str] = Field(
        default=[], description="CIDR of endpoints that are not public, like 10.1.0.0/16"
    )
    allow_http: bool = False

    def service(self, io: SlotIOManager) -> Service:
        """The outlet."""
        return Delivery(io.queue, egress=Egress.of(self.allow_networks, allow_http=self.allow_http))


def intake_of(io: SlotIOManager) -> Intake:
    """What a source's inlets put reports into: every topic that takes a key; the source's signals."""
    source = io.source
    return intake_over(
        io.queue,
        source.location.platform,
        bucket=source.input.bucket.bucket,
        keyspaces=[(source.location.keyspace_prefix, source.input.prefix)],
        excluded=(source.location.platform_prefix, source.location.queue_prefix),
        slots=source.location.slots,
    )


def build_channels(
    assets: SourceAssets,
    services: Iterable[tuple[str, SqsInletSettings | HttpInletSettings | DeliverSettings | None]],
    *,
    running: bool,
) -> tuple[list[dg.JobDefinition], list[dg.SensorDefinition]]:
    """Jobs and sensors of the services that are set, by name, and the sensor that takes care of the queue."""
    jobs: list[dg.JobDefinition] = []
    sensors = [_reconciler_sensor(assets, running=running)]
    for name, settings in services:
        if settings is None:
            continue
        make: Make = settings.service
        job, sensor = build_service(f"{assets.name}_{name}", make, io_key=assets.io_key, running=running)
        jobs.append(job)
        sensors.append(sensor)
    return jobs, sensors


def _reconciler_sensor(assets: SourceAssets, *, running: bool) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{assets.name}_reconciler",
        description=f"Tells {assets.name!r} of changes whose writers died half-way, and frees their room.",
        minimum_interval_seconds=CARE_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        required_resource_keys={assets.io_key},
    )
    def reconcile(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        io: SlotIOManager = getattr(context.resources, assets.io_key)
        source = io.source
        reconciler = shared_reconciler(
            source.input.bucket,
            source.location.platform,
            keyspaces=((source.location.keyspace_prefix, source.input.prefix),),
            slots=source.location.slots,
            queue_prefix=source.location.queue_prefix,
            table=source.location.records_table,
        )
        note = "a pass was made a moment ago"
        if (reconciled := reconciler.reconcile_when_due()) is not None:
            for error in reconciled.errors:
                context.log.warning(error)
            note = (
                f"{reconciled.waiting} reservations wait, {reconciled.committed} were committed and "
                f"{reconciled.aborted} aborted for writers that died, {reconciled.signalled} keys signalled for them"
            )
        observed, cursor = _observed(io, context.cursor or "")
        return dg.SensorResult(skip_reason=note, asset_events=observed, cursor=cursor)

    return reconcile


def queue_spec(assets: SourceAssets) -> dg.AssetSpec:
    """The notification queue of a source as an asset that nothing makes: its observations are its curves."""
    return dg.AssetSpec(
        f"{assets.name}_queue",
        description=f"Changes of {assets.name!r} that wait to be taken in, or to be delivered, by topic: depth against "
        "capacity, age of the oldest in seconds, in flight, delivered, failed, dead.",
        kinds={"s3"},
        owners=assets.owners,
        group_name=assets.group or assets.name,
        tags={SOURCE_TAG: assets.name},
    )


def _observed(io: SlotIOManager, before: str) -> tuple[list[dg.AssetObservation], str]:
    """What has changed of the bucket's topics since `before`. A few requests a shard; 1 GET an entry on a bucket alone.

    A topic with more than `SCANNED_MAX` entries is not looked through: its depth is then what its bound counts with.
    """
    queue = io.queue
    facts: dict[str, int | float] = {}
    for topic in islice(queue.topics.all(), TOPICS_MAX):
        if topic.settings.bucket != io.bucket:
            continue
        shards = range(topic.settings.shards)
        counted = sum(queue.shards.counted(topic, shard) + topic.quotas[shard].base for shard in shards)
        facts[f"{topic.name}/capacity"] = topic.settings.capacity
        if counted > SCANNED_MAX:
            facts[f"{topic.name}/depth"] = counted
            continue
        stats = queue.stats(topic.name)
        facts[f"{topic.name}/depth"] = stats.depth
        facts[f"{topic.name}/oldest_age_seconds"] = round(stats.oldest_age_seconds or 0.0, 1)
        for name in ("in_flight", "delivered", "failed", "dead"):
            facts[f"{topic.name}/{name}"] = getattr(stats, name)
    cursor = json.dumps(facts)
    if not facts or cursor == before:
        return [], before
    return [dg.AssetObservation(asset_key=f"{io.source_name}_queue", metadata=facts)], cursor
