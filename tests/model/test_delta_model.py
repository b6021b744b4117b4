"""The Delta log against a plain model: each version is the files of some generation of each slot."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from s3notify_platform.table.delta import view as delta
from s3notify_platform.table.delta.log import DeltaLog
from s3notify_platform.table.delta.view import DeltaView

from s3notify_platform.ports import StoredObject, list_all
from s3notify_platform.slots import Slot
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import TableFile
from s3notify_platform.table.vacuum import vacuum
from tests.support.clocks import HandClock
from tests.support.faults import CrashedError, Fault, FaultyStore, at
from tests.support.viewed import LAYOUT, Viewed, spark_schema

SLOTS = [Slot(n) for n in range(4)]
DAY = 86_400.0
some_slots = st.sets(st.sampled_from(SLOTS))

Files = frozenset[str]


class DeltaMachine(RuleBasedStateMachine):
    """The model: for each slot the files of each generation; for each version of the log the generations it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        self.viewed = Viewed(store=MemoryObjectStore(clock=self.clock), clock=self.clock)
        self.history: dict[Slot, list[Files]] = {slot: [frozenset()] for slot in SLOTS}
        self.versions: list[dict[Slot, Files]] = []
        self.files = 0

    def _file(self) -> TableFile:
        self.files += 1
        return TableFile(name=f"{self.files:08x}", rows=self.files, bytes=self.files)

    @rule(slot=st.sampled_from(SLOTS), new=st.integers(0, 3), keep=st.integers(0, 3))
    def commit(self, slot: Slot, new: int, keep: int) -> None:
        head = self.viewed.table.head(slot)
        files = [*(head.files[:keep] if head else ()), *(self._file() for _ in range(new))]
        self.viewed.commit(slot, files)
        self.history[slot].append(frozenset(f"slot={slot}/{file.name}.parquet" for file in files))

    @rule()
    def grow_schema(self) -> None:
        self.viewed.pin(spark_schema(**{f"c{self.files}": "long"}))

    @rule(slots=some_slots, repair=st.booleans())
    def sync(self, slots: set[Slot], repair: bool) -> None:
        self.viewed.view.sync(slots, repair=repair)
        shown = self.viewed.view.generations()
        for slot in slots:
            assert shown.get(slot, 0) == len(self.history[slot]) - 1

    @rule(
        slots=some_slots,
        repair=st.booleans(),
        fault=st.sampled_from([Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOST]),
        nth=st.integers(0, 3),
    )
    def sync_that_fails(self, slots: set[Slot], repair: bool, fault: Fault, nth: int) -> None:
        store: Any = FaultyStore(self.viewed.store, at("put", fault, nth=nth))
        over = Viewed(store=store, clock=self.clock, pinned=self.viewed.pinned)
        with suppress(CrashedError):
            over.view.sync(slots, repair=repair)

    @rule(first=some_slots, second=some_slots, nth=st.integers(0, 2))
    def two_syncs(self, first: set[Slot], second: set[Slot], nth: int) -> None:
        """The second one comes as a whole between what the first one reads and what it writes."""
        machine = self

        class Interrupted:
            puts = 0

            def __getattr__(self, name: str) -> Any:
                return getattr(machine.viewed.store, name)

            def put(self, key: str, body: bytes, **more: Any) -> Any:
                self.puts += 1
                if self.puts == nth + 1:
                    machine.viewed.view.sync(second)
                return machine.viewed.store.put(key, body, **more)

        Viewed(store=Interrupted(), clock=self.clock, pinned=self.viewed.pinned).view.sync(first)  # type: ignore[arg-type]

    @rule(days=st.sampled_from([0.3, 2.0]))
    def vacuum(self, days: float) -> None:
        self.clock.now += days * DAY
        vacuum(self.viewed.table, retention_seconds=DAY, clock=self.clock)
        self.the_log_is_its_checkpoint_and_what_came_since()

    @invariant()
    def every_version_is_whole_generations(self) -> None:
        """By another replay than ours, kept from before the log was cut."""
        known = len(self.versions)
        store = self.viewed.store
        metas = list_all(store, LAYOUT.log, start_after=LAYOUT.log_version(len(self.versions) - 1) + "~")
        for meta in metas:
            if not meta.key.endswith(".json"):
                continue
            stored = store.get(meta.key)
            assert isinstance(stored, StoredObject)
            files = {slot: set(found) for slot, found in (self.versions or [{}])[-1].items()}
            for line in stored.body.splitlines():
                action = json.loads(line)
                if add := action.get("add"):
                    slot = Slot(int(add["partitionValues"]["slot"]))
                    assert add["path"] not in files.setdefault(slot, set())
                    files[slot].add(add["path"])
                if remove := action.get("remove"):
                    files[Slot(int(remove["partitionValues"]["slot"]))].remove(remove["path"])
            version = {slot: frozenset(found) for slot, found in files.items()}
            for slot, found in version.items():
                assert found in self.history[slot]
            self.versions.append(version)
        if len(self.versions) > known:
            self.the_log_is_its_checkpoint_and_what_came_since()

    def the_log_is_its_checkpoint_and_what_came_since(self) -> None:
        found = DeltaLog(self.viewed.store, LAYOUT, parallelism=1).read(replay=True)
        assert found.version == len(self.versions) - 1
        if found.state is None:
            return
        last = {slot: files for slot, files in self.versions[-1].items() if files}
        log = DeltaLog(self.viewed.store, LAYOUT)
        assert {s: frozenset(files) for s, files in log.files_by_slot(found.state).items()} == last
        assert found.version - (found.checkpoint or 0) <= delta.CHECKPOINT_VERSIONS + 8
        for slot, generation in found.generations.items():
            assert self.history[slot][generation] == last.get(slot, frozenset())

    def teardown(self) -> None:
        """One more sync, and the view is the table, whatever happened before."""
        self.viewed.view.sync(SLOTS)
        self.every_version_is_whole_generations()
        now = {slot: files[-1] for slot, files in self.history.items() if files[-1]}
        shown = self.versions[-1] if self.versions else {}
        assert {slot: files for slot, files in shown.items() if files} == now
        rows = sum(commit.rows for slot in SLOTS if (commit := self.viewed.table.head(slot)))
        assert self.viewed.view.sync(SLOTS).rows == rows
        assert isinstance(self.viewed.view, DeltaView)


@pytest.mark.parametrize(("checkpoint_versions", "max_actions"), [(20, 20_000), (2, 3), (1, 1)])
def test_delta_model(checkpoint_versions: int, max_actions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limits as they are, and with limits so small that all is split and checkpointed."""
    monkeypatch.setattr(delta, "CHECKPOINT_VERSIONS", checkpoint_versions)
    monkeypatch.setattr(delta, "MAX_ACTIONS", max_actions)
    machine = DeltaMachine.TestCase()
    machine.settings = settings(settings(), stateful_step_count=30)
    machine.runTest()
