"""What the next micro-batch of a stream reads: its slots, compared with what the stream has read of them. No Spark."""

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from s3notify_platform.ingest.compare import IN_FLIGHT
from s3notify_platform.ingest.follow import Decision, last_signal_queued, named_versions
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.stream_state import Offset, SlotWork, StreamState
from s3notify_platform.protocols.notification_queue import Entry
from s3notify_platform.protocols.source_enumerator import (
    ObjectVersion,
    SlotChanges,
    changes_of_slot,
    cut_to_bytes,
)
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotCommit
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.states import States


def planned_work(
    state: StreamState,
    offset: Offset,
    decision: Decision,
    entries: Sequence[Entry],
    *,
    max_objects: int,
    max_bytes: int,
) -> tuple[list[SlotWork], list[Slot]]:
    """What is to be done within these limits, and the slots of which that is all.

    `entries` were read before. An object is never cut: it would be given in two batches, of which one could be of
    another version. Requests: for a rescan 1 LIST for each 1000 objects below the prefix, to follow at most 1 HEAD
    for each key that entries name; then `SlotTable.heads`, and `SlotTable.states` for each slot.
    """
    touched: dict[Slot, Collection[str]] = {}
    if decision.listing:
        found = _listed(state.source, decision.slots, 2 * max_objects)
    else:
        enumerator, found = state.source.enumerator(), {}
        by_slot: dict[Slot, list[Entry]] = {slot: [] for slot in sorted(decision.slots)}
        for entry in entries:
            by_slot[Slot(entry.slot)].append(entry)
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            for slot, of_slot in by_slot.items():
                named = named_versions(enumerator, of_slot, pool)
                touched[slot] = named.keys()
                found[slot] = [version for version in named.values() if version is not None]
    heads = state.table.heads(found)
    state.check(offset, heads)
    changes: list[SlotChanges] = []
    known: dict[Slot, States] = {}
    left = max_objects
    for slot, states in state.states(heads, touched):
        changed = changes_of_slot(slot, found[slot], states, max_objects=left, touched=touched.get(slot))
        keys = {split.version.key for split in changed.read} | {*changed.gone}
        known[slot] = {key: states[key] for key in keys & states.keys()}
        changes.append(changed)
        left -= len(changed.read) + len(changed.gone)
        if left <= 0:
            break
    least = state.source.input.split_bytes
    fitting = [*cut_to_bytes(changes, max_bytes, least=least, cuttable=lambda _: False)]
    work = [_work(each, known[each.slot], heads[each.slot]) for each in fitting if each]
    return work, [each.slot for each in fitting if each.complete]


def any_unqueued(state: StreamState, slots: Iterable[Slot]) -> bool:
    """Whether one of the slots was last signalled by a writer that does not queue. 1 HEAD each."""
    queued = partial(last_signal_queued, state.source.location, store=state.store)
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        return not all([*pool.map(queued, slots)])


def _listed(source: Source, slots: Collection[Slot], most: int) -> dict[Slot, list[ObjectVersion]]:
    """The objects of slots, by slot: of the first ones, where all are too many to hold."""
    found: dict[Slot, list[ObjectVersion]] = {slot: [] for slot in sorted(slots)}
    held = 0
    for version in source.enumerator().versions(frozenset(slots)):
        if version.slot in found:
            found[version.slot].append(version)
            held += 1
            while held > most and len(found) > 1:
                held -= len(found.popitem()[1])
    return found


def _work(changes: SlotChanges, states: States, head: SlotCommit | None) -> SlotWork:
    read: Sequence[ObjectVersion] = [split.version for split in changes.read]
    replaced = [(v.key, states[v.key].etag) for v in read if v.key in states]
    left = [(key, states[key].etag) for key in changes.gone]
    return SlotWork(
        slot=changes.slot,
        generation=Generation(head.generation if head else 0),
        read=tuple(read),
        gone=(*replaced, *left),
        objects=(head.objects if head else 0) + len(read) - len(replaced) - len(left),
    )
