"""What the next micro-batch of a stream reads: its slots, compared with what the stream has read of them. No Spark."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from s3notify_platform.ingest.compare import IN_FLIGHT
from s3notify_platform.ingest.follow import Decision, by_key, last_signal_queued, named_version
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.stream_state import Offset, SlotWork, StreamState
from s3notify_platform.ports import ObjectStore
from s3notify_platform.protocols.notification_queue import Entry
from s3notify_platform.protocols.source_enumerator import (
    Enumerator,
    ObjectVersion,
    SlotChanges,
    changes_of_slot,
    cut_to_bytes,
)
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotCommit
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.states import States


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlanner:
    """Plans the micro-batches of one stream. Through `bucket` it looks at the objects."""

    source: Source
    bucket: ObjectStore
    state: StreamState

    def work(
        self,
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
        named: dict[Slot, dict[str, list[Entry]]] = {}
        if decision.listing:
            found = self._listed(decision.slots, 2 * max_objects)
        else:
            named = {slot: {} for slot in sorted(decision.slots)}
            for key, of_key in by_key(entries).items():
                named[Slot(of_key[0].slot)][key] = of_key
            found = self._named(named)
        heads = self.state.table.heads(found)
        self.state.check(offset, heads)
        changes: list[SlotChanges] = []
        known: dict[Slot, States] = {}
        left = max_objects
        for slot, states in self.state.states(heads, named):
            of_slot = changes_of_slot(slot, found[slot], states, max_objects=left, touched=named.get(slot))
            keys = {split.version.key for split in of_slot.read} | {*of_slot.gone}
            known[slot] = {key: states[key] for key in keys & states.keys()}
            changes.append(of_slot)
            left -= len(of_slot.read) + len(of_slot.gone)
            if left <= 0:
                break
        fitting = [
            *cut_to_bytes(changes, max_bytes, least=self.source.input.split_bytes, cuttable=lambda _: False)
        ]
        work = [_work(each, known[each.slot], heads[each.slot]) for each in fitting if each]
        return work, [each.slot for each in fitting if each.complete]

    def unqueued(self, slots: Iterable[Slot]) -> bool:
        """Whether one of the slots was last signalled by a writer that does not queue. 1 HEAD each."""
        location, store = self.source.location, self.state.store
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            return not all([*pool.map(lambda slot: last_signal_queued(location, slot, store=store), slots)])

    def _listed(self, slots: Collection[Slot], most: int) -> dict[Slot, list[ObjectVersion]]:
        """The objects of slots, by slot: of the first ones, where all are too many to hold."""
        found: dict[Slot, list[ObjectVersion]] = {slot: [] for slot in sorted(slots)}
        held = 0
        for version in self._enumerator.versions(frozenset(slots)):
            if version.slot in found:
                found[version.slot].append(version)
                held += 1
                while held > most and len(found) > 1:
                    held -= len(found.popitem()[1])
        return found

    def _named(self, named: Mapping[Slot, Mapping[str, Sequence[Entry]]]) -> dict[Slot, list[ObjectVersion]]:
        """What is there now under the keys that entries name. At most 1 HEAD each."""
        enumerator = self._enumerator
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            return {
                slot: [
                    version
                    for version in pool.map(lambda of_key: named_version(enumerator, of_key), keys.values())
                    if version is not None
                ]
                for slot, keys in named.items()
            }

    @property
    def _enumerator(self) -> Enumerator:
        return Enumerator(self.bucket, prefix=self.source.input.prefix, slots=self.source.location.slots)


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
