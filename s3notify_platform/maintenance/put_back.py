"""Restores committed versions that a writer with an expired lease replaced.

If the store has no conditional writes, a writer that slept may overwrite a version that another writer has committed
meanwhile (`conditional_commit`, Limits). Each version has a field `n`, a number that is new at each attempt to commit.
After a replacement, readers refuse the log: the table's record (`known`) or the next version names an `n` that differs
from the `n` of the stored version. The committed body is still staged under its `n`.

Steps
    1. The versions are checked downwards from the version in `known`. Each version must have the `n` that the next
       version names as its parent. A version that has another `n`, or is missing, is written again from its staged body
       by a conditional commit.
    2. Later versions that do not descend from the version in `known` are removed, newest first. No writer has reported
       these versions as committed, because a writer reports a commit only after `known` has the committed version, or
       a descendant of this version.

The restoration is safe to repeat, and safe to run beside writers. If no version was replaced, nothing is changed.

Requests: 1 read of `known`; 1 LIST for each 1000 kept versions; 1 GET for each kept version. A restored version costs 2
GETs and the requests of a commit. A removed version costs the requests of a conditional delete.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar

from s3notify_platform.kernel.errors import ConflictError, CorruptError
from s3notify_platform.kernel.ports import ETag, StoredObject, Written
from s3notify_platform.maintenance.task import Report
from s3notify_platform.table.commit import Committer
from s3notify_platform.table.delta.actions import LogVersion
from s3notify_platform.table.delta.log_state import NO_VERSION
from s3notify_platform.table.known import Known
from s3notify_platform.table.versions import kept_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack:
    """The versions that were restored, and the versions that were removed because they followed a replaced version.
    Both lists begin with the newest version.
    """

    put_back: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """A version, as it is stored or as it was committed. `etag`: the ETag of the stored version's object. `body`: the
    staged body of the committed version.
    """

    number: int
    parent: int
    etag: ETag | None = None
    body: bytes | None = None


def put_back(committer: Committer, *, dry_run: bool = False) -> PutBack:
    """Restores the versions that were replaced. Open the table again afterwards. `dry_run`: only finds these versions.
    `CorruptError`: the staged body or the manifest of a version is missing: restore the table's objects first.
    `ConflictError`: another writer changed the same versions: repeat the call.
    """
    reader = committer.reader
    known, _ = reader.known.read()
    if known is None or known.version == NO_VERSION:
        return PutBack()
    listed = kept_versions(reader)
    found = {version: stored for version in listed if (stored := _stored(committer, version))}
    wrong = _wrong(committer, known, found)
    # The later versions are removed first: no version may follow a version that is about to be restored.
    beyond = _beyond(known, found)
    for version in () if dry_run else beyond:
        _remove(committer, version, found[version])
    for version in () if dry_run else sorted(wrong, reverse=True):
        _restore(committer, version, wrong[version], found.get(version))
    return PutBack(put_back=tuple(sorted(wrong, reverse=True)), removed=tuple(beyond))


def _stored(committer: Committer, version: int) -> _Version | None:
    key = committer.reader.layout.version(version)
    found = committer.reader.store.get(key)
    if not isinstance(found, StoredObject):
        return None
    body = LogVersion.loads(found.body, where=key)
    return _Version(number=body.number, parent=body.parent, etag=found.meta.etag)


def _wrong(committer: Committer, known: Known, found: Mapping[int, _Version]) -> dict[int, _Version]:
    """The replaced versions, as they were committed. The search goes from the known version down to the first version
    of the log.
    """
    wrong: dict[int, _Version] = {}
    number = known.number
    for version in range(known.version, min(found, default=known.version) - 1, -1):
        right = found.get(version)
        if right is None or right.number != number:
            right = wrong[version] = _staged(committer, known, version, number)
        number = right.parent
    return wrong


def _staged(committer: Committer, known: Known, version: int, number: int) -> _Version:
    reader = committer.reader
    key = reader.layout.staged_version(number)
    found = reader.store.get(key)
    if not isinstance(found, StoredObject):
        raise CorruptError(
            f"version {version} of the table below {reader.layout.prefix!r} is not the committed version, and "
            f"{key} is missing: restore the table's objects"
        )
    body = LogVersion.loads(found.body, where=key)
    manifest = reader.manifest(number)
    if (body.number, manifest.version) != (number, version) or body.table not in (known.table, *known.former):
        raise CorruptError(f"{key} is another version: restore the table's objects")
    return _Version(number=number, parent=body.parent, body=found.body)


def _beyond(known: Known, found: Mapping[int, _Version]) -> list[int]:
    """The later versions that do not descend from the known version, newest first."""
    number, version = known.number, known.version + 1
    while version in found and found[version].parent == number:
        number, version = found[version].number, version + 1
    return sorted((each for each in found if each >= version), reverse=True)


def _remove(committer: Committer, version: int, stored: _Version) -> None:
    assert stored.etag is not None
    key = committer.reader.layout.version(version)
    if not isinstance(committer.commits.delete_if_match(key, stored.etag), Written):
        raise ConflictError(f"{key} has changed meanwhile: repeat the command")


def _restore(committer: Committer, version: int, right: _Version, stored: _Version | None) -> None:
    assert right.body is not None
    key, commits = committer.reader.layout.version(version), committer.commits
    if stored is None or stored.etag is None:
        outcome = commits.put_if_absent(key, right.body)
    else:
        outcome = commits.put_if_match(key, right.body, stored.etag)
    if not isinstance(outcome, Written):
        raise ConflictError(f"{key} has changed meanwhile: repeat the command")


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBackReplaced:
    """The task: see `put_back`."""

    committer: Committer
    asks: ClassVar[str] = ""

    def plan(self) -> Report:
        """See `Task`."""
        return self._report(put_back(self.committer, dry_run=True), "would put", "would remove")

    def run(self) -> Report:
        """See `Task`."""
        return self._report(put_back(self.committer), "put", "removed")

    @staticmethod
    def _report(done: PutBack, put: str, removed: str) -> Report:
        line = "no version was replaced"
        if done.put_back or done.removed:
            line = (
                f"{put} back versions {_listed(done.put_back)}; {removed} versions that followed a replaced version: "
                f"{_listed(done.removed)}"
            )
        return Report(lines=(line,), document=asdict(done))


def _listed(versions: tuple[int, ...]) -> str:
    return ", ".join(map(str, versions)) or "none"
