"""One version gives columns other types, while other writers commit. The docstring of `table/retype.py` has
the cases.
"""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from s3notify_platform.formats.rescue import as_json, below
from s3notify_platform.kernel.errors import ConflictError, FencedError, UsageError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table import retype as module
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.change_columns import with_changes
from s3notify_platform.table.commit import Committed, NothingLeft
from s3notify_platform.table.known import RESTARTS, Known
from s3notify_platform.table.retype import Doubts, Retype, Wanted, doubts_of, retyped
from s3notify_platform.table.round import CONFLICT
from s3notify_platform.table.row_changes import row_changes
from s3notify_platform.table.snapshot import Snapshot
from s3notify_platform.table.versions import RETYPED, snapshot_of
from tests.support.feed_copy import FeedCopy
from tests.support.log_tables import LAYOUT, beaten, versions
from tests.support.retype_site import RetypeSite, wanted

INT = {"n": pa.int32()}
LONG = {"n": pa.int64()}
TEXT = {"n": pa.string()}
MONEY = pa.decimal128(18, 2)
PART = {"reach_end": False, "offset": 5}
"""The state of an object that was read in part."""


@pytest.fixture(params=[False, True], ids=["plain", "vectors"])
def site(request: pytest.FixtureRequest) -> RetypeSite:
    return RetypeSite(vectors=request.param)


def change(site: RetypeSite, want: Wanted, others: Any = ()) -> Retype:
    base = site.newest()
    done, made = retyped(beaten(site.table, [*others]) if others else site.table, base, want)
    assert isinstance(done, Committed)
    return made


def test_exact_change_is_no_change_of_data(site: RetypeSite) -> None:
    """Otherwise readers of changes would see all rows again.

    The table of this test has withdrawn rows. With `vectors`, a deletion vector hides these rows.
    """
    for turn in range(5):
        site.commit("a1", INT, n=[turn, None])
        site.commit("b1", INT, n=[turn, turn + 1])
    before = site.newest()
    made = change(site, wanted(n=pa.int64()))
    after = site.newest()
    assert (after.version, site.kinds()) == (before.version + 1, {"n": "long"})
    assert site.rows() == {"a1": [{"n": 4}, {"n": None}], "b1": [{"n": 4}, {"n": 5}]}
    assert made.packs == len(before.packs)
    assert not any(pack.vector for pack in after.packs.values())
    version = versions(site.store)[-1]
    assert not any(each.data_change for each in (*version.adds, *version.removes))
    assert after.manifest.slots == before.manifest.slots
    assert (made.doubts.keys, version.note[RETYPED]) == ({}, {"n": ["integer", "long"]})
    assert site.rows(snapshot_of(site.table.reader, before.version))["b1"] == [{"n": 4}, {"n": 5}]


@pytest.mark.parametrize(
    ("old", "values", "new", "expected"),
    [
        (pa.int32(), [1, -2], MONEY, [Decimal("1.00"), Decimal(-2)]),
        (pa.float32(), [0.5, None], pa.float64(), [0.5, None]),
        (pa.date32(), [dt.date(2026, 1, 2)], pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, 2, tzinfo=dt.UTC)]),
        (pa.date32(), [dt.date(2026, 1, 2)], pa.timestamp("us"), [dt.datetime(2026, 1, 2)]),
        (pa.list_(pa.int32()), [[1], []], pa.list_(pa.int64()), [[1], []]),
        (pa.struct({"x": pa.int32()}), [{"x": 1}], pa.struct({"x": pa.float64()}), [{"x": 1.0}]),
    ],
)  # fmt: skip
def test_exact_widening_keeps_values(
    old: pa.DataType, values: list[Any], new: pa.DataType, expected: list[Any]
) -> None:
    site = RetypeSite()
    site.commit("a1", {"n": old}, n=values)
    made = change(site, wanted(n=new))
    assert [row["n"] for row in site.rows()["a1"]] == expected
    assert (made.changes_values, made.doubts.keys) == (False, {})


def test_change_to_text_changes_values(site: RetypeSite) -> None:
    """Otherwise readers of changes would keep values of the old type."""
    site.commit("a1", LONG, n=[7, None])
    before = site.newest()
    made = change(site, wanted(n=pa.string()))
    after = site.newest()
    assert site.rows() == {"a1": [{"n": "7"}, {"n": None}]}
    assert after.manifest.slot(Slot(0)).generation == after.version
    assert all(each.data_change for each in versions(site.store)[-1].adds)
    assert not made.doubts.keys
    with pytest.raises(UsageError, match=rf"version {after.version} gave n another type"):
        row_changes(site.table.reader, before.version, after.version, deletes=False)
    changes = [
        (row["_change_type"], row["_reason"], row["_offset"], row["n"])
        for share in row_changes(site.table.reader, before.version, after.version).shares()
        for rows in share.read(site.store, LAYOUT, with_changes(arrow_schema(after.metadata.schema)))
        for row in rows.to_pylist()
    ]
    came = [("insert", "retyped", 0, "7"), ("insert", "retyped", 1, None)]
    assert changes == [("delete", "retyped", 0, None), ("delete", "retyped", 1, None), *came]


def test_rows_that_left_before_the_type_changed_are_not_read_as_the_new_type() -> None:
    """Otherwise a reader of changes across the change of the type would fail at these rows again and again."""
    site = RetypeSite()
    site.commit("a1", {"n": pa.string()}, n=["1"])
    site.commit("b1", {"n": pa.string()}, n=["x"])
    copies = [FeedCopy(lambda: site.table), FeedCopy(lambda: site.table)]
    assert not copies[0].differences()
    site.commit("c1", {"n": pa.string()}, n=["y"])
    assert not copies[1].differences()
    for key in ("b1", "c1"):
        site.commit(key, {"n": pa.string()}, n=[])
    change(site, wanted(n=pa.int64()))
    assert not any(copy.differences() for copy in copies)


def test_feed_goes_on_if_values_stay() -> None:
    """Otherwise a reader of changes would have to begin again after an exact change of a type."""
    site = RetypeSite()
    site.commit("a1", INT, n=[1])
    site.commit("b1", INT, n=[2])
    start = site.newest().version
    site.commit("c1", INT, n=[3])
    change(site, wanted(n=pa.int64()))
    site.commit("a1", LONG, n=[2**40])
    site.commit("c1", LONG, n=[4])
    found = row_changes(site.table.reader, start, site.newest().version)
    output = pa.schema([("_key", pa.string()), ("n", pa.int64()), ("_change_type", pa.string())])
    rows = [
        tuple(row.values())
        for share in found.shares()
        for batch in share.read(site.store, LAYOUT, output)
        for row in batch.to_pylist()
    ]
    assert sorted(rows) == [("a1", 1, "delete"), ("a1", 2**40, "insert"), ("c1", 4, "insert")]


def test_values_that_do_not_fit_are_read_again() -> None:
    """Otherwise values that do not fit would stay null, or all objects would be read again."""
    site = RetypeSite()
    site.commit("a1", LONG, n=[1, 10**17])
    site.commit("a2", LONG, n=[2])
    site.commit("b1", LONG, n=[3])
    base = site.newest()
    assert doubts_of(site.table, base, wanted(n=MONEY)).keys == {Slot(0): {"a1"}}
    made = change(site, wanted(n=MONEY))
    assert site.rows() == {"a1": [{"n": 1}, {"n": None}], "a2": [{"n": 2}], "b1": [{"n": 3}]}
    assert (made.doubts.keys, made.doubts.rows) == ({Slot(0): {"a1"}}, 1)
    assert {key: state.again for key, state in site.states().items()} == {
        "a1": True,
        "a2": False,
        "b1": False,
    }
    assert site.newest().manifest.slot(Slot(0)).pending == 1
    done, _ = retyped(site.table, site.newest(), wanted(n=MONEY))
    assert isinstance(done, NothingLeft)


def test_all_objects_are_read_again() -> None:
    """Otherwise ambiguous texts would be converted without their objects, or `read_again` would be ignored."""
    for kinds, want in ((TEXT, wanted(n=pa.int64())), (LONG, wanted(read_again=True, n=pa.string()))):
        site = RetypeSite()
        site.commit("a1", kinds, n=["12" if kinds is TEXT else 12])
        site.commit("b1", kinds, n=[None])
        change(site, want)
        assert site.rows() == {"a1": [{"n": 12 if kinds is TEXT else "12"}], "b1": [{"n": None}]}
        assert {key for key, state in site.states().items() if state.again} == {"a1"}


def test_rescued_values_are_read_again() -> None:
    """Otherwise a rescued value that fits the new type would stay in `_rescued`."""
    site = RetypeSite()
    kinds = {"n": pa.int32(), "_rescued": pa.string()}
    texts = ['{"n":"x"}', '{"m":"1","n.y":"x"}', '{"nn":"x","m":"n"}', None]
    for number, text in enumerate(texts):
        site.commit(f"a{number}", kinds, n=[None], _rescued=[text])
    change(site, wanted(n=pa.int64()))
    assert {key for key, state in site.states().items() if state.again} == {"a0", "a1"}


@pytest.mark.parametrize("name", ['2" pipe', "C:\\dir", "a.b", "größe", "tab\tx"])
def test_rescued_values_of_columns_with_any_name_are_read_again(name: str) -> None:
    """Otherwise a name that JSON escapes would never be found in `_rescued`."""
    site = RetypeSite()
    kinds = {name: pa.int32(), "_rescued": pa.string()}
    for key, path in (("a0", name), ("a1", f"{name}2")):
        rescued = as_json({"other": "1", below("", path): "x"})
        site.commit(key, kinds, **{name: [None], "_rescued": [rescued]})
    change(site, wanted(**{name: pa.int64()}))
    assert {key for key, state in site.states().items() if state.again} == {"a0"}


@pytest.mark.parametrize("again", [False, True], ids=["not requested", "requested"])
@pytest.mark.parametrize("reason", ["", "damaged"], ids=["reading", "failing"])
def test_an_object_that_was_read_in_part_is_read_again_from_its_beginning(reason: str, again: bool) -> None:
    """Otherwise the next read would continue at the offset, and values before the offset would stay null."""
    site = RetypeSite()
    site.commit("a1", LONG, n=[10**17], state=PART | {"reason": reason, "again": again})
    site.commit("a2", LONG, n=[1])
    change(site, wanted(n=MONEY))
    states = site.states()
    assert (states["a1"].offset, states["a1"].again, states["a2"].again) == (0, True, False)
    facts = site.newest().manifest.slot(Slot(0))
    assert (facts.pending, facts.backfill) == (1, 0)


def test_slots_are_read_again_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise marks on too many objects would exceed the memory. Failing objects are marked nevertheless, because a
    backfill leaves them out and their values would stay null.
    """
    site = RetypeSite()
    for key in ("a1", "a2", "b1"):
        site.commit(key, LONG, n=[10**17])
    site.commit("a3", LONG, n=[10**17], state=PART | {"reason": "damaged"})
    few = Doubts(_room=1)
    monkeypatch.setattr(module, "Doubts", lambda: Doubts(_room=few._room))
    change(site, wanted(n=MONEY))
    after = site.newest()
    assert after.manifest.slot(Slot(0)).backfill == after.version
    assert after.manifest.slot(Slot(0)).pending == 1
    assert {key: (state.again, state.offset) for key, state in site.states().items() if key[0] == "a"} == {
        "a1": (False, 0),
        "a2": (False, 0),
        "a3": (True, 0),
    }


def test_change_that_would_lose_values_for_good_is_refused() -> None:
    site = RetypeSite()
    site.commit("a1", LONG, n=[10**17], state={"expired": True})
    before = site.newest().version
    with pytest.raises(UsageError, match=r"n bigint → decimal.*left the bucket.*'a1'"):
        retyped(site.table, site.newest(), wanted(n=MONEY))
    assert site.newest().version == before
    change(site, wanted(n=pa.string()))


def test_files_without_the_column_stay() -> None:
    site = RetypeSite()
    site.commit("a1", {"m": pa.int32()}, m=[1])
    (kept,) = site.newest().packs
    site.commit("b1", {"m": pa.int32(), "n": pa.int32()}, m=[1], n=[2])
    made = change(site, wanted(n=pa.int64()))
    assert kept in site.newest().packs
    assert made.packs == 1
    assert site.rows() == {"a1": [{"m": 1, "n": None}], "b1": [{"m": 1, "n": 2}]}


def test_types_without_zone_raise_the_protocol() -> None:
    site = RetypeSite()
    site.commit("a1", {"n": pa.date32()}, n=[dt.date(2026, 1, 1)])
    assert site.newest().protocol.reader == 1
    change(site, wanted(n=pa.timestamp("us")))
    assert site.newest().protocol.reader_features == ("timestampNtz",)


def test_empty_table_has_no_column_to_change() -> None:
    site = RetypeSite()
    with pytest.raises(UsageError, match="no column 'n'"):
        retyped(site.table, site.newest(), wanted(n=pa.int64()))


# Concurrent writers


def test_rows_that_others_add_meanwhile_are_converted(site: RetypeSite) -> None:
    """Otherwise a table with frequent commits could never change a type."""
    site.commit("a1", INT, n=[1])
    turns: list[int] = []

    def other() -> None:
        turns.append(len(turns))
        RetypeSite(store=site.store, vectors=site.vectors).commit(f"b{turns[-1]}", INT, n=[turns[-1]])

    change(site, wanted(n=pa.int64()), others=[other] * RESTARTS)
    assert site.kinds() == {"n": "long"}
    assert site.rows() == {"a1": [{"n": 1}], **{f"b{turn}": [{"n": turn}] for turn in turns}}
    known, _ = site.table.reader.known.read()
    assert isinstance(known, Known)
    assert known.held == ""


def test_packs_that_others_merge_meanwhile_are_converted(site: RetypeSite) -> None:
    for key in ("a1", "b1", "c1"):
        site.commit(key, INT, n=[1])
    merging = RetypeSite(store=site.store, vectors=site.vectors)
    change(site, wanted(n=pa.int64()), others=[lambda: compact(merging.table)])
    assert len(site.newest().packs) == 1
    assert site.rows() == {key: [{"n": 1}] for key in ("a1", "b1", "c1")}


def test_columns_that_others_add_meanwhile_stay() -> None:
    site = RetypeSite()
    site.commit("a1", INT, n=[1])
    other = RetypeSite(store=site.store)
    more = {"n": pa.int32(), "m": pa.string()}
    change(site, wanted(n=pa.int64()), others=[lambda: other.commit("b1", more, n=[2], m=["x"])])
    assert site.kinds() == {"n": "long", "m": "string"}
    assert site.rows() == {"a1": [{"n": 1, "m": None}], "b1": [{"n": 2, "m": "x"}]}


def test_same_change_by_two_writers_is_made_once() -> None:
    site = RetypeSite()
    site.commit("a1", INT, n=[1])
    other = RetypeSite(store=site.store)
    table = beaten(site.table, [lambda: retyped(other.table, other.newest(), wanted(n=pa.int64()))])
    done, _ = retyped(table, site.newest(), wanted(n=pa.int64()))
    assert isinstance(done, NothingLeft)
    assert site.rows() == {"a1": [{"n": 1}]}


def test_later_of_two_different_changes_is_made_on_top_of_the_earlier_one() -> None:
    """Otherwise the later change would convert packs that the earlier change has removed."""
    site = RetypeSite()
    site.commit("a1", INT, n=[1])
    other = RetypeSite(store=site.store)
    change(site, wanted(n=pa.string()), [lambda: retyped(other.table, other.newest(), wanted(n=pa.int64()))])
    assert (site.kinds(), site.rows()) == ({"n": "string"}, {"a1": [{"n": "1"}]})


@pytest.mark.parametrize("new", [pa.int64(), pa.string()])
def test_round_of_the_old_type_is_a_conflict(new: pa.DataType) -> None:
    """Otherwise rows or rejects of the old type would be committed after the change, also in a new slot."""
    site = RetypeSite()
    site.commit("a1", INT, n=[1])
    rows = site.planned("b1", INT, n=[2])
    rejects = site.planned("c1", INT, rejects=["n: 'x' does not fit int"])
    change(site, wanted(n=new))
    for staged in (rows, rejects):
        done = site.table.commit(staged, staged.base)
        assert isinstance(done, NothingLeft)
        assert [*staged.dropped.values()] == [CONFLICT]
    site.commit("b1", {"n": new}, n=[pa.scalar(2).cast(new).as_py()])
    assert [*site.rows()] == ["a1", "b1"]


def test_round_that_adds_a_column_with_the_old_type_is_a_conflict() -> None:
    site = RetypeSite()
    site.commit("a1", INT, n=[1])
    staged = site.planned("b1", {"n": pa.int32(), "m": pa.string()}, n=[2], m=["x"])
    change(site, wanted(n=pa.string()))
    assert isinstance(site.table.commit(staged, staged.base), NothingLeft)
    assert site.kinds() == {"n": "string"}


def test_change_of_a_restarted_table_is_refused() -> None:
    site = RetypeSite()
    site.commit("a1", INT, n=[1])
    base = site.newest()
    made = Retype(table=site.table, wanted=wanted(n=pa.int64()), base=base)
    with pytest.raises(ConflictError, match="another id"):
        made.onto(Snapshot(**{name: getattr(base, name) for name in base.__slots__} | {"table": "x"}))


def test_change_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise vacuum might remove the first converted files as garbage before the commit."""
    site = RetypeSite()
    site.commit("a1", INT, n=[1])
    made = Retype(table=site.table, wanted=wanted(n=pa.int64()), base=site.newest())
    monkeypatch.setattr(made, "_began", made._began - site.table.committer.max_run_seconds / 2)
    with pytest.raises(FencedError, match="repeat the command"):
        made.onto(site.newest())


class _KilledError(BaseException):
    """Ends the process."""


class DyingStore(MemoryObjectStore):
    """A store whose process dies at a PUT."""

    puts_left: int | None = None

    def put(self, key: str, body: bytes, **given: Any) -> Any:
        if self.puts_left is not None:
            if not self.puts_left:
                raise _KilledError
            self.puts_left -= 1
        return super().put(key, body, **given)


def test_change_that_is_killed_at_any_write_can_be_repeated() -> None:
    """Otherwise readers would see a mixture of the old and the new table."""
    for left in range(40):
        store = DyingStore()
        site = RetypeSite(store=store)
        site.commit("a1", LONG, n=[1, 10**17])
        site.commit("b1", LONG, n=[2])
        store.puts_left = left
        try:
            retyped(site.table, site.newest(), wanted(n=MONEY))
            ended = True
        except _KilledError:
            ended = False
        store.puts_left = None
        again = RetypeSite(store=store)
        assert again.rows()["a1"] in ([{"n": 1}, {"n": 10**17}], [{"n": 1}, {"n": None}])
        retyped(again.table, again.newest(), wanted(n=MONEY))
        assert again.rows() == {"a1": [{"n": 1}, {"n": None}], "b1": [{"n": 2}]}
        assert {key for key, state in again.states().items() if state.again} == {"a1"}
        if ended:
            break
    else:
        raise AssertionError("the loop never ended")
    assert left > 3
