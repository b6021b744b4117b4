"""Several writers advance a derived table. Each step is applied once, and the table never returns to an earlier version
of its source.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from s3notify_platform.kernel.errors import ConflictError
from s3notify_platform.maintenance.removal import remove_table
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.follow import CONFLICTS
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.versions import snapshot_of
from tests.support.keyed_rounds import (
    CLUSTERED,
    NEWEST,
    KeyedRounds,
    clustered_rows,
    following,
    shown,
    window,
)
from tests.support.log_tables import beaten

FIRST = {"a1": ("e", (1, 2, 4)), "b1": ("e", (5, 7, 8))}
SECOND = FIRST | {"a1": ("f", (10, 11))}
THIRD = SECOND | {"c1": ("e", (13, 14))}

name = pytest.mark.parametrize("name", [NEWEST, CLUSTERED])


@pytest.fixture(params=[False, True], ids=["plain", "vectors"])
def source(request):
    found = KeyedRounds(store=MemoryObjectStore(), vectors=request.param)
    found.commit(found.planned(FIRST))
    return found


def is_in_step(name, source):
    table = following(name, source).table
    if name == NEWEST:
        return shown(table) == window(source.rows())
    return sorted(clustered_rows(table), key=str) == sorted(source.rows(), key=str)


def led_to(name, source):
    """Returns, for each version of the table, the version of the source's table from which it was made."""
    table = following(name, source).table
    snapshots = [snapshot_of(table.reader, number) for number in range(1, table.newest().version + 1)]
    return [snapshot.manifest.follows.version for snapshot in snapshots]


@name
@pytest.mark.parametrize("rebuild", [False, True])
def test_step_starts_over_if_another_writer_is_first(name, source, rebuild):
    """Otherwise the table would go back to an earlier version of its source."""
    following(name, source).follow()
    source.commit(source.planned(SECOND))

    def advances():
        source.commit(source.planned(THIRD))
        following(name, source).follow()

    ours = following(name, source)
    done = replace(ours, table=beaten(ours.table, [advances])).follow(rebuild=rebuild)
    assert done.source == source.table.opened().version
    versions = led_to(name, source)
    assert versions == sorted(versions)
    assert is_in_step(name, source)


MANY = tuple(range(1, 200))


@name
@pytest.mark.parametrize("bucket", [FIRST | {"b1": ("f", MANY)}, FIRST], ids=["came", "left"])
def test_more_rows_than_fit_into_memory_rebuild_the_table(name, source, bucket):
    """Otherwise the process and each retry would be killed for lack of memory. A small pack may have millions of rows,
    and the deletion of one object may remove them all.
    """
    if bucket is FIRST:
        source.commit(source.planned(FIRST | {"c1": ("e", MANY)}))
    following(name, source).follow()
    source.commit(source.planned(bucket))
    done = following(name, source, step_memory=2_000).follow()
    assert done.rebuilt == "the changes of one version take more than 2000 bytes of memory"
    assert is_in_step(name, source)


@name
def test_versions_that_fit_into_memory_one_by_one_are_not_rebuilt(name, source):
    """Otherwise a table that lacks many small versions would be rebuilt, which costs much more."""
    more = {f"c{number}": ("e", tuple(range(20 * number, 20 * number + 20))) for number in range(6)}
    buckets = [FIRST | dict([*more.items()][:count]) for count in range(7)]
    if name == NEWEST:  # added rows need memory only for the newest row of each key
        buckets.reverse()
        source.commit(source.planned(buckets[0]))
    following(name, source).follow()
    for bucket in buckets[1:]:
        source.commit(source.planned(bucket))
    done = following(name, source, step_memory=40_000 if name == NEWEST else 12_000).follow()
    assert (done.rebuilt, done.source) == ("", source.table.opened().version)
    assert 2 < len(led_to(name, source)) < 7
    assert is_in_step(name, source)


def test_files_that_are_rewritten_must_fit_into_memory(source):
    """The deletion of a few rows may rewrite all files. Without the limit, memory would have to hold the new bodies of
    all these files. With a deletion vector, a file needs no new body.
    """
    source.commit(source.planned(FIRST | {"c1": ("e", MANY)}))
    following(CLUSTERED, source).follow()
    source.commit(source.planned({"c1": ("e", MANY)}))
    done = following(CLUSTERED, source, step_memory=2_000).follow()
    assert bool(done.rebuilt) != source.vectors
    assert is_in_step(CLUSTERED, source)


@name
def test_error_ends_the_steps_if_others_are_always_first(name, source):
    """Otherwise a run would try forever, or the next run could not advance the table."""
    following(name, source).follow()
    numbers = iter(range(20, 100, 3))

    def advances():
        following(name, source).follow()
        source.commit(source.planned(SECOND | {"d1": (str(number := next(numbers)), (number,))}))

    source.commit(source.planned(SECOND))
    ours = following(name, source)
    with pytest.raises(ConflictError, match="try again"):
        replace(ours, table=beaten(ours.table, [advances] * (CONFLICTS + 1))).follow()
    following(name, source).follow()
    assert is_in_step(name, source)


@dataclass(frozen=True)
class Removal:
    """Removes the table like `erase`. `late`: a function that is called after the first listing of the table."""

    table: LogTable
    late: Callable[[], Any] | None = None

    def __call__(self):
        remove_table(self, "any", Listed(self.table.reader.store, self.late))

    def known(self, _asset, *, store):
        return self.table.reader.known

    def table_layout(self, _asset):
        return self.table.layout


@dataclass
class Listed:
    """A store that calls `late` once, after the first listing."""

    inner: Any
    late: Callable[[], Any] | None

    def list(self, *args, **kwargs):
        found = self.inner.list(*args, **kwargs)
        late, self.late = self.late, None
        if late is not None:
            late()
        return found

    def __getattr__(self, name):
        return getattr(self.inner, name)


@name
@pytest.mark.parametrize("rebuild", [False, True])
def test_step_whose_table_is_removed_meanwhile_leaves_no_version(name, source, rebuild):
    """Otherwise the next table would have a version of the removed table, and no step would succeed again."""
    following(name, source).follow()
    source.commit(source.planned(SECOND))
    ours = following(name, source)
    replace(ours, table=beaten(ours.table, [Removal(ours.table)])).follow(rebuild=rebuild)
    assert is_in_step(name, source)


@name
def test_removal_removes_a_version_that_is_created_meanwhile(name, source):
    """A writer may create a version after the removal has listed the table. The new table must begin without it."""
    following(name, source).follow()
    table, store = following(name, source).table, source.store
    newest = table.newest().version

    def created():
        body = store.get(table.layout.version(newest)).body
        store.put(table.layout.version(newest + 1), body)

    Removal(table, late=created)()
    following(name, source).follow()
    assert is_in_step(name, source)
