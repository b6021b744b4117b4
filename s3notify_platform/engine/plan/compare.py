"""Plans a batch: lists the bucket or follows the entries, and compares the result with the committed states.

Spark tasks list the bucket in chains (`listing_chains`), and Spark shuffles the listed rows by slot. Entries are
followed on the driver, without a Spark job: there are only as many entries as changes. Entries are read before the
bucket is looked at. So the change behind an entry is always seen, and the entry may be removed after the commit of its
slot.
"""

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.engine.plan.compare_columns import Listed, compared
from s3notify_platform.engine.plan.queued_versions import named_versions
from s3notify_platform.engine.values.row_schema import Batches, numbers_of, runs_of
from s3notify_platform.engine.values.slot_plan import Planned, SlotPlan, planned_rows
from s3notify_platform.engine.values.task_rows import (
    LISTED,
    FailedSlot,
    Requests,
    WantedSlot,
)
from s3notify_platform.kernel.errors import S3NotifyError, UsageError
from s3notify_platform.kernel.limits import TASK_READS_IN_FLIGHT
from s3notify_platform.kernel.parallel import readers
from s3notify_platform.kernel.ports import ETag, ListedColumns, unaddressable
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import (
    Chain,
    Enumerator,
    ObjectState,
    ObjectVersion,
    UnchosenObject,
    changes_of_slot,
    listed_pages,
)
from s3notify_platform.source.source import Source
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import Manifest
from s3notify_platform.table.reread import backfilled_keys
from s3notify_platform.table.snapshot import Snapshot
from s3notify_platform.table.states.state_columns import pending_in

if TYPE_CHECKING:
    from s3notify_platform.protocols.notification_queue import Entry

KEYS_NAMED: Final = 5
"""Maximum number of unaddressable keys that a slot's plan names. S3 clients cannot address these keys."""

COMPARED_AT_ONCE: Final = 20_000
"""Number of listed objects and states that a task gathers before it compares them."""

CHAINS_AT_ONCE: Final = 4
"""Number of chains that one task lists in parallel. A task mostly waits for the server."""


@dataclass(slots=True)
class _Found:
    """The objects that were found in one slot, by a listing or by the keys of entries.

    `unchosen`: the keys of `UnchosenObject`s. `touched`: the keys that were looked at; None if `listed` has all keys
    of the slot.
    """

    slot: Slot
    versions: list[ObjectVersion] = field(default_factory=list)
    listed: list[pa.RecordBatch] = field(default_factory=list)
    unchosen: set[str] = field(default_factory=set)
    entries: "Sequence[Entry]" = ()
    touched: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The place where a chain of LISTs begins: after the key of a cut, or at the server's token."""

    after: str | None = None
    token: str | None = None


def lister(
    source: Source, wanted: frozenset[Slot], parts: Sequence[Sequence[Start]], cuts: frozenset[str]
) -> Callable[[Batches], Batches]:
    """Returns the function that each task calls.

    The function lists the chains of the task, and yields all objects of the wanted slots.
    """

    def run(batches: Batches) -> Batches:
        for number in numbers_of(batches):
            bucket = CountingStore(open_store(source.input.bucket))
            enumerator = source.enumerator(bucket)
            chains = [
                Chain(bucket, source.input.prefix, cuts=cuts, after=start.after, token=start.token)
                for start in parts[number]
            ]
            for objects in listed_pages(chains, CHAINS_AT_ONCE):
                yield from listed_rows(source, enumerator, objects, wanted)
            overran = sum(each.overran for each in chains)
            yield LISTED.batch([Requests(requests=bucket.counts, overran=overran)])

    return run


def listed_rows(
    source: Source, enumerator: Enumerator, listed: ListedColumns, wanted: frozenset[Slot]
) -> Batches:
    """Yields the listed objects of the wanted slots, as rows of `LISTED`. Pure."""
    chosen = enumerator.choice.among(listed)
    yield LISTED.columns(ObjectVersion, enumerator.columns_among(listed, wanted, chosen))
    # With `withdraw`, unchosen objects count as missing objects: their rows are removed.
    if source.input.on_delete != "withdraw" and enumerator.choice.needs_meta:
        yield LISTED.columns(UnchosenObject, enumerator.unchosen_among(listed, wanted, chosen))


def comparer(
    source: Source,
    manifest: Manifest,
    wanted: Sequence[Slot],
    *,
    tasks: int,
    quota: int,
    skip: frozenset[str],
) -> Callable[[Batches], Batches]:
    """Returns the function that each task calls. The function compares a listing with the manifest's states, for groups
    of slots.

    A plan has at most `quota` changes of each slot. Each task compares the slots of one range (`group_of`), in order.
    """
    groups: dict[int, list[Slot]] = {}
    for slot in wanted:
        groups.setdefault(group_of(slot, tasks, source.location.slots), []).append(slot)

    def run(batches: Batches) -> Batches:
        store = CountingStore(open_store(source.location.platform))
        comparison = Comparison(source, manifest, quota, skip)
        states: Iterator[tuple[Slot, pa.RecordBatch | S3NotifyError]] = iter(())
        began = False
        together: list[tuple[_Found, pa.RecordBatch]] = []
        rows = 0
        for found in _by_slot(batches):
            if isinstance(found, Requests):
                yield planned_rows([found])
                continue
            if not began:
                slots = groups[group_of(found.slot, tasks, source.location.slots)]
                states, began = _columns_of(source.table(store=store), manifest, slots), True
            slot, columns = next(states)
            assert slot == found.slot, "each wanted slot has a row"
            if isinstance(columns, S3NotifyError):
                yield planned_rows([FailedSlot.of(slot, columns)])
                continue
            together.append((found, columns))
            rows += columns.num_rows + sum(piece.num_rows for piece in found.listed) + len(found.unchosen)
            if rows >= COMPARED_AT_ONCE:
                yield planned_rows(comparison.listed(together))
                together, rows = [], 0
        yield planned_rows(comparison.listed(together))
        yield planned_rows([Requests(requests=store.counts)])

    return run


def _columns_of(
    table: LogTable, manifest: Manifest, slots: Sequence[Slot]
) -> Iterator[tuple[Slot, pa.RecordBatch | S3NotifyError]]:
    """Yields the states of each slot, in order, or the error if the states cannot be read. A damaged file affects only
    the slots whose states are in this file.
    """
    left = [*slots]
    try:
        for slot, columns in table.states.columns(manifest.states, slots):
            left.remove(slot)
            yield slot, columns
    except S3NotifyError:
        for slot in left:
            try:
                yield from table.states.columns(manifest.states, [slot])
            except S3NotifyError as error:
                yield slot, error


def group_of(slot: Slot, tasks: int, slots: int) -> int:
    """Returns the number of the task that compares a slot, if `tasks` tasks compare `slots` slots. Pure."""
    return slot * tasks // slots


def follow(
    source: Source,
    table: LogTable,
    snapshot: Snapshot,
    slots: Sequence[Slot],
    named: "Iterable[Entry]",
    *,
    quota: int,
    skip: frozenset[str],
) -> Iterator[Planned]:
    """Looks at the keys in the entries `named`, and compares their objects with the states.

    A plan has at most `quota` changes of each slot. Cost: 1 HEAD for each key whose entries do not describe the object,
    and the requests of one `StateReader.lookup`.
    """
    manifest = snapshot.manifest
    bucket = CountingStore(open_store(source.input.bucket))
    by_slot: dict[Slot, list[Entry]] = {slot: [] for slot in slots}
    for entry in named:
        by_slot[Slot(entry.slot)].append(entry)
    found: list[_Found] = []
    with readers(TASK_READS_IN_FLIGHT) as pool:
        for slot, entries in by_slot.items():
            try:
                versions = named_versions(source.enumerator(bucket), entries, pool)
            except UsageError:
                raise
            except S3NotifyError as error:
                yield FailedSlot.of(slot, error)
                continue
            found.append(
                _Found(
                    slot,
                    versions=[version for version in versions.values() if version is not None],
                    entries=entries,
                    touched=frozenset(versions),
                )
            )
    comparison = Comparison(source, manifest, quota, skip)
    for each, states in _states_of(found, table, comparison):
        if isinstance(states, S3NotifyError):
            yield FailedSlot.of(each.slot, states)
        else:
            yield comparison.followed(each, states)
    yield Requests(requests=bucket.counts)


def _states_of(
    found: Sequence[_Found], table: LogTable, comparison: "Comparison"
) -> Iterator[tuple[_Found, Mapping[str, ObjectState] | S3NotifyError]]:
    """Yields the states that each slot's comparison needs, or the error if the states cannot be read. A damaged file
    affects only the slots whose states are in this file.
    """
    manifest = comparison.manifest
    whole = [each.slot for each in found if comparison.is_whole(each.slot)]
    waiting = [each.slot for each in found if manifest.slot(each.slot).pending]
    keys = {each.slot: each.touched or () for each in found if each.slot not in whole}
    try:
        known = table.states.lookup(manifest.states, keys)
        pending = table.states.pending(manifest.states, waiting) if waiting else {}
        every = dict(table.states.of_slots(manifest.states, whole)) if whole else {}
    except S3NotifyError as error:
        if len(found) == 1:
            yield found[0], error
        else:
            for each in found:
                yield from _states_of([each], table, comparison)
        return
    for each in found:
        yield (
            each,
            every.get(each.slot)
            or {
                **{key: known[key] for key in each.touched or () if key in known},
                **pending.get(each.slot, {}),
            },
        )


def _expired(entries: "Iterable[Entry]") -> frozenset[str]:
    """Returns the keys whose newest entry reports that the bucket's lifecycle has removed the object."""
    of_objects = (entry.event for entry in entries if not entry.event.is_of_version)
    newest = {event.key: event for event in sorted(of_objects, key=lambda e: e.time_ms)}
    return frozenset(key for key, event in newest.items() if event.is_expiry)


class Comparison:
    """Compares the objects found in slots with the committed states. Pure."""

    def __init__(self, source: Source, manifest: Manifest, quota: int, skip: frozenset[str]) -> None:
        self._source = source
        self.manifest = manifest
        self._quota = quota
        self._skip = skip
        self._choice = source.enumerator().choice

    def _chosen(self, key: str, unchosen: Collection[str]) -> bool:
        """True if the source reads an object with this key. `on_delete` never keeps rows of objects that the source
        does not read.
        """
        return key not in unchosen and not self._choice.why_not(key)

    def is_whole(self, slot: Slot) -> bool:
        """True if the comparison needs all states of a slot, because rows of unchanged objects must be made again."""
        return self.manifest.slot(slot).backfill > 0

    def listed(self, found: Sequence[tuple[_Found, pa.RecordBatch]]) -> Iterator[SlotPlan]:
        """Yields the plans of listed slots. `found`: the listed objects of each slot, and all states of the slot."""
        states = [columns for _, columns in found]
        pending = (columns.filter(pending_in(columns)).column("key").to_pylist() for columns in states)
        unchosen = set[str]().union(*(each.unchosen for each, _ in found))
        listed = compared(
            [each.slot for each, _ in found],
            [piece for each, _ in found for piece in each.listed],
            states,
            self._skip.union(*pending),
            whole=[each.slot for each, _ in found if self.is_whole(each.slot)],
            on_delete=self._source.input.on_delete,
            chosen=lambda key: self._chosen(key, unchosen),
        )
        for each, _ in found:
            each.versions = listed[each.slot].changed
            yield self._planned(each, listed[each.slot].states, listed[each.slot])

    def followed(self, found: _Found, states: Mapping[str, ObjectState]) -> SlotPlan:
        """Returns the plan of a slot by its entries, without a listing.

        `states`: the states that the comparison needs.
        """
        return self._planned(found, states, None)

    def _planned(self, found: _Found, states: Mapping[str, ObjectState], listed: Listed | None) -> SlotPlan:
        facts = self.manifest.slot(found.slot)
        pending = frozenset(key for key, state in states.items() if state.pending)
        again = backfilled_keys(facts, states)
        versions, touched = found.versions, found.touched
        expired = frozenset[str]()
        if self._source.input.on_delete == "keep_expired":
            expired = _expired(found.entries)
        if touched is not None:
            versions = versions + [
                ObjectVersion(slot=found.slot, key=key, etag=ETag(states[key].etag), size=states[key].size)
                for key in (again | pending) - touched
                if not states[key].expired  # no object is left to read
            ]
        changes = changes_of_slot(
            found.slot,
            [each for each in versions if each.key not in self._skip],
            # Without this filter, skipped keys would count as missing from the bucket.
            {key: s for key, s in states.items() if key not in self._skip or self._has_left(key, found)},
            max_objects=self._quota,
            touched=touched,
            pending=pending,
            stale=again,
            expired=expired,
            stays=lambda state: self._source.input.stays(state) and self._chosen(state.key, found.unchosen),
        )
        announced = {entry.event.key for entry in found.entries}
        # If the ETag is unchanged, the read only continues or repeats an earlier read. Such a read needs no entry, so
        # the object counts as announced.
        announced |= {v.key for v in (s.version for s in changes.read) if _etag_of(states, v.key) == v.etag}
        concerned = [*(split.version.key for split in changes.read), *changes.gone]
        withdrawn = 0
        if listed is not None:
            kept = expired & states.keys() - {v.key for v in versions}
            withdrawn = listed.withdrawn - len(kept)
        odd = listed.unaddressable if listed else [v.key for v in versions if unaddressable(v.key)]
        return SlotPlan(
            changes=changes,
            before={key: states[key] for key in concerned if key in states},
            entries=tuple(found.entries),
            unannounced=frozenset(concerned) - announced,
            objects=listed.objects if listed else facts.objects,
            held=listed.held if listed else 0,
            withdrawn=withdrawn,
            unaddressable=len(odd),
            unaddressable_keys=tuple(odd[:KEYS_NAMED]),
        )

    @staticmethod
    def _has_left(key: str, found: _Found) -> bool:
        looked_at = found.touched is None or key in found.touched
        return looked_at and all(version.key != key for version in found.versions)


def _etag_of(states: Mapping[str, ObjectState], key: str) -> str | None:
    return states[key].etag if key in states else None


def _by_slot(batches: Batches) -> Iterator[_Found | Requests]:
    """Groups rows that are sorted by slot, and also yields the rows that belong to no slot."""
    every = chain.from_iterable(runs_of(batch, "slot") for batch in batches)
    for slot, pieces in groupby(every, lambda piece: piece[0]):
        found = _Found(Slot(slot))
        for _, piece in pieces:
            of_object = pc.equal(piece.column("kind"), LISTED.kind(ObjectVersion))
            found.listed.append(piece.filter(of_object))
            for row in LISTED.read([piece.filter(pc.invert(of_object))]):
                match row:
                    case UnchosenObject():
                        found.unchosen.add(row.key)
                    case WantedSlot():
                        found.entries = pickle.loads(row.pickled)  # noqa: S301 - by this package's driver
                    case Requests():
                        yield row
                    case _:
                        raise AssertionError(row)
        if slot >= 0:
            yield found
