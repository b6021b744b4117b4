"""Commits the next version of a table: all files that the version names are written first, then the version by one
conditional write.

Steps
    1. Ask the change for its proposal on top of the snapshot (`proposal`).
    2. Write the proposal's files, and the manifest under a fresh number `n`.
    3. Create version v + 1 by a conditional write (`_created`; `conditional_commit`: by the store's preconditions, or
       under a lease). This request makes the rows of a batch visible. A batch comes here from
       `engine.commit.round_commit` by `LogTable.commit`, which updates the mirror afterwards.
    4. If another writer has created version v + 1, wait a little, read the versions that are new, and begin again with
       the newest snapshot. Begin again, too, if the change needs a file that `erase` has removed. A command that
       rewrites the table may lose to other writers again and again. Such a command then holds the table (`Known.held`).
       Other writers wait until the command releases the table. Before the first attempt, the third attempt and each
       later attempt, a writer checks whether a command holds the table.
    5. Record the version in `known`. Write a checkpoint if the last checkpoint is far behind.

Invariants
    - Only step 3 makes anything visible. No version names the files of a failed attempt. But these files are not
      deleted here, because it may be unknown whether the attempt has failed.
    - Each attempt has a new `n`. So if a version in the log has this `n`, this attempt created the version.
    - No version is created below the newest version. While a process sleeps, vacuum may cut the log (remove old
      versions). Without a check, the process could then create one of the removed versions again. So no commit builds
      on a snapshot that is older than half of `MAX_RUN_SECONDS`. If the snapshot reaches this age during the write, the
      version counts only if there is no newer checkpoint and no newer known version. Otherwise the writer plans its
      change again. The new plan shows whether the change was committed.
    - If the `n` in `known` differs from a writer's `n`, another writer has replaced this writer's version. A version
      can be replaced only if a lease ended during the write. So with leases, the body of each version is first staged
      under `n`. From this copy, `put_back` can restore a replaced version. A version does not count if it builds on a
      version for which `known` has another `n`.

A commit without a competing writer costs 1 PUT for each file of the change, for the manifest, for the version, and for
`known`. After `CHECKPOINT_EVERY` versions, a checkpoint costs 1 GET and 2 PUTs more. With leases, a commit costs 1 PUT
more, and the requests of `DynamoCommit`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from s3notify_platform.kernel.attempts import attempts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, backoff_seconds
from s3notify_platform.kernel.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    UnavailableError,
    UnknownOutcomeError,
)
from s3notify_platform.kernel.group_commit import GroupCommit
from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.kernel.ports import ABSENT, ETag, StoredObject, Unknown, Written
from s3notify_platform.protocols.conditional_commit import ConditionalCommit
from s3notify_platform.table.delta.actions import LogVersion, MetaData, Protocol
from s3notify_platform.table.delta.checkpoint import LastCheckpoint
from s3notify_platform.table.delta.log_state import OtherLogError
from s3notify_platform.table.known import HOLD_SECONDS, LINEAGE_MAX, Known
from s3notify_platform.table.manifest import Manifest
from s3notify_platform.table.proposal import Change, Proposal, applied, next_version
from s3notify_platform.table.snapshot import Absent, LogReader, Snapshot, checkpoint_of

MAX_RUN_SECONDS: Final = 6 * 3600.0
"""The longest time from a run's first read of the table to its commit. Files that are younger than this time are never
removed as garbage."""

COMMIT_SECONDS: Final = 120.0
"""The time after which a commit fails if other writers are always first."""

HELD_SECONDS: Final = 1.0
"""Seconds between two checks whether a command still holds the table."""

CHECKPOINT_EVERY: Final = 20

COMMIT_BACKOFF_BASE_SECONDS: Final = 0.02
COMMIT_BACKOFF_CEILING_SECONDS: Final = 5.0
"""The longest wait between two attempts. With this ceiling, few of 200 concurrent writers try at the same moment. With
a ceiling of 2 s, the writers would need twice as many attempts."""
CHECKPOINT_ATTEMPTS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The change was committed: it is visible in `snapshot`. `proposal`: the proposal that was committed."""

    snapshot: Snapshot
    proposal: Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingLeft:
    """Nothing was committed, because `snapshot` already has the effect of the change."""

    snapshot: Snapshot


CommitResult = Committed | NothingLeft


@dataclass(slots=True, kw_only=True)
class Wanted:
    """A change that waits for its commit. `base`: the snapshot on which the change was planned."""

    change: Change
    base: Snapshot
    proposal: Proposal | None = None
    failed: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """Creates the versions of one table. Changes that wait at the same time become one version. Thread-safe.

    `leases`: True if `commits` works by leases. `at_once`: the largest number of requests in flight. `together`: the
    group commit that all committers of this table in a process share. One committer commits all waiting changes.
    """

    reader: LogReader
    commits: ConditionalCommit
    leases: bool = False
    clock: Clock = SYSTEM_CLOCK
    max_run_seconds: float = MAX_RUN_SECONDS
    commit_seconds: float = COMMIT_SECONDS
    at_once: int = REQUESTS_IN_FLIGHT
    together: GroupCommit = field(default_factory=GroupCommit)

    def create(self, *, table: str, metadata: MetaData, protocol: Protocol) -> None:
        """Creates version 0 of a table, if the version does not exist. Cost: 2 PUTs, and 1 write of `known`."""
        number = self._number()
        version = LogVersion(
            number=number,
            table=table,
            created_ms=self.clock.wall_ms(),
            operation="CREATE TABLE",
            metadata=metadata,
            protocol=protocol,
        )
        manifest = Manifest(table=table, version=0, number=number)
        files = {self.reader.layout.manifest(number): manifest.dumps(), **self._staged(version)}
        in_parallel(lambda item: self._put(*item), files.items(), self.at_once)
        if self._created(0, number, version.dumps()) is not None:
            self.reader.known.note(table, 0, number)

    def commit(self, change: Change, base: Snapshot) -> CommitResult:
        """Commits `change`, which was planned on `base`, as the next version.

        `ConflictError`: other writers were always first until `commit_seconds` had passed, so nothing is committed. The
        caller must plan again. `FencedError`: the snapshot is too old, or the version came late or was replaced. Plan
        again: the new plan shows whether the change was committed. `UnknownOutcomeError`: the change may or may not be
        committed. The next run finds out. An error of `change` is raised unchanged.
        """
        # Only committers with the same class of `commits` share a version. Otherwise a committer with write permission
        # could commit the change of a read-only committer.
        result: CommitResult = self.together.run(
            type(self.commits).__qualname__, Wanted(change=change, base=base), self.commit_together
        )
        return result

    def commit_alone(self, change: Change, base: Snapshot, *, holder: str = "") -> CommitResult:
        """Commits like `commit`, but never shares the version with other changes.

        `holder`: the calling command, if this command may hold the table.
        """
        (result,) = self.commit_together([Wanted(change=change, base=base)], holder=holder)
        if isinstance(result, Exception):
            raise result
        return result

    def commit_together(self, group: Sequence[Wanted], *, holder: str = "") -> list[CommitResult | Exception]:
        """Commits waiting changes as one version. Returns the result of each change. Raises the errors of `commit`."""
        deadline = self.clock.monotonic() + self.commit_seconds
        base = max((each.base for each in group), key=lambda snapshot: snapshot.version)
        base = self._released(base, holder, deadline)
        attempt = 0
        while True:
            proposals, current = self._proposed(group, base)
            if (newer := self._not_damaged(group, base)) is not None:
                base = newer
                continue
            found = self._attempt(base, current, proposals) if proposals else base
            if found is not None:
                return [self._result(each, found) for each in group]
            if self.clock.monotonic() >= deadline:
                raise ConflictError(
                    f"{self._table}: other writers were first for {self.commit_seconds:.0f} s: plan again"
                )
            self.clock.sleep(
                backoff_seconds(
                    attempt,
                    self.clock,
                    base=COMMIT_BACKOFF_BASE_SECONDS,
                    ceiling=COMMIT_BACKOFF_CEILING_SECONDS,
                )
            )
            attempt += 1
            base = self._newer(base)
            if attempt > 1:
                known, record = self.reader.known.read()
                base = self._released(replace(base, known=known, record=record), holder, deadline)

    def _released(self, base: Snapshot, holder: str, deadline: float) -> Snapshot:
        """Returns `base`, if no other command holds the table. Otherwise waits for the release of the table, and
        returns the newest snapshot.
        """
        known, record, reads = base.known, base.record, 0
        while known is not None and known.holder(self.clock.wall_ms()) not in ("", holder):
            if reads:
                if self.clock.monotonic() >= deadline:
                    raise ConflictError(
                        f"{self._table} is held by `s3notify {known.held}`: wait until that command has ended, and "
                        "plan again. If the command was killed, repeat it, or wait for "
                        f"{HOLD_SECONDS / 60:.0f} minutes"
                    )
                self.clock.sleep(HELD_SECONDS)
            known, record = self.reader.known.read()
            reads += 1
        return self._newer(replace(base, known=known, record=record)) if reads else base

    def _newer(self, base: Snapshot) -> Snapshot:
        """Returns the newest snapshot: adds later versions to `base`, or opens the table again if the log was cut."""
        try:
            return self.reader.forward(base)
        except OtherLogError:
            found = self.reader.open()
            if isinstance(found, Absent):
                raise
            return found

    def _not_damaged(self, group: Sequence[Wanted], base: Snapshot) -> Snapshot | None:
        """Returns the newest snapshot if a change failed because `erase` has removed a file. Otherwise returns None."""
        damaged = [each for each in group if isinstance(each.failed, CorruptError)]
        if not damaged or (newer := self._newer(base)).number == base.number:
            return None
        for each in damaged:
            each.failed = None
        return newer

    @staticmethod
    def _result(wanted: Wanted, found: Snapshot) -> CommitResult | Exception:
        if wanted.failed is not None:
            return wanted.failed
        if wanted.proposal is None:
            return NothingLeft(snapshot=found)
        return Committed(snapshot=found, proposal=wanted.proposal)

    def _proposed(self, group: Sequence[Wanted], base: Snapshot) -> tuple[list[Proposal], Snapshot]:
        """Returns the proposals, each on top of the proposal before it, and the snapshot that results from all of them.

        Also writes the files of all proposals except the last one.
        """
        number = self._number()
        current = base
        for each in group:
            each.proposal = None
            if each.failed is None:
                try:
                    self._check_young(each.base)
                    proposal = each.change.onto(current)
                    if proposal and each is not group[-1]:
                        self._put_all(proposal.files)  # the next change may read these files
                    each.proposal = proposal
                except Exception as error:  # noqa: BLE001 - the error is the result of this change alone
                    each.failed = error
            if each.proposal is not None:
                current = applied(current, each.proposal, version=base.version + 1, number=number)
        return [each.proposal for each in group if each.proposal is not None], current

    def _attempt(self, base: Snapshot, current: Snapshot, proposals: Sequence[Proposal]) -> Snapshot | None:
        """Commits `current` on top of `base`. Returns None if another writer was first."""
        version, number = current.version, current.number
        action = next_version(base, current, proposals, created_ms=self.clock.wall_ms())
        manifest, changes = current.manifest.spilled(self.reader.layout.changes_path(number))
        current = replace(current, manifest=manifest, fresh=frozenset())
        files = {**proposals[-1].files, self.reader.layout.manifest(number): manifest.dumps()}
        if changes is not None:
            files[self.reader.layout.file(self.reader.layout.changes_path(number))] = changes
        self._put_all({**files, **self._staged(action)})
        self._check_young(base)
        etag = self._created(version, number, action.dumps())
        if etag is None:
            return None
        if not self._is_young(base):
            self._check_not_late(current)
        known, record = self.reader.known.note(
            current.table, version, number, seen=base.record, below=base.lineage
        )
        same = known is not None and known.table == current.table
        if not same:
            self._take_back(base, version, etag)
        if known is None or not same or not self._counts(known, version, number):
            raise FencedError(
                f"{self._table}: version {version}, or an earlier version, was replaced by a writer whose lease had "
                "ended, or the table was forgotten: plan again"
            )
        lineage = (*base.lineage, (version, number))[-LINEAGE_MAX:]
        return self.checkpointed(replace(current, etag=etag, known=known, record=record, lineage=lineage))

    def _take_back(self, base: Snapshot, version: int, etag: ETag) -> None:
        """Deletes the created version if the log no longer has `base`: the table was removed during the commit.

        Otherwise the next table of this name would have a version of the removed table.
        """
        below = self.reader.store.head(self.reader.layout.version(base.version))
        if below is None or below.etag != base.etag:
            # If the request fails, the next reader refuses the log, and names the command that removes the version.
            with suppress(UnavailableError, UnknownOutcomeError):
                self.commits.delete_if_match(self.reader.layout.version(version), etag)

    def _counts(self, known: Known, version: int, number: int) -> bool:
        """Returns true if the known version is the created version, or builds on it."""
        if known.version <= version:
            return (known.version, known.number) == (version, number)
        if not self.leases:
            return True
        # A writer whose lease had ended may have replaced a version after the next version was built on it. So each
        # version must be the parent that the next version names.
        expected = known.number
        for later in range(known.version, version, -1):
            found = self.reader.version(later)
            if found is None or found.number != expected:
                return False
            expected = found.parent
        return expected == number

    def _staged(self, version: LogVersion) -> dict[str, bytes]:
        layout = self.reader.layout
        return {layout.staged_version(version.number): version.dumps()} if self.leases else {}

    def _created(self, version: int, number: int, body: bytes) -> ETag | None:
        """Creates the version. Returns the version's ETag, or None if another writer created this version."""
        key = self.reader.layout.version(version)
        try:
            outcome = self.commits.put_if_absent(key, body)
        except UnknownOutcomeError:
            outcome = None
        if isinstance(outcome, Written) and outcome.etag is not None:
            return outcome.etag
        # A refusal proves nothing: the network may have repeated a request that was applied.
        found = self.reader.store.get(key)
        if not isinstance(found, StoredObject):
            raise UnknownOutcomeError(f"{key}: this object may still be created; the next run finds out")
        return found.meta.etag if LogVersion.loads(found.body, where=key).number == number else None

    def _is_young(self, base: Snapshot) -> bool:
        return self.clock.monotonic() - base.asked_at < self.max_run_seconds / 2

    def _check_young(self, base: Snapshot) -> None:
        if not self._is_young(base):
            raise FencedError(
                f"{self._table} was read more than {self.max_run_seconds / 2:.0f} s ago: plan again"
            )

    def _check_not_late(self, current: Snapshot) -> None:
        """Raises `FencedError` if the version was created too late: the table had already reached this version or a
        newer version.
        """
        version, last = current.version, self.reader.last_checkpoint()
        known, _ = self.reader.known.read()
        replaced = known is not None and known.version == version and known.number != current.number
        if last >= version or known is None or known.version > version or replaced:
            raise FencedError(f"{self._table}: version {version} was created too late: plan again")

    def checkpointed(self, snapshot: Snapshot) -> Snapshot:
        """Writes a checkpoint if the last checkpoint is `CHECKPOINT_EVERY` versions behind, and returns the snapshot.

        If the write fails, the commit counts nevertheless. The next commit then writes a checkpoint.
        """
        if snapshot.version - max(snapshot.checkpoint, 0) < CHECKPOINT_EVERY:
            return snapshot
        try:
            return self.checkpoint(snapshot)
        except (UnavailableError, UnknownOutcomeError):
            return snapshot

    def checkpoint(self, snapshot: Snapshot) -> Snapshot:
        """Writes a checkpoint of the snapshot. Afterwards `_last_checkpoint` names this checkpoint or a later
        checkpoint.

        Cost: 1 GET and 2 PUTs. `UnavailableError`, `UnknownOutcomeError`: the checkpoint may be missing. Try again.
        """
        body, name = checkpoint_of(snapshot)
        key = self.reader.layout.checkpoint(snapshot.version)
        # If two writers write the checkpoint of one version, both write the same state.
        if isinstance(outcome := self.reader.store.put(key, body, precondition=ABSENT), Unknown):
            raise UnavailableError(f"{key}: {outcome.cause}: try again")
        self._name_checkpoint(name)
        return replace(snapshot, checkpoint=snapshot.version)

    def _name_checkpoint(self, name: LastCheckpoint) -> None:
        """Writes this version to `_last_checkpoint`, unless the object already has this or a later version."""
        key, store = self.reader.layout.last_checkpoint, self.reader.store
        for _ in attempts(self.clock, CHECKPOINT_ATTEMPTS):
            held = store.get(key)
            if not isinstance(held, StoredObject):
                outcome = self.commits.put_if_absent(key, name.dumps())
            elif LastCheckpoint.loads(held.body, where=key).version >= name.version:
                return
            else:
                outcome = self.commits.put_if_match(key, name.dumps(), held.meta.etag)
            if isinstance(outcome, Written):
                return
        raise UnavailableError(f"{key}: other writers change this object all the time; try again")

    @property
    def _table(self) -> str:
        return f"the table below {self.reader.layout.prefix!r}"

    def _number(self) -> int:
        """Returns 63 random bits, never 0."""
        return int.from_bytes(self.clock.random_bytes(8), "little") >> 1 or 1

    def _put_all(self, files: Mapping[str, bytes]) -> None:
        in_parallel(lambda item: self._put(*item), files.items(), self.at_once)

    def _put(self, key: str, body: bytes) -> None:
        # No other writer uses this new name, so a repeated write stores the same body.
        if not isinstance(outcome := self.reader.store.put(key, body), Written):
            raise UnavailableError(f"{key}: {outcome}: try again")
