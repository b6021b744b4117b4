"""Vacuum takes nothing that is live, young, or may yet be committed."""

from typing import Any

import pytest

from s3notify_platform.errors import FencedError, UsageError
from s3notify_platform.ports import Conflict, StoredObject, Written
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.vacuum import vacuum
from tests.support.clocks import HandClock
from tests.support.slot_writer import (
    LAYOUT,
    SLOT,
    Body,
    SlotWriter,
    content_in,
    content_of,
    history_of,
    slot_table,
)


class Aging:
    """A slot whose runs and vacuums happen at chosen times."""

    def __init__(self) -> None:
        self.time = HandClock()
        self.store = MemoryObjectStore(clock=self.time)
        self.table = slot_table(self.store, self.time, max_run_seconds=100)
        self.writer = SlotWriter(store=self.store, clock=self.time)
        self.bucket: dict[str, Body] = {}

    def run(self, **bodies: Body) -> None:
        self.bucket |= bodies
        assert isinstance(self.writer.run(self.bucket), Written)

    def vacuum(self, retention_seconds: float = 100, **more: Any) -> Any:
        return vacuum(self.table, retention_seconds=retention_seconds, clock=self.time, **more)

    def names(self) -> set[str]:
        return {key.removeprefix(LAYOUT.prefix) for key in self.store._objects}


class TestVacuum:
    def test_keeps_what_is_young_and_what_is_live(self) -> None:
        aging = Aging()
        for version in range(4):
            aging.run(a=Body(etag=f"{version}", rows=1, rejects=1))
            aging.time.now += 60
        before = aging.names()
        report = aging.vacuum()
        # Superseded 180 and 120 s ago: gone. Superseded 60 s ago, and the head: kept.
        assert report.commits_removed == 1 + 1
        assert report.commits_kept == 2
        assert report.files_removed == 4
        assert report.files_kept == 4
        assert aging.names() < before
        assert content_in(aging.table) == content_of(aging.bucket)
        head = aging.table.head(SLOT)
        assert head is not None
        assert aging.table.read(SLOT, Generation(head.generation - 1)).generation == 3

    def test_a_dry_run_says_what_a_pass_removes(self) -> None:
        """By name, with the same counts; it removes nothing."""
        aging = Aging()
        for version in range(4):
            aging.run(a=Body(etag=f"{version}", rows=1, rejects=1))
            aging.time.now += 60
        before = aging.names()
        report = aging.vacuum(dry_run=True)
        assert aging.names() == before
        assert report == aging.vacuum()
        assert {name.removeprefix(LAYOUT.prefix) for name in report.names} == before - aging.names()
        assert len(report.names) == report.commits_removed + report.files_removed

    def test_a_head_is_kept_however_old(self) -> None:
        aging = Aging()
        aging.run(a=Body(etag="1", rows=2))
        aging.time.now += 10_000
        report = aging.vacuum()
        assert (report.commits_removed, report.files_removed) == (0, 0)
        assert content_in(aging.table) == content_of(aging.bucket)

    @pytest.mark.parametrize("missing", ["all", "newest"])
    def test_nothing_of_a_slot_with_missing_commits_is_touched(self, missing: str) -> None:
        """Restoring the commits is then enough; with them, the same pass removes what is old."""
        aging = Aging()
        for version in range(4):
            aging.run(a=Body(etag=f"{version}", rows=1, rejects=1))
            aging.time.now += 200
        known = {SLOT: Generation(4)}
        lost = {LAYOUT.commit(SLOT, n): b"" for n in ((1, 2, 3, 4) if missing == "all" else (4,))}
        for key in lost:
            found = aging.store.get(key)
            assert isinstance(found, StoredObject)
            lost[key] = found.body
            aging.store.delete(key)
        before = aging.names()
        aging.time.now += 10_000
        report = vacuum(aging.table, retention_seconds=100, known=known, clock=aging.time)
        assert aging.names() == before
        assert report.slots_skipped == (SLOT,)
        if missing == "all":
            assert vacuum(aging.table, retention_seconds=100, clock=aging.time).slots_skipped == (SLOT,)
        for key, body in lost.items():
            aging.store.put(key, body)
        assert content_in(aging.table) == content_of(aging.bucket)
        report = vacuum(aging.table, retention_seconds=100, known=known, clock=aging.time)
        assert report.slots_skipped == ()
        assert content_in(aging.table) == content_of(aging.bucket)

    def test_pages_that_are_named_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("s3notify_platform.table.states.DELTA_LIMIT", 0)
        aging = Aging()
        for version in range(3):
            aging.run(a=Body(etag=f"{version}", rows=1))
            aging.time.now += 200
        aging.vacuum()
        assert len([name for name in aging.names() if name.startswith("state/")]) == 1
        assert content_in(aging.table) == content_of(aging.bucket)

    def test_files_of_a_run_that_has_not_committed_stay(self) -> None:
        """It may commit yet: its files are young. When it no longer may, they are old enough to go."""
        aging = Aging()
        aging.run(a=Body(etag="1", rows=1))
        aging.bucket["b"] = Body(etag="1", rows=1)
        planned = aging.writer.plan(aging.bucket)
        commit = aging.writer.stage(planned, aging.bucket)
        assert commit is not None
        aging.time.now += 99
        assert aging.vacuum().files_removed == 0
        assert isinstance(aging.writer.commit(planned, commit), Written)
        assert content_in(aging.table) == content_of(aging.bucket)

    def test_a_sleeper_cannot_create_an_old_generation_again(self) -> None:
        """It sleeps while others commit and vacuum removes the generation it planned; it wakes up, and is fenced."""
        aging = Aging()
        aging.run(a=Body(etag="1", rows=1))
        sleeper = SlotWriter(store=aging.store, clock=aging.time)
        sleeper.table = aging.table
        aging.bucket["b"] = Body(etag="1", rows=1)
        planned = sleeper.plan(aging.bucket)
        commit = sleeper.stage(planned, aging.bucket)
        assert commit is not None
        for version in range(2, 5):
            aging.run(a=Body(etag=f"{version}", rows=1))
            aging.time.now += 60
        aging.time.now += 100
        aging.vacuum()
        assert aging.store.head(LAYOUT.commit(SLOT, commit.generation)) is None, "the place is free again"
        with pytest.raises(FencedError):
            sleeper.commit(planned, commit)
        assert content_in(aging.table) == content_of(aging.bucket)

    def test_at_any_age_that_a_run_may_have_its_generation_is_taken(self) -> None:
        """Whenever a run may still commit, vacuum has left what would make it lose."""
        for sleep in range(0, 101, 10):
            aging = Aging()
            aging.run(a=Body(etag="1", rows=1))
            aging.bucket["b"] = Body(etag="1", rows=1)
            planned = aging.writer.plan(aging.bucket)
            commit = aging.writer.stage(planned, aging.bucket)
            assert commit is not None
            aging.time.now += sleep / 2
            aging.run(a=Body(etag="2", rows=1))
            aging.run(a=Body(etag="3", rows=1))
            aging.time.now += sleep / 2
            aging.vacuum()
            assert aging.table.commit(commit.staged(), planned_at=planned.at) == Conflict()
            assert len(history_of(aging.table)) == 3

    def test_refuses_a_retention_shorter_than_a_run(self) -> None:
        with pytest.raises(UsageError, match="shorter than a run may take"):
            Aging().vacuum(99)

    def test_derived_fields_of_a_report(self) -> None:
        aging = Aging()
        aging.run(a=Body(etag="1", rows=1))
        orphan = LAYOUT.data(SLOT, "orphan")
        aging.store.put(orphan, b"12345")
        aging.time.now += 101
        report = aging.vacuum()
        assert (report.files_removed, report.bytes_removed) == (1, 5)
        assert aging.store.head(orphan) is None
        assert not [name for name in aging.names() if name.startswith("vacuum/")]
