"""What the tasks of the first job do: list the bucket or follow the entries, and compare with the committed state.

A listing is made in chains (`listing_chains`) and shuffled by slot. Entries are read by all tasks, each for
slots of its own, with nothing to shuffle. Entries are read before the bucket is looked at, so that whatever an
entry names is seen, and the entry may go when the slot is committed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, assert_never

from s3notify_platform.errors import NotFoundError, S3NotifyError, UsageError
from s3notify_platform.ingest.follow import by_key, last_signal_queued, named_version
from s3notify_platform.ingest.row_schema import Batches
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.wire import (
    LISTED,
    PLANNED,
    ComparedSlot,
    FailedSlot,
    Gone,
    Listed,
    Planned,
    QueuedEntry,
    Requests,
    ToRead,
    UnqueuedSlot,
    WantedSlot,
)
from s3notify_platform.ports import ETag
from s3notify_platform.protocols.source_enumerator import (
    Chain,
    Enumerator,
    ObjectState,
    ObjectVersion,
    changes_of_slot,
    listed_pages,
)
from s3notify_platform.slots import Slot
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.s3.fast import shared_store
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.reread import backfilled_keys

if TYPE_CHECKING:
    from s3notify_platform.protocols.notification_queue import Entry

IN_FLIGHT: Final = 32
_WINDOW: Final = 4 * IN_FLIGHT
_PAGE: Final = 10_000
CHAINS_AT_ONCE: Final = 4
"""Chains that one task lists at once: it waits for the server most of the time."""


@dataclass(slots=True)
class _Found:
    """What was found of one slot. `touched`: the keys that were looked at; None: all of them.

    `newest`: its newest generation, None if that is still to be asked for.
    """

    slot: Slot
    newest: Generation | None = None
    versions: list[ObjectVersion] = field(default_factory=list)
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
        for number in (int(row) for batch in batches for row in batch.column(0).to_pylist()):
            bucket = CountingStore(shared_store(source.input.bucket))
            enumerator = Enumerator(bucket, prefix=source.input.prefix, slots=source.location.slots)
            chains = [
                Chain(bucket, source.input.prefix, cuts=cuts, after=start.after, token=start.token)
                for start in parts[number]
            ]
            rows: list[Listed] = []
            for objects in listed_pages(chains, CHAINS_AT_ONCE):
                rows += enumerator.among(objects, wanted)
                if len(rows) >= _PAGE:
                    yield LISTED.batch(rows)
                    rows = []
            overran = sum(each.overran for each in chains)
            yield LISTED.batch([*rows, Requests(requests=bucket.counts, overran=overran)])

    return run


def slot_rows(
    source: Source, newest: Mapping[Slot, Generation | None], platform: CountingStore
) -> list[Listed]:
    """One row for each slot, so that one whose objects are all gone is compared too; then the entries of the queue."""
    rows: list[Listed] = [WantedSlot(slot=slot, generation=newest[slot]) for slot in newest]
    with suppress(NotFoundError):  # nobody follows this source yet
        rows += map(QueuedEntry.of, source.location.queue(platform).entries(source.name, newest))
    return rows


def comparer(source: Source, quota: int, skip: frozenset[str]) -> Callable[[Batches], Batches]:
    """Tasks that compare what was listed, slot by slot; at most `quota` changes of each."""

    def run(batches: Batches) -> Batches:
        comparison = _Comparison(source, quota, skip)
        passed: list[Planned] = []
        yield from comparison.run(_by_slot(LISTED.read(batches), passed))
        yield PLANNED.batch([*passed, Requests(requests=comparison.store.counts)])

    return run


def follower(
    source: Source, parts: Sequence[Sequence[Slot]], quota: int, skip: frozenset[str]
) -> Callable[[Batches], Batches]:
    """Tasks that read the entries of their part of the slots, look at the keys they name, and compare."""

    def run(batches: Batches) -> Batches:
        for number in (int(row) for batch in batches for row in batch.column(0).to_pylist()):
            comparison = _Comparison(source, quota, skip)
            bucket = CountingStore(shared_store(source.input.bucket))
            yield from comparison.run(_followed(source, parts[number], comparison, bucket))
            counts = (comparison.store.counts, bucket.counts)
            yield PLANNED.batch([Requests(requests=requests) for requests in counts])

    return run


def _followed(
    source: Source, slots: Sequence[Slot], comparison: "_Comparison", bucket: CountingStore
) -> Iterator[_Found]:
    newest = source.table(store=comparison.store).newest(slots)
    by_slot: dict[Slot, list[Entry]] = {slot: [] for slot in slots}
    for entry in source.location.queue(comparison.store).entries(source.name, slots):
        by_slot[Slot(entry.slot)].append(entry)
    enumerator = Enumerator(bucket, prefix=source.input.prefix, slots=source.location.slots)
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        for slot, entries in by_slot.items():
            named = by_key(entries)
            try:
                versions = list(pool.map(partial(named_version, enumerator), named.values()))
            except UsageError:
                raise
            except S3NotifyError as error:
                comparison.failed(slot, error)
                continue
            yield _Found(
                slot,
                newest=newest[slot],
                versions=[version for version in versions if version is not None],
                entries=[*map(QueuedEntry.of, entries)],
                touched=frozenset(named),
            )


class _Comparison:
    """Compares what was found of slots with their committed states, several at a time."""

    def __init__(self, source: Source, quota: int, skip: frozenset[str]) -> None:
        self.store = CountingStore(shared_store(source.location.platform))
        self._source = source
        self._quota = quota
        self._skip = skip
        self._table = source.table(store=self.store)
        self._failed: list[FailedSlot] = []

    def failed(self, slot: Slot, error: S3NotifyError) -> None:
        """Note that a slot could not be looked at."""
        self._failed.append(_failed(slot, error))

    def run(self, slots: Iterable[_Found]) -> Batches:
        """The rows of these slots."""
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            window: list[_Found] = []
            for found in slots:
                window.append(found)
                if len(window) >= _WINDOW:
                    yield PLANNED.batch(chain.from_iterable(pool.map(self._compare, window)))
                    window = []
            yield PLANNED.batch(chain.from_iterable(pool.map(self._compare, window)))
        yield PLANNED.batch(self._failed)

    def _compare(self, found: _Found) -> list[Planned]:
        try:
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
            looked_at = None if found.touched is None or whole else found.touched | pending
            states = self._table.states(head, looked_at)
        except UsageError:
            raise
        except S3NotifyError as error:
            return [_failed(found.slot, error)]
        # What is in quarantine as a whole is left there, whatever the code.
        stale = {k for k, s in states.items() if other and s.code_version != version and not s.reason}
        stale |= backfilled_keys(head, states)
        versions, touched = found.versions, found.touched
        if touched is not None:
            versions = versions + [
                ObjectVersion(slot=found.slot, key=key, etag=ETag(states[key].etag), size=states[key].size)
                for key in (stale | pending & states.keys()) - touched
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
        )
        announced = {entry.key for entry in found.entries}
        # Read on, or again: no change that anybody would have to announce.
        announced |= {v.key for v in (s.version for s in changes.read) if _etag_of(states, v.key) == v.etag}
        rows: list[Planned] = [
            ToRead(split=split, announced=split.version.key in announced) for split in changes.read
        ]
        rows += [Gone(slot=found.slot, key=key, announced=key in announced) for key in changes.gone]
        if unqueued:
            rows.append(UnqueuedSlot(slot=found.slot))
        compared = ComparedSlot(
            slot=found.slot,
            generation=head.generation if head else Generation(0),
            objects=len(versions) if touched is None else head.objects if head else 0,
            complete=changes.complete,
            beyond=changes.beyond,
        )
        return [*rows, *found.entries, compared]

    @staticmethod
    def _has_left(key: str, found: _Found) -> bool:
        looked_at = found.touched is None or key in found.touched
        return looked_at and all(version.key != key for version in found.versions)


def _etag_of(states: Mapping[str, ObjectState], key: str) -> str | None:
    return states[key].etag if key in states else None


def _by_slot(rows: Iterable[Listed], passed: list[Planned]) -> Iterator[_Found]:
    """What was found of each slot; rows that are of none are added to `passed`."""
    current: _Found | None = None
    for row in rows:
        if isinstance(row, Requests):
            passed.append(row)
            continue
        if current is None or row.slot != current.slot:
            if current is not None:
                yield current
            current = _Found(row.slot)
        match row:
            case WantedSlot():
                current.newest = row.generation
            case ObjectVersion():
                current.versions.append(row)
            case QueuedEntry():
                current.entries.append(row)
            case _ as unreachable:
                assert_never(unreachable)
    if current is not None:
        yield current


def _failed(slot: Slot, error: S3NotifyError) -> FailedSlot:
    return FailedSlot(slot=slot, error=f"{type(error).__name__}: {error}")
