"""Time travel: the generations of a slot, and which of them was the newest at a given time.

Generations are kept for vacuum's retention. Time is that of the store's clock, from the modification time of the commit
object: to the second on S3. The table at a given time is, for each slot, the generation that was visible then:

    when = generations_at(table, source.location.all_slots(), at_ms)
    load_slots(spark, source, when, generations=when)      # a DataFrame
    read_slots(table, when, generations=when)              # Arrow, without Spark
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from s3notify_platform.errors import NotFoundError
from s3notify_platform.parallel import in_parallel
from s3notify_platform.ports import ObjectMeta, list_all
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotCommit, SlotTable
from s3notify_platform.table.layout import Generation, generation_of

REQUESTS_IN_FLIGHT: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """A generation, and since when it was visible, by the store's clock."""

    commit: SlotCommit
    since_ms: int


def history(table: SlotTable, slot: Slot) -> Iterator[Visible]:
    """The generations of a slot that vacuum has left, newest first. 1 LIST for each 1000, and 1 GET for each."""
    for meta in list_all(table.store, table.layout.commits(slot)):
        yield Visible(commit=table.read(slot, generation_of(meta.key)), since_ms=meta.modified_ms)


def generations_at(
    table: SlotTable, slots: Iterable[Slot], at_ms: int, *, parallelism: int = REQUESTS_IN_FLIGHT
) -> dict[Slot, Generation]:
    """The newest generation of each slot that was visible at `at_ms` (Unix milliseconds); 0 if it had none yet.

    `NotFoundError` if vacuum has removed the generation. 1 LIST for each slot, and one more for each 1000 generations
    since then.
    """

    def at(slot: Slot) -> Generation:
        oldest: ObjectMeta | None = None
        for meta in list_all(table.store, table.layout.commits(slot)):
            if meta.modified_ms <= at_ms:
                return generation_of(meta.key)
            oldest = meta
        if oldest is None or generation_of(oldest.key) == 1:
            return Generation(0)
        raise NotFoundError(
            f"slot {slot} at {at_ms}: vacuum has removed it; the oldest generation left is of {oldest.modified_ms}"
        )

    wanted = sorted(set(slots))
    return dict(zip(wanted, in_parallel(at, wanted, parallelism), strict=True))
