"""Several writers of one slot against a plain model: one commit each generation, no row lost, none twice."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from s3notify_platform.protocols.conditional_commit import Committed
from s3notify_platform.spark import seal as sealing
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table import commit as committing
from tests.support.slot_writer import (
    SLOT,
    Body,
    Planned,
    SlotWriter,
    content_in,
    content_of,
    history_of,
    slot_table,
)

WRITERS = 3
keys = st.sampled_from(["a", "b", "c d", "é//", "\n", "x" * 40])
writers = st.integers(0, WRITERS - 1)


class TableMachine(RuleBasedStateMachine):
    """The model is the history of the slot: for each generation, which object versions it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryObjectStore()
        self.table = slot_table(self.store)
        self.bucket: dict[str, Body] = {}
        self.writers = [SlotWriter(store=self.store, name=f"writer {n}") for n in range(WRITERS)]
        self.planned: dict[int, Planned] = {}
        self.sealed: dict[int, tuple[Planned, Any, dict[str, Body]]] = {}
        self.history: list[dict[str, Body]] = [{}]
        self.versions = 0

    @rule(names=st.lists(keys, min_size=1, max_size=4), rows=st.integers(0, 3), rejects=st.integers(0, 2))
    def put(self, names: list[str], rows: int, rejects: int) -> None:
        for key in names:
            self.versions += 1
            self.bucket[key] = Body(etag=f"v{self.versions}", rows=rows, rejects=rejects)

    @rule(key=keys)
    def delete(self, key: str) -> None:
        self.bucket.pop(key, None)

    @rule(writer=writers, max_objects=st.sampled_from([1, 2, 100]))
    def take_a_step(self, writer: int, max_objects: int) -> None:
        self.step(writer, max_objects)

    def step(self, writer: int, max_objects: int) -> None:
        """The writer goes on by one step: it plans, or seals what it planned, or commits what it sealed."""
        if writer in self.sealed:
            self._commit(writer)
        elif writer in self.planned:
            self._seal(writer)
        else:
            self.planned[writer] = self.writers[writer].plan(self.bucket, max_objects=max_objects)

    @rule(writer=writers)
    def go_on(self, writer: int) -> None:
        """All its steps to the next commit, with nobody in between."""
        while writer in self.planned or writer in self.sealed:
            self.step(writer, 100)
        self.step(writer, 100)

    @rule(writer=writers)
    def crash(self, writer: int) -> None:
        self.planned.pop(writer, None)
        self.sealed.pop(writer, None)

    def _seal(self, writer: int) -> None:
        planned = self.planned.pop(writer)
        commit = self.writers[writer].seal(planned, self.bucket)
        before = self.history[planned.head.generation if planned.head else 0]
        after = dict(before)
        for key in planned.changes.gone:
            after.pop(key, None)
        for version in planned.changes.read:
            body = self.bucket.get(version.key)
            if body is None:
                after.pop(version.key, None)
            elif body.etag == version.etag:
                after[version.key] = body
        if commit is None:
            assert after == before
        else:
            self.sealed[writer] = (planned, commit, after)

    def _commit(self, writer: int) -> None:
        planned, commit, after = self.sealed.pop(writer)
        free = commit.generation == len(self.history)
        outcome = self.writers[writer].commit(planned, commit)
        assert isinstance(outcome, Committed) == free
        if free:
            self.history.append(after)

    @invariant()
    def the_table_is_the_model(self) -> None:
        line = history_of(self.table)
        assert len(line) == len(self.history) - 1
        now = self.history[-1]
        states = self.table.states(line[-1] if line else None)
        assert {k: (s.etag, s.rows, s.rejects) for k, s in states.items()} == {
            k: (b.etag, b.rows, b.rejects) for k, b in now.items()
        }
        assert content_in(self.table) == content_of(now)

    def teardown(self) -> None:
        """One more run brings the table to the bucket, whatever happened before."""
        while self.writers[0].run(self.bucket) is not None:
            pass
        assert content_in(self.table) == content_of(self.bucket)
        assert self.table.newest([SLOT])[SLOT] == len(history_of(self.table))


@pytest.mark.parametrize(("delta_limit", "max_small_files"), [(256, 16), (2, 2), (0, 1)])
def test_table_model(delta_limit: int, max_small_files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With states and files as commits carry them, and with limits so small that all is folded and merged."""
    monkeypatch.setattr(committing, "DELTA_LIMIT", delta_limit)
    monkeypatch.setattr(sealing, "MAX_SMALL_FILES", max_small_files)
    machine = TableMachine.TestCase()
    machine.settings = settings(settings(), stateful_step_count=30)
    machine.runTest()
