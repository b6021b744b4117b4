"""The newest state of a table, read cold or brought up to date. Pure but for `LogReader`.

A process keeps the snapshot that it has. Before each round it asks, in one round trip, whether its version is still
there, for the next version, and for `known`. Another `n` or another id means that the log is not the one that it read
(a backup was restored, the table was removed and made again): the table is opened again.

A snapshot's age counts from before the first look at the version that it rests on, on this process's own clock. The
log is never cut within the longest run, so whoever has a young snapshot meets every version that was created since.

An empty object takes the place of each version that `erase` has removed, so that no sleeping writer can create it:
whoever meets one opens the table again, at a later checkpoint.

Versions of other engines are adopted if they change no data (OPTIMIZE); all others are refused by name.

Requests: `open` 3 GETs and 1 LIST, and 1 GET for each version since the checkpoint; `refresh` 3 at once, and 1 GET for
each new version and 1 for the manifest of the last.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import CorruptError, UsageError
from s3notify_platform.lake.actions import UNKNOWN_ROWS, Add, LogVersion, MetaData, Protocol
from s3notify_platform.lake.checkpoint import Checkpoint, LastCheckpoint, decode, encode
from s3notify_platform.lake.known import Known, KnownRecord
from s3notify_platform.lake.layout import TableLayout
from s3notify_platform.lake.manifest import Manifest
from s3notify_platform.lake.metadata import objections
from s3notify_platform.parallel import in_parallel
from s3notify_platform.ports import ETag, ObjectStore, Record, StoredObject, list_all

REQUESTS_IN_FLIGHT: Final = 16

OPEN_ATTEMPTS: Final = 5
"""Times that a table is opened again because its log changed while it was read."""

NO_VERSION: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A table as of `version`. `number`: `n` of its manifest, which is that of the newest version of ours.

    `etag`: of the version's object. `asked_at`: the monotonic time before the first look that it rests on.
    `checkpoint`: the newest checkpoint that was seen. `record`: `known` as it was read with it.
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

    @property
    def rows(self) -> int:
        """Live rows."""
        return sum(pack.live_rows for pack in self.packs.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """No table: neither a log nor a known version. `known`: the record, if the table was begun."""

    known: Known | None = None
    record: Record | None = None
    asked_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """What a log says up to one version, without manifests: what a checkpoint repeats. Pure."""

    version: int = NO_VERSION
    number: int = 0
    table: str = ""
    packs: Mapping[str, Add] = field(default_factory=dict)
    protocol: Protocol | None = None
    metadata: MetaData | None = None


def after(state: LogState, version: LogVersion, *, where: str, adopt: bool = True) -> LogState:
    """The state once this version is applied. Pure. `adopt`: a foreign version that changes no data.

    `CorruptError`: it does not follow from the state. `UsageError`: another engine changed what it must not.
    """
    number = state.version + 1
    if version.foreign and not adopt:
        raise UsageError(
            f"{where}: another engine's {version.operation or 'commit'}, in a table that is committed to under leases, "
            f"which that engine does not ask for. Go back: s3notify table rollback --to-version {state.version}"
        )
    if version.foreign:
        _check_foreign(state, version, where)
    elif version.parent != state.number or not _goes_on(state, version):
        raise OtherLogError(f"{where}: follows another version than the one that was read")
    packs = dict(state.packs)
    for gone in version.removes:
        held = packs.get(gone.path)
        if held is not None and held.id == gone.id:
            del packs[gone.path]
        elif not version.foreign:
            raise CorruptError(f"{where}: removes {gone.path!r}, which is not live: restore the table's log")
    for add in version.adds:
        packs[add.path] = replace(add, until=min(add.until, number))
    return LogState(
        version=number,
        number=version.number or state.number,
        table=version.table or state.table,
        packs=packs,
        protocol=version.protocol or state.protocol,
        metadata=version.metadata or state.metadata,
    )


def _goes_on(state: LogState, version: LogVersion) -> bool:
    """Whether it is a version of this table, or the first one under a new id (`opening.forget`)."""
    renamed = version.metadata is not None and version.metadata.id == version.table
    return version.table == state.table or renamed


class OtherLogError(CorruptError):
    """The log is not the one that was read before: open the table again."""


def _check_foreign(state: LogState, version: LogVersion, where: str) -> None:
    if not state.number:
        raise UsageError(
            f"{where}: a Delta table that another program has made: give the source another prefix"
        )
    assert state.metadata is not None
    assert state.protocol is not None
    reasons = objections(version, metadata=state.metadata, protocol=state.protocol)
    if not _same_rows(state, version):
        reasons.insert(0, "it changes rows")
    if version.strange:
        reasons.append(f"it has {', '.join(version.strange)}")
    if reasons:
        raise UsageError(
            f"{where}: another engine's {version.operation or 'commit'}: {'; '.join(reasons)}. Only s3notify may "
            f"change this table: go back by `s3notify table rollback --to-version {state.version}`"
        )


def _same_rows(state: LogState, version: LogVersion) -> bool:
    """Whether a foreign version says, and its counts agree, that readers see what they saw before."""
    live = {pack.id: pack.live_rows for pack in state.packs.values()}
    gone = {each.id for each in version.removes}
    counts = [add.live_rows for add in version.adds]
    changes = any(add.data_change for add in version.adds) or any(
        each.data_change for each in version.removes
    )
    if changes or not gone <= live.keys() or UNKNOWN_ROWS in counts:
        return False
    return sum(live[each] for each in gone) == sum(counts)


def checkpoint_of(snapshot: Snapshot) -> tuple[bytes, LastCheckpoint]:
    """The checkpoint of a snapshot, and what names it. Pure."""
    state = Checkpoint(
        protocol=snapshot.protocol,
        metadata=snapshot.metadata,
        txns={snapshot.table: snapshot.number},
        adds=tuple(snapshot.packs.values()),
    )
    return encode(state, version=snapshot.version)


def of_checkpoint(body: bytes, version: int, *, where: str) -> LogState:
    """The state that a checkpoint says, also one that another engine wrote. Pure. `CorruptError`, `UsageError`."""
    found = decode(body, where=where)
    if found.strange:
        raise UsageError(f"{where}: another engine's checkpoint, with {', '.join(found.strange)}: remove it")
    return LogState(
        version=version,
        number=found.txns.get(found.metadata.id, 0),
        table=found.metadata.id,
        packs={add.path: add for add in found.adds},
        protocol=found.protocol,
        metadata=found.metadata,
    )


class LogReader:
    """Reads the log of one table. Thread-safe.

    `adopt`: versions of other engines that change no data;
    not where commits go by leases. `at_once`: requests. `restore`: the command that accepts a loss, for messages.
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
        """The newest snapshot, read cold.

        `CorruptError`: versions are missing, or something cannot be read; it says what a person can do. `UsageError`:
        another engine has changed the table's data.
        """
        refused = ""
        for _ in range(OPEN_ATTEMPTS):
            asked_at = self.clock.monotonic()
            # Versions that `known` names before the log is read are there, or are missing.
            known, record = self.known.read()
            try:
                found = self._replayed(asked_at)
            except OtherLogError as error:
                refused = str(error)
                continue  # It was cut, or removed and made again, while it was read.
            if found is None:
                refused = self._missing(known, NO_VERSION, 0, "")
                if not refused:
                    return Absent(known=known, record=record, asked_at=asked_at)
                continue
            refused = self._missing(known, found.version, found.number, found.table)
            if not refused:
                return replace(found, known=known, record=record)
        raise CorruptError(
            f"the table below {self.layout.prefix!r}: {refused}. Restore the table's objects and {self.known.where}, "
            f"or accept the loss, which takes objects in again: {self._restore}"
        )

    def refresh(self, snapshot: Snapshot) -> Snapshot | Absent:
        """The newest snapshot: the one given and the versions since; read cold if the log is another one. As `open`."""
        asked_at = self.clock.monotonic()
        asks: list[Callable[[], Any]] = [
            lambda: self.store.head(self.layout.version(snapshot.version)),
            lambda: self._stored(snapshot.version + 1),
            self.known.read,
        ]
        own, later, (known, record) = in_parallel(lambda ask: ask(), asks, self._at_once)
        if own is None or own.etag != snapshot.etag:
            return self.open()
        current = replace(snapshot, asked_at=asked_at, known=known, record=record)
        try:
            found = self._forward(current, later)
            if self._missing(known, found.version, found.number, found.table):
                # `known` may have been read later than the versions.
                found = self.forward(found)
        except OtherLogError:
            return self.open()
        if self._missing(known, found.version, found.number, found.table):
            return self.open()
        return found

    def forward(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the versions created since, of the same age. 1 GET for each, and 1 more; 1 manifest.

        `OtherLogError`: the log was cut meanwhile.
        """
        return self._forward(snapshot, self._stored(snapshot.version + 1))

    def version(self, version: int) -> LogVersion | None:
        """One version; None if it is not there, or was erased. 1 GET."""
        found = self._stored(version)
        return None if found is None or not found.body else self._loaded(found)

    def manifest(self, number: int) -> Manifest:
        """The manifest of this number. 1 GET. `CorruptError`: it is missing."""
        key = self.layout.manifest(number)
        found = self.store.get(key)
        if not isinstance(found, StoredObject):
            raise OtherLogError(f"{key} is missing")
        return Manifest.loads(found.body, where=key)

    def as_of(self, version: int) -> Snapshot | None:
        """The table as of an earlier version; None if that is not kept. 1 LIST, and GETs as `open`."""
        listed = [meta.key for meta in list_all(self.store, self.layout.log) if meta.size]
        versions = {found for key in listed if (found := self.layout.version_of(key)) is not None}
        bases = [found for key in listed if (found := self.layout.checkpoint_of(key)) is not None]
        base = max((found for found in bases if found <= version), default=NO_VERSION)
        since = range(base + 1, version + 1)
        if version < 0 or not versions.issuperset(since) or (base == version and base not in versions):
            return None
        state = LogState() if base == NO_VERSION else self._checkpoint(base)
        for stored in in_parallel(self._stored, since, self._at_once):
            if stored is None:
                return None
            state = after(state, self._loaded(stored), where=stored.meta.key, adopt=self._adopt)
        return _snapshot(state, self.manifest(state.number), where=self.layout.prefix)

    def _stored(self, version: int) -> StoredObject | None:
        found = self.store.get(self.layout.version(version))
        return found if isinstance(found, StoredObject) else None

    def _loaded(self, found: StoredObject) -> LogVersion:
        if not found.body:
            raise OtherLogError(f"{found.meta.key} was erased")
        return LogVersion.loads(found.body, where=found.meta.key)

    def _forward(self, snapshot: Snapshot, later: StoredObject | None) -> Snapshot:
        state, etag = state_of(snapshot), snapshot.etag
        while later is not None:
            state = after(state, self._loaded(later), where=later.meta.key, adopt=self._adopt)
            etag = later.meta.etag
            later = self._stored(state.version + 1)
        if state.version == snapshot.version:
            return snapshot
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
        etag: ETag | None = None
        for found in in_parallel(self._stored, versions, self._at_once):
            if found is None:
                raise OtherLogError("a version left while the log was read")
            state = after(state, self._loaded(found), where=found.meta.key, adopt=self._adopt)
            etag = found.meta.etag
        if state.version == NO_VERSION:
            return None
        if etag is None:
            meta = self.store.head(self.layout.version(state.version))
            if meta is None:
                raise OtherLogError(f"version {state.version} is missing, of which there is a checkpoint")
            etag = meta.etag
        snapshot = _snapshot(state, self.manifest(state.number), where=self.layout.prefix)
        return replace(snapshot, asked_at=asked_at, checkpoint=base, etag=etag)

    def _parts(self) -> tuple[int, range]:
        """The version of the newest checkpoint, -1: none, and the versions after it.

        1 GET and 1 LIST. `OtherLogError`: one of them is missing.
        """
        base = self.last_checkpoint()
        start = None if base == NO_VERSION else f"{self.layout.version(base)}~"
        keys = [meta.key for meta in list_all(self.store, self.layout.log, start_after=start)]
        if base == NO_VERSION:  # its writer may have crashed before it named it
            base = max(filter(None, map(self.layout.checkpoint_of, keys)), default=NO_VERSION)
        numbers = map(self.layout.version_of, keys)
        listed = sorted(version for version in numbers if version is not None and version > base)
        since = range(base + 1, base + 1 + len(listed))
        if listed != [*since]:
            raise OtherLogError(f"versions {base + 1} to {listed[-1]} are not all there, but {len(listed)}")
        return base, since

    def longest(self) -> Snapshot | None:
        """The newest snapshot that can be read, whatever `known` says and whatever is missing after it. As `as_of`."""
        listed = [meta.key for meta in list_all(self.store, self.layout.log)]
        bases = sorted(filter(None, map(self.layout.checkpoint_of, listed)), reverse=True)
        for base in (*bases, NO_VERSION):
            asked_at, best = self.clock.monotonic(), None
            try:
                state = LogState() if base == NO_VERSION else self._checkpoint(base)
                while (found := self._stored(state.version + 1)) is not None:
                    state = after(state, self._loaded(found), where=found.meta.key, adopt=self._adopt)
                    best = replace(
                        _snapshot(state, self.manifest(state.number), where=self.layout.prefix),
                        etag=found.meta.etag,
                    )
            except CorruptError:
                pass
            if best is not None:
                return replace(best, asked_at=asked_at, checkpoint=base)
        return None

    def _checkpoint(self, version: int) -> LogState:
        key = self.layout.checkpoint(version)
        found = self.store.get(key)
        if not isinstance(found, StoredObject):
            raise OtherLogError(f"{key} is missing, which {self.layout.last_checkpoint} names")
        return of_checkpoint(found.body, version, where=key)

    def last_checkpoint(self) -> int:
        """The version of the newest checkpoint; -1: none. 1 GET."""
        found = self.store.get(self.layout.last_checkpoint)
        if not isinstance(found, StoredObject):
            return NO_VERSION
        return LastCheckpoint.loads(found.body, where=self.layout.last_checkpoint).version

    def _missing(self, known: Known | None, version: int, number: int, table: str) -> str:
        """Why this is not the log that is known; "" if it is."""
        if known is None:
            return f"its record is gone from {self.known.where}" if version != NO_VERSION else ""
        if version == NO_VERSION and known.version == NO_VERSION:
            return ""
        if version == NO_VERSION:
            return f"its log is gone, which had {known.version + 1} versions"
        if known.table != table:
            return f"its log is that of table {table}, and not of {known.table}"
        if known.version > version:
            return f"its log ends with version {version}, and version {known.version} was committed"
        if known.version == version and known.number != number:
            return f"version {version} is not the one that was committed"
        return ""


def state_of(snapshot: Snapshot) -> LogState:
    """What the log says of a snapshot. Pure."""
    return LogState(
        version=snapshot.version,
        number=snapshot.number,
        table=snapshot.table,
        packs=snapshot.packs,
        protocol=snapshot.protocol,
        metadata=snapshot.metadata,
    )


def _snapshot(state: LogState, manifest: Manifest, *, where: str) -> Snapshot:
    if state.protocol is None or state.metadata is None:
        raise CorruptError(f"{where}: the log has no metaData: restore its first version")
    if (manifest.number, manifest.table) != (state.number, state.table):
        raise CorruptError(f"{where}: manifest {state.number} is that of another version: restore it")
    return Snapshot(
        version=state.version,
        number=state.number,
        table=state.table,
        manifest=manifest,
        protocol=state.protocol,
        metadata=state.metadata,
        packs=state.packs,
    )
