"""Rows that came to a table between two versions, from the changes of its versions (`feed`).

The rows that a version brings are in packs of its own, which have the label of its round. What it wrote again of
earlier packs, to withdraw rows or to merge, has earlier labels, and is not read. So each row comes once.

Rows that have left again up to the last version are left out. No row says that another one has left.

Requests: those of `feed.changes_of`, without those of files of changes for `arrivals`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.table.changes import StateChange
from s3notify_platform.table.delta.actions import Add
from s3notify_platform.table.feed import VersionChanges, changes_of
from s3notify_platform.table.snapshot import LogReader
from s3notify_platform.table.versions import ROLLBACK

NOTHING: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The packs that one version brought. The rows of the keys in `without` have left them again."""

    version: int
    packs: tuple[Add, ...]
    without: frozenset[str] = NOTHING


def sizes_of(reader: LogReader, since: int, until: int) -> Iterator[tuple[int, int, int]]:
    """Each version after `since`, up to `until`, with its changed objects and about how many bytes it brought.

    `NotFoundError`: as `changes_of`. `UsageError`: one of them went back to an earlier version.
    """
    for each in changes_of(reader, since, until):
        _check_forward(each)
        yield each.version, each.count, sum(add.size for add in each.body.adds if add.data_change)


def arrivals(reader: LogReader, since: int, until: int) -> list[Arrival]:
    """The rows that came after the version `since`, up to `until`, in the order of versions; errors as `sizes_of`.

    In memory: the key of each object that has lost rows meanwhile.
    """
    came: list[tuple[VersionChanges, set[int], set[str]]] = []
    for each in changes_of(reader, since, until):
        _check_forward(each)
        labels: set[int] = set()
        left: set[str] = set()
        for change in each.changes:
            if _continues(change):
                if change.new is not None and change.old is not None and change.new.until > change.old.until:
                    labels.add(change.new.until)
                continue
            if change.new is not None:
                labels.add(change.new.until)
            if change.old is not None:
                left.add(change.key)
        came.append((each, labels, left))
    found: list[Arrival] = []
    gone: frozenset[str] = NOTHING
    for each, labels, left in reversed(came):
        packs = tuple(
            add
            for add in each.body.adds
            if add.data_change and add.since == add.until and add.until in labels
        )
        if packs:
            found.append(Arrival(version=each.version, packs=packs, without=gone))
        gone = gone | left if left else gone
    return found[::-1]


def _continues(change: StateChange) -> bool:
    """Whether the rows of before stay."""
    old, new = change.old, change.new
    return old is not None and new is not None and (old.etag, old.since) == (new.etag, new.since)


def _check_forward(each: VersionChanges) -> None:
    if ROLLBACK in each.body.note and each.body.note.get("slots"):
        raise UsageError(
            f"version {each.version} went back to version {each.body.note[ROLLBACK]}: rows that were given before have "
            "left, and others are back, so nothing can go on from there: begin again, with a snapshot, or after "
            f"version {each.version}"
        )
