"""Several writers of one slot against a plain model: one commit each generation, no row lost, none twice."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from s3notify_platform.protocols.conditional_commit import Committed
from s3notify_platform.spark import files
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table import states as paging
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


Held = dict[str, tuple[Body, int]]
"""Object versions, and how many rows of each were read."""


class TableMachine(RuleBasedStateMachine):
    """The model is the history of the slot: for each generation, which object versions it holds, and how far."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryObjectStore()
        self.table = slot_table(self.store)
        self.bucket: dict[str, Body] = {}
        self.writers = [SlotWriter(store=self.store, name=f"writer {n}") for n in range(WRITERS)]
        self.planned: dict[int, Planned] = {}
        self.sealed: dict[int, tuple[Planned, Any, Held]] = {}
        self.history: list[Held] = [{}]
        self.versions = 0

    @rule(names=st.lists(keys, min_size=1, max_size=4), rows=st.integers(0, 3), rejects=st.integers(0, 2))
    def put(self, names: list[str], rows: int, rejects: int) -> None:
        for key in names:
            self.versions += 1
            self.bucket[key] = Body(etag=f"v{self.versions}", rows=rows, rejects=rejects)

    @rule(key=keys)
    def delete(self, key: str) -> None:
        self.bucket.pop(key, None)

    @rule(writer=writers, max_objects=st.sampled_from([1, 2, 100]), at_most=st.sampled_from([1, 2, 100]))
    def take_a_step(self, writer: int, max_objects: int, at_most: int) -> None:
        self.step(writer, max_objects, at_most)

    def step(self, writer: int, max_objects: int, at_most: int = 100) -> None:
        """The writer goes on by one step: it plans, or seals what it planned, or commits what it sealed."""
        if writer in self.sealed:
            self._commit(writer)
        elif writer in self.planned:
            self._seal(writer, at_most)
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

    def _seal(self, writer: int, at_most: int) -> None:
        planned = self.planned.pop(writer)
        commit = self.writers[writer].seal(planned, self.bucket, at_most=at_most)
        before = self.history[planned.head.generation if planned.head else 0]
        after = dict(before)
        for key in planned.changes.gone:
            after.pop(key, None)
        for split in planned.changes.read:
            key = split.version.key
            body = self.bucket.get(key)
            if body is None:
                after.pop(key, None)
            elif body.etag == split.version.etag:
                earlier = before.get(key)
                start = earlier[1] if earlier and earlier[0] == body and earlier[1] < body.rows else 0
                assert split.start == start, "reading goes on where it ended"
                after[key] = (body, min(start + at_most, body.rows))
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
        assert {k: (s.etag, s.rows, s.rejects, s.reach_end) for k, s in states.items()} == {
            k: (b.etag, read, b.rejects, read == b.rows) for k, (b, read) in now.items()
        }
        bodies = {key: body for key, (body, _) in now.items()}
        assert content_in(self.table) == content_of(bodies, {key: read for key, (_, read) in now.items()})
        if line:
            assert line[-1].objects == len(now)
            assert line[-1].pending == tuple(sorted(k for k, (b, read) in now.items() if read < b.rows))

    def teardown(self) -> None:
        """One more run brings the table to the bucket, whatever happened before."""
        while self.writers[0].run(self.bucket) is not None:
            pass
        assert content_in(self.table) == content_of(self.bucket)
        assert self.table.newest([SLOT])[SLOT] == len(history_of(self.table))


@pytest.mark.parametrize(
    ("delta_limit", "max_small_files", "small_file_bytes"),
    [(256, 16, 8 << 20), (2, 2, 8 << 20), (0, 1, 8 << 20), (1, 1, 0)],
)
def test_table_model(
    delta_limit: int, max_small_files: int, small_file_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With states and files as commits carry them, and with limits so small that all is folded and merged.

    The last: every file is large, and is rewritten for itself.
    """
    monkeypatch.setattr(paging, "DELTA_LIMIT", delta_limit)
    monkeypatch.setattr(paging, "PAGE_OBJECTS", max(1, delta_limit))
    monkeypatch.setattr(files, "MAX_SMALL_FILES", max_small_files)
    monkeypatch.setattr(files, "SMALL_FILE_BYTES", small_file_bytes)
    machine = TableMachine.TestCase()
    machine.settings = settings(settings(), stateful_step_count=30)
    machine.runTest()
