"""Slots as Dagster partitions, and which slots a run is for."""

from functools import cache
from typing import Final

import dagster as dg
from pydantic import Field

from s3notify_platform.errors import UsageError
from s3notify_platform.ingest.batches import EVERYTHING
from s3notify_platform.slots import SLOT_COUNT, Slot, partition_keys, slot_from_partition_key

BATCH_TAG: Final = "s3notify/batch"
SOURCE_TAG: Final = "s3notify/source"
PART_TAG: Final = "s3notify/part"


@cache
def slot_partitions(slots: int = SLOT_COUNT) -> dg.StaticPartitionsDefinition:
    """One static partition for each slot; its key is the slot's number, unpadded."""
    return dg.StaticPartitionsDefinition(partition_keys(range(slots)))


class SlotBatch(dg.Config):
    """The exact slots of one run, scattered as they are.

    Dagster's own requests are for one partition or a contiguous range; a sensor's run therefore has no
    partition tag and names its slots here. Left empty, the run is for the partitions it was started with.
    """

    slots: list[int] = Field(default=[], description="Slots to ingest; empty: the run's partitions")
    everything: bool = Field(
        default=False, description="All slots that hold objects (first batch, and sweeps)"
    )
    force: bool = Field(
        default=True, description="Slot assets are made again even where their source has not moved on"
    )
    only: list[str] = Field(default=[], description="Assets to make, of those selected; empty: all of them")
    batch: str = Field(default="", description="The batch's ack chain, if a sensor opened one")

    def targets(self, context: dg.AssetExecutionContext, slots: int) -> tuple[Slot, ...]:
        """The slots this run is for. `UsageError` names one that does not exist, or that there are none."""
        if self.everything:
            return tuple(Slot(number) for number in range(slots))
        if self.slots:
            keys = [str(slot) for slot in self.slots]
        elif has_partitions(context):
            keys = list(context.partition_keys)
        else:
            raise UsageError("this run has no slots: choose partitions, or name slots in the step's config")
        return tuple(slot_from_partition_key(key, slots) for key in keys)

    @property
    def children(self) -> tuple[int, ...]:
        """What this run has to stamp on its batch's ack chain."""
        return (EVERYTHING,) if self.everything else tuple(self.slots)


def has_partitions(context: dg.AssetExecutionContext) -> bool:
    """Whether the run was started for one partition or a range of them."""
    return bool(context.has_partition_key or context.has_partition_key_range)
