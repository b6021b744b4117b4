"""The cost of a read of a slot, of an overwritten object, and of a deleted object. In the measurement, the clustered
table is a second table. In the alternative, the clustered table is the only table.

Commits to the source's table and updates of the clustered table are measured, including all requests. The alternative,
which is not measured, is one table in the order of the clustered table, with a filter of keys for each file. The bytes
of the alternative are computed from the sizes of the clustered table's files before the changes. Files without rows of
the object or of the slot do not count. An operation reads all other files, and a change also writes them. The filters
are assumed to be free and exact. A further figure assumes a filter for each row group. With such filters, a read of a
slot reads only the row groups with rows of the slot.

Most rows of an object have the same day, and objects arrive in the order of days, so few files have rows of an object.
If objects had rows of many days, a change in place would rewrite more files.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.source.source import Source
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.snapshot import Snapshot
from tests.benchmarks.clustering_rows import Batches, key_of
from tests.benchmarks.figures import Figure, counted, short, times
from tests.benchmarks.rewriting_store import Spent, Tally, measured

IN_PLACE = "by arithmetic, if the only table were clustered:"


def changes(source: Source, batches: Batches, count: int) -> Iterator[Figure]:
    """Reads a slot, overwrites an object, and deletes another object. `count`: the number of batches."""
    tally = Tally(open_store(source.location.platform))
    files = _files(source.table(source.location.clustered_name))
    yield _slot_read(source, batches, count // 2, tally, files)
    for done, number, etag in (("overwritten", count // 2, "f"), ("deleted", count // 4, "")):
        what = f"one {done} object of {batches.each:,} rows"
        commit, follow = _changed(source, batches, number, etag, tally)
        held = [file for file in files if file.has({key_of(number)})]
        size = sum(file.size for file in held)
        yield Figure(
            what=f"{what}: the commit to the source's table",
            ours=_cost(commit),
            instead=f"{IN_PLACE} {len(held)} of {len(files)} files have rows of the object, "
            f"{_mb(size)} read, {_mb(size)} written",
            ratio=f"{times(2 * size, commit.read + commit.written)} bytes",
        )
        yield Figure(
            what=f"{what}: the update of the clustered table",
            ours=_cost(follow),
            instead="by arithmetic: no update, since there is no second table",
            ratio=f"{times(2 * size, sum(each.read + each.written for each in (commit, follow)))} bytes, "
            "with the commit",
        )


def _slot_read(source: Source, batches: Batches, number: int, tally: Tally, files: "list[_File]") -> Figure:
    table, slot = source.table(store=tally), batches.slot_of(number)
    found, spent = _newest(table), Spent()
    with measured(spent, tally):
        rows = read_slots(
            tally, table.layout, found.packs.values(), [slot], arrow_schema(found.metadata.schema)
        )
        count = sum(each.num_rows for each in rows)
    keys = _keys_of(batches, slot)
    assert count == len(keys) * batches.each
    held = [file for file in files if file.has(keys)]
    size = sum(file.size for file in held)
    groups = sum(group.size for file in held for group in file.groups if group.has(keys))
    return Figure(
        what=f"a read of one slot of {batches.slots:,}, {count:,} rows, by the platform without Spark",
        ours=_cost(spent),
        instead=f"{IN_PLACE} {len(held)} of {len(files)} files have rows of the slot, {_mb(size)}; their row groups "
        f"that have rows of the slot, {_mb(groups)}",
        ratio=f"{times(size, spent.read)} bytes; {times(groups, spent.read)} by row groups",
    )


def _changed(source: Source, batches: Batches, number: int, etag: str, tally: Tally) -> tuple[Spent, Spent]:
    """The cost of the commit of one change to the source's table, and of the update of the clustered table."""
    commit, follow = Spent(), Spent()
    table = source.table(store=tally)
    following = source.following(source.location.clustered_name, store=tally)
    with measured(commit, tally):
        after = batches.commit(table, _newest(table), number, etag=etag)
    with measured(follow, tally):
        done = following.follow(batch=f"change-{number}")
    assert not done.rebuilt, done.rebuilt
    assert (done.rows, done.changed) == (after.rows, batches.each * (2 if etag else 1))
    return commit, follow


def _keys_of(batches: Batches, slot: Slot) -> set[str]:
    return {key_of(number) for number in range(len(batches.states)) if batches.slot_of(number) == slot}


def _newest(table: LogTable) -> Snapshot:
    found = table.newest()
    assert isinstance(found, Snapshot)
    return found


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group: its size in bytes, and the keys of its objects."""

    size: int
    keys: frozenset[str]

    def has(self, keys: Collection[str]) -> bool:
        return not self.keys.isdisjoint(keys)


@dataclass(frozen=True, slots=True)
class _File:
    """A live file of the clustered table."""

    size: int
    groups: tuple[_Group, ...]

    def has(self, keys: Collection[str]) -> bool:
        return any(group.has(keys) for group in self.groups)


def _files(table: LogTable) -> list[_File]:
    found = []
    for pack in _newest(table).packs.values():
        file, groups = table.data.opened(pack).file, []
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            size = sum(group.column(place).total_compressed_size for place in range(group.num_columns))
            keys = file.read_row_group(number, columns=["_key"])["_key"].unique().to_pylist()
            groups.append(_Group(size, frozenset(keys)))
        found.append(_File(pack.size, tuple(groups)))
    return found


def _cost(spent: Spent) -> str:
    return (
        f"{short(spent.seconds)} (CPU {short(spent.cpu)}); {counted(spent.requests)}; "
        f"{_mb(spent.read)} read, {_mb(spent.written)} written"
    )


def _mb(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MB"
