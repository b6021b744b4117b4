"""The upkeep of a source: a sensor that finishes the work of killed writers, reports the table's freshness, sweeps, and
keeps a run of each service alive (`managed_services`).

Only the sweep and the services need runs. If one part of a tick fails, the tick continues with the other parts. The
tick itself fails only if it has nothing to store, because Dagster stores nothing of a failed tick. The reconciler needs
no run: a pass is short, and the code server, which evaluates sensors, keeps the reconciler in memory between passes.
Changes of the queue, newly failing slots and newly stale slots are reported at most once a minute. When `sweep_cron` is
due, the sensor requests the sweep: a run of the checks `complete` and `chains_settled`.

Freshness. The queue is fresh while no change has waited for more than half of `fresh_seconds`. While the queue is
fresh, the asset `{source}_queue` is materialized at least once in `beat_seconds`: the longer of a minute and a fifth of
`fresh_seconds`. Otherwise the asset is only observed. The asset has one of Dagster's freshness policies. The policy
fails if the last materialization is older than `beat_seconds` plus half of `fresh_seconds`. So the policy fails if the
sensor does not run. The policy fails when a change has waited for `fresh_seconds`, or at most `beat_seconds` later. The
policy passes while a source has nothing to do.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

import dagster as dg
from pydantic import TypeAdapter, ValidationError

from s3notify_platform.channels.queue_gauges import queue_facts
from s3notify_platform.channels.reconcile.reconciler_service import shared_reconciler
from s3notify_platform.channels.service import SourceKeyspace
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.orchestration.check_results import COMPLETE, SETTLED, chains_as_seen
from s3notify_platform.orchestration.dagster_internals import (
    ANONYMOUS_ASSET_JOB_PREFIX,
    get_latest_completed_cron_tick,
)
from s3notify_platform.orchestration.freshness import freshness
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.managed_services import (
    INTERVAL_SECONDS,
    ManagedServices,
    ServiceState,
)
from s3notify_platform.orchestration.sensor_views import sensor_state
from s3notify_platform.orchestration.source_assets import SourceAssets
from s3notify_platform.orchestration.source_summary import SourceNow
from s3notify_platform.orchestration.ticks import tick_of
from s3notify_platform.table.snapshot import Snapshot

RECONCILE_SECONDS: Final = 30
OBSERVE_SECONDS: Final = 60
"""Seconds between two looks at queue and table. A look costs more than a pass of the reconciler."""

OBSERVED_TOPICS_MAX: Final = 20
"""Maximum number of topics that are observed."""

POLICY_SECONDS_MIN: Final = 60.0
"""Dagster allows no shorter freshness policy."""

_Event = dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation


def beat_seconds(fresh_seconds: float) -> float:
    """Seconds between two materializations of a fresh queue."""
    return max(OBSERVE_SECONDS, fresh_seconds / 5)


def freshness_policy(fresh_seconds: float) -> dg.FreshnessPolicy:
    """The policy of the asset `{source}_queue`."""
    seconds = fresh_seconds / 2 + beat_seconds(fresh_seconds)
    return dg.FreshnessPolicy.time_window(timedelta(seconds=max(POLICY_SECONDS_MIN, seconds)))


def queue_spec(assets: SourceAssets) -> dg.AssetSpec:
    """The asset of a source's queue: changes that wait to be ingested or delivered."""
    return dg.AssetSpec(
        f"{assets.name}_queue",
        description=f"Changes of {assets.name!r} that wait to be ingested or delivered, plotted by topic: depth and "
        "capacity, age of the oldest in seconds, in flight, delivered, failed, dead letters. Observations also have "
        "the counts of inlets and delivery since their start. The "
        f"freshness policy fails if a change has waited for {assets.fresh_seconds:g} s to be committed, or "
        "if the upkeep sensor does not run. Dagster shows another time than these seconds, because Dagster counts from "
        "the last materialization: the sensor materializes this asset at least every "
        f"{beat_seconds(assets.fresh_seconds):g} s, but not while a change has waited for more than "
        f"{assets.fresh_seconds / 2:g} s.",
        kinds={"s3"},
        freshness_policy=freshness_policy(assets.fresh_seconds),
        **assets.spec,
    )


def build_upkeep(
    assets: SourceAssets, checks: dg.AssetChecksDefinition, sweep_cron: str, services: ManagedServices
) -> dg.SensorDefinition:
    """The sensor `{source}_upkeep`."""
    # Dagster's UI does not list jobs whose names have this prefix. Dagster itself gives the prefix to the job that it
    # makes for each sensor of an asset selection.
    sweep = dg.define_asset_job(
        f"{ANONYMOUS_ASSET_JOB_PREFIX}_{assets.name}_upkeep", selection=dg.AssetSelection.checks(checks)
    )
    serves = f" Keeps a run of each service alive: {', '.join(services.by_name)}." if services.by_name else ""

    @dg.sensor(
        name=f"{assets.name}_upkeep",
        description=f"Finishes the work that killed writers of {assets.name!r} left incomplete: resolves their "
        "reservations, and signals their changes. Reports how fresh the table is, and which slots fail. "
        f"Compares the whole bucket with the table ({sweep_cron}, UTC).{serves}",
        jobs=[services.job(), sweep] if services.by_name else [sweep],
        minimum_interval_seconds=INTERVAL_SECONDS if services.by_name else RECONCILE_SECONDS,
        default_status=assets.sensor_status,
    )
    def upkeep(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        with tick_of(context, assets) as (io, instance):
            before = _Seen.loads(context.cursor)
            tick = _Tick(context=context, seen=replace(before, services={}))
            for name in services.by_name:
                known = before.services.get(name)
                with tick.part(name):
                    tick.keep(services, name, known, io, instance)
            with tick.part("reconciler"):
                tick.notes.append(_reconciled(context, io))
            with tick.part("sweep"):
                tick.seen, requests = tick.seen.due(assets, sweep_cron, sweep.name)
                tick.requests += requests
            if SYSTEM_CLOCK.wall_ms() - before.observed_ms >= OBSERVE_SECONDS * 1000:
                with tick.part("report"):
                    tick.events, tick.seen = tick.seen.look(assets, io, instance)
            return tick.result(before)

    return upkeep


@dataclass(slots=True, kw_only=True)
class _Tick:
    """One tick: the cursor, and the findings of the parts so far."""

    context: dg.SensorEvaluationContext
    seen: "_Seen"
    notes: list[str] = field(default_factory=list)
    requests: list[dg.RunRequest] = field(default_factory=list)
    events: Sequence[_Event] = ()
    failed: list[Exception] = field(default_factory=list)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Runs one part. If the part fails, the tick goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - any failure of a part must leave the other parts working
            self.failed.append(error)
            self.notes.append(f"{name} failed: {type(error).__name__}: {error}")
            self.context.log.warning(self.notes[-1])

    def keep(
        self,
        services: ManagedServices,
        name: str,
        known: ServiceState | None,
        io: SlotIOManager,
        instance: dg.DagsterInstance,
    ) -> None:
        """Keeps a run of a service alive. If this fails, the service's state stays unchanged."""
        if known is not None:
            self.seen = self.seen.with_service(name, known)
        done, requests = services.keep(name, known, io, instance)
        self.seen = self.seen.with_service(name, done.state)
        self.notes.append(f"{name}: {done.note}")
        self.requests += requests

    def result(self, before: "_Seen") -> dg.SensorResult:
        """The result for Dagster. Raises the first failure if there is nothing to store."""
        if self.failed and self.seen == before and not self.requests and not self.events:
            raise self.failed[0]
        note = "; ".join(self.notes)
        if self.requests:
            self.context.log.info(note)
        return dg.SensorResult(
            run_requests=self.requests,
            skip_reason=None if self.requests else note,
            asset_events=self.events,
            cursor=self.seen.dumps(),
        )


def _reconciled(context: dg.SensorEvaluationContext, io: SlotIOManager) -> str:
    """Runs a pass of the reconciler if it is due, and returns a line about it."""
    source, place = io.source, io.source.location
    reconciler = shared_reconciler(
        source.input.bucket,
        place.platform,
        keyspaces=(
            SourceKeyspace(signals=place.keyspace_prefix, prefix=source.input.prefix, slots=place.slots),
        ),
        queue_prefix=place.queue_prefix,
        table=place.records_table,
    )
    if (done := reconciler.reconcile_when_due()) is None:
        return "nothing changed: the last pass was a moment ago"
    for error in done.errors:
        context.log.warning(error)
    if not (done.waiting or done.committed or done.aborted or done.signalled):
        return "nothing changed: no killed writer has left anything"
    return (
        f"{done.waiting} reservations wait; for killed writers, {done.committed} were committed, "
        f"{done.aborted} aborted, and {done.signalled} keys signalled"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The upkeep's cursor: the facts that Dagster already has, so that only new facts are reported."""

    facts: Mapping[str, int | float] = field(default_factory=dict)
    observed_ms: int = 0
    beat_ms: int = 0
    failing: Sequence[int] = ()
    codes: Mapping[str, str] = field(default_factory=dict)
    """The code versions that the last report of stale slots used."""
    settled: bool = True
    due_at: float = 0.0
    """The time when the sweep was last due, in seconds."""
    services: Mapping[str, ServiceState] = field(default_factory=dict)

    @staticmethod
    def loads(text: str | None) -> "_Seen":
        try:
            return _CURSOR.validate_json(text or "{}")
        except ValidationError:
            # With an empty cursor, all facts are reported again. The runs of the services are found even then.
            return _Seen()

    def dumps(self) -> str:
        return _CURSOR.dump_json(self).decode()

    def with_service(self, name: str, state: ServiceState) -> "_Seen":
        return replace(self, services={**self.services, name: state})

    def due(self, assets: SourceAssets, cron: str, job: str) -> tuple["_Seen", list[dg.RunRequest]]:
        """Requests the sweep if it became due since the last tick. If several due times were missed, the sweep is
        requested once.
        """
        now = datetime.fromtimestamp(SYSTEM_CLOCK.wall_ms() / 1000, UTC)
        due = get_latest_completed_cron_tick(cron, now, None)
        after = replace(self, due_at=due.timestamp())
        if not self.due_at or after.due_at <= self.due_at:
            return after, []
        swept = [dg.AssetCheckKey(dg.AssetKey(assets.name), check) for check in (COMPLETE, SETTLED)]
        request = dg.RunRequest(
            job_name=job,
            run_key=f"{assets.name}-sweep-{due.isoformat()}",
            asset_selection=[],
            asset_check_keys=swept,
            tags={**assets.run_tags},
        )
        return after, [request]

    def look(
        self, assets: SourceAssets, io: SlotIOManager, instance: dg.DagsterInstance
    ) -> tuple[Sequence[_Event], "_Seen"]:
        """Events about changes of the queue, the table's freshness and the failing slots. Also returns the cursor for
        the next tick.
        """
        now_ms, topics = SYSTEM_CLOCK.wall_ms(), _topics(io)
        fresh = freshness(io, instance, queue_seconds=topics.get(f"{io.name}/oldest_age_seconds", 0.0))
        facts = topics | {
            "oldest_change_seconds": round(fresh.oldest_seconds, 1),
            "slots_not_committed": fresh.slots,
        }
        events: list[_Event] = []
        beat_ms = self.beat_ms
        passed = fresh.oldest_seconds <= assets.fresh_seconds / 2
        if passed and (facts != self.facts or now_ms - beat_ms >= beat_seconds(assets.fresh_seconds) * 1000):
            events.append(dg.AssetMaterialization(f"{io.name}_queue", metadata=facts))
            beat_ms = now_ms
        elif facts != self.facts:
            events.append(dg.AssetObservation(f"{io.name}_queue", metadata=facts))
        state = sensor_state(instance, io.name, io.clients.records)
        failing, settled = self.failing, self.settled
        if state is not None:
            failing = sorted(state.failing)
            evaluation = chains_as_seen(io.name, state)
            if (settled := evaluation.passed) != self.settled:
                events.append(evaluation)
        codes = {name: code for name, code in assets.code_versions.items() if code}
        if (failing, codes) != ([*self.failing], self.codes) and (found := _newest(io)) is not None:
            now = SourceNow(source=io.source, snapshot=found, state=state, codes=codes)
            events.append(dg.AssetMaterialization(f"{io.name}_summary", metadata=now.metadata()))
        return events, replace(
            self,
            facts=facts,
            observed_ms=now_ms,
            beat_ms=beat_ms,
            failing=failing,
            codes=codes,
            settled=settled,
        )


_CURSOR: Final = TypeAdapter(_Seen)


def _newest(io: SlotIOManager) -> Snapshot | None:
    try:
        found = io.source.table().newest()
    except CorruptError:  # no run can commit to this table
        return None
    return found if isinstance(found, Snapshot) else None


def _topics(io: SlotIOManager) -> dict[str, int | float]:
    """Facts of the topics that receive keys of this source. Cost: the requests of `queue_facts`, for each topic."""
    queue, prefix = io.clients.queue, io.source.input.prefix
    taking = (
        topic
        for topic in queue.topics.all()
        if topic.settings.bucket == io.bucket
        and (topic.settings.prefix.startswith(prefix) or prefix.startswith(topic.settings.prefix))
    )
    return {
        f"{topic.name}/{fact}": value
        for topic in islice(taking, OBSERVED_TOPICS_MAX)
        for fact, value in queue_facts(queue, topic).items()
    }
