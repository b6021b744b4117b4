"""Erases an object from a table for good: from its newest version, from its history, and from unreferenced files.

Steps
    1. Commit a version, called e, that does not have the object. The packs with rows of the object are written again,
       even if a deletion vector already hides these rows. The object's rejects and its state are removed. The slot's
       generation and its `Manifest.erased` change in every case, so that a round that was planned earlier cannot bring
       the object back.
    2. Search for the object in files that e does not name, and in versions that name such files.
    3. If a version holds the object, the log is cut. The log then begins after the last version with the object, or
       later. The log begins with a checkpoint that `_last_checkpoint` names. Earlier versions become empty objects;
       earlier checkpoints are removed.
    4. Remove the files.

Invariants
    - First the log is changed, and then the files that the log named are removed. If a call is killed at any point, a
      repetition finds the remaining files.
    - An earlier version stays as an empty object, so that a writer that slept cannot create another version with the
      same number. Vacuum removes the empty object once no writer can still be at an earlier version.
    - A file is removed only if it was written before version e. The run that wrote the file was planned earlier, so
      that run can no longer commit the slot. A file that was written later may belong to a run that slept, or that
      found the object in the bucket again (`Erased.left`).
    - A file that is written again gets a new name.

| after step 1 was planned, another writer … | then the erasure starts again on that version, and … |
|---|---|
| changed other slots, or the object's slot | removes everything that the version has of the object |
| merged or replaced packs, hid rows, merged state files | writes the new packs and state files again |
| let the schema grow, also erased an object | is committed with the new schema, without either object |
| is another engine whose version is accepted | writes the engine's packs again, if they may hold the object |
| is another engine whose version is refused | fails with an error, as every writer does |

After two restarts, the erasure holds the table: other writers wait (`Known.held`).

Files of later runs can stay, so a call must be repeated once, after the duration of the longest run
(`Erased.again_ms`). Other processes continue: readers and writers that use an earlier version open the table again.

The statistics in a version hold values of rows, but are not searched. The object counts as part of a version if the
version names a file that holds the object. Names of columns stay in the schema. If the bucket keeps former versions of
the platform's objects, these object versions stay, too.

Cost: the requests of a commit, 1 or 2 requests for the table's record, 1 LIST for each 1000 objects of the table, and 2
GETs for each kept version. A file that may hold the object costs 1 GET if e does not name the file. An emptied version
costs 1 PUT, and each other removed object costs 1 DELETE.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.kernel.deletion import delete_for_certain
from s3notify_platform.kernel.errors import CorruptError, UnavailableError
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.kernel.ports import ObjectMeta, StoredObject, Written, list_all
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.vacuuming import files_of, named_by, named_by_manifest
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.delta.actions import Add, LogVersion
from s3notify_platform.table.delta.log_state import NO_VERSION, OtherLogError
from s3notify_platform.table.known import RESTARTS
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import Manifest, SlotFacts
from s3notify_platform.table.packs.pack_set import PackChanges, PackSet, live_after
from s3notify_platform.table.packs.round_packs import Withdrawal
from s3notify_platform.table.proposal import Proposal
from s3notify_platform.table.round import SlotRound
from s3notify_platform.table.snapshot import Absent, LogReader, Snapshot
from s3notify_platform.table.state_changes import erased
from s3notify_platform.table.states.state_merge import without
from s3notify_platform.table.versions import kept_versions

CLOCKS_DIFFER_MS: Final = 10_000
"""The store's machines have separate clocks, so times from the store may differ by up to this much."""

PASSES: Final = 3

HOLDER: Final = "erase"

_NUMBER: Final = re.compile(r"\d{20}(?!\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """The result of one call: the removed data, and the data that is left.

    `version`: the committed version without the object; -1: there is no table. `begins`: the first version of the log
    if the log was cut, or else -1. `rows`, `rejects`: the number of rows and of rejects that the newest version has
    lost. `files`: the number of removed files. `left`: the number of files that hold the object and may belong to a
    run. `again_ms`: the time at which to repeat the call, by the store's clock (Unix milliseconds).
    """

    version: int = NO_VERSION
    begins: int = NO_VERSION
    rows: int = 0
    rejects: int = 0
    known: bool = False
    files: int = 0
    left: int = 0
    again_ms: int = 0

    @property
    def found(self) -> bool:
        """True if anything of the object was found. Then a repetition after `again_ms` is needed."""
        return (
            self.begins != NO_VERSION
            or self.known
            or bool(self.rows or self.rejects or self.files or self.left)
        )


def ending(table: LogTable) -> tuple[int, int] | None:
    """The first and the last readable version. An erasure may make all versions before the last one unreadable. None:
    no version is readable. Cost: 1 LIST.
    """
    kept = kept_versions(table.reader)
    return (min(kept), max(kept)) if kept else None


def erase(
    table: LogTable, slot: Slot, key: str, *, whole_slot: bool = False, clock: Clock = SYSTEM_CLOCK
) -> Erased:
    """Erases the object of this key and slot, which must have left the bucket. The erasure is safe to repeat, and safe
    to run beside other processes.

    `whole_slot`: removes all rows of the slot, for a derived table that does not say which rows come from the object.
    `ConflictError`, `UnavailableError`, `UnknownOutcomeError`: repeat the call.
    """
    found = table.newest()
    if isinstance(found, Absent):
        return Erased()
    what = _What(slot=slot, key=key, whole_slot=whole_slot)
    change = Erasure(table=table, what=what, clock=clock)
    for _ in range(PASSES):
        try:
            done = table.noted(table.committer.commit_alone(change, found, holder=HOLDER))
        finally:
            table.reader.known.release(HOLDER)
        assert isinstance(done, Committed), "an erasure always commits a version"
        found = done.snapshot
        history = _History.read(table, found, what)
        if history.begins <= found.version:
            return _removed(table, history, change)
    raise UnavailableError(
        f"{key!r}: other writers keep adding the object to the newest version; repeat the command"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _What:
    """The object to erase, and functions that find out whether data contains the object. Pure."""

    slot: Slot
    key: str
    whole_slot: bool

    def may_be_in(self, pack: Add) -> bool:
        """True if a pack of rows or of rejects may hold the object, according to the pack's bounds."""
        if self.whole_slot:
            return pack.slots[0] <= self.slot <= pack.slots[1]
        return pack.may_hold(self.slot, self.key, pack.since, pack.until)

    def is_in(self, body: bytes) -> bool:
        """True if a file holds the object, or if this cannot be determined."""
        if not body.startswith(b"PAR1"):
            texts = {self.key, *(json.dumps(self.key, ensure_ascii=each)[1:-1] for each in (True, False))}
            return any(text.encode("utf-8", "surrogatepass") in body for text in texts)
        try:
            file = pq.ParquetFile(pa.BufferReader(body))
            names = ("_slot",) if self.whole_slot else ("_key", "key")
            name = next((each for each in names if each in file.schema_arrow.names), None)
            if name is None:
                return True
            value = self.slot if self.whole_slot else self.key
            column = file.read(columns=[name], use_threads=False)[name]
            return bool(pc.any(pc.equal(column, value)).as_py())
        except (pa.ArrowException, OSError):
            return True

    def is_in_manifest(self, manifest: Manifest) -> bool:
        """True if the manifest itself names the object: among inline states or changes, or as a bound of a file."""
        bounds = {key for pack in manifest.rejects for key in pack.keys}
        bounds |= {place[1] for file in manifest.states.files for place in (file.first, file.end)}
        inline = {*manifest.states.inline.get(self.slot, ()), *(each.key for each in manifest.changes)}
        return self.key in inline or not bounds.isdisjoint({self.key, f"{self.key}\0"})

    def is_in_note(self, version: LogVersion) -> bool:
        """True if the note in a version contains the key."""
        text = json.dumps(dict(version.note), ensure_ascii=False)
        return json.dumps(self.key, ensure_ascii=False)[1:-1] in text


@dataclass(slots=True, kw_only=True)
class Erasure:
    """The change that removes an object. `rows`, `rejects`: the number of removed rows and rejects. `known`: True if
    the object had a state.
    """

    table: LogTable
    what: _What
    clock: Clock
    rows: int = 0
    rejects: int = 0
    known: bool = False
    _asked: int = 0
    _data: PackSet = field(init=False)
    _quarantine: PackSet = field(init=False)

    def __post_init__(self) -> None:
        # Rows that a deletion vector hides are still in their file, so they are read, too.
        self._data = self.table.data.fresh(vectors=False)
        self._quarantine = self.table.quarantine.fresh(vectors=False)

    def onto(self, base: Snapshot) -> Proposal:
        """See `Change`, and the table in the module docstring."""
        self._asked += 1
        if self._asked > RESTARTS:
            self.table.reader.known.hold(HOLDER)
        slot, key, manifest = self.what.slot, self.what.key, base.manifest
        rows = self._changed(self._data, base.packs.values())
        rejects = self._changed(self._quarantine, manifest.rejects)
        held = self.table.states.lookup(manifest.states, {slot: [key]}).get(key)
        states = without(
            self.table.states, manifest.states, {slot: [key]}, name=lambda: unique_name(self.clock)
        )
        self.rows, self.rejects = rows.withdrawn.total(), rejects.withdrawn.total()
        self.known = held is not None
        return Proposal(
            adds=tuple(rows.adds),
            removes=tuple(rows.removes),
            slots={slot: self._facts(manifest, held)},
            states=states.states,
            changes=(erased(slot, key, held),) if held is not None else (),
            rejects=live_after(manifest.rejects, rejects),
            files={
                **rows.files,
                **rejects.files,
                **{self.table.layout.state(name): body for name, body in states.bodies.items()},
            },
            erases=slot,
            operation="ERASE",
            note={"slots": [slot]},
        )

    def _changed(self, packs: PackSet, live: Iterable[Add]) -> PackChanges:
        key = None if self.what.whole_slot else self.what.key
        return packs.changed(tuple(live), [Withdrawal(slot=self.what.slot, key=key)], ())

    def _facts(self, manifest: Manifest, held: ObjectState | None) -> SlotFacts:
        before, key = manifest.slot(self.what.slot), self.what.key
        if self.what.whole_slot:
            return replace(before, rows=0, rejects=0, source=0)  # source version 0: the slot is built again
        if held is not None:
            gone = ObjectState(key=key, etag="", size=0, gone=True)
            return SlotRound(changes={key: gone}, before={key: held}).facts(before)
        if manifest.states.inline or manifest.states.files:
            return before
        # A derived table has no states.
        return replace(before, rows=before.rows - self.rows, rejects=before.rejects - self.rejects)


@dataclass(frozen=True, slots=True, kw_only=True)
class _History:
    """The stored objects of the table, after a search for the erased object. The new snapshot no longer has this
    object.

    `versions`: the versions of the log. `rest`: the other objects of the log. `holding`: files outside the log that
    hold the erased object and that the snapshot does not name. `begins`: the version after the last version that holds
    the erased object; 0: no version holds it.
    """

    snapshot: Snapshot
    versions: Mapping[int, ObjectMeta]
    rest: tuple[ObjectMeta, ...]
    holding: tuple[ObjectMeta, ...]
    begins: int

    @classmethod
    def read(cls, table: LogTable, snapshot: Snapshot, what: _What) -> "_History":
        """Searches for the object: step 2 of the module docstring."""
        reader, layout, at_once = table.reader, table.layout, table.committer.at_once
        listed = list(list_all(reader.store, layout.prefix))
        log = [meta for meta in listed if meta.key.startswith(layout.log)]
        versions = {n: meta for meta in log if (n := layout.version_of(meta.key)) is not None}
        kept = [n for n in sorted(versions) if versions[n].size and n <= snapshot.version]
        bodies = _Bodies.read(reader, kept, at_once)
        named = named_by(reader, snapshot)
        bounds = bodies.bounds(what)
        unnamed = [
            meta
            for meta in listed
            if not meta.key.startswith(layout.log) and meta.key not in named and bounds.get(meta.key, True)
        ]
        holds = in_parallel(lambda meta: _holds(table, meta, what, bodies), unnamed, at_once)
        holding = [meta for meta, found in zip(unnamed, holds, strict=True) if found]
        there = {meta.key for meta in listed}
        return cls(
            snapshot=snapshot,
            versions=versions,
            rest=tuple(meta for meta in log if layout.version_of(meta.key) is None),
            holding=tuple(holding),
            begins=1 + bodies.last_with({meta.key for meta in holding}, there, what),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bodies:
    """The kept versions and their manifests. A version or manifest that is removed meanwhile is left out."""

    reader: LogReader
    versions: Mapping[int, LogVersion]
    manifests: Mapping[int, Manifest]

    @classmethod
    def read(cls, reader: LogReader, kept: list[int], at_once: int) -> "_Bodies":
        """Reads versions and manifests. Cost: 2 GETs for each version."""
        found = zip(kept, in_parallel(reader.version, kept, at_once), strict=True)
        versions = {version: body for version, body in found if body is not None}

        def manifest(number: int) -> Manifest | None:
            stored = reader.store.get(reader.layout.manifest(number))
            if not isinstance(stored, StoredObject):
                return None
            return Manifest.loads(stored.body, where=stored.meta.key)

        numbers = [body.number for body in versions.values() if not body.foreign]
        found_by_number = zip(numbers, in_parallel(manifest, numbers, at_once), strict=True)
        return cls(
            reader=reader,
            versions=versions,
            manifests={number: each for number, each in found_by_number if each is not None},
        )

    def bounds(self, what: _What) -> dict[str, bool]:
        """The files that a kept version adds or that its manifest names, by key. The value is True if the file may hold
        the object.
        """
        file, found = self.reader.layout.file, {}
        packs = [pack for body in self.versions.values() for pack in body.adds]
        packs += [pack for each in self.manifests.values() for pack in each.rejects]
        for pack in packs:
            found[file(pack.path)] = what.may_be_in(pack)
        place = (what.slot, what.key)
        for each in self.manifests.values():
            for state in each.states.files:
                found[self.reader.layout.state(state.name)] = state.first <= place < state.end
        return found

    def last_with(self, holding: set[str], there: set[str], what: _What) -> int:
        """The last version that names the object, or whose snapshot has a file with the object; -1: no version.

        `there`: the keys of all stored objects of the table.
        """
        reader, last = self.reader, NO_VERSION
        for version, body in self.versions.items():
            missing = [add for add in body.adds if reader.layout.file(add.path) not in there]
            if holding & files_of(reader, body.removes):
                last = max(last, version - 1)
            manifest = self.manifests.get(body.number)
            in_manifest = manifest is not None and (
                what.is_in_manifest(manifest) or holding & named_by_manifest(reader, manifest)
            )
            # The statistics of a missing file are still in the version.
            in_missing = any(map(what.may_be_in, missing))
            if holding & files_of(reader, body.adds) or in_manifest or in_missing or what.is_in_note(body):
                last = max(last, version)
        return last


def _holds(table: LogTable, meta: ObjectMeta, what: _What, bodies: _Bodies) -> bool:
    """True if a file outside the log holds the object. Cost: at most 1 GET."""
    layout = table.layout
    if meta.key.startswith((layout.vectors, layout.cuts, f"{layout.own}now/")):
        return False
    if meta.key.startswith(layout.staged):
        kept = {layout.staged_version(body.number) for body in bodies.versions.values()}
        return meta.key not in kept
    found = table.reader.store.get(meta.key)
    if not isinstance(found, StoredObject):
        return False
    if meta.key.startswith(layout.manifests):
        try:
            return what.is_in_manifest(Manifest.loads(found.body, where=meta.key))
        except CorruptError:
            return True
    return what.is_in(found.body)


def _removed(table: LogTable, history: _History, change: Erasure) -> Erased:
    """Cuts the log and removes files: steps 3 and 4 of the module docstring."""
    layout, at_once, snapshot = table.layout, table.committer.at_once, history.snapshot
    begins = _begin(table, history)
    own = history.versions.get(snapshot.version)
    # An empty version was emptied by another erasure. So the modification time of its object is not the time of the
    # commit.
    before_ms = own.modified_ms - CLOCKS_DIFFER_MS if own is not None and own.size else 0
    first = max(begins, min((n for n, meta in history.versions.items() if meta.size), default=0))
    doomed = [meta for meta in history.rest if _is_below(meta, first, layout.last_checkpoint, before_ms)]
    files = [meta for meta in history.holding if meta.modified_ms < before_ms]
    for some in (doomed, files):
        in_parallel(lambda meta: delete_for_certain(table.reader.store, meta.key), some, at_once)
    now_ms = own.modified_ms if own is not None else 0
    return Erased(
        version=snapshot.version,
        begins=begins or NO_VERSION,
        rows=change.rows,
        rejects=change.rejects,
        known=change.known,
        files=len(files),
        left=len(history.holding) - len(files),
        again_ms=now_ms + int(table.committer.max_run_seconds * 1000) + CLOCKS_DIFFER_MS,
    )


def _begin(table: LogTable, history: _History) -> int:
    """Cuts the log, so that no remaining version holds the object. Returns the log's first version; 0: the log was not
    cut.
    """
    if not history.begins:
        return 0
    snapshot = history.snapshot
    if history.begins < snapshot.version:
        # The versions from `begins` to the newest version do not hold the object, and stay readable.
        with suppress(OtherLogError):  # another erasure is cutting the log, too
            snapshot = table.reader.as_of(history.begins) or snapshot
    table.committer.checkpoint(snapshot)
    earlier = [n for n, meta in sorted(history.versions.items()) if meta.size and n < snapshot.version]

    def empty(version: int) -> None:
        key = table.layout.version(version)
        if not isinstance(outcome := table.reader.store.put(key, b""), Written):
            raise UnavailableError(f"{key}: {outcome}: repeat the command")

    in_parallel(empty, earlier, table.committer.at_once)
    return snapshot.version


def _is_below(meta: ObjectMeta, first: int, last_checkpoint: str, before_ms: int) -> bool:
    """True if this object of the log was made from versions below `first`, by the platform or another engine."""
    if meta.key == last_checkpoint:
        return False
    number = _NUMBER.match(meta.key.rsplit("/", 1)[1])
    return int(number[0]) < first if number else meta.modified_ms < before_ms
