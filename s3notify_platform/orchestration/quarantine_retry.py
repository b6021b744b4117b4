"""Sending what is in quarantine again, in Dagster: a job that is launched by hand, as `s3notify quarantine redrive`."""

from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from s3notify_platform.errors import UsageError
from s3notify_platform.orchestration.assets import SourceAssets
from s3notify_platform.orchestration.steps import launched_by_hand, step_failures
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.slots import slot_from_partition_key, slot_of
from s3notify_platform.table.quarantine import Choice, Retried, redrive

if TYPE_CHECKING:
    from s3notify_platform.orchestration.io_manager import SlotIOManager


class RetryConfig(dg.Config):
    """What to send again: some keys, some slots, or everything."""

    keys: list[str] = Field(default=[], description="Keys of objects, whole, like raw/orders/1.jsonl")
    slots: list[int] = Field(default=[], description="All that is in quarantine of these slots")
    everything: bool = Field(default=False, description="All that is in quarantine of the source")
    reason: str = Field(default="", description="Only what has a reason that contains this text")


def build_retry(assets: SourceAssets) -> dg.JobDefinition:
    """The job `{source}_redrive`. No Spark; requests as in `table.quarantine.redrive`."""

    @dg.op(
        name=f"{assets.name}_redrive_quarantine",
        description="Sends objects in quarantine again: the source's next batch reads them.",
        required_resource_keys={assets.io_key},
    )
    def redrive_quarantine(context: dg.OpExecutionContext, config: RetryConfig) -> None:
        io: SlotIOManager = getattr(context.resources, assets.io_key)
        with step_failures():
            done = send_again(io, config)
        missing = sorted(set(config.keys) - done.keys)
        for key in missing:
            context.log.warning("not in quarantine: %r", key)
        text = (
            f"{done.failing} failing objects and {done.records} rejected records of {done.rejected} objects, in "
            f"{len(done.slots)} slots, are sent again"
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
                    "sent_again_before": done.waiting,
                    "left": done.left,
                    "not_in_quarantine": len(missing),
                },
            )
        )

    return launched_by_hand(
        redrive_quarantine,
        name=f"{assets.name}_redrive",
        source=assets.name,
        description=f"Sends what is in quarantine of {assets.name!r} again, after a fix: some keys, slots, or all.",
    )


def send_again(io: "SlotIOManager", config: RetryConfig) -> Retried:
    """What the job does. `UsageError` unless exactly one of keys, slots and everything is asked for."""
    if (bool(config.keys), bool(config.slots), config.everything).count(True) != 1:
        raise UsageError("say what to send again: keys, slots or everything, one of them")
    io.settle_commit_mode()
    source = io.source
    if config.keys:
        slots = [slot_of(key, source.location.slots) for key in config.keys]
    elif config.slots:
        slots = [slot_from_partition_key(str(slot), source.location.slots) for slot in config.slots]
    else:
        slots = list(source.location.all_slots())
    signals = Publisher(
        io.clients.store, prefix=source.location.keyspace_prefix, slots=source.location.slots, queued=True
    )
    choice = Choice(keys=frozenset(config.keys) if config.keys else None, reason=config.reason)
    return redrive(source.table(store=io.clients.store), slots, signals, choice)
