"""Declarative automation of the assets downstream of a source: conditions, and the sensor for scattered slots.

A batch's run makes the slot assets in the source's own step. `follow_slots` is true for slots that this step did not
make, in three cases: only the source was materialized, the slot asset is new, or the last run of the slot asset failed.
Dagster's own automation sensor launches one run for each contiguous range of slots. `SlotAutomationSensor` requests one
run for all these slots. The UI shows the history of the conditions as usual.

A run that was killed or canceled, or that failed as a whole, may end without a report about some of its slots. Dagster
does not count these slots as failed, so no condition becomes true for them. The sensor itself requests the slots again,
with the source's backoff for failed slots. A run counts as dead under the same rules as a run of a batch (`run_pulse`).
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus, RunsFilter

from s3notify_platform.engine.batch.run_pulse import pulse_of
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.orchestration.dagster_internals import (
    PARTITION_NAME_TAG,
    SensorExecutionData,
    copy,
)
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.partitions import SOURCE_TAG
from s3notify_platform.orchestration.run_health import ENDED, report_silent, run_view
from s3notify_platform.orchestration.source_assets import SourceAssets
from s3notify_platform.orchestration.ticks import tick_of
from s3notify_platform.source.batch_settings import BatchSettings

AUTOMATION_TAG: Final = "s3notify/automation"
ATTEMPT_TAG: Final = "s3notify/attempt"
"""Tag of a run that the automation requested: the number of the attempt. The first attempt has the number 1. If a run
repeats the slots of an earlier run, the run's number is the earlier run's number plus 1.
"""

RETRY_CRON: Final = "*/10 * * * *"
IN_FLIGHT: Final = [status for status in DagsterRunStatus if status not in ENDED]


def made_tag(asset: str) -> str:
    """The tag of a run that also makes the slot asset `asset`, for every slot that the run commits."""
    return f"s3notify-made/{asset}"


def follow_slots(asset: str) -> dg.AutomationCondition[Any]:
    """True for a slot if a run committed the slot in the source, but did not make the slot of `asset`.

    A slot that failed only in `asset`, and not in its source, is retried every ten minutes.
    """
    condition = dg.AutomationCondition
    # `any_deps_updated()` does not fit: if several partitions were updated, it considers only the run that made the
    # last partition.
    together = condition.all_new_updates_have_run_tags(tag_keys={made_tag(asset)})
    updated = condition.any_deps_match(condition.newly_updated() & ~together)
    # The order of the terms matters, because a run reports the source before the slot asset, and a later term sees
    # newer events.
    never_made = (~condition.any_deps_missing() & condition.missing()).newly_true()
    failed = condition.execution_failed() & ~condition.any_deps_match(condition.execution_failed())
    again = failed & condition.cron_tick_passed(RETRY_CRON)
    handled = condition.newly_requested() & ~updated
    return ((updated | never_made | again).since(handled) & ~condition.any_deps_missing()).with_label(
        "when the source committed the slot without this asset"
    )


SlotsByAsset = Mapping[dg.AssetKey, set[str]]


class SlotAutomationSensor(dg.AutomationConditionSensorDefinition):
    """Requests one run that has exactly these slots: the slots that the conditions request, and the slots of a killed
    run.

    No condition is evaluated while a run is in flight, or before the slots of a killed run are due again. Otherwise
    updates would be dropped. `settings`: the backoff, and the time after which a run counts as dead.
    """

    def __init__(
        self, assets: SourceAssets, settings: BatchSettings, metadata: Mapping[str, Any] | None = None
    ) -> None:
        self._assets = assets
        self._settings = settings
        # After a reload of the code location, silence and backoff are measured from the beginning.
        self._progress: Mapping[str, tuple[int, int]] = {}
        self._ended = ("", 0.0)
        # Dagster warns that the evaluation of conditions in user code is a beta feature.
        with warnings.catch_warnings(category=dg.BetaWarning, action="ignore"):
            super().__init__(
                f"{assets.name}_slot_automation",
                target=dg.AssetSelection.assets(*(asset.name for asset in assets.slot_assets)),
                use_user_code_server=True,
                emit_backfills=False,
                minimum_interval_seconds=assets.interval_seconds,
                default_status=assets.sensor_status,
                metadata=metadata,
                description=f"Requests slot assets of {assets.name!r} that no batch has made, in one run for "
                "all slots.",
            )

    def with_attributes(
        self,
        *,
        jobs: Sequence[Any] | None = None,  # noqa: ARG002 - the base's signature
        metadata: Mapping[str, Any] | None = None,
    ) -> "SlotAutomationSensor":
        """Returns a copy, because Dagster copies sensors when it loads definitions. Without this method, Dagster's copy
        would be an instance of the base class.
        """
        return SlotAutomationSensor(
            self._assets, self._settings, self.metadata if metadata is None else metadata
        )

    def evaluate_tick(self, context: dg.SensorEvaluationContext) -> SensorExecutionData:
        """The result of Dagster's own evaluation, with all requested partitions in one run."""
        with tick_of(context, self._assets) as (io, instance):
            tags = {AUTOMATION_TAG: self._assets.name}
            flying = instance.get_runs(filters=RunsFilter(tags=tags, statuses=IN_FLIGHT))
            if flying:
                self._watch(flying, io, instance)
                return SensorExecutionData(
                    skip_message="the run that was requested last has not ended", cursor=context.cursor
                )
            last = next(iter(instance.get_runs(filters=RunsFilter(tags=tags), limit=1)), None)
            left = self._left(last, instance)
            if last is not None and left and (wait := self._wait(last)) > 0:
                return SensorExecutionData(
                    skip_message=f"run {last.run_id[:8]} ended before all its slots were made; they are requested "
                    f"again in {wait:.0f} s",
                    cursor=context.cursor,
                )
            found = super().evaluate_tick(context)
            requests = found.run_requests or []
            if not requests and not left:
                return found
            return self._packed(found, requests, left, _attempt(last) + 1 if left else 1, instance)

    def _packed(
        self,
        found: SensorExecutionData,
        requests: Sequence[dg.RunRequest],
        left: SlotsByAsset,
        attempt: int,
        instance: dg.DagsterInstance,
    ) -> SensorExecutionData:
        """The result `found`, with one run instead of `requests`. The run also makes the slots in `left`."""
        wanted = {asset: {*slots} for asset, slots in left.items()}
        for request in requests:
            for asset in request.asset_selection or []:
                wanted.setdefault(asset, set()).add(str(request.partition_key))
        slots = self._behind(wanted, instance)
        if not slots:
            return copy(
                found, run_requests=[], skip_message="the requested slots have been made in the meantime"
            )
        of_automation = {key: value for request in requests[:1] for key, value in request.tags.items()}
        of_automation.pop(PARTITION_NAME_TAG, None)
        own = {AUTOMATION_TAG: self._assets.name, SOURCE_TAG: self._assets.name, ATTEMPT_TAG: str(attempt)}
        only = sorted(wanted)
        config = {"slots": slots, "only": [key.to_user_string() for key in only], "force": False}
        packed = dg.RunRequest(
            # The source is selected, although this run does not materialize the source. Otherwise the source's rows
            # would be an input from outside the step, and Dagster would need a partition for this input.
            asset_selection=[dg.AssetKey(self._assets.name), *only],
            asset_check_keys=[],
            run_config={"ops": {self._assets.io_key: {"config": config}}},
            tags={**own, **self._assets.run_tags, **of_automation},
        )
        return copy(found, run_requests=[packed], skip_message=None)

    def _behind(self, wanted: SlotsByAsset, instance: dg.DagsterInstance) -> list[int]:
        """The slots in which the source was materialized after the slot asset.

        A run reports slot by slot. So during a run, a slot may be materialized in the source, and not yet in the slot
        asset.
        """

        def newest(asset: dg.AssetKey, slots: set[str]) -> Mapping[str, int]:
            return instance.get_latest_storage_id_by_partition(
                asset, dg.DagsterEventType.ASSET_MATERIALIZATION, slots
            )

        behind: set[int] = set()
        for asset, slots in wanted.items():
            made = newest(asset, slots)
            source = newest(dg.AssetKey(self._assets.name), slots)
            behind |= {int(slot) for slot in slots if made.get(slot, 0) < source.get(slot, 1)}
        return sorted(behind)

    def _watch(self, flying: Sequence[DagsterRun], io: SlotIOManager, instance: dg.DagsterInstance) -> None:
        """Reports dead runs as failed. The next tick then finds no run in flight."""
        found = pulse_of(
            [run_view(io.clients.records, instance, run) for run in flying],
            self._progress,
            SYSTEM_CLOCK.wall_ms(),
            silence_seconds=self._settings.silence_seconds,
            startup_seconds=self._settings.startup_seconds,
        )
        self._progress = found.progress
        report_silent(instance, found.silent)

    def _left(self, last: DagsterRun | None, instance: dg.DagsterInstance) -> SlotsByAsset:
        """The slots of the last run, except the slots that the run reported as failed. Empty if the run succeeded, or
        if all these slots have been made in the meantime. The condition `failed` of `follow_slots` retries slots that
        the run reported as failed.
        """
        if last is None or last.is_success:
            return {}
        ops: Any = last.run_config.get("ops", {})
        config = ops.get(self._assets.io_key, {}).get("config", {})
        every, only = {*map(str, config.get("slots", []))}, config.get("only", [])
        found = {dg.AssetKey(each.name): {*every} for each in self._assets.slot_assets if each.name in only}
        planned = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
        for record in instance.get_records_for_run(last.run_id, of_type=planned).records:
            if record.asset_key in found and record.partition_key is not None:
                found[record.asset_key].discard(record.partition_key)
        return found if self._behind(found, instance) else {}

    def _wait(self, last: DagsterRun) -> float:
        """The seconds until slots of a killed run are requested again."""
        now = SYSTEM_CLOCK.monotonic()
        if self._ended[0] != last.run_id:
            self._ended = (last.run_id, now)
        return self._ended[1] + self._settings.retry_seconds(_attempt(last)) - now


def _attempt(run: DagsterRun | None) -> int:
    return int(run.tags.get(ATTEMPT_TAG, "1")) if run is not None else 0
