"""First job: which object versions the batch reads. Reads the queue's entries, or lists once; compares in tasks.

What reaches the driver is the batch: at most `max_objects` splits and keys that left (and one more for each
slot), and the entries that are to be removed, which the topic's capacity bounds. The bucket's other objects
pass through Spark's own shuffle, which spills, and never through the driver.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from pyspark.sql import SparkSession

from s3notify_platform.ingest.compare import (
    ANNOUNCED,
    COUNTS,
    OVERRAN,
    PLANNED_DDL,
    comparer,
    follower,
)
from s3notify_platform.ingest.source import Source
from s3notify_platform.ports import ETag, Version
from s3notify_platform.protocols.notification_queue import Entry, Event
from s3notify_platform.protocols.source_enumerator import (
    CommittedSlots,
    ObjectVersion,
    SlotChanges,
    Split,
    assign_slots,
)
from s3notify_platform.slots import Slot
from s3notify_platform.spark.listing import listing as begin_listing
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.s3.fast import shared_store
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

    `listed` counts the objects of each slot; `errors` are of slots whose bucket or state could not be read, or whose
    state is `lost`, and which therefore have no plan. `entries` were there before the bucket was looked at: remove
    them when their slot is committed. `plain` slots were last signalled by a writer that does not queue, which a plan
    by entries cannot follow: without entries they have no plan. `unannounced` are the changed keys that a
    listing found and no entry names.
    `committed` slots were known to have a commit before the table was looked at. `chains`: in how many the bucket was
    listed, and how many of the places where one was to end it `overran`, because the server does not list on from
    there as it should.
    """

    slots: dict[Slot, SlotPlan] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    listed: dict[Slot, int] = field(default_factory=dict)
    errors: dict[Slot, str] = field(default_factory=dict)
    entries: dict[Slot, tuple[Entry, ...]] = field(default_factory=dict)
    unqueued: set[Slot] = field(default_factory=set)
    unannounced: dict[Slot, frozenset[str]] = field(default_factory=dict)
    lost: set[Slot] = field(default_factory=set)
    committed: frozenset[Slot] = frozenset()
    chains: int = 0
    overran: int = 0


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

    `listing`: by one LIST for each 1000 objects of the source prefix, and what `spark.listing` says. Else by the
    entries of the source's topic: `NotificationQueue.entries` for them, at most 1 HEAD for each key that they name,
    and 1 HEAD of each slot's signal; `NotFoundError` if there is no topic. For the states, either way: one LIST and
    more (`SlotTable.newest`), and for each committed slot 1 GET (and 1 GET of a state file, if it has one). 1 GET of
    `CommittedSlots`: a slot that had a commit, and has none, is lost.
    """
    wanted = sorted(set(slots))
    platform = CountingStore(shared_store(source.location.platform))
    # Before the table is looked at, so that a slot committed in between is not taken for lost.
    committed = CommittedSlots(source.location.records(platform)).read()
    quota = max(1, -(-source.input.max_objects // max(1, len(wanted))))
    width, tasks = tasks, max(1, min(tasks, len(wanted)))
    chains = 0
    if listing:
        begun = begin_listing(spark, source, frozenset(wanted), width)
        chains = begun.chains
        planned = (
            begun.rows.repartition(tasks, "slot")
            .sortWithinPartitions("slot")
            .mapInArrow(comparer(source, quota, skip), PLANNED_DDL)
        )
    else:
        # Neighbours together: a shard of the queue is a range of slots.
        parts = assign_slots(wanted, tasks).ranges
        planned = spark.range(0, len(parts), 1, len(parts)).mapInArrow(
            follower(source, parts, quota, skip), PLANNED_DDL
        )
    found = _collected(source.name, planned.toArrow().to_pylist())
    for kind, count in platform.counts.items():
        found.requests[kind] = found.requests.get(kind, 0) + count
    _refuse_missing(found, committed, source)
    return replace(found, committed=committed, chains=chains, overran=found.requests.pop(OVERRAN, 0))


def _refuse_missing(found: Plan, committed: frozenset[Slot], source: Source) -> None:
    """Slots that had a commit, and have none, get an error instead of a plan that would take everything in again."""
    for slot in [slot for slot, of in found.slots.items() if slot in committed and not of.generation]:
        for by_slot in (found.slots, found.listed, found.entries, found.unannounced):
            by_slot.pop(slot, None)
        found.lost.add(slot)
        found.errors[slot] = f"CorruptError: {missing_commits(source, [slot])}"


def missing_commits(source: Source, slots: Iterable[Slot]) -> str:
    """What is wrong with slots whose commits are gone, and what a person can do."""
    names, own = ",".join(map(str, sorted(slots))), source.location
    return (
        f"the commits of slots {names} are gone from {own.layout.all_commits!r} of bucket "
        f"{own.platform.bucket!r}: restore the table's objects, or accept that the objects of these slots are taken "
        f"in again by `s3notify table forget --bucket {own.platform.bucket} --name {own.name} --platform-prefix "
        f"{own.platform_prefix} --slots {names}`"
    )


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
        if unannounced := frozenset(row["key"] for row in changed if row["entry"] != ANNOUNCED):
            result.unannounced[slot] = unannounced
        result.unqueued.update(Slot(row["slot"]) for row in kinds.get("unqueued", ()))
        for head in kinds.get("head", ()):
            changes = SlotChanges(
                slot=slot,
                read=tuple(_split(slot, row) for row in kinds.get("read", ())),
                gone=tuple(row["key"] for row in kinds.get("gone", ())),
                complete=head["complete"],
                beyond=head["start"],
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
        quota=row["generation"],
        state="committed",
        event=Event(key=row["key"]),
        version=Version(row["etag"]),
    )
