"""Slots as Dagster partitions, and the slots of a run."""

from functools import cache
from typing import Final

import dagster as dg
from pydantic import Field

from s3notify_platform.errors import UsageError
from s3notify_platform.slots import SLOT_COUNT, Slot, partition_keys, slot_from_partition_key

BATCH_TAG: Final = "s3notify/batch"
SOURCE_TAG: Final = "s3notify/source"
PART_TAG: Final = "s3notify/part"
WARM_TAG: Final = "s3notify/spark"
"""Of jobs and assets whose runs a warm worker may take: digest of the Spark configuration that it has to have."""


@cache
def slot_partitions(slots: int = SLOT_COUNT) -> dg.StaticPartitionsDefinition:
    """One static partition for each slot; its key is the slot's number, unpadded."""
    return dg.StaticPartitionsDefinition(partition_keys(range(slots)))


class SlotBatch(dg.Config):
    """The exact slots of one run, in any combination.

    Dagster's own requests are for one partition or a contiguous range. A sensor's run therefore has no partition tag,
    and names its slots here. If empty, the run is for the partitions it was started with.
    """

    slots: list[int] = Field(default=[], description="Slots to ingest; empty: the run's partitions")
    everything: bool = Field(
        default=False, description="All slots that hold objects (first batch, and sweeps)"
    )
    force: bool = Field(
        default=True, description="Make slot assets again even if their source has not changed"
    )
    only: list[str] = Field(default=[], description="Assets to make, of those selected; empty: all of them")
    batch: str = Field(default="", description="The batch's ack chain, if a sensor opened one")

    def targets(self, context: dg.AssetExecutionContext, slots: int) -> tuple[Slot, ...]:
        """The slots of this run. `UsageError` for a slot that does not exist, or if there are none."""
        if self.everything:
            return tuple(Slot(number) for number in range(slots))
        if self.slots:
            keys = [str(slot) for slot in self.slots]
        elif has_partitions(context):
            keys = list(context.partition_keys)
        else:
            raise UsageError("this run has no slots: choose partitions, or name slots in the step's config")
        return tuple(slot_from_partition_key(key, slots) for key in keys)


def has_partitions(context: dg.AssetExecutionContext) -> bool:
    """Whether the run was started for one partition or a range of them."""
    return bool(context.has_partition_key or context.has_partition_key_range)
