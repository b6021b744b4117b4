"""How a batch is planned: list the bucket or follow the entries, and compare with the committed state.

A listing is made in chains (`listing_chains`) by tasks, and shuffled by slot. Entries are followed by the driver, which
saves a Spark job: they are as many as the changes. They are read before the bucket is looked at, so that whatever an
entry names is seen, and the entry may go when the slot is committed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.errors import S3NotifyError, UsageError
from s3notify_platform.ingest.compare_columns import compared
from s3notify_platform.ingest.fetch import windows
from s3notify_platform.ingest.follow import last_signal_queued, named_versions
from s3notify_platform.ingest.row_schema import Batches, numbers_of, runs_of
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.wire import (
    LISTED,
    PLANNED,
    ComparedSlot,
    FailedSlot,
    Gone,
    Planned,
    QueuedEntry,
    Requests,
    ToRead,
    UnqueuedSlot,
    WantedSlot,
)
from s3notify_platform.parallel import readers
from s3notify_platform.ports import ETag, unaddressable
from s3notify_platform.protocols.source_enumerator import (
    Chain,
    ObjectState,
    ObjectVersion,
    changes_of_slot,
    listed_pages,
)
from s3notify_platform.slots import Slot
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.s3.fast import shared_store
from s3notify_platform.table.heads import NONE_KNOWN
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.reread import backfilled_keys
from s3notify_platform.table.states import states_of

if TYPE_CHECKING:
    from s3notify_platform.protocols.notification_queue import Entry, TopicUser

IN_FLIGHT: Final = 32
KEYS_NAMED: Final = 5
"""Keys of a slot that S3 clients cannot address and that are named."""

_AT_ALL: Final = float("inf")
"""The driver, whose clock it is, looks whether a plan took too long to rely on what was recalled for it."""

CHAINS_AT_ONCE: Final = 4
"""Chains that one task lists at once: it waits for the server most of the time."""


@dataclass(slots=True)
class _Found:
    """What was found of one slot. `touched`: the keys that were looked at; None: all of them, and `listed` has them.

    `newest`: its newest generation, None if that is still to be asked for; or a `recalled` one (`table.heads`).
    """

    slot: Slot
    newest: Generation | None = None
    recalled: bool = False
    versions: list[ObjectVersion] = field(default_factory=list)
    listed: list[pa.RecordBatch] = field(default_factory=list)
    entries: list[QueuedEntry] = field(default_factory=list)
    touched: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a chain of LISTs begins: after a cut, or where the server's token says."""

    after: str | None = None
    token: str | None = None


def lister(
    source: Source, wanted: frozenset[Slot], parts: Sequence[Sequence[Start]], cuts: frozenset[str]
) -> Callable[[Batches], Batches]:
    """Tasks that list the chains of their part: every object of the slots."""

    def run(batches: Batches) -> Batches:
        for number in numbers_of(batches):
            bucket = CountingStore(shared_store(source.input.bucket))
            enumerator = source.enumerator(bucket)
            chains = [
                Chain(bucket, source.input.prefix, cuts=cuts, after=start.after, token=start.token)
                for start in parts[number]
            ]
            for objects in listed_pages(chains, CHAINS_AT_ONCE):
                yield LISTED.columns(ObjectVersion, enumerator.columns_among(objects, wanted))
            overran = sum(each.overran for each in chains)
            yield LISTED.batch([Requests(requests=bucket.counts, overran=overran)])

    return run


def comparer(source: Source, quota: int, skip: frozenset[str]) -> Callable[[Batches], Batches]:
    """Tasks that compare what was listed, slot by slot; at most `quota` changes of each."""

    def run(batches: Batches) -> Batches:
        comparison = _Comparison(source, quota, skip)
        yield from map(PLANNED.batch, comparison.run(_by_slot(batches)))
        yield PLANNED.batch([Requests(requests=comparison.store.counts)])

    return run


def follow(
    source: Source,
    slots: Sequence[Slot],
    quota: int,
    skip: frozenset[str],
    recalled: Mapping[Slot, Generation] = NONE_KNOWN,
    *,
    user: "TopicUser | None" = None,
) -> Iterator[Planned]:
    """Read the entries of these slots, look at the keys they name, and compare; at most `quota` changes of each.

    `user`: see `NotificationQueue.entries`.
    """
    comparison = _Comparison(source, quota, skip)
    bucket = CountingStore(shared_store(source.input.bucket))
    yield from chain.from_iterable(
        comparison.run(_followed(source, slots, recalled, comparison.store, bucket, user=user))
    )
    yield Requests(requests=comparison.store.counts)
    yield Requests(requests=bucket.counts)


def _followed(
    source: Source,
    slots: Sequence[Slot],
    recalled: Mapping[Slot, Generation],
    platform: CountingStore,
    bucket: CountingStore,
    *,
    user: "TopicUser | None",
) -> Iterator[_Found | FailedSlot]:
    newest = {**source.table(store=platform).newest({*slots} - recalled.keys()), **recalled}
    by_slot: dict[Slot, list[Entry]] = {slot: [] for slot in slots}
    for entry in source.location.queue(platform).entries(source.name, slots, user=user):
        by_slot[Slot(entry.slot)].append(entry)
    with readers(IN_FLIGHT) as pool:
        for slot, entries in by_slot.items():
            try:
                named = named_versions(source.enumerator(bucket), entries, pool)
            except UsageError:
                raise
            except S3NotifyError as error:
                yield FailedSlot.of(slot, error)
                continue
            yield _Found(
                slot,
                newest=newest[slot],
                recalled=slot in recalled,
                versions=[version for version in named.values() if version is not None],
                entries=[*map(QueuedEntry.of, entries)],
                touched=frozenset(named),
            )


def _expired(entries: Iterable[QueuedEntry]) -> frozenset[str]:
    """The keys of which the newest entry says that the bucket's lifecycle has removed their objects."""
    of_objects = (entry for entry in entries if not entry.of_version)
    newest = {entry.key: entry for entry in sorted(of_objects, key=lambda e: e.time_ms)}
    return frozenset(key for key, entry in newest.items() if entry.expiry)


class _Comparison:
    """Compares what was found of slots with their committed states, several at a time."""

    def __init__(self, source: Source, quota: int, skip: frozenset[str]) -> None:
        self.store = CountingStore(shared_store(source.location.platform))
        self._source = source
        self._quota = quota
        self._skip = skip
        self._table = source.table(store=self.store)
        self._choice = source.enumerator().choice

    def _chosen(self, key: str) -> bool:
        return not self._choice.why_not(key)

    def run(self, slots: Iterable[_Found | FailedSlot | Requests]) -> Iterator[list[Planned]]:
        """The rows of these slots; what is no slot to compare is passed on."""
        with readers(IN_FLIGHT) as pool:
            for window in windows(slots, most=4 * IN_FLIGHT):
                yield [*chain.from_iterable(pool.map(self._compare, window))]

    def _compare(self, found: _Found | FailedSlot | Requests) -> list[Planned]:
        if not isinstance(found, _Found):
            return [found]
        try:
            return self._planned(found)
        except UsageError:
            raise
        except S3NotifyError as error:
            return [FailedSlot.of(found.slot, error)]

    def _planned(self, found: _Found) -> list[Planned]:
        unqueued = found.touched is not None and not last_signal_queued(
            self._source.location, found.slot, store=self.store
        )
        if unqueued and not found.touched:
            return [UnqueuedSlot(slot=found.slot)]
        head = self._table.head(found.slot, found.newest)
        pending = frozenset(head.pending if head else ())
        version = self._source.input.code_version
        # All rows of the slot have to be made again, or some that an earlier batch could not.
        other = version is not None and head is not None and head.code_version != version
        whole = other or (head is not None and head.backfill > 0)
        listed = None
        if found.touched is None:
            listed = compared(
                found.listed,
                self._table.state_columns(head),
                pending | self._skip,
                whole=whole,
                on_delete=self._source.input.on_delete,
                chosen=self._chosen,
            )
            found.versions, states = listed.versions(found.slot), states_of(listed.states)
        else:
            states = self._table.states(head, None if whole else found.touched | pending)
        # What is in quarantine as a whole is left there, whatever the code.
        stale = {k for k, s in states.items() if other and s.code_version != version and not s.reason}
        stale |= backfilled_keys(head, states)
        versions, touched = found.versions, found.touched
        expired = frozenset[str]()
        if self._source.input.on_delete == "keep_expired":
            expired = _expired(found.entries)
        if touched is not None:
            versions = versions + [
                ObjectVersion(slot=found.slot, key=key, etag=ETag(states[key].etag), size=states[key].size)
                for key in (stale | pending & states.keys()) - touched
                if not states[key].expired  # nothing is there to be read again
            ]
        changes = changes_of_slot(
            found.slot,
            [each for each in versions if each.key not in self._skip],
            # Skipped, not gone.
            {key: s for key, s in states.items() if key not in self._skip or self._has_left(key, found)},
            max_objects=self._quota,
            touched=touched,
            pending=pending,
            stale=stale,
            expired=expired,
            stays=lambda state: self._source.input.stays(state) and self._chosen(state.key),
        )
        generation = head.generation if head else Generation(0)
        # A commit would meet what came after it. Without one, or where a person would be alarmed, that is asked for.
        withdrawn = (
            listed.withdrawn - len(expired & states.keys() - {v.key for v in versions}) if listed else 0
        )
        unsure = found.recalled and (not changes or withdrawn > 0)
        if unsure and not self._table.stands(found.slot, generation, seen_at=_AT_ALL):
            return self._planned(replace(found, newest=None, recalled=False))
        announced = {entry.key for entry in found.entries}
        # Read on, or again: no change that anybody would have to announce.
        announced |= {v.key for v in (s.version for s in changes.read) if _etag_of(states, v.key) == v.etag}
        rows: list[Planned] = [
            ToRead(split=split, announced=split.version.key in announced) for split in changes.read
        ]
        rows += [
            Gone(slot=found.slot, key=key, announced=key in announced, expired=key in changes.expired)
            for key in changes.gone
        ]
        if unqueued:
            rows.append(UnqueuedSlot(slot=found.slot))
        odd = listed.unaddressable if listed else [v.key for v in versions if unaddressable(v.key)]
        rows.append(
            ComparedSlot(
                slot=found.slot,
                generation=generation,
                objects=listed.objects if listed else head.objects if head else 0,
                held=listed.held if listed else 0,
                withdrawn=withdrawn,
                complete=changes.complete,
                beyond=changes.beyond,
                unaddressable=len(odd),
                unaddressable_keys=tuple(odd[:KEYS_NAMED]),
            )
        )
        return [*rows, *found.entries]

    @staticmethod
    def _has_left(key: str, found: _Found) -> bool:
        looked_at = found.touched is None or key in found.touched
        return looked_at and all(version.key != key for version in found.versions)


def _etag_of(states: Mapping[str, ObjectState], key: str) -> str | None:
    return states[key].etag if key in states else None


def _by_slot(batches: Batches) -> Iterator[_Found | Requests]:
    """What was found of each slot, from rows sorted by slot; and rows that are of none."""
    every = chain.from_iterable(runs_of(batch, "slot") for batch in batches)
    for slot, pieces in groupby(every, lambda piece: piece[0]):
        found = _Found(Slot(slot))
        for _, piece in pieces:
            of_object = pc.equal(piece.column("kind"), LISTED.kind(ObjectVersion))
            found.listed.append(piece.filter(of_object))
            for row in LISTED.read([piece.filter(pc.invert(of_object))]):
                match row:
                    case WantedSlot():
                        found.newest, found.recalled = row.generation, row.recalled
                    case QueuedEntry():
                        found.entries.append(row)
                    case Requests():
                        yield row
                    case _:
                        raise AssertionError(row)
        if slot >= 0:
            yield found
