"""Rounds of several processes over a bucket, planned at any time and committed at any later time.

After each commit the table is checked as a whole: rows, rejects, states and counts agree. In the end `deltalake` reads
the log and finds the same rows, and its vacuum would remove no file of the newest version. The content of a slot in the
table is the content that some round saw. After a last round has read everything, the table equals the bucket. Objects
are erased at any time. After an erasure, no object of the store contains the erased key.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from s3notify_platform.kernel.errors import FencedError, UsageError
from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.maintenance.table_erasure import erase
from s3notify_platform.maintenance.table_rollback import roll_back
from s3notify_platform.maintenance.vacuuming import vacuum
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.delta.actions import LogVersion
from s3notify_platform.table.versions import kept_versions
from tests.support.clocks import HandClock
from tests.support.deltalake_oracle import agrees, in_folder
from tests.support.keyed_rounds import KeyedRounds
from tests.support.log_rounds import Bucket, slot_of_key
from tests.support.log_tables import LAYOUT
from tests.support.raw_search import holding

KEYS = [f"{letter}-person{n}" for letter in "abcd" for n in range(5)]
LONGEST = 10_000.0
"""Longest time in seconds that a run may take."""
SLOTS = st.sets(st.integers(0, 3), min_size=1)
PROCESS = st.integers(0, 2)
NUMBERS = st.lists(st.integers(0, 99), max_size=12).map(tuple)


class TableMachine(RuleBasedStateMachine):
    """The bucket, three processes, and the rounds that they have planned, but not committed yet."""

    @initialize(vectors=st.booleans())
    def begin(self, vectors: bool) -> None:
        self.clock = HandClock()
        self.store = MemoryObjectStore(clock=self.clock)
        self.processes = [self.process(vectors) for _ in range(3)]
        self.bucket: Bucket = {}
        self.written = 0
        self.planned = {}
        self.refused: set[int] = set()
        self.seen: dict[str, set[tuple[str, tuple[int, ...]]]] = {key: set() for key in KEYS}
        self.kept = [process.table.opened() for process in self.processes]

    def process(self, vectors: bool) -> KeyedRounds:
        more = {"max_run_seconds": LONGEST}
        return KeyedRounds(store=self.store, clock=self.clock, vectors=vectors, more=more)

    @rule(keys=st.sets(st.sampled_from(KEYS), min_size=1, max_size=6), numbers=NUMBERS)
    def put(self, keys: set[str], numbers: tuple[int, ...]) -> None:
        for key in keys:
            self.written += 1
            self.bucket[key] = (f"e{self.written}", numbers)
            self.seen[key].add(self.bucket[key])

    @rule(keys=st.sets(st.sampled_from(KEYS), min_size=1, max_size=3))
    def delete(self, keys: set[str]) -> None:
        for key in keys:
            self.bucket.pop(key, None)

    @rule(number=PROCESS, slots=SLOTS)
    def plan(self, number: int, slots: set[int]) -> None:
        process = self.processes[number]
        self.kept[number] = process.table.reader.refresh(self.kept[number])
        self.planned[number] = process.planned(dict(self.bucket), slots, self.kept[number])

    @rule(number=PROCESS)
    def commit(self, number: int) -> None:
        if (planned := self.planned.pop(number, None)) is None:
            return
        try:
            done = self.processes[number].commit(planned)
        except FencedError:
            assert self.clock.monotonic() - planned.base.asked_at > LONGEST / 2
            return
        assert self.clock.monotonic() - planned.base.asked_at <= LONGEST
        self.kept[number] = done.snapshot
        if isinstance(done, Committed):
            contents = self.processes[number].contents(done.snapshot)
            assert all(found in self.seen[key] for key, found in contents.items())

    @rule(part=st.sampled_from([0.2, 0.45, 0.6, 1.1]))
    def wait(self, part: float) -> None:
        self.clock.sleep(part * LONGEST)

    @rule(number=PROCESS)
    def vacuum(self, number: int) -> None:
        process = self.processes[number]
        before = process.contents()
        opened = process.table.opened()
        vacuum(process.table.committer, opened, retention_seconds=LONGEST, clock=self.clock)
        assert process.contents() == before

    @rule(number=PROCESS, step_bytes=st.integers(1, 20_000))
    def compacts(self, number: int, step_bytes: int) -> None:
        process = self.processes[number]
        before = process.contents()
        compact(process.whole, step_bytes=step_bytes)
        assert process.contents() == before

    @rule(number=PROCESS, version=st.integers(0, 50))
    def goes_back(self, number: int, version: int) -> None:
        process = self.processes[number]
        kept = sorted(kept_versions(process.table.reader))
        version = kept[version % len(kept)]
        if version in self.refused:
            before = process.contents()
            with pytest.raises(UsageError, match="another engine's DELETE"):
                roll_back(process.whole, version)
            assert process.contents() == before
            return
        earlier = process.table.reader.as_of(version)
        assert earlier is not None
        roll_back(process.whole, version)
        assert process.contents() == process.contents(earlier)

    @rule(number=PROCESS)
    def another_engine_deletes_and_it_is_undone(self, number: int) -> None:
        process = self.processes[number]
        snapshot, before = process.table.opened(), process.contents()
        if not snapshot.packs:
            return
        removes = tuple(pack.removed(1) for pack in snapshot.packs.values())
        self.refused.add(snapshot.version + 1)
        self._foreign(snapshot.version + 1, LogVersion(removes=removes, operation="DELETE"))
        roll_back(process.whole, snapshot.version)
        assert process.contents() == before

    def _foreign(self, version: int, body: LogVersion) -> None:
        lines = body.dumps().splitlines(keepends=True)
        self.store.put(LAYOUT.version(version), b"".join(line for line in lines if b'"txn"' not in line))

    @rule(number=PROCESS)
    def dies(self, number: int) -> None:
        """A process dies: its round and its memory are lost."""
        self.planned.pop(number, None)
        vectors = self.processes[number].vectors
        self.processes[number] = self.process(vectors)
        self.kept[number] = self.processes[number].table.opened()

    @rule(number=PROCESS, key=st.sampled_from(KEYS))
    def erase(self, number: int, key: str) -> None:
        """Erases an object while rounds that were planned with it are in flight."""
        self.bucket.pop(key, None)
        self.clock.sleep(60)
        process = self.processes[number]
        before = process.contents()
        done = erase(process.whole, slot_of_key(key), key, clock=self.clock)
        assert not done.left
        assert holding(self.store, key) == set()
        before.pop(key, None)
        assert process.contents() == before

    @rule()
    def another_engine_compacts(self) -> None:
        """Compacts like OPTIMIZE: writes all packs with the same range of labels as one pack, without our tags."""
        process = self.processes[0]
        snapshot = process.table.opened()
        packs = [pack for pack in snapshot.packs.values() if not pack.vector]
        if len(packs) < 2:
            return
        made = process.compacted(packs)
        body = LogVersion(
            adds=tuple(made),
            removes=tuple(pack.removed(1, data_change=False) for pack in packs),
            operation="OPTIMIZE",
        )
        self._foreign(snapshot.version + 1, body)

    @invariant()
    def no_gap(self) -> None:
        if hasattr(self, "store"):
            numbers = [
                number
                for meta in self.store.list(LAYOUT.log).objects
                if (number := LAYOUT.version_of(meta.key)) is not None
            ]
            assert sorted(numbers) == list(range(min(numbers), min(numbers) + len(numbers)))

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        process = self.process(self.processes[0].vectors)
        process.commit(process.planned(dict(self.bucket)))
        assert process.contents() == self.bucket
        snapshot = process.table.opened()
        with in_folder(self.store, LAYOUT) as table:
            agrees(table, process.table.reader, snapshot, process.rows(snapshot))


pytestmark = pytest.mark.timeout(1200)

TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=(settings.default.max_examples + 1) // 2)  # each example is long
