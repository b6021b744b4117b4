"""A sync: what is committed is shown, as delta-rs reads it from a copy on disk, and at what cost."""

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from s3notify_platform.errors import UsageError
from s3notify_platform.slots import Slot
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.delta import view as delta
from s3notify_platform.table.delta.view import DeltaView, Synced
from s3notify_platform.table.layout import Generation
from tests.support.viewed import Viewed
from tests.unit.table.delta.helpers import SLOTS, actions, ids, over, same


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
        with pytest.raises(UsageError, match="opened without `commits`"):
            view.sync(SLOTS)


def test_the_generations_of_a_commit_and_of_the_view_are_the_same(viewed: Viewed) -> None:
    """Delta's version and ours lead to the same rows."""
    viewed.view.sync(SLOTS)
    viewed.append(1, ids(9))
    then = viewed.view.generations()
    assert viewed.rows(SLOTS, generations=dict(then)) != viewed.rows(SLOTS)
    assert then[Slot(1)] == Generation(1)
