"""The changes of the states of objects, version by version, for as long as versions are kept.

A consumer keeps a version. Later it asks for what changed since: rows that an `old` label names are in the packs of the
version before, those of a `new` one in the packs of the version itself (`reading.read_slots`, filtered by the key).
The concatenation of all changes, applied to the states as of `since`, gives those as of `until`.

Requests: 2 GETs for each version. 1 more, or 1 for each 8 MB, for each version of more than `CHANGES_INLINE` changes,
and 1 for the footer of a large one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from s3notify_platform.kernel.errors import CorruptError, NotFoundError, UsageError
from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.table.changes import SCHEMA, StateChange, decode
from s3notify_platform.table.delta.actions import LogVersion
from s3notify_platform.table.manifest import Manifest
from s3notify_platform.table.reading import PackPart, ReadTask, read
from s3notify_platform.table.snapshot import LogReader
from s3notify_platform.table.versions import kept_versions


class NoFeedError(UsageError):
    """A version of which the changes are not kept row by row, so that a reader has to begin again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChanges:
    """The changes of one version. `body`: the version itself. `changes`: streamed; `count`: how many."""

    version: int
    body: LogVersion
    count: int = 0
    changes: Iterable[StateChange] = ()


def changes_of(reader: LogReader, since: int, until: int) -> Iterator[VersionChanges]:
    """The changes after the version `since`, up to that of `until`; those of other engines have none.

    `NotFoundError` naming the versions that are kept: one of them is not there; begin with a snapshot, and go on from
    its version. In memory: the manifests of some versions, and some thousand changes.
    """
    if since < -1:
        raise UsageError(f"since version {since}: the first version is 0; -1 is the table before it")
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
    """The error of whoever asks for changes of a version that is not kept."""
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
