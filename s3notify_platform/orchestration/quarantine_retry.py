"""Retry of what is in quarantine, in Dagster: a job that a person launches, like `s3notify quarantine retry`."""

from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from s3notify_platform.ingest.retry_choice import RetryRequest
from s3notify_platform.orchestration.assets import SourceAssets
from s3notify_platform.orchestration.steps import launched_by_hand, step_failures
from s3notify_platform.table.quarantine import Retried

if TYPE_CHECKING:
    from s3notify_platform.orchestration.io_manager import SlotIOManager


class RetryConfig(dg.Config):
    """What to read again: keys, slots, or everything."""

    keys: list[str] = Field(default=[], description="Keys of objects, whole, like raw/orders/1.jsonl")
    slots: list[int] = Field(default=[], description="Everything that is in quarantine of these slots")
    everything: bool = Field(default=False, description="Everything that is in quarantine of the source")
    reason: str = Field(default="", description="Only what has a reason that contains this text")


def build_retry(assets: SourceAssets) -> dg.JobDefinition:
    """The job `{source}_retry`. No Spark; requests as in `table.quarantine.retry`."""

    @dg.op(
        name=f"{assets.name}_retry_quarantine",
        description="Requests that the source's next batch reads objects in quarantine again.",
        required_resource_keys={assets.io_key},
    )
    def retry_quarantine(context: dg.OpExecutionContext, config: RetryConfig) -> None:
        io: SlotIOManager = getattr(context.resources, assets.io_key)
        with step_failures():
            done = retry(io, config)
        missing = sorted(set(config.keys) - done.keys)
        for key in missing:
            context.log.warning("not in quarantine: %r", key)
        text = (
            f"{done.failing} failing objects and {done.records} rejected records of {done.rejected} objects, in "
            f"{len(done.slots)} slots, will be read again by the next batch"
        )
        context.log.info(text)
        context.log_event(
            dg.AssetObservation(
                asset_key=f"{assets.name}_quarantine",
                description=text,
                metadata={
                    "failing_objects": done.failing,
                    "rejected_objects": done.rejected,
                    "rejected_records": done.records,
                    "requested_before": done.waiting,
                    "remaining": done.left,
                    "not_in_quarantine": len(missing),
                },
            )
        )

    return launched_by_hand(
        retry_quarantine,
        name=f"{assets.name}_retry",
        source=assets.name,
        description=f"Requests to read again what is in quarantine of {assets.name!r}: keys, slots, or everything.",
    )


def retry(io: "SlotIOManager", config: RetryConfig) -> Retried:
    """What the job does. `UsageError` unless exactly one of keys, slots and everything is given."""
    request = RetryRequest(
        keys=config.keys, slots=config.slots, everything=config.everything, reason=config.reason
    )
    source = io.settle_commit_mode()
    return request.run(source.location, io.clients.store, source.commit)
