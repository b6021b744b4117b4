"""Columns get other types, by one version, beside other writers: each cell of `table.retype`."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from s3notify_platform.kernel.errors import ConflictError, FencedError, UsageError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table import retype as module
from s3notify_platform.table.commit import Committed, NothingLeft
from s3notify_platform.table.known import Known
from s3notify_platform.table.retype import RESTARTS, Doubts, Retype, Wanted, doubts_of, retyped
from s3notify_platform.table.round import CONFLICT
from s3notify_platform.table.row_changes import row_changes
from s3notify_platform.table.snapshot import Snapshot
from s3notify_platform.table.versions import RETYPED, snapshot_of
from tests.support.log_tables import LAYOUT, beaten, versions
from tests.support.retype_site import RetypeSite, wanted

INT = {"n": pa.int32()}
LONG = {"n": pa.int64()}
TEXT = {"n": pa.string()}
MONEY = pa.decimal128(18, 2)


@pytest.fixture(params=[False, True], ids=["plain", "vectors"])
def site(request: pytest.FixtureRequest) -> RetypeSite:
    return RetypeSite(vectors=request.param)


def change(site: RetypeSite, want: Wanted, others: Any = ()) -> Retype:
    base = site.newest()
    done, made = retyped(beaten(site.table, [*others]) if others else site.table, base, want)
    assert isinstance(done, Committed)
    return made


def test_values_stay_and_readers_see_no_change_of_data(site: RetypeSite) -> None:
    """Of files with rows that have left, too, hidden or not; earlier versions are as they were."""
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
    assert (made.doubts.keys, made.asked_slots, version.note[RETYPED]) == ({}, (), {"n": ["integer", "long"]})
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
def test_exact_widening(old: pa.DataType, values: list[Any], new: pa.DataType, expected: list[Any]) -> None:
    site = RetypeSite()
    site.commit("a1", {"n": old}, n=values)
    made = change(site, wanted(n=new))
    assert [row["n"] for row in site.rows()["a1"]] == expected
    assert (made.changes_values, made.doubts.keys) == (False, {})


def test_texts_are_other_values(site: RetypeSite) -> None:
    """So slots change, and who reads changes begins again."""
    site.commit("a1", LONG, n=[7, None])
    before = site.newest()
    made = change(site, wanted(n=pa.string()))
    after = site.newest()
    assert site.rows() == {"a1": [{"n": "7"}, {"n": None}]}
    assert after.manifest.slot(Slot(0)).generation == after.version
    assert all(each.data_change for each in versions(site.store)[-1].adds)
    assert not made.doubts.keys
    with pytest.raises(UsageError, match=rf"version {after.version} gave n another type"):
        row_changes(site.table.reader, before.version, after.version)
    row_changes(site.table.reader, after.version, after.version)


def test_the_feed_goes_on_where_values_stay() -> None:
    """Over rows that came before, and such as left after, in whatever files."""
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
    """Only their objects; such a value is null until then. Asked for before, it is not asked for again."""
    site = RetypeSite()
    site.commit("a1", LONG, n=[1, 10**17])
    site.commit("a2", LONG, n=[2])
    site.commit("b1", LONG, n=[3])
    base = site.newest()
    assert doubts_of(site.table, base, wanted(n=MONEY)).keys == {Slot(0): {"a1"}}
    made = change(site, wanted(n=MONEY))
    assert site.rows() == {"a1": [{"n": 1}, {"n": None}], "a2": [{"n": 2}], "b1": [{"n": 3}]}
    assert (made.asked_slots, made.doubts.rows) == ((Slot(0),), 1)
    assert {key: state.again for key, state in site.states().items()} == {
        "a1": True,
        "a2": False,
        "b1": False,
    }
    assert site.newest().manifest.slot(Slot(0)).pending == 1
    done, _ = retyped(site.table, site.newest(), wanted(n=MONEY))
    assert isinstance(done, NothingLeft)


def test_all_objects_are_read_again() -> None:
    """If their texts may mean anything, or if it is asked for."""
    for kinds, want in ((TEXT, wanted(n=pa.int64())), (LONG, wanted(read_again=True, n=pa.string()))):
        site = RetypeSite()
        site.commit("a1", kinds, n=["12" if kinds is TEXT else 12])
        site.commit("b1", kinds, n=[None])
        change(site, want)
        assert site.rows() == {"a1": [{"n": 12 if kinds is TEXT else "12"}], "b1": [{"n": None}]}
        assert {key for key, state in site.states().items() if state.again} == {"a1"}


def test_rescued_values_are_read_again() -> None:
    """If they are of the column, or of a field of it."""
    site = RetypeSite()
    kinds = {"n": pa.int32(), "_rescued": pa.string()}
    texts = ['{"n":"x"}', '{"m":"1","n.y":"x"}', '{"nn":"x","m":"n"}', None]
    for number, text in enumerate(texts):
        site.commit(f"a{number}", kinds, n=[None], _rescued=[text])
    change(site, wanted(n=pa.int64()))
    assert {key for key, state in site.states().items() if state.again} == {"a0", "a1"}


def test_slots_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are too many objects, or one is being read in parts: that would go on in the middle."""
    site = RetypeSite()
    site.commit("a1", LONG, n=[10**17], state={"reach_end": False, "offset": 5})
    site.commit("b1", LONG, n=[10**17])
    change(site, wanted(n=MONEY))
    after = site.newest()
    assert (after.manifest.slot(Slot(0)).backfill, after.manifest.slot(Slot(1)).backfill) == (
        after.version,
        0,
    )
    site = RetypeSite()
    for key in ("a1", "a2", "b1"):
        site.commit(key, LONG, n=[10**17])
    few = Doubts(_room=1)
    monkeypatch.setattr(module, "Doubts", lambda: Doubts(_room=few._room))
    change(site, wanted(n=MONEY))
    after = site.newest()
    assert [after.manifest.slot(Slot(number)).backfill for number in (0, 1)].count(after.version) >= 1
    assert not any(
        state.again for state in site.states().values() if after.manifest.slot(Slot(0)).backfill == 0
    )


def test_values_that_nothing_would_bring_back_are_not_lost() -> None:
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


def test_an_empty_table() -> None:
    site = RetypeSite()
    with pytest.raises(UsageError, match="no column 'n'"):
        retyped(site.table, site.newest(), wanted(n=pa.int64()))


# Beside others


def test_rows_that_come_meanwhile_are_converted(site: RetypeSite) -> None:
    """Again and again; at last the table is held, and others wait."""
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


def test_packs_that_were_merged_meanwhile(site: RetypeSite) -> None:
    for key in ("a1", "b1", "c1"):
        site.commit(key, INT, n=[1])
    merging = RetypeSite(store=site.store, vectors=site.vectors)
    change(site, wanted(n=pa.int64()), others=[lambda: compact(merging.table)])
    assert len(site.newest().packs) == 1
    assert site.rows() == {key: [{"n": 1}] for key in ("a1", "b1", "c1")}


def test_the_schema_that_grew_meanwhile() -> None:
    site = RetypeSite()
    site.commit("a1", INT, n=[1])
    other = RetypeSite(store=site.store)
    more = {"n": pa.int32(), "m": pa.string()}
    change(site, wanted(n=pa.int64()), others=[lambda: other.commit("b1", more, n=[2], m=["x"])])
    assert site.kinds() == {"n": "long", "m": "string"}
    assert site.rows() == {"a1": [{"n": 1, "m": None}], "b1": [{"n": 2, "m": "x"}]}


def test_two_that_want_the_same() -> None:
    site = RetypeSite()
    site.commit("a1", INT, n=[1])
    other = RetypeSite(store=site.store)
    table = beaten(site.table, [lambda: retyped(other.table, other.newest(), wanted(n=pa.int64()))])
    done, _ = retyped(table, site.newest(), wanted(n=pa.int64()))
    assert isinstance(done, NothingLeft)
    assert site.rows() == {"a1": [{"n": 1}]}


def test_two_that_want_other_types() -> None:
    """The later one changes what the earlier one has left."""
    site = RetypeSite()
    site.commit("a1", INT, n=[1])
    other = RetypeSite(store=site.store)
    change(site, wanted(n=pa.string()), [lambda: retyped(other.table, other.newest(), wanted(n=pa.int64()))])
    assert (site.kinds(), site.rows()) == ({"n": "string"}, {"a1": [{"n": "1"}]})


@pytest.mark.parametrize("new", [pa.int64(), pa.string()])
def test_a_round_of_the_old_type_is_a_conflict(new: pa.DataType) -> None:
    """Of its rows and of its rejects, also in a new slot; planned again, it is read by the new type."""
    site = RetypeSite()
    site.commit("a1", INT, n=[1])
    rows = site.planned("b1", INT, n=[2])
    rejects = site.planned("c1", INT, rejects=["n: 'x' does not fit int32"])
    change(site, wanted(n=new))
    for staged in (rows, rejects):
        done = site.table.commit(staged, staged.base)
        assert isinstance(done, NothingLeft)
        assert [*staged.dropped.values()] == [CONFLICT]
    site.commit("b1", {"n": new}, n=[pa.scalar(2).cast(new).as_py()])
    assert [*site.rows()] == ["a1", "b1"]


def test_a_round_that_lets_the_schema_grow_by_the_old_type() -> None:
    site = RetypeSite()
    site.commit("a1", INT, n=[1])
    staged = site.planned("b1", {"n": pa.int32(), "m": pa.string()}, n=[2], m=["x"])
    change(site, wanted(n=pa.string()))
    assert isinstance(site.table.commit(staged, staged.base), NothingLeft)
    assert site.kinds() == {"n": "string"}


def test_another_table_in_its_place() -> None:
    site = RetypeSite()
    site.commit("a1", INT, n=[1])
    base = site.newest()
    made = Retype(table=site.table, wanted=wanted(n=pa.int64()), base=base)
    with pytest.raises(ConflictError, match="another id"):
        made.onto(Snapshot(**{name: getattr(base, name) for name in base.__slots__} | {"table": "x"}))


def test_one_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first files may be garbage for vacuum."""
    site = RetypeSite()
    site.commit("a1", INT, n=[1])
    made = Retype(table=site.table, wanted=wanted(n=pa.int64()), base=site.newest())
    monkeypatch.setattr(made, "_began", made._began - site.table.committer.max_run_seconds / 2)
    with pytest.raises(FencedError, match="repeat this"):
        made.onto(site.newest())


class _KilledError(BaseException):
    """The process ends here."""


class DyingStore(MemoryObjectStore):
    """Dies at a PUT."""

    puts_left: int | None = None

    def put(self, key: str, body: bytes, **given: Any) -> Any:
        if self.puts_left is not None:
            if not self.puts_left:
                raise _KilledError
            self.puts_left -= 1
        return super().put(key, body, **given)


def test_killed_at_any_write_and_repeated() -> None:
    """It is the old table or the new one, whole; and then the new one."""
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
        raise AssertionError("it never ended")
    assert left > 3
