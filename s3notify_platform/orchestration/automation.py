"""Declarative automation of the assets downstream of a source: conditions, and the sensor for scattered slots.

A batch's run makes the slot assets in the source's own step. `follow_slots` is true for slots that this step did not
make. There are three cases: only the source was materialized, the slot asset is new, or the last run of the slot asset
failed. Dagster's own automation sensor launches one run for each contiguous range of slots. `SlotAutomationSensor`
requests one run for all these slots. The UI shows the history of the conditions as usual.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter

from s3notify_platform.orchestration.dagster_internals import (
    PARTITION_NAME_TAG,
    SensorExecutionData,
    copy,
)
from s3notify_platform.orchestration.partitions import SOURCE_TAG
from s3notify_platform.orchestration.run_health import ENDED
from s3notify_platform.orchestration.source_assets import SourceAssets

AUTOMATION_TAG: Final = "s3notify/automation"
RETRY_CRON: Final = "*/10 * * * *"
IN_FLIGHT: Final = [status for status in DagsterRunStatus if status not in ENDED]


def made_tag(asset: str) -> str:
    """The tag of a run that also makes the slot asset `asset`, for every slot that the run commits."""
    return f"s3notify-made/{asset}"


def follow_slots(asset: str) -> dg.AutomationCondition[Any]:
    """True for a slot of `asset` if a run committed this slot in the source, and did not make it in `asset`.

    A slot that failed only in `asset`, and not in its source, is retried every ten minutes.
    """
    condition = dg.AutomationCondition
    # `any_deps_updated()` does not fit: of several updated partitions, it considers only the run that made the last
    # one.
    together = condition.all_new_updates_have_run_tags(tag_keys={made_tag(asset)})
    updated = condition.any_deps_match(condition.newly_updated() & ~together)
    # The order of the terms matters, because a run reports the source before the slot asset, and a later term sees
    # newer events.
    never_made = (~condition.any_deps_missing() & condition.missing()).newly_true()
    failed = condition.execution_failed() & ~condition.any_deps_match(condition.execution_failed())
    again = failed & condition.cron_tick_passed(RETRY_CRON)
    handled = condition.newly_requested() & ~updated
    return ((updated | never_made | again).since(handled) & ~condition.any_deps_missing()).with_label(
        "when its source's slot was committed without it"
    )


class SlotAutomationSensor(dg.AutomationConditionSensorDefinition):
    """Requests one run with exactly the slots that automation requests.

    While the run is in flight, no condition is evaluated, so that no update is dropped.
    """

    def __init__(self, assets: SourceAssets, metadata: Mapping[str, Any] | None = None) -> None:
        self._assets = assets
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
                description=f"Requests slot assets of {assets.name!r} that its batches did not make, in one run for "
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
        return SlotAutomationSensor(self._assets, self.metadata if metadata is None else metadata)

    def _behind(self, instance: dg.DagsterInstance, requests: Sequence[dg.RunRequest]) -> list[int]:
        """The requested slots in which the source was materialized after the slot asset.

        A run reports slot by slot. So during a run, a slot may be materialized in the source, and not yet in the slot
        asset.
        """
        wanted: dict[dg.AssetKey, set[str]] = {}
        for request in requests:
            for asset in request.asset_selection or []:
                wanted.setdefault(asset, set()).add(str(request.partition_key))

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

    def evaluate_tick(self, context: dg.SensorEvaluationContext) -> SensorExecutionData:
        """The result of Dagster's own evaluation, with all requested partitions in one run."""
        tags = {AUTOMATION_TAG: self._assets.name}
        if context.instance.get_runs(filters=RunsFilter(tags=tags, statuses=IN_FLIGHT), limit=1):
            return SensorExecutionData(
                skip_message="the run that was requested last has not ended", cursor=context.cursor
            )
        found = super().evaluate_tick(context)
        requests = found.run_requests or []
        if not requests:
            return found
        tags |= {**self._assets.run_tags, SOURCE_TAG: self._assets.name}
        tags |= {key: value for key, value in requests[0].tags.items() if key != PARTITION_NAME_TAG}
        wanted = sorted({key for request in requests for key in request.asset_selection or []})
        slots = self._behind(context.instance, requests)
        if not slots:
            return copy(
                found, run_requests=[], skip_message="the requested slots have been made in the meantime"
            )
        config = {"slots": slots, "only": [key.to_user_string() for key in wanted], "force": False}
        packed = dg.RunRequest(
            job_name=requests[0].job_name,
            # The source is selected, although this run does not make it. Otherwise the source's rows would be an input
            # from outside the step, and Dagster would need a partition for this input.
            asset_selection=[dg.AssetKey(self._assets.name), *wanted],
            asset_check_keys=[],
            run_config={"ops": {self._assets.io_key: {"config": config}}},
            tags=tags,
        )
        return copy(found, run_requests=[packed])
