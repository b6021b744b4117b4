"""Several writers of one slot against a plain model: one commit each generation, no row lost, none twice.

Each writer has a memory of its own of the heads that it has seen, beside the others, vacuum, and runs that take long.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from s3notify_platform.table.heads import HeadMemory

from s3notify_platform.errors import FencedError
from s3notify_platform.ingest import slot_files as files
from s3notify_platform.ports import Written
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table import states as paging
from s3notify_platform.table.quarantine import Choice, retry
from s3notify_platform.table.vacuum import vacuum
from tests.support.clocks import HandClock
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
LONGEST = 100.0
"""Seconds that a run may take."""

keys = st.sampled_from(["a", "b", "c d", "é//", "\n", "x" * 40])
writers = st.integers(0, WRITERS - 1)


@dataclass(frozen=True, kw_only=True)
class Version:
    """An object version that a generation holds, and how far it was read."""

    body: Body
    read: int = 0
    rejects: int = 0
    reach_end: bool = False
    failing: bool = False


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a generation holds, and which keys are to be read on, or again."""

    versions: dict[str, Version] = field(default_factory=dict)
    pending: frozenset[str] = frozenset()


class TableMachine(RuleBasedStateMachine):
    """The model is the history of the slot: for each generation, which object versions it holds, and how far.

    Reads fail, go to quarantine, and are asked for again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.time = HandClock()
        self.store = MemoryObjectStore(clock=self.time)
        self.table = slot_table(self.store, self.time, max_run_seconds=LONGEST)
        self.bucket: dict[str, Body] = {}
        self.writers = [self._writer(n) for n in range(WRITERS)]
        self.planned: dict[int, Planned] = {}
        self.staged: dict[int, tuple[Planned, Any, Held]] = {}
        self.history: list[Held] = [Held()]
        self.versions = 0
        self.unreadable: dict[str, int] = {}

    def _writer(self, number: int) -> SlotWriter:
        memory = HeadMemory(self.time, seconds=LONGEST / 2)
        settings = {"max_run_seconds": LONGEST, "memory": memory}
        return SlotWriter(store=self.store, clock=self.time, name=f"writer {number}", settings=settings)

    @rule(seconds=st.sampled_from([LONGEST * 0.2, LONGEST * 0.45, LONGEST * 0.6, LONGEST * 1.1]))
    def wait(self, seconds: float) -> None:
        self.time.now += seconds

    @rule()
    def clean(self) -> None:
        vacuum(self.table, retention_seconds=LONGEST, clock=self.time)

    @rule(names=st.lists(keys, min_size=1, max_size=4), rows=st.integers(0, 3), rejects=st.integers(0, 2))
    def put(self, names: list[str], rows: int, rejects: int) -> None:
        for key in names:
            self.versions += 1
            self.bucket[key] = Body(etag=f"v{self.versions}", rows=rows, rejects=rejects)

    @rule(key=keys)
    def delete(self, key: str) -> None:
        self.bucket.pop(key, None)

    @rule(key=keys, rows=st.integers(0, 2))
    def break_off(self, key: str, rows: int) -> None:
        """The read of the object fails behind so many rows, of whatever version."""
        self.unreadable[key] = rows

    @rule(key=keys, rows=st.integers(1, 3))
    def overwrite_and_quarantine(self, key: str, rows: int) -> None:
        """What chance would seldom do: an object that was committed changes, and can no longer be read."""
        self.go_on(0, last_attempt=True)
        self.put([key], rows, 1)
        self.break_off(key, 0)
        self.go_on(0, last_attempt=True)
        self.go_on(0, last_attempt=True)

    @rule()
    def heal(self) -> None:
        self.unreadable.clear()

    @rule(names=st.sets(keys, min_size=1) | st.none())
    def send_again(self, names: set[str] | None) -> None:
        now = self.history[-1]
        wanted = {
            key
            for key, version in now.versions.items()
            if (version.failing or version.rejects) and (names is None or key in names)
        }
        choice = Choice(keys=None if names is None else frozenset(names))
        signals = Publisher(self.store, prefix="signals/", queued=True)
        done = retry(self.table, [SLOT], signals, choice)
        assert done.keys == wanted
        assert done.failing == sum(now.versions[key].failing for key in wanted)
        assert done.waiting == len(wanted & now.pending)
        if wanted - now.pending:
            self.history.append(replace(now, pending=now.pending | wanted))

    @rule(
        writer=writers,
        max_objects=st.sampled_from([1, 2, 100]),
        at_most=st.sampled_from([1, 2, 100]),
        last_attempt=st.booleans(),
    )
    def take_a_step(self, writer: int, max_objects: int, at_most: int, *, last_attempt: bool) -> None:
        self.step(writer, max_objects, at_most, last_attempt=last_attempt)

    def step(self, writer: int, max_objects: int, at_most: int = 100, *, last_attempt: bool) -> None:
        """The writer goes on by one step: it plans, or stages what it planned, or commits what it staged."""
        if writer in self.staged:
            self._commit(writer)
        elif writer in self.planned:
            self._stage(writer, at_most, last_attempt=last_attempt)
        else:
            self.planned[writer] = planned = self.writers[writer].plan(self.bucket, max_objects=max_objects)
            head = planned.head.generation if planned.head else 0
            assert planned.changes or head == len(self.history) - 1, "the current state was asked for"

    @rule(writer=writers, last_attempt=st.booleans())
    def go_on(self, writer: int, *, last_attempt: bool) -> None:
        """All its steps to the next commit, with nobody in between."""
        while writer in self.planned or writer in self.staged:
            self.step(writer, 100, last_attempt=last_attempt)
        self.step(writer, 100, last_attempt=last_attempt)

    @rule(writer=writers, restarts=st.booleans())
    def crash(self, writer: int, *, restarts: bool) -> None:
        """Its run ends, or its process, and with that what it remembers."""
        self.planned.pop(writer, None)
        self.staged.pop(writer, None)
        if restarts:
            self.writers[writer] = self._writer(writer)

    def _stage(self, writer: int, at_most: int, *, last_attempt: bool) -> None:
        planned = self.planned.pop(writer)
        if self.time.now - planned.at > LONGEST:
            return  # vacuum may have taken what it is to read
        commit = self.writers[writer].stage(
            planned, self.bucket, at_most=at_most, unreadable=self.unreadable, last_attempt=last_attempt
        )
        before = self.history[planned.head.generation if planned.head else 0]
        after = dict(before.versions)
        moved = {key for key in planned.changes.gone if after.pop(key, None)}
        for split in planned.changes.read:
            key = split.version.key
            body = self.bucket.get(key)
            if body is None:
                if after.pop(key, None):
                    moved.add(key)
            elif body.etag == split.version.etag:
                known = before.versions.get(key)
                known = known if known and known.body == body else None
                start = known.read if known and not known.reach_end else 0
                assert split.start == start, "reading goes on where it ended"
                end = min(start + at_most, body.rows)
                fails_at = self.unreadable.get(key, body.rows + 1)
                failed = fails_at < end or fails_at <= start
                if failed and fails_at <= start:
                    if last_attempt:
                        after[key] = replace(known or Version(body=body), failing=True)
                        moved.add(key)
                    continue
                read = min(end, fails_at)
                after[key] = Version(
                    body=body,
                    read=read,
                    rejects=body.rejects,
                    reach_end=read == body.rows,
                    failing=failed and last_attempt,
                )
                moved.add(key)
        if commit is None:
            assert not moved
            assert after == before.versions
        else:
            unfinished = {
                key for key in moved & after.keys() if not (after[key].reach_end or after[key].failing)
            }
            pending = (before.pending - moved) | unfinished
            self.staged[writer] = (planned, commit, Held(versions=after, pending=pending))

    def _commit(self, writer: int) -> None:
        planned, commit, after = self.staged.pop(writer)
        free = commit.generation == len(self.history)
        if self.time.now - planned.at > LONGEST:
            with pytest.raises(FencedError):
                self.writers[writer].commit(planned, commit)
            return
        outcome = self.writers[writer].commit(planned, commit)
        assert isinstance(outcome, Written) == free
        if free:
            self.history.append(after)

    @invariant()
    def the_table_is_the_model(self) -> None:
        line = history_of(self.table)
        assert (line[-1].generation if line else 0) == len(self.history) - 1
        now = self.history[-1]
        states = self.table.states(line[-1] if line else None)
        assert {k: (s.etag, s.rows, s.rejects, s.reach_end, bool(s.reason)) for k, s in states.items()} == {
            k: (v.body.etag, v.read, v.rejects, v.reach_end, v.failing) for k, v in now.versions.items()
        }
        bodies = {key: replace(v.body, rejects=v.rejects) for key, v in now.versions.items()}
        assert content_in(self.table) == content_of(bodies, {k: v.read for k, v in now.versions.items()})
        if line:
            assert line[-1].objects == len(now.versions)
            assert line[-1].without_records == sum(state.without_records for state in states.values())
            assert line[-1].pending == tuple(sorted(now.pending))
            assert line[-1].failing == tuple(sorted(k for k, v in now.versions.items() if v.failing))

    def teardown(self) -> None:
        """What is in quarantine is sent again, and one more run brings the table to the bucket, whatever was before."""
        self.send_again(None)
        while self.writers[0].run(self.bucket) is not None:
            pass
        head = self.table.head(SLOT)
        assert head is None or (head.failing, head.pending) == ((), ())
        assert content_in(self.table) == content_of(self.bucket)
        assert self.table.newest([SLOT])[SLOT] == (head.generation if head else 0)


@pytest.mark.parametrize(
    ("delta_limit", "merged_bytes", "small_file_bytes"),
    [(256, 256 << 10, 8 << 20), (2, 4000, 8 << 20), (0, 0, 8 << 20), (1, 0, 0)],
)
def test_table_model(
    delta_limit: int, merged_bytes: int, small_file_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With states and files as commits carry them, and with limits so small that all is folded and merged.

    The last: every file is large, and is rewritten for itself.
    """
    monkeypatch.setattr(paging, "DELTA_LIMIT", delta_limit)
    monkeypatch.setattr(paging, "PAGE_OBJECTS", max(1, delta_limit))
    monkeypatch.setattr(files, "MERGED_BYTES", merged_bytes)
    monkeypatch.setattr(files, "SMALL_FILE_BYTES", small_file_bytes)
    machine = TableMachine.TestCase()
    machine.settings = settings(settings(), stateful_step_count=30)
    machine.runTest()
