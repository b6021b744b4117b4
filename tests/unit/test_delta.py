"""The Delta view over a store in memory, read back by delta-rs from a copy on disk."""

import datetime as dt
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from s3notify_platform.errors import ConflictError, CorruptError, FencedError, UnknownOutcomeError, UsageError
from s3notify_platform.ports import Conflict, Written
from s3notify_platform.protocols.conditional_commit import NativeCommit
from s3notify_platform.slots import Slot
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table import delta
from s3notify_platform.table.delta import CHECKPOINT_VERSIONS, DeltaView, Synced
from s3notify_platform.table.delta_format import delta_schema
from s3notify_platform.table.delta_log import DeltaLog
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.vacuum import vacuum
from tests.support.faults import CrashedError, Fault, FaultyStore, at
from tests.support.simulation import VirtualTime
from tests.support.viewed import LAYOUT, Place, Viewed, by_delta_rs, spark_schema

SLOTS = [Slot(n) for n in range(8)]
EVOLVED = spark_schema(id="long", name="string")


class HandClock(VirtualTime):
    """Goes only when told to, or when somebody sleeps."""

    drawn = 0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def random_bytes(self, count: int) -> bytes:
        self.drawn += 1
        return self.drawn.to_bytes(count, "big")


def ids(*values: int, **more: Any) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64()), **more})


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def viewed(clock: HandClock) -> Viewed:
    """A table with two slots, not synced yet."""
    made = Viewed(store=MemoryObjectStore(clock=clock), clock=clock)
    made.pin(spark_schema(id="long"))
    made.append(1, ids(1, 2))
    made.append(2, ids(3))
    return made


def over(viewed: Viewed, store: Any) -> Viewed:
    """The same table through another store."""
    return Viewed(store=store, clock=viewed.clock, pinned=viewed.pinned)


def same(viewed: Viewed, folder: Path) -> None:
    """What delta-rs reads is what our own reader reads."""
    found = by_delta_rs(Place(uri=viewed.copied_to(folder)))
    assert found == viewed.rows(SLOTS)


def actions(viewed: Viewed, version: int, kind: str) -> list[dict[str, Any]]:
    lines = viewed.log_objects()[f"{version:020d}.json"].splitlines()
    return [action[kind] for action in map(json.loads, lines) if kind in action]


class TestSync:
    def test_nothing_was_ever_committed(self) -> None:
        """No log is made, so that nobody reads a table without columns."""
        viewed = Viewed(store=MemoryObjectStore())
        assert viewed.view.sync(SLOTS) == Synced()
        assert viewed.log_objects() == {}

    def test_first_sync_shows_all_rows(self, viewed: Viewed, tmp_path: Path) -> None:
        """Zero copy: the log names the committed files, and delta-rs reads them with their slot and lineage."""
        synced = viewed.view.sync(SLOTS)
        assert synced == Synced(version=0, slots=2, files_added=2, rows=3, versions=1)
        same(viewed, tmp_path)
        assert viewed.view.generations() == {1: 1, 2: 1}

    def test_the_log_tells_generations_and_row_counts(self, viewed: Viewed, tmp_path: Path) -> None:
        """By Delta's own means: a transaction for each slot, statistics for each file."""
        viewed.append(1, ids(4))
        viewed.view.sync(SLOTS)
        table = deltalake.DeltaTable(viewed.copied_to(tmp_path))
        assert table.transaction_version("s3notify/orders/1") == 2
        assert table.transaction_version("s3notify/orders/2") == 1
        assert table.metadata().partition_columns == ["slot"]
        assert sum(pa.table(table.get_add_actions())["num_records"].to_pylist()) == 4

    def test_nothing_new_writes_nothing(self, viewed: Viewed) -> None:
        """Idempotent: a sync that is repeated leaves no version."""
        viewed.view.sync(SLOTS)
        before = viewed.log_objects()
        assert viewed.view.sync(SLOTS) == Synced(version=0, rows=3)
        assert viewed.log_objects() == before

    def test_only_slots_that_are_asked_for_move(self, viewed: Viewed) -> None:
        """The others stay at the generation that they had."""
        viewed.view.sync(SLOTS)
        viewed.append(1, ids(5))
        viewed.append(2, ids(6))
        assert viewed.view.sync([Slot(2)]).slots == 1
        assert viewed.view.generations() == {1: 1, 2: 2}

    def test_overwritten_deleted_and_emptied(self, viewed: Viewed, tmp_path: Path) -> None:
        """Files that a later generation no longer names leave in the version that its own come in."""
        viewed.view.sync(SLOTS)
        viewed.commit(1, [viewed.file(1, ids(7))])
        viewed.commit(2, [])
        synced = viewed.view.sync(SLOTS)
        assert synced == Synced(version=1, slots=2, files_added=1, files_removed=2, rows=1, versions=1)
        assert len(actions(viewed, 1, "add")) == 1
        assert len(actions(viewed, 1, "remove")) == 2
        same(viewed, tmp_path)

    def test_a_version_tells_of_a_slot_as_a_whole(
        self, viewed: Viewed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many files it has; what exceeds a version's size goes into the next one, slot by slot."""
        monkeypatch.setattr(delta, "MAX_ACTIONS", 2)
        for n in range(4):
            viewed.append(3, ids(n))
        synced = viewed.view.sync(SLOTS)
        assert (synced.versions, synced.slots, synced.files_added) == (3, 3, 6)
        for version in range(3):
            (txn,) = actions(viewed, version, "txn")
            slots = {add["partitionValues"]["slot"] for add in actions(viewed, version, "add")}
            assert slots == {txn["appId"].rpartition("/")[2]}

    def test_cost_follows_the_slots_that_changed(self, viewed: Viewed) -> None:
        """2 GETs and 1 LIST for the log, 1 LIST and 2 GETs for the slot, 1 PUT; whatever the table holds."""
        for slot in SLOTS:
            for n in range(5):
                viewed.append(slot, ids(n))
        viewed.view.sync(SLOTS)
        viewed.append(3, ids(9))
        store = CountingStore(viewed.store)
        over(viewed, store).view.sync([Slot(3)])
        assert store.counts == {"GET": 4, "LIST": 2, "PUT": 1}

    def test_a_view_opened_to_be_read(self, viewed: Viewed) -> None:
        """It tells what is shown, and says why it cannot be synced."""
        viewed.view.sync([Slot(1)])
        view = DeltaView(viewed.table, viewed.schemas, name="orders")
        assert view.generations() == {1: 1}
        with pytest.raises(UsageError, match="opened to be read"):
            view.sync(SLOTS)


class TestSchema:
    def test_new_columns_come_before_the_files_that_have_them(self, viewed: Viewed, tmp_path: Path) -> None:
        """In one version; older files read as nulls, and the table keeps its id."""
        viewed.view.sync(SLOTS)
        viewed.pin(EVOLVED)
        viewed.append(2, ids(8, name=["x"]))
        viewed.view.sync(SLOTS)
        same(viewed, tmp_path)
        (first,), (second,) = actions(viewed, 0, "metaData"), actions(viewed, 1, "metaData")
        assert first["id"] == second["id"]
        assert first["createdTime"] == second["createdTime"]
        viewed.append(2, ids(9, name=["y"]))
        viewed.view.sync(SLOTS)
        assert actions(viewed, 2, "metaData") == []

    @pytest.mark.parametrize("name", ["s", "a s"])
    def test_fields_that_come_inside_of_a_column(self, viewed: Viewed, tmp_path: Path, name: str) -> None:
        """Null in older files; where names are mapped, no other column's id moves."""

        def grown(*names: str) -> str:
            inner = [{"name": n, "type": "string", "nullable": True, "metadata": {}} for n in names]
            kinds = {name: {"type": "struct", "fields": inner}, "z": "long"}
            return spark_schema(id="long", **kinds)

        for n, names in enumerate((["x"], ["x", "y"])):
            viewed.pin(grown(*names))
            viewed.append(3, ids(n, **{name: [dict.fromkeys(names, "v")]}))
            viewed.view.sync(SLOTS)
        found = by_delta_rs(Place(uri=viewed.copied_to(tmp_path)))
        assert [row[name] for row in found if row["slot"] == 3] == [
            {"x": "v", "y": None},
            {"x": "v", "y": "v"},
        ]
        (before,), (after,) = actions(viewed, 0, "metaData"), actions(viewed, 1, "metaData")
        last = [json.loads(each["schemaString"])["fields"][-1]["metadata"] for each in (before, after)]
        assert last[0] == last[1]

    def test_every_type_that_a_source_can_have(self, clock: HandClock, tmp_path: Path) -> None:
        """Decimals, zoned and local timestamps, dates, bytes, nested and repeated fields."""
        text = {"name": "s", "type": "string", "nullable": False, "metadata": {"a": 1}}
        kinds: dict[str, tuple[Any, pa.DataType, Any]] = {
            "a": ("byte", pa.int8(), -1),
            "b": ("short", pa.int16(), 300),
            "c": ("integer", pa.int32(), 70_000),
            "d": ("float", pa.float32(), 0.5),
            "e": ("double", pa.float64(), 0.1),
            "f": ("decimal(12,2)", pa.decimal128(12, 2), Decimal("12.34")),
            "g": ("boolean", pa.bool_(), True),
            "h": ("binary", pa.binary(), b"\x00\xff"),
            "i": ("date", pa.date32(), dt.date(2026, 2, 28)),
            "j": ("timestamp", pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 1, 1, 2, 3, 4, dt.UTC)),
            "k": ("timestamp_ntz", pa.timestamp("us"), dt.datetime(2026, 1, 1, 1, 2, 3, 4)),
            "l": (
                {"type": "array", "elementType": "string", "containsNull": True},
                pa.list_(pa.string()),
                ["x", None],
            ),
            "m": (
                {"type": "struct", "fields": [text]},
                pa.struct([pa.field("s", pa.string(), nullable=False)]),
                {"s": "t"},
            ),
            "n": (
                {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
                pa.map_(pa.string(), pa.int64()),
                {"k": 1},
            ),
        }
        viewed = Viewed(store=MemoryObjectStore(), clock=clock)
        viewed.pin(spark_schema(**{name: kind for name, (kind, _, _) in kinds.items()}))
        viewed.append(1, pa.table({name: pa.array([v, None], t) for name, (_, t, v) in kinds.items()}))
        viewed.view.sync(SLOTS)
        same(viewed, tmp_path)

    def test_names_that_delta_keeps_for_itself_are_mapped(self, viewed: Viewed, tmp_path: Path) -> None:
        """The protocol is raised when the first of them comes, and then stays; ids never move."""
        viewed.view.sync(SLOTS)
        for n, name in enumerate(("Order ID", "a,b;c{d}(e)=\t\n")):
            viewed.pin(spark_schema(id="long", **{name: "string"}))
            viewed.append(3, ids(n, **{name: ["x"]}))
            viewed.view.sync(SLOTS)
        same(viewed, tmp_path)
        assert [len(actions(viewed, version, "protocol")) for version in (0, 1, 2)] == [1, 1, 1]
        versions = [actions(viewed, version, "protocol")[0]["minReaderVersion"] for version in (0, 1, 2)]
        assert versions == [1, 2, 2]

        def numbers(version: int) -> dict[str, int]:
            (metadata,) = actions(viewed, version, "metaData")
            fields = json.loads(metadata["schemaString"])["fields"]
            return {f["name"]: f["metadata"]["delta.columnMapping.id"] for f in fields}

        assert numbers(1).items() <= numbers(2).items()
        assert len({*numbers(2).values()}) == 7

    @pytest.mark.parametrize(
        ("columns", "told"),
        [
            ({"slot": "string"}, "'slot'"),
            ({"SLOT": "string"}, "'SLOT'.*'slot' already"),
            ({"a": "long", "A": "long"}, "'A'.*'a' already"),
            ({"_KEY": "long"}, "'_KEY'.*'_key' already"),
            ({"v": "variant"}, "'v': Delta has no type variant"),
            ({"n": "void"}, "no type void"),
            ({"i": "interval day to second"}, "no type interval day to second"),
            (
                {"s": {"type": "struct", "fields": [{"name": "x", "type": "void"}]}},
                r"'s\.x': Delta has no type void",
            ),
            ({"u": {"type": "udt", "class": "x"}}, "no type udt"),
        ],
    )
    def test_what_delta_cannot_have(self, columns: dict[str, Any], told: str) -> None:
        """Said plainly, with the column's name, before anything is written."""
        with pytest.raises(UsageError, match=told):
            delta_schema(spark_schema(**columns))


class TestCheckpoints:
    def grown(self, viewed: Viewed, versions: int) -> None:
        for n in range(versions):
            viewed.append(1 + n % 5, ids(n))
            viewed.view.sync(SLOTS)

    def test_readers_and_syncs_begin_at_the_last_one(self, viewed: Viewed, tmp_path: Path) -> None:
        """Without any older entry the log still tells all, to delta-rs and to a repair."""
        self.grown(viewed, 2 * CHECKPOINT_VERSIONS + 3)
        objects = viewed.log_objects()
        hint = json.loads(objects["_last_checkpoint"])
        assert hint["version"] == 2 * CHECKPOINT_VERSIONS
        for name in objects:
            if name < f"{hint['version']:020d}":
                viewed.store.delete(f"{LAYOUT.log}{name}")
        same(viewed, tmp_path)
        before = viewed.log_objects()
        assert viewed.view.sync(SLOTS, repair=True).versions == 0
        assert viewed.log_objects() == before
        self.grown(viewed, CHECKPOINT_VERSIONS)
        same(viewed, tmp_path / "later")

    def test_a_sync_never_reads_the_history(self, viewed: Viewed) -> None:
        """Two hundred versions later it costs what it cost at first."""
        counts = []
        for _ in range(10):
            self.grown(viewed, CHECKPOINT_VERSIONS)
            viewed.append(1, ids(1))
            store = CountingStore(viewed.store)
            over(viewed, store).view.sync([Slot(1)])
            counts.append(store.counts)
        assert all(count == counts[-1] for count in counts[1:]), counts

    def test_one_that_died_before_its_checkpoint(self, viewed: Viewed, tmp_path: Path) -> None:
        """The next sync makes up for it, whatever version it is at."""
        self.grown(viewed, CHECKPOINT_VERSIONS)
        viewed.append(2, ids(1))
        store = FaultyStore(
            viewed.store, at("put", Fault.CRASH_BEFORE, key=LAYOUT.log_checkpoint(CHECKPOINT_VERSIONS))
        )
        with pytest.raises(CrashedError):
            over(viewed, store).view.sync(SLOTS)
        viewed.append(3, ids(2))
        assert viewed.view.sync(SLOTS).checkpoint == CHECKPOINT_VERSIONS + 1
        same(viewed, tmp_path)

    def test_a_hint_that_is_old_or_lost(self, viewed: Viewed, tmp_path: Path) -> None:
        """It is a hint: without it, and with an older one, the log tells the same."""
        self.grown(viewed, CHECKPOINT_VERSIONS + 2)
        hint = viewed.log_objects()["_last_checkpoint"]
        self.grown(viewed, CHECKPOINT_VERSIONS)
        viewed.store.put(LAYOUT.log_hint, hint)
        self.grown(viewed, 1)
        same(viewed, tmp_path)
        viewed.store.delete(LAYOUT.log_hint)
        viewed.append(4, ids(1))
        viewed.view.sync(SLOTS)
        same(viewed, tmp_path / "without")
        viewed.store.put(LAYOUT.log_hint, json.dumps({"version": 3, "parts": 2}).encode())
        for version in range(CHECKPOINT_VERSIONS):
            viewed.store.delete(LAYOUT.log_version(version))
        assert viewed.view.sync(SLOTS, repair=True).versions == 0


class TestRaces:
    def test_crash_after_the_version_was_written(self, viewed: Viewed, tmp_path: Path) -> None:
        """The next sync finds it shown; nothing is added twice."""
        store = FaultyStore(viewed.store, at("put", Fault.CRASH_AFTER))
        with pytest.raises(CrashedError):
            over(viewed, store).view.sync(SLOTS)
        assert viewed.view.sync(SLOTS) == Synced(version=0, rows=3)
        same(viewed, tmp_path)

    def test_a_lost_response_is_found_to_be_ones_own(self, viewed: Viewed) -> None:
        """As the commit layer does: one version, and no race lost."""
        store = FaultyStore(viewed.store, at("put", Fault.LOST))
        assert over(viewed, store).view.sync(SLOTS).lost_races == 0
        assert viewed.view.generations() == {1: 1, 2: 1}

    @pytest.mark.parametrize("applied", [True, False])
    def test_what_the_commit_layer_cannot_find_out(self, viewed: Viewed, applied: bool) -> None:
        """Is told by the log itself: shown or not, the sync goes on from there."""

        class Doubtful(NativeCommit):
            doubts = 1

            def put_if_absent(self, path: str, body: bytes, **more: Any) -> Any:
                self.doubts -= 1
                if self.doubts < 0 or applied:
                    found = super().put_if_absent(path, body, **more)
                if self.doubts >= 0:
                    raise UnknownOutcomeError("lost")
                return found

        commits = Doubtful(viewed.store, clock=viewed.clock)
        view = DeltaView(viewed.table, viewed.schemas, commits, name="orders", clock=viewed.clock)
        assert view.sync(SLOTS).version == 0
        assert view.generations() == {1: 1, 2: 1}

    def test_two_syncs_at_once(self, viewed: Viewed, tmp_path: Path) -> None:
        """The one that loses goes on with what is left; no slot is taken back, none shown twice."""
        other = over(viewed, viewed.store)

        class Interrupted(MemoryObjectStore):
            """Another sync comes between what is read and what is written."""

            def put(self, key: str, body: bytes, **more: Any) -> Any:
                if key == LAYOUT.log_version(0):
                    other.append(1, ids(10))
                    other.view.sync([Slot(1)])
                return viewed.store.put(key, body, **more)

            def __getattribute__(self, name: str) -> Any:
                return object.__getattribute__(self, name) if name == "put" else getattr(viewed.store, name)

        synced = over(viewed, Interrupted()).view.sync(SLOTS)
        assert (synced.version, synced.lost_races, synced.slots) == (1, 1, 1)
        assert viewed.view.generations() == {1: 2, 2: 1}
        same(viewed, tmp_path)

    def test_who_always_loses_gives_up(self, viewed: Viewed) -> None:
        """Bounded, and says to try again."""

        class Losing:
            def __getattr__(self, name: str) -> Any:
                return getattr(viewed.store, name)

            def put(self, key: str, body: bytes, **more: Any) -> Written | Conflict:
                assert more["precondition"] is not None
                return Conflict()

        with pytest.raises(ConflictError, match="races"):
            over(viewed, Losing()).view.sync(SLOTS)

    def test_who_took_too_long_shows_nothing(self, viewed: Viewed, clock: HandClock) -> None:
        """Vacuum may have taken the files of heads that were read so long ago."""

        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(viewed.store, name)

            def list(self, *args: Any, **more: Any) -> Any:
                clock.now += viewed.table.max_run_seconds
                return viewed.store.list(*args, **more)

        with pytest.raises(FencedError, match="sync again"):
            over(viewed, Slow()).view.sync(SLOTS)
        assert viewed.log_objects() == {}


def on_disk(viewed: Viewed, folder: Path, change: Any) -> None:
    """Let another program change the view, and take over what it wrote."""
    place = viewed.copied_to(folder)
    change(deltalake.DeltaTable(place))
    for path in Path(place).rglob("*"):
        if path.is_file():
            viewed.store.put(f"{LAYOUT.view}/{path.relative_to(place)}", path.read_bytes())


class TestOtherPrograms:
    @pytest.fixture
    def shown(self, viewed: Viewed) -> Viewed:
        for n in range(3):
            viewed.append(1, ids(n))
        viewed.append(4, ids(1))
        viewed.view.sync(SLOTS)
        return viewed

    def test_a_compaction_is_undone(self, shown: Viewed, tmp_path: Path) -> None:
        """What the next sync leaves are our own files again, of all slots, not only of those asked for."""
        on_disk(shown, tmp_path, lambda table: table.optimize.compact())
        shown.append(2, ids(5))
        synced = shown.view.sync([Slot(2)])
        assert synced.files_added == 5
        same(shown, tmp_path / "after")
        assert shown.view.sync(SLOTS).versions == 0

    def test_in_several_versions_too(
        self, shown: Viewed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All of it is set right, although the first of them is ours already."""
        on_disk(shown, tmp_path, lambda table: table.optimize.compact())
        shown.append(4, ids(2))
        on_disk(shown, tmp_path, lambda table: write_deltalake(table, stray(2), mode="append"))
        monkeypatch.setattr(delta, "MAX_ACTIONS", 1)
        assert shown.view.sync([Slot(4)]).versions == 3
        same(shown, tmp_path / "after")

    def test_appended_and_overwritten_rows_leave(self, shown: Viewed, tmp_path: Path) -> None:
        """Also of slots that the table has nothing of."""
        on_disk(shown, tmp_path / "1", lambda table: write_deltalake(table, stray(6), mode="append"))
        shown.view.sync([])
        same(shown, tmp_path / "2")
        on_disk(shown, tmp_path / "3", lambda table: write_deltalake(table, stray(1), mode="overwrite"))
        shown.view.sync([])
        same(shown, tmp_path / "4")

    def test_its_vacuum_takes_nothing(self, shown: Viewed, tmp_path: Path, clock: HandClock) -> None:
        """Neither what is not shown yet, nor what time travel needs; and a checkpoint of theirs is read."""
        shown.commit(1, [shown.file(1, ids(9))])
        place = Path(shown.copied_to(tmp_path))
        before = set(place.rglob("*.parquet"))
        for path in before:
            os.utime(path, (0, 0))
        table = deltalake.DeltaTable(str(place))
        table.create_checkpoint()
        assert table.vacuum(dry_run=False, full=True) == []
        table.cleanup_metadata()
        assert before <= set(place.rglob("*.parquet"))
        on_disk(shown, tmp_path, lambda table: None)
        shown.view.sync([])
        shown.view.sync(SLOTS, repair=True)
        same(shown, tmp_path / "after")

    def test_a_protocol_that_was_raised_stays_so(self, shown: Viewed, tmp_path: Path) -> None:
        """And is raised further by what our own columns need."""
        on_disk(
            shown,
            tmp_path,
            lambda table: table.alter.add_feature(
                deltalake.TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True
            ),
        )
        shown.view.sync([])
        (protocol,) = actions(shown, 2, "protocol")
        assert (protocol["minReaderVersion"], protocol["readerFeatures"]) == (3, ["timestampNtz"])
        shown.pin(spark_schema(id="long", **{"Order ID": "string"}))
        shown.append(1, ids(1, **{"Order ID": ["x"]}))
        shown.view.sync(SLOTS)
        (protocol,) = actions(shown, 3, "protocol")
        assert protocol["readerFeatures"] == ["columnMapping", "timestampNtz"]
        assert {"columnMapping", "timestampNtz"} <= {*protocol["writerFeatures"]}
        same(shown, tmp_path / "after")

    def test_what_cannot_be_undone_is_said(self, shown: Viewed) -> None:
        """A damaged log names what to do; done, the log is made anew."""
        add = {"add": {"path": "elsewhere.parquet", "partitionValues": {"slot": "1"}, "size": 1}}
        shown.store.put(LAYOUT.log_version(1), json.dumps(add).encode())
        with pytest.raises(CorruptError, match="remove all of it and sync all slots"):
            shown.view.sync(SLOTS)
        for name in shown.log_objects():
            shown.store.delete(f"{LAYOUT.log}{name}")
        assert shown.view.sync(SLOTS).version == 0

    @pytest.mark.parametrize(
        ("name", "body"),
        [
            (f"{0:020d}.json", b"{"),
            (f"{0:020d}.json", b"[]"),
            ("_last_checkpoint", b"{}"),
            ("_last_checkpoint", b'{"version": 99}'),
            (f"{2:020d}.json", b'{"commitInfo": {}}'),
        ],
    )
    def test_damage_is_never_read_over(self, shown: Viewed, name: str, body: bytes) -> None:
        """What is no log is an error, and nothing is written."""
        shown.store.put(f"{LAYOUT.log}{name}", body)
        shown.append(1, ids(1))
        before = shown.log_objects()
        with pytest.raises(CorruptError):
            shown.view.sync(SLOTS)
        assert shown.log_objects() == before


def stray(slot: int) -> pa.Table:
    own = {"slot": pa.array([slot], pa.int32()), "_key": ["k"], "_etag": ["e"]}
    return pa.table(own | {"_offset": pa.array([0], pa.int64()), "id": pa.array([77], pa.int64())})


class TestRepair:
    def test_a_table_restored_to_an_older_state(self, viewed: Viewed, tmp_path: Path) -> None:
        """Is noticed, and shown again only when somebody says so."""
        viewed.view.sync(SLOTS)
        viewed.append(1, ids(4))
        viewed.append(5, ids(5))
        viewed.view.sync(SLOTS)
        viewed.store.delete(LAYOUT.commit(Slot(1), 2))
        viewed.store.delete(LAYOUT.commit(Slot(5), 1))
        with pytest.raises(CorruptError, match="shows generation 2 of slot 1, whose head is 1"):
            viewed.view.sync(SLOTS)
        viewed.view.sync([], repair=True)
        same(viewed, tmp_path)
        assert {s: g for s, g in viewed.view.generations().items() if g} == {1: 1, 2: 1}
        viewed.append(5, ids(6))
        viewed.view.sync(SLOTS)
        same(viewed, tmp_path / "later")

    def test_history_that_is_gone(self, viewed: Viewed, tmp_path: Path) -> None:
        """What is shown is then read from the log itself."""
        viewed.view.sync(SLOTS)
        viewed.commit(1, [viewed.file(1, ids(4))])
        viewed.store.delete(LAYOUT.commit(Slot(1), 1))
        viewed.view.sync(SLOTS)
        same(viewed, tmp_path)


class TestVacuum:
    DAY = 86_400.0

    def aged(self, viewed: Viewed, clock: HandClock, days: float = 3) -> None:
        clock.now += days * self.DAY
        vacuum(viewed.table, retention_seconds=self.DAY, clock=clock)

    def test_what_is_shown_stays(self, viewed: Viewed, clock: HandClock, tmp_path: Path) -> None:
        """However long nobody synced: the last version can be read, and synced on from."""
        viewed.view.sync(SLOTS)
        shown = viewed.rows(SLOTS)
        for n in range(3):
            viewed.commit(1, [viewed.file(1, ids(n))])
        self.aged(viewed, clock)
        assert by_delta_rs(Place(uri=viewed.copied_to(tmp_path))) == shown
        viewed.view.sync(SLOTS)
        same(viewed, tmp_path / "after")
        self.aged(viewed, clock)
        same(viewed, tmp_path / "again")
        assert len(list(Path(tmp_path / "again").rglob("slot=1/*.parquet"))) == 1

    def test_the_log_is_cut_behind_a_checkpoint(
        self, viewed: Viewed, clock: HandClock, tmp_path: Path
    ) -> None:
        """What is younger than the retention, and what it is read from, stays; the rest of the log goes."""
        for n in range(CHECKPOINT_VERSIONS + 5):
            viewed.commit(1, [viewed.file(1, ids(n))])
            viewed.view.sync(SLOTS)
        assert CHECKPOINT_VERSIONS == 20
        self.aged(viewed, clock)
        names = sorted(viewed.log_objects())
        assert names == [
            f"{20:020d}.checkpoint.parquet",
            *(f"{version:020d}.json" for version in range(20, 25)),
            "_last_checkpoint",
        ]
        same(viewed, tmp_path)

    def test_time_travel_by_version_within_the_retention(
        self, viewed: Viewed, clock: HandClock, tmp_path: Path
    ) -> None:
        """Every version that is young enough can be read whole, across checkpoints."""
        wanted = []
        for n in range(2 * CHECKPOINT_VERSIONS + 2):
            clock.now += self.DAY / 15
            viewed.commit(1, [viewed.file(1, ids(n))])
            viewed.view.sync(SLOTS)
            wanted.append(viewed.rows(SLOTS))
        vacuum(viewed.table, retention_seconds=self.DAY, clock=clock)
        place = Place(uri=viewed.copied_to(tmp_path))
        young = range(len(wanted) - 14, len(wanted))
        assert [by_delta_rs(place, version=version) for version in young] == [wanted[v] for v in young]
        assert len(viewed.log_objects()) < len(wanted)

    def test_a_log_that_was_cut_behind_a_checkpoint_without_a_hint(
        self, viewed: Viewed, clock: HandClock, tmp_path: Path
    ) -> None:
        """A sync died between the two: readers find the checkpoint, and so do a repair and the next sync."""
        for n in range(CHECKPOINT_VERSIONS + 1):
            viewed.commit(1, [viewed.file(1, ids(n))])
            viewed.view.sync(SLOTS)
        viewed.store.delete(LAYOUT.log_hint)
        self.aged(viewed, clock)
        assert f"{0:020d}.json" not in viewed.log_objects()
        same(viewed, tmp_path)
        assert viewed.view.sync(SLOTS, repair=True).checkpoint == CHECKPOINT_VERSIONS
        same(viewed, tmp_path / "after")

    def test_no_view_no_log(self, viewed: Viewed, clock: HandClock) -> None:
        """A table without a view is vacuumed as ever."""
        viewed.commit(1, [viewed.file(1, ids(4))])
        clock.now += 3 * self.DAY
        report = vacuum(viewed.table, retention_seconds=self.DAY, clock=clock)
        assert (report.commits_removed, report.files_removed, report.log_removed) == (1, 1, 0)
        assert DeltaLog(viewed.store, LAYOUT).read().generations == {}


def test_the_generations_of_a_commit_and_of_the_view_are_the_same(viewed: Viewed) -> None:
    """Delta's version and ours lead to the same rows."""
    viewed.view.sync(SLOTS)
    viewed.append(1, ids(9))
    then = viewed.view.generations()
    assert viewed.rows(SLOTS, generations=dict(then)) != viewed.rows(SLOTS)
    assert then[Slot(1)] == Generation(1)
