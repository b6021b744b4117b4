"""Reads the changes of objects' states, version by version. The changes exist as long as the versions are kept.

A consumer remembers a version, and later asks for the changes after this version. The rows before a change have the
labels in `StateChange.old`, and are in packs of the previous version. The rows after the change have the labels in
`StateChange.new`, and are in packs of the change's version. `reading.read_slots` reads these packs, and the caller
filters the rows by key. If all changes are applied to the states as of `since`, the result is the states as of `until`.

Requests: 2 GETs for each version. A version with more than `CHANGES_INLINE` changes has a file of changes, which costs
1 GET more. A large file of changes costs 1 GET for its footer and 1 GET for each 8 MB.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from s3notify_platform.kernel.errors import CorruptError, NotFoundError, UsageError
from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.table.delta.actions import LogVersion
from s3notify_platform.table.manifest import Manifest
from s3notify_platform.table.reading import PackPart, ReadTask, read
from s3notify_platform.table.snapshot import LogReader
from s3notify_platform.table.state_changes import SCHEMA, StateChange, decode
from s3notify_platform.table.versions import kept_versions


class NoFeedError(UsageError):
    """The feed cannot give the changes of a version row by row, so a reader must begin again with a snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChanges:
    """The changes of one version. `body`: the version itself.

    `changes`: an iterator that reads the changes. `count`: the number of changes.
    """

    version: int
    body: LogVersion
    count: int = 0
    changes: Iterable[StateChange] = ()


def changes_of(reader: LogReader, since: int, until: int) -> Iterator[VersionChanges]:
    """Yields the changes after the version `since`, up to and including `until`. Versions of other engines have no
    changes.

    `NotFoundError`: one of the versions is not kept. The message names the kept versions. After this error, the reader
    must begin with a snapshot, and read the changes after the snapshot's version. Memory holds the manifests of some
    versions, and some thousand changes.
    """
    if since < -1:
        raise UsageError(
            f"since version {since}: the first version is 0, and -1 means the table before version 0"
        )
    if since > until:
        raise UsageError(f"since version {since}: give at most {until}, the last version of these changes")
    for start in range(since + 1, until + 1, REQUESTS_IN_FLIGHT):
        some = range(start, min(start + REQUESTS_IN_FLIGHT, until + 1))
        found = in_parallel(partial(_of, reader), some, REQUESTS_IN_FLIGHT)
        for version, (body, manifest) in zip(some, found, strict=True):
            yield (
                VersionChanges(version=version, body=body)
                if manifest is None
                else VersionChanges(
                    version=version,
                    body=body,
                    count=manifest.changes_file.rows if manifest.changes_file else len(manifest.changes),
                    changes=_changes(reader, manifest),
                )
            )


def _of(reader: LogReader, version: int) -> tuple[LogVersion, Manifest | None]:
    body = reader.version(version)
    if body is None:
        raise not_kept(reader, version)
    if body.foreign:
        return body, None
    try:
        return body, reader.manifest(body.number)
    except CorruptError as error:
        if reader.version(version) is None:
            raise not_kept(reader, version) from error
        raise


def not_kept(reader: LogReader, version: int) -> NotFoundError:
    """Returns the error for a version whose changes are not kept."""
    kept = kept_versions(reader)
    there = f"versions {min(kept)} to {max(kept)} are kept" if kept else "there is no table"
    return NotFoundError(
        f"changes of version {version} of the table below {reader.layout.prefix!r}: {there}; begin with a snapshot"
    )


def _changes(reader: LogReader, manifest: Manifest) -> Iterator[StateChange]:
    if manifest.changes_file is None:
        yield from manifest.changes
        return
    file = manifest.changes_file
    part = PackPart(path=file.path, size=file.size, rows=file.rows, span=(0, file.size))
    for rows in read(reader.store, reader.layout, ReadTask(parts=(part,)), SCHEMA):
        yield from decode(rows)
