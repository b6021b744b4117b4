"""Slots as Dagster partitions, and the slots of a run."""

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

import dagster as dg
from dagster import AssetPartitionStatus
from pydantic import Field

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import SLOT_COUNT, Slot, partition_keys, slot_from_partition_key, slots_in
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.snapshot import Absent
from s3notify_platform.table.versions import changed_at

BATCH_TAG: Final = "s3notify/batch"
STALE: Final = "stale"
QUARANTINE: Final = "quarantine"
SOURCE_TAG: Final = "s3notify/source"
PART_TAG: Final = "s3notify/part"
SERVICE_TAG: Final = "s3notify/service"
"""Tag of a run of a service: the service's name. The run does not end by itself."""
SETTINGS_TAG: Final = "s3notify/settings"
"""Tag of a service's run that the sensor has requested: a digest of the service's settings."""
WARM_TAG: Final = "s3notify/spark"
"""Tag of jobs and assets whose runs a warm worker may take. The tag's value is a digest of the Spark configuration that
these runs need.
"""


CHOICES: Final = (
    "Slots to read, like 3,17,40-60 or all. failed: slots that the partition grid shows as failed. stale: "
    "slots that another version of the code made. quarantine: slots with quarantined records or objects. "
    "older than 6h: slots whose last commit is older, or no longer in the history (units: min, h, d)"
)


@cache
def slot_partitions(slots: int = SLOT_COUNT) -> dg.StaticPartitionsDefinition:
    """One static partition for each slot. The partition's key is the slot's number, unpadded."""
    return dg.StaticPartitionsDefinition(partition_keys(range(slots)))


class SlotBatch(dg.Config):
    """The exact slots of one run, in any combination.

    Dagster's tags name one partition or a contiguous range. So the run of a sensor has no partition tag, and names its
    slots here. If no slots are named here, the run covers the partitions that it was started with. A person sets
    `choose`. The launchpad shows only `choose`, because it leaves out each field whose default comes from a factory.
    """

    choose: str = Field(default="", description=CHOICES)
    slots: list[int] = Field(
        default_factory=list, description="Slots as numbers; empty: the run's partitions"
    )
    everything: bool = Field(
        default_factory=bool, description="All slots that have objects (for the first batch, and for sweeps)"
    )
    force: bool = Field(
        default_factory=lambda: True,
        description="Read objects and make slot assets again, even if nothing has changed. No effect on a sensor's "
        "batch. If the run is killed and not retried, a slot that was not read yet is read by a batch when the "
        "slot changes",
    )
    only: list[str] = Field(
        default_factory=list, description="Which of the selected assets to make; empty: all of them"
    )
    batch: str = Field(default_factory=str, description="The batch's ack chain, if a sensor opened one")

    @property
    def chooses_stale(self) -> bool:
        """True if the run is for stale slots."""
        return self.choose.strip() == STALE

    @property
    def chooses_quarantine(self) -> bool:
        """True if the run is for quarantined records and objects."""
        return self.choose.strip() == QUARANTINE

    def targets(
        self,
        context: dg.AssetExecutionContext,
        slots: int,
        table: Callable[[], LogTable],
        stale: Callable[[], Iterable[Slot]],
    ) -> tuple[Slot, ...]:
        """The slots of this run. `UsageError` for a slot that does not exist, or if there are no slots.

        `table` is read only to find slots by age or by quarantine. Cost: the requests of `LogTable.newest`, and, for
        age, 1 LIST for each 1000 table versions. `stale` returns the stale slots.
        """
        if self.choose:
            found = stale() if self.chooses_stale else _chosen(self.choose.strip(), context, slots, table)
            if not found:
                raise UsageError(f"no slot of this source is {self.choose!r}")
            return tuple(sorted(found))
        if self.everything:
            return tuple(Slot(number) for number in range(slots))
        if self.slots:
            keys = [str(slot) for slot in self.slots]
        elif has_partitions(context):
            keys = list(context.partition_keys)
        else:
            raise UsageError(
                "this run has no slots: choose partitions, or set choose in its config, like choose: 3,17,40-60"
            )
        return tuple(slot_from_partition_key(key, slots) for key in keys)


def _chosen(
    text: str, context: dg.AssetExecutionContext, slots: int, table: Callable[[], LogTable]
) -> Iterable[Slot]:
    if text == "failed":
        keys = partition_keys(range(slots))
        grids = (
            context.instance.get_status_by_partition(asset, keys, slot_partitions(slots)) or {}
            for asset in context.selected_asset_keys
        )
        return {
            Slot(int(key))
            for grid in grids
            for key, status in grid.items()
            if status is AssetPartitionStatus.FAILED
        }
    if text == QUARANTINE:
        newest = table().newest()
        facts = {} if isinstance(newest, Absent) else newest.manifest.slots
        return [slot for slot, each in facts.items() if each.rejects or each.failing]
    if not (age := re.fullmatch(r"older than (\d+(?:\.\d+)?) ?(min|h|d)", text)):
        return slots_in(text, slots)
    seconds = float(age[1]) * {"min": 60, "h": 3600, "d": 86_400}[age[2]]
    before_ms = SYSTEM_CLOCK.wall_ms() - seconds * 1000
    log = table()
    if isinstance(base := log.newest(), Absent):
        return ()
    changed = changed_at(log.reader, base)
    return [slot for slot, changed_ms in changed.items() if changed_ms < before_ms]


def has_partitions(context: dg.AssetExecutionContext) -> bool:
    """True if the run was started for one partition or a range of partitions."""
    return bool(context.has_partition_key or context.has_partition_key_range)
