"""Slots as Dagster partitions, and which slots a run is for."""

from collections.abc import Iterable
from functools import cache
from typing import Final

import dagster as dg
from pydantic import Field

from s3notify_platform.orchestration.batches import EVERYTHING
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
    everything: bool = Field(default=False, description="All slots that hold objects (first batch, and sweeps)")
    batch: str = Field(default="", description="The batch's ack chain, if a sensor opened one")

    def targets(self, context: dg.AssetExecutionContext, slots: int) -> tuple[Slot, ...]:
        """The slots this run is for; `UsageError` names one that does not exist."""
        if self.everything:
            return tuple(Slot(number) for number in range(slots))
        keys: Iterable[str] = map(str, self.slots) if self.slots or not context.has_partition_key_range else context.partition_keys
        return tuple(slot_from_partition_key(key, slots) for key in keys)

    @property
    def children(self) -> tuple[int, ...]:
        """This run's part of its batch's ack chain."""
        return (EVERYTHING,) if self.everything else tuple(self.slots)
