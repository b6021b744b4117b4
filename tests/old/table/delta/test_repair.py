"""What other programs and people did to the view, and how it is set right."""

import json
import os
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from s3notify_platform.errors import CorruptError
from s3notify_platform.slots import Slot
from s3notify_platform.table.delta import view as delta
from tests.support.clocks import HandClock
from tests.support.viewed import LAYOUT, Viewed, spark_schema
from tests.unit.table.delta.helpers import SLOTS, actions, ids, same


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
        """A damaged log names what to do; done, the log is made again."""
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
