"""First job: which object versions the batch reads. Reads the queue's entries, or lists once; compares in tasks.

What reaches the driver is the batch: at most `max_objects` splits and keys that left (and one more for each
slot), and the entries that are to be removed, which the topic's capacity bounds. The bucket's other objects
pass through Spark's own shuffle, which spills, and never through the driver.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from pyspark.sql import SparkSession

from s3notify_platform.ports import ETag, Version
from s3notify_platform.protocols.notification_queue import Entry, Event
from s3notify_platform.protocols.source_enumerator import ObjectVersion, SlotChanges, Split
from s3notify_platform.slots import Slot
from s3notify_platform.spark.discovery import (
    COUNTS,
    LISTED_DDL,
    PLANNED_DDL,
    TOLD,
    comparer,
    follower,
    lister,
)
from s3notify_platform.spark.source import Source
from s3notify_platform.table.layout import Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """What one slot needs, on top of which generation of its table."""

    changes: SlotChanges
    generation: Generation

    @property
    def slot(self) -> Slot:
        """The slot."""
        return self.changes.slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A batch's work, by slot, and what finding it cost.

    `listed` counts the objects of each slot; `errors` are of slots whose bucket or state could not be read, and
    which therefore have no plan. `entries` were there before the bucket was looked at: remove them when their
    slot is committed. `plain` slots were last signalled by a writer that does not queue, which a plan by entries
    cannot follow: without entries they have no plan. `untold` are the changed keys, found by a listing, of which no
    entry told.
    """

    slots: dict[Slot, SlotPlan] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    listed: dict[Slot, int] = field(default_factory=dict)
    errors: dict[Slot, str] = field(default_factory=dict)
    entries: dict[Slot, tuple[Entry, ...]] = field(default_factory=dict)
    plain: set[Slot] = field(default_factory=set)
    untold: dict[Slot, frozenset[str]] = field(default_factory=dict)


def plan(
    spark: SparkSession,
    source: Source,
    slots: Iterable[Slot],
    tasks: int,
    *,
    listing: bool = True,
    skip: frozenset[str] = frozenset(),
) -> Plan:
    """Compare bucket and committed state for `slots`, leaving out the keys of `skip`.

    `listing`: by one LIST for each 1000 objects of the source prefix. Else by the entries of the source's topic:
    `NotificationQueue.entries` for them, at most 1 HEAD for each key that they name, and 1 HEAD of each slot's
    signal; `NotFoundError` if there is no topic. For the states, either way: one LIST and more
    (`SlotTable.newest`), and for each committed slot 1 GET (and 1 GET of a state file, if it has one).
    """
    wanted = sorted(set(slots))
    quota = max(1, -(-source.max_objects // max(1, len(wanted))))
    tasks = max(1, min(tasks, len(wanted)))
    if listing:
        planned = (
            spark.range(0, 1, 1, 1)
            .mapInArrow(lister(source, frozenset(wanted)), LISTED_DDL)
            .repartition(tasks, "slot")
            .sortWithinPartitions("slot")
            .mapInArrow(comparer(source, quota, skip), PLANNED_DDL)
        )
    else:
        # Neighbours together: a shard of the queue is a range of slots.
        size = -(-len(wanted) // tasks)
        parts = [tuple(wanted[n : n + size]) for n in range(0, len(wanted), size)]
        planned = spark.range(0, len(parts), 1, len(parts)).mapInArrow(
            follower(source, parts, quota, skip), PLANNED_DDL
        )
    return _collected(source.name, planned.toArrow().to_pylist())


def _collected(topic: str, rows: list[dict[str, Any]]) -> Plan:
    result = Plan()
    rows.sort(key=lambda row: row["slot"])
    for number, group in groupby(rows, key=lambda row: row["slot"]):
        slot = Slot(number)
        kinds: dict[str, list[dict[str, Any]]] = {}
        for row in group:
            kinds.setdefault(row["kind"], []).append(row)
        if number == COUNTS:
            result.requests.update({kind: sum(row["size"] for row in of) for kind, of in kinds.items()})
        for row in kinds.get("error", ()):
            result.errors[slot] = row["key"]
        changed = [*kinds.get("read", ()), *kinds.get("gone", ())]
        if untold := frozenset(row["key"] for row in changed if row["entry"] != TOLD):
            result.untold[slot] = untold
        result.plain.update(Slot(row["slot"]) for row in kinds.get("plain", ()))
        for head in kinds.get("head", ()):
            changes = SlotChanges(
                slot=slot,
                read=tuple(_split(slot, row) for row in kinds.get("read", ())),
                gone=tuple(row["key"] for row in kinds.get("gone", ())),
                complete=head["complete"],
            )
            result.slots[slot] = SlotPlan(changes=changes, generation=Generation(head["generation"]))
            result.listed[slot] = head["size"]
            result.entries[slot] = tuple(_entry(topic, row) for row in kinds.get("entry", ()))
    return result


def _split(slot: Slot, row: dict[str, Any]) -> Split:
    version = ObjectVersion(slot=slot, key=row["key"], etag=ETag(row["etag"]), size=row["size"])
    return Split(version=version, start=row["start"], end=version.size, by_record=row["by_record"])


def _entry(topic: str, row: dict[str, Any]) -> Entry:
    """As much of an entry as its removal takes."""
    epoch, _, name = row["entry"].partition(" ")
    return Entry(
        topic=topic,
        shard=row["size"],
        epoch=epoch,
        id=name,
        slot=row["slot"],
        meter=row["generation"],
        state="committed",
        event=Event(key=row["key"]),
        version=Version(row["etag"]),
    )
