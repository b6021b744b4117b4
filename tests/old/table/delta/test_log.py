"""How long the log grows: checkpoints, and vacuum."""

import json
from pathlib import Path

import pytest

from s3notify_platform.slots import Slot
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.table.delta.log import DeltaLog
from s3notify_platform.table.delta.view import CHECKPOINT_VERSIONS
from s3notify_platform.table.vacuum import vacuum
from tests.support.clocks import HandClock
from tests.support.faults import CrashedError, Fault, FaultyStore, at
from tests.support.viewed import LAYOUT, Place, Viewed, by_delta_rs
from tests.unit.table.delta.helpers import SLOTS, ids, over, same


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
