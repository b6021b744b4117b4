"""Services and reconciler of a source, managed by Dagster, as the component's YAML enables them.

The reconciler is a sensor: a pass is short, and the code server, which evaluates sensors, keeps the reconciler's memory
between passes. Inlets and outlets are the registered services, in runs that a sensor keeps alive. The
reconciler's sensor also reports the queue's depth, as observations of the asset `{source}_queue`, which Dagster plots.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice

import dagster as dg

from s3notify_platform.channels.queue_gauges import queue_facts
from s3notify_platform.channels.reconcile.reconciler_service import shared_reconciler
from s3notify_platform.channels.service import Service, ServiceContext, ServiceSettings
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.orchestration.freshness import freshness
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.managed_services import build_service
from s3notify_platform.orchestration.source_assets import SourceAssets
from s3notify_platform.orchestration.ticks import tick_of

RECONCILE_SECONDS = 30
OBSERVE_SECONDS = 60
"""Between two looks at the queue, which cost more than a pass of the reconciler."""

TOPICS_MAX = 20
"""How many topics are observed."""

EVALUATE_SECONDS = 3600
"""The check of freshness is reported at least so often; at once if it passes no more, or again."""


def build_channels(
    assets: SourceAssets, services: Mapping[str, ServiceSettings]
) -> tuple[list[dg.JobDefinition], list[dg.SensorDefinition]]:
    """Jobs and sensors of these services, by name, and the sensor of the reconciler."""
    built = [_build_service(assets, name, settings) for name, settings in services.items()]
    return [job for job, _ in built], [_reconciler_sensor(assets), *(sensor for _, sensor in built)]


def _build_service(
    assets: SourceAssets, name: str, settings: ServiceSettings
) -> tuple[dg.JobDefinition, dg.SensorDefinition]:
    def service(io: SlotIOManager) -> Service:
        """The service of this source: an inlet signals no other."""
        source, place = io.source, io.source.location
        keyspace = (place.keyspace_prefix, source.input.prefix)
        return settings.build(
            ServiceContext(
                name=name,
                queue=io.clients.queue,
                platform=place.platform,
                bucket=source.input.bucket.bucket,
                keyspaces=(keyspace,),
                excluded=source.own,
                sources={keyspace: io.name},
                skipping=frozenset({keyspace} if source.input.hidden_files == "skip" else ()),
                slots=place.slots,
            )
        )

    return build_service(f"{assets.name}_{name}", service, assets)


def _reconciler_sensor(assets: SourceAssets) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{assets.name}_reconciler",
        description=f"Finishes the work that killed writers of {assets.name!r} left incomplete: resolves their "
        "reservations, and signals their changes.",
        minimum_interval_seconds=RECONCILE_SECONDS,
        default_status=assets.sensor_status,
    )
    def reconcile(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        with tick_of(context, assets) as (io, instance):
            return look(context, io, instance)

    def look(
        context: dg.SensorEvaluationContext, io: SlotIOManager, instance: dg.DagsterInstance
    ) -> dg.SensorResult:
        source, place = io.source, io.source.location
        reconciler = shared_reconciler(
            source.input.bucket,
            place.platform,
            keyspaces=((place.keyspace_prefix, source.input.prefix),),
            slots=place.slots,
            queue_prefix=place.queue_prefix,
            table=place.records_table,
        )
        note = "the last pass was a moment ago"
        if (reconciled := reconciler.reconcile_when_due()) is not None:
            for error in reconciled.errors:
                context.log.warning(error)
            note = (
                f"{reconciled.waiting} reservations wait; for killed writers, {reconciled.committed} were committed, "
                f"{reconciled.aborted} aborted, and {reconciled.signalled} keys signalled"
            )
        before = _Observed.loads(context.cursor)
        if SYSTEM_CLOCK.wall_ms() - before.observed_ms < OBSERVE_SECONDS * 1000:
            return dg.SensorResult(skip_reason=note, cursor=context.cursor)
        events, after = before.look(io, instance, assets.fresh_seconds)
        return dg.SensorResult(skip_reason=note, asset_events=events, cursor=after.dumps())

    return reconcile


def queue_spec(assets: SourceAssets) -> dg.AssetSpec:
    """The notification queue of a source as an external asset, whose observations Dagster plots."""
    return dg.AssetSpec(
        f"{assets.name}_queue",
        description=f"Changes of {assets.name!r} that wait to be ingested or delivered, by topic: depth and capacity, "
        "age of the oldest in seconds, in flight, delivered, failed, dead letters.",
        kinds={"s3"},
        **assets.spec,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observed:
    """The reconciler's cursor: what Dagster has, so that only what is new is reported."""

    facts: Mapping[str, int | float] = field(default_factory=dict)
    observed_ms: int = 0
    passed: bool | None = None
    evaluated_ms: int = 0

    @classmethod
    def loads(cls, text: str | None) -> "_Observed":
        try:
            return cls(**json.loads(text or "{}"))
        except (ValueError, TypeError):  # it is for people, and reported again
            return cls()

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    def look(
        self, io: SlotIOManager, instance: dg.DagsterInstance, fresh_seconds: float
    ) -> tuple[list[dg.AssetObservation | dg.AssetCheckEvaluation], "_Observed"]:
        """What is new at the queue and of the table's freshness, and the cursor after it."""
        now_ms, facts = SYSTEM_CLOCK.wall_ms(), _facts(io)
        fresh = freshness(
            io, instance, fresh_seconds, queue_seconds=facts.get(f"{io.name}/oldest_age_seconds", 0.0)
        )
        events: list[dg.AssetObservation | dg.AssetCheckEvaluation] = []
        if facts and facts != self.facts:
            events.append(dg.AssetObservation(asset_key=f"{io.name}_queue", metadata=facts))
        evaluated_ms = self.evaluated_ms
        if fresh.passed != self.passed or now_ms - evaluated_ms >= EVALUATE_SECONDS * 1000:
            events.append(dg.AssetCheckEvaluation(**fresh.evaluation(io.name)))
            evaluated_ms = now_ms
        return events, _Observed(
            facts=facts, observed_ms=now_ms, passed=fresh.passed, evaluated_ms=evaluated_ms
        )


def _facts(io: SlotIOManager) -> dict[str, int | float]:
    """Facts of the topics that take keys of this source. Requests as `queue_facts` for each."""
    queue, prefix = io.clients.queue, io.source.input.prefix
    taking = (
        topic
        for topic in queue.topics.all()
        if topic.settings.bucket == io.bucket
        and (topic.settings.prefix.startswith(prefix) or prefix.startswith(topic.settings.prefix))
    )
    return {
        f"{topic.name}/{fact}": value
        for topic in islice(taking, TOPICS_MAX)
        for fact, value in queue_facts(queue, topic).items()
    }
