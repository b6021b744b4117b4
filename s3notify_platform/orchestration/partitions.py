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
WARM_TAG: Final = "s3notify/spark"
"""Of jobs and assets whose runs a warm worker may take: digest of the Spark configuration that it has to have."""


CHOICES: Final = (
    "Slots, like 3,17,40-60 or all; failed: those that the grid shows as failed; stale: those that other code has made "
    "than there is now; quarantine: what is in it, of the slots that have any; older than 6h: those whose last commit "
    "is (units: min, h, d), or is not in the history any more"
)


@cache
def slot_partitions(slots: int = SLOT_COUNT) -> dg.StaticPartitionsDefinition:
    """One static partition for each slot; its key is the slot's number, unpadded."""
    return dg.StaticPartitionsDefinition(partition_keys(range(slots)))


class SlotBatch(dg.Config):
    """The exact slots of one run, in any combination.

    Dagster's own requests are for one partition or a contiguous range. A sensor's run therefore has no partition tag,
    and names its slots here. If empty, the run is for the partitions it was started with. A person says `choose`. The
    launchpad shows no more, since it leaves out what has a factory for its default.
    """

    choose: str = Field(default="", description=CHOICES)
    slots: list[int] = Field(
        default_factory=list, description="The same as numbers; empty: the run's partitions"
    )
    everything: bool = Field(
        default_factory=bool, description="All slots that hold objects (first batch, and sweeps)"
    )
    force: bool = Field(
        default_factory=lambda: True,
        description="Read objects again, and make slot assets again, even if they have not changed; not in a batch of "
        "a sensor. If the run is killed and not retried, the rest is read by the slots' next batch, when they change",
    )
    only: list[str] = Field(
        default_factory=list, description="Assets to make, of those selected; empty: all of them"
    )
    batch: str = Field(default_factory=str, description="The batch's ack chain, if a sensor opened one")

    @property
    def chooses_stale(self) -> bool:
        """Whether it is for the slots that other code has made."""
        return self.choose.strip() == STALE

    @property
    def chooses_quarantine(self) -> bool:
        """Whether it is for what is in quarantine."""
        return self.choose.strip() == QUARANTINE

    def targets(
        self,
        context: dg.AssetExecutionContext,
        slots: int,
        table: Callable[[], LogTable],
        stale: Callable[[], Iterable[Slot]],
    ) -> tuple[Slot, ...]:
        """The slots of this run. `UsageError` for a slot that does not exist, or if there are none.

        `table` is read to find slots by their age, or what they have in quarantine: requests of `LogTable.newest`, and
        for their age 1 LIST for each 1000 versions. `stale` gives those that other code has made.
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
                "this run has no slots: choose partitions, or say which in its config: choose: 3,17,40-60"
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
    """Whether the run was started for one partition or a range of them."""
    return bool(context.has_partition_key or context.has_partition_key_range)
