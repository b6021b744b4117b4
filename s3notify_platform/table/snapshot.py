"""Reads the newest state of a table: cold (without an earlier snapshot), or as a refresh of an earlier snapshot. Pure
except for `LogReader`.

A process keeps its snapshot. Before each round, the process reads `known`, and lists the log from the snapshot's
version on. The two requests are made in parallel. If the snapshot's version is missing or was replaced, or if the
table's id or the version's `n` differs from `known`, the process opens the table again. Possible causes are a restored
backup, or a table that was removed and made again.

The age of a snapshot counts from the moment just before the first read for this snapshot, by the process's own clock. A
version stays in the log for longer than the longest run takes. So a process with a young snapshot finds every later
version. If `erase` removes a version, it leaves an empty object instead, so that no sleeping writer can create the
version again. A reader that finds an empty object opens the table again, at a later checkpoint.

Versions of other engines are adopted if they change no data (OPTIMIZE). Other foreign versions are refused until a
rollback undoes them (`log_state`). The error message names the refused version.

`open` costs 4 GETs (3 without a checkpoint) and 1 LIST, and 1 GET for each version after the checkpoint. `refresh`
costs 1 GET and 1 LIST, 1 GET for each new version, and 1 GET for the manifest of the last version.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.kernel.ports import ETag, ObjectStore, Record, StoredObject, list_all
from s3notify_platform.table.delta.actions import Add, LogVersion, MetaData, Protocol
from s3notify_platform.table.delta.checkpoint import Checkpoint, LastCheckpoint, decode, encode
from s3notify_platform.table.delta.log_state import NO_VERSION, LogState, OtherLogError, after, undone_in
from s3notify_platform.table.known import PUT_BACK, Known, KnownRecord, Lineage
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.manifest import Manifest

OPEN_ATTEMPTS: Final = 5
"""The largest number of attempts to open a table whose log changes during the read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A table as of `version`.

    `number`: the `n` of the manifest of the newest version that the platform itself wrote. `etag`: the ETag of the
    version's object. `asked_at`: the monotonic time before the first read for this snapshot. `checkpoint`: the newest
    checkpoint that the process knows. `record`: the stored record that was read with the snapshot. `known`: the decoded
    `record`. `lineage`: at most `LINEAGE_MAX` versions up to this version. `fresh`: the paths of the packs that this
    version adds, if the version is not committed yet.
    """

    version: int
    number: int
    table: str
    manifest: Manifest
    protocol: Protocol
    metadata: MetaData
    packs: Mapping[str, Add] = field(default_factory=dict)
    asked_at: float = 0.0
    checkpoint: int = NO_VERSION
    etag: ETag | None = None
    known: Known | None = None
    record: Record | None = None
    lineage: Lineage = ()
    fresh: frozenset[str] = frozenset()

    @property
    def rows(self) -> int:
        """The number of live rows."""
        return sum(pack.live_rows for pack in self.packs.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """There is no table: neither a log nor a known version.

    `known`: the record, if a creation of the table has begun.
    """

    known: Known | None = None
    record: Record | None = None
    asked_at: float = 0.0


def checkpoint_of(snapshot: Snapshot) -> tuple[bytes, LastCheckpoint]:
    """Returns the checkpoint of a snapshot, and the content of `_last_checkpoint` that names it. Pure."""
    state = Checkpoint(
        protocol=snapshot.protocol,
        metadata=snapshot.metadata,
        txns={snapshot.table: snapshot.number},
        adds=tuple(snapshot.packs.values()),
    )
    return encode(state, version=snapshot.version)


def of_checkpoint(body: bytes, version: int, *, where: str) -> LogState:
    """Returns the state in a checkpoint of the platform or of another engine. Pure. Raises `CorruptError` or
    `UsageError`.
    """
    found = decode(body, where=where)
    if found.strange:
        raise UsageError(f"{where}: another engine's checkpoint, with {', '.join(found.strange)}: remove it")
    return LogState(
        version=version,
        number=(named := found.txns.get(found.metadata.id, 0)),
        lineage=((version, named),),
        table=found.metadata.id,
        packs={add.path: add for add in found.adds},
        protocol=found.protocol,
        metadata=found.metadata,
        foreign=found.foreign,
    )


class LogReader:
    """Reads the log of one table. Thread-safe.

    `adopt`: True if versions of other engines that change no data are adopted. Adoption is safe only if commits use no
    leases. `at_once`: the largest number of requests in flight. `restore`: the command that accepts a loss of versions.
    Error messages name this command.
    """

    def __init__(
        self,
        store: ObjectStore,
        layout: TableLayout,
        known: KnownRecord,
        *,
        adopt: bool = True,
        at_once: int = REQUESTS_IN_FLIGHT,
        restore: str = "s3notify table forget",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.store = store
        self.layout = layout
        self.known = known
        self.clock = clock
        self._adopt = adopt
        self._at_once = at_once
        self._restore = restore

    def open(self) -> Snapshot | Absent:
        """Returns the newest snapshot, read cold.

        `CorruptError`: versions are missing, or an object cannot be read. The message says what to do. `UsageError`:
        another engine has changed the table's data.
        """
        refused = ""
        for _ in range(OPEN_ATTEMPTS):
            asked_at = self.clock.monotonic()
            # `known` is read before the log. So if the known version is not in the log, the known version was lost.
            known, record = self.known.read()
            try:
                found = self._replayed(asked_at)
            except OtherLogError as error:
                refused = str(error)
                continue  # The log was cut or replaced during the read.
            if found is None:
                refused = self.missing(known, NO_VERSION, "", ())
                if not refused:
                    return Absent(known=known, record=record, asked_at=asked_at)
                continue
            refused = self.missing(known, found.version, found.table, found.lineage)
            if not refused:
                return replace(found, known=known, record=record)
        overrun = (
            ""
            if self._adopt
            else f"A writer may have outlasted its lease: try `{PUT_BACK}`. Otherwise restore"
        )
        raise CorruptError(
            f"the table below {self.layout.prefix!r}: {refused}. {overrun or 'Restore'} the table's objects and "
            f"{self.known.where}, or accept the loss, after which objects are read again: {self._restore}"
        )

    def refresh(self, snapshot: Snapshot) -> Snapshot | Absent:
        """Returns the newest snapshot: adds the later versions to `snapshot`, or reads the table cold if the log was
        replaced. Raises the errors of `open`.
        """
        asked_at = self.clock.monotonic()
        asks: list[Callable[[], Any]] = [lambda: self._since(snapshot), self.known.read]
        since, (known, record) = in_parallel(lambda ask: ask(), asks, self._at_once)
        if since is None:
            return self.open()
        current = replace(snapshot, asked_at=asked_at, known=known, record=record)
        try:
            found = self._onto(current, self._all_stored(since))
            if self.missing(known, found.version, found.table, found.lineage):
                # `known` may be newer than the list, and may name a version that the list does not have.
                found = self.forward(found)
        except OtherLogError:
            return self.open()
        if self.missing(known, found.version, found.table, found.lineage):
            return self.open()
        return found

    def _since(self, snapshot: Snapshot) -> range | None:
        """Returns the numbers of the later versions in the log, or None if the snapshot's version is missing or was
        replaced. Cost: 1 LIST.
        """
        own = self.layout.version(snapshot.version)
        page = self.store.list(self.layout.log, start_after=own.removesuffix("json"))
        listed = {
            each.key: each.etag for each in page.objects if self.layout.version_of(each.key) is not None
        }
        if listed.get(own) != snapshot.etag:
            return None
        return range(snapshot.version + 1, snapshot.version + len(listed))

    def forward(self, snapshot: Snapshot) -> Snapshot:
        """Returns the newest snapshot: adds the later versions to `snapshot`. The age of the snapshot stays the same.

        Cost: 1 GET for each later version, 1 GET for the version that does not exist yet, and 1 GET for the manifest.
        `OtherLogError`: the log was cut meanwhile.
        """
        found: list[StoredObject] = []
        while (later := self._stored(snapshot.version + 1 + len(found))) is not None:
            found.append(later)
        return self._onto(snapshot, found)

    def version(self, version: int) -> LogVersion | None:
        """Returns one version, or None if it is missing or was erased. Cost: 1 GET."""
        found = self._stored(version)
        return None if found is None or not found.body else self._loaded(found)

    def manifest(self, number: int) -> Manifest:
        """Returns the manifest with this number. Cost: 1 GET. `CorruptError`: the manifest is missing."""
        key = self.layout.manifest(number)
        found = self.store.get(key)
        if not isinstance(found, StoredObject):
            raise OtherLogError(f"{key} is missing")
        return Manifest.loads(found.body, where=key)

    def as_of(self, version: int) -> Snapshot | None:
        """Returns the table as of an earlier version, or None if this version is not kept. Cost: 1 LIST, and GETs as in
        `open`.
        """
        listed = [meta.key for meta in list_all(self.store, self.layout.log) if meta.size]
        versions = {found for key in listed if (found := self.layout.version_of(key)) is not None}
        bases = [found for key in listed if (found := self.layout.checkpoint_of(key)) is not None]
        base = max((found for found in bases if found <= version), default=NO_VERSION)
        since = range(base + 1, version + 1)
        if version < 0 or not versions.issuperset(since) or (base == version and base not in versions):
            return None
        state = LogState() if base == NO_VERSION else self._checkpoint(base)
        stored = [each for each in in_parallel(self._stored, since, self._at_once) if each is not None]
        if len(stored) < len(since):
            return None
        state = self._after(state, stored)
        return _snapshot(state, self.manifest(state.number), where=self.layout.prefix)

    def _stored(self, version: int) -> StoredObject | None:
        found = self.store.get(self.layout.version(version))
        return found if isinstance(found, StoredObject) else None

    def _loaded(self, found: StoredObject) -> LogVersion:
        if not found.body:
            raise OtherLogError(f"{found.meta.key} was erased")
        return LogVersion.loads(found.body, where=found.meta.key)

    def _after(self, state: LogState, stored: Sequence[StoredObject]) -> LogState:
        versions = [self._loaded(each) for each in stored]
        for each, version, undone in zip(stored, versions, undone_in(versions), strict=True):
            state = after(state, version, where=each.meta.key, adopt=self._adopt, undone=undone)
        return state

    def _all_stored(self, versions: Sequence[int]) -> list[StoredObject]:
        """Reads these versions. `OtherLogError`: a version is missing."""
        found = [each for each in in_parallel(self._stored, versions, self._at_once) if each is not None]
        if len(found) < len(versions):
            raise OtherLogError("a version was removed while the log was read")
        return found

    def _onto(self, snapshot: Snapshot, found: Sequence[StoredObject]) -> Snapshot:
        if not found:
            return snapshot
        state, etag = self._after(state_of(snapshot), found), found[-1].meta.etag
        manifest = snapshot.manifest if state.number == snapshot.number else self.manifest(state.number)
        return replace(
            _snapshot(state, manifest, where=self.layout.prefix),
            etag=etag,
            asked_at=snapshot.asked_at,
            checkpoint=snapshot.checkpoint,
            known=snapshot.known,
            record=snapshot.record,
        )

    def _replayed(self, asked_at: float) -> Snapshot | None:
        base, versions = self._parts()
        state = LogState() if base == NO_VERSION else self._checkpoint(base)
        while self._hides(state):
            try:
                base, versions = self._parts(below=base)
            except OtherLogError:
                break  # the missing versions were examined before they were removed
            state = LogState() if base == NO_VERSION else self._checkpoint(base)
        found = self._all_stored(versions)
        state = self._after(state, found)
        etag: ETag | None = found[-1].meta.etag if found else None
        if state.version == NO_VERSION:
            return None
        if etag is None:
            meta = self.store.head(self.layout.version(state.version))
            if meta is None:
                raise OtherLogError(f"version {state.version} is missing, but has a checkpoint")
            etag = meta.etag
        snapshot = _snapshot(state, self.manifest(state.number), where=self.layout.prefix)
        return replace(snapshot, asked_at=asked_at, checkpoint=base, etag=etag)

    def _hides(self, state: LogState) -> bool:
        """Returns true if a checkpoint of another engine may hide a foreign version that must be refused."""
        return state.foreign and (version := self.version(state.version)) is not None and version.foreign

    def _parts(self, below: int | None = None) -> tuple[int, range]:
        """Returns the version of the newest checkpoint, or -1, and the versions after it.

        `below`: only a checkpoint before this version is used. Cost: 1 GET and 1 LIST. `OtherLogError`: one of the
        versions is missing.
        """
        base = self.last_checkpoint() if below is None else NO_VERSION
        start = None if base == NO_VERSION else f"{self.layout.version(base)}~"
        keys = [meta.key for meta in list_all(self.store, self.layout.log, start_after=start)]
        if base == NO_VERSION:  # a writer may have crashed before `_last_checkpoint` named its checkpoint
            found = filter(None, map(self.layout.checkpoint_of, keys))
            base = max((each for each in found if below is None or each < below), default=NO_VERSION)
        numbers = map(self.layout.version_of, keys)
        listed = sorted(version for version in numbers if version is not None and version > base)
        since = range(base + 1, base + 1 + len(listed))
        if listed != [*since]:
            raise OtherLogError(f"some of the versions {base + 1} to {listed[-1]} are missing")
        return base, since

    def longest(self, *, before_refused: bool = False) -> Snapshot | None:
        """Returns the newest readable snapshot, or None if there is no such snapshot. Later versions may have been
        lost: the call does not compare the snapshot with `known`. See `as_of`.

        `UsageError`: a version of another engine is refused. With `before_refused`, the call returns the snapshot
        before the refused version instead.
        """
        listed = [meta.key for meta in list_all(self.store, self.layout.log)]
        bases = sorted(filter(None, map(self.layout.checkpoint_of, listed)), reverse=True)
        for base in (*bases, NO_VERSION):
            asked_at, best = self.clock.monotonic(), None
            try:
                state = LogState() if base == NO_VERSION else self._checkpoint(base)
                if self._hides(state):
                    continue
                if base != NO_VERSION and (found := self._stored(base)) is not None:
                    best = self._of(state, found)
                stored = self._readable(state.version + 1)
                undone = undone_in([self._loaded(each) for each in stored])
                for found, taken_back in zip(stored, undone, strict=True):
                    version = self._loaded(found)
                    state = after(state, version, where=found.meta.key, adopt=self._adopt, undone=taken_back)
                    if not taken_back:
                        best = self._of(state, found)
            except CorruptError:
                pass
            except UsageError:
                if not before_refused:
                    raise
            if best is not None:
                return replace(best, asked_at=asked_at, checkpoint=base)
        return None

    def _of(self, state: LogState, version: StoredObject) -> Snapshot:
        found = _snapshot(state, self.manifest(state.number), where=self.layout.prefix)
        return replace(found, etag=version.meta.etag)

    def _readable(self, version: int) -> list[StoredObject]:
        """Returns the consecutive versions from `version` on, until a version is missing or damaged."""
        found: list[StoredObject] = []
        with suppress(CorruptError):
            while (stored := self._stored(version + len(found))) is not None:
                self._loaded(stored)
                found.append(stored)
        return found

    def _checkpoint(self, version: int) -> LogState:
        key = self.layout.checkpoint(version)
        found = self.store.get(key)
        if not isinstance(found, StoredObject):
            raise OtherLogError(f"{key}, which {self.layout.last_checkpoint} names, is missing")
        return of_checkpoint(found.body, version, where=key)

    def last_checkpoint(self) -> int:
        """Returns the version of the newest checkpoint, or -1 if there is no checkpoint. Cost: 1 GET."""
        found = self.store.get(self.layout.last_checkpoint)
        if not isinstance(found, StoredObject):
            return NO_VERSION
        return LastCheckpoint.loads(found.body, where=self.layout.last_checkpoint).version

    def missing(self, known: Known | None, version: int, table: str, lineage: Lineage) -> str:
        """Returns the reason why the log contradicts the record `known`, or "" if there is no contradiction."""
        if known is None:
            return f"its record is gone from {self.known.where}" if version != NO_VERSION else ""
        if version == NO_VERSION and known.version == NO_VERSION:
            return ""
        if version == NO_VERSION:
            return f"its log is gone (it had {known.version + 1} versions)"
        if known.table != table:
            return f"its log belongs to table {table}, and not to {known.table}"
        if known.version > version:
            return f"its log ends with version {version}, but version {known.version} was committed"
        if dict(lineage).get(known.version, known.number) != known.number:
            return f"version {known.version} is not the one that was committed"
        return ""


def state_of(snapshot: Snapshot) -> LogState:
    """Returns the part of a snapshot that is in the log itself. Pure."""
    return LogState(
        version=snapshot.version,
        number=snapshot.number,
        table=snapshot.table,
        packs=snapshot.packs,
        protocol=snapshot.protocol,
        metadata=snapshot.metadata,
        lineage=snapshot.lineage,
    )


def _snapshot(state: LogState, manifest: Manifest, *, where: str) -> Snapshot:
    if state.protocol is None or state.metadata is None:
        raise CorruptError(f"{where}: the log has no metaData: restore its first version")
    if (manifest.number, manifest.table) != (state.number, state.table):
        raise CorruptError(f"{where}: manifest {state.number} belongs to another version: restore it")
    return Snapshot(
        version=state.version,
        number=state.number,
        table=state.table,
        manifest=manifest,
        protocol=state.protocol,
        metadata=state.metadata,
        packs=state.packs,
        lineage=state.lineage,
    )
