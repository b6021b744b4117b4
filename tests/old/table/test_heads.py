"""Heads over a store in memory: found, listed for many slots, and moved by a commit."""

from dataclasses import replace
from typing import Any

import pytest

from s3notify_platform.errors import ConflictError, CorruptError, FencedError, UsageError
from s3notify_platform.limits import REMEMBERED_TABLES
from s3notify_platform.ports import Conflict, StoredObject, Written
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.slots import Slot
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import DENSE_PAGE, SlotCommit, TableFile
from s3notify_platform.table.heads import MAX_RUN_SECONDS, HeadMemory, head_memory
from s3notify_platform.table.layout import Generation, TableLayout, generation_of, inverted
from tests.support.clocks import HandClock
from tests.support.slot_writer import LAYOUT, SLOT, slot_table
from tests.unit.table.helpers import commit_of, write


class TestHead:
    def test_requests(self) -> None:
        """Head: 1 LIST of one key and 1 GET; states without a base: none; a commit: 1 PUT."""
        store = CountingStore(MemoryObjectStore())
        table = slot_table(store)
        assert table.head(SLOT) is None
        write(table, commit_of(1), commit_of(2))
        assert store.counts == {"LIST": 1, "PUT": 2}
        store.counts.clear()
        head = table.head(SLOT)
        assert head == commit_of(2)
        table.states(head)
        assert store.counts == {"LIST": 1, "GET": 1}

    def test_newest_sorts_first(self) -> None:
        generations = [1, 2, 9, 10, 11, 999, 1000, 10**18]
        assert sorted(generations, key=inverted) == generations[::-1]
        assert [generation_of(LAYOUT.commit(SLOT, g)) for g in generations] == generations

    def test_a_missing_predecessor_is_an_error(self) -> None:
        table = slot_table(MemoryObjectStore())
        write(table, commit_of(1), commit_of(2))
        table.store.delete(LAYOUT.commit(SLOT, 1))
        with pytest.raises(CorruptError, match="generation 1 of slot 7 is missing"):
            table.read(SLOT, Generation(1))

    def test_foreign_objects_are_named(self) -> None:
        table = slot_table(MemoryObjectStore())
        table.store.put(LAYOUT.commits(SLOT) + "!readme", b"")
        with pytest.raises(CorruptError, match="readme"):
            table.head(SLOT)

    def test_a_head_that_vacuum_took_in_between(self) -> None:
        """Between its LIST and its GET a newer one appears and the old one goes: it is read again."""
        memory = MemoryObjectStore()
        table = slot_table(memory)
        write(table, commit_of(1))

        class Moving(CountingStore):
            def get(self, key: str, **conditions: Any) -> Any:
                if memory.head(LAYOUT.commit(SLOT, 1)):
                    write(slot_table(memory), commit_of(2))
                    memory.delete(LAYOUT.commit(SLOT, 1))
                return super().get(key, **conditions)

        assert slot_table(Moving(memory)).head(SLOT) == commit_of(2)

    def test_a_head_that_never_stands_still(self) -> None:
        class Moving(CountingStore):
            generation = 1

            def get(self, key: str, **conditions: Any) -> Any:
                self.store.delete(LAYOUT.commit(SLOT, self.generation))
                self.generation += 1
                self.store.put(LAYOUT.commit(SLOT, self.generation), b"")
                return super().get(key, **conditions)

        store = Moving(MemoryObjectStore())
        store.put(LAYOUT.commit(SLOT, 1), b"")
        with pytest.raises(ConflictError, match="moved three times"):
            slot_table(store).head(SLOT)

    def test_a_head_that_is_listed_and_lost(self) -> None:
        class Losing(CountingStore):
            def get(self, key: str, **conditions: Any) -> Any:
                return None

        store = Losing(MemoryObjectStore())
        store.put(LAYOUT.commit(SLOT, 1), b"")
        with pytest.raises(CorruptError, match="is missing"):
            slot_table(store).head(SLOT)


class TestHeads:
    def test_of_many_slots(self) -> None:
        """1 LIST for a young table, 1 GET for each slot that has a commit, none for the others."""
        store = CountingStore(MemoryObjectStore())
        table = slot_table(store)
        write(table, commit_of(1), commit_of(2), commit_of(1, Slot(900)))
        store.counts.clear()
        assert table.heads([Slot(900), SLOT, Slot(1), SLOT]) == {
            Slot(1): None,
            SLOT: commit_of(2),
            Slot(900): commit_of(1, Slot(900)),
        }
        assert store.counts == {"LIST": 1, "GET": 2}
        assert table.heads([]) == {}

    def test_one_that_vacuum_took(self) -> None:
        """Gone between the LIST of many and its GET, because a newer one exists: that one is found."""
        memory = MemoryObjectStore()
        table = slot_table(memory)
        write(table, commit_of(1))
        newest = table.newest([SLOT])[SLOT]
        write(table, commit_of(2))
        memory.delete(LAYOUT.commit(SLOT, 1))
        assert table.head(SLOT, newest) == commit_of(2)

    def test_one_that_is_damaged(self) -> None:
        memory = MemoryObjectStore()
        table = slot_table(memory)
        memory.put(LAYOUT.commit(SLOT, 1), b"{}")
        with pytest.raises(CorruptError, match="not a commit object"):
            table.heads([SLOT])


class TestAfter:
    HEAD = commit_of(
        4,
        schema=3,
        signal="s4",
        files=(TableFile(name="f", rows=2, bytes=9),),
        objects=3,
        pending=("a", "b"),
        failing=("c",),
        code_version="v1",
        deltas=(ObjectState(key="a", etag="1", size=1),),
    )

    def test_everything_stays_but_its_place(self) -> None:
        clock = HandClock()
        after = SlotCommit.after(self.HEAD, SLOT, batch="next", clock=clock, read_again=["z", "a"])
        assert (after.generation, after.parent_id, after.batch) == (5, self.HEAD.commit_id, "next")
        assert after.commit_id != self.HEAD.commit_id
        same = (
            "schema",
            "signal",
            "files",
            "rejects",
            "objects",
            "failing",
            "code_version",
            "pages",
            "deltas",
        )
        assert all(getattr(after, name) == getattr(self.HEAD, name) for name in same)
        assert after.pending == ("a", "b", "z")

    def test_changed_states_say_what_is_pending_and_failing(self) -> None:
        """Read to its end: neither; read in part: pending; with a reason: failing; gone: neither."""
        changed = [
            ObjectState(key="a", etag="2", size=1),
            ObjectState(key="c", etag="", size=0, gone=True),
            ObjectState(key="d", etag="1", size=9, offset=1, reach_end=False),
            ObjectState(key="e", etag="1", size=9, reach_end=False, reason="403"),
        ]
        states = slot_table(MemoryObjectStore()).carry(SLOT, self.HEAD, changed)
        after = SlotCommit.after(self.HEAD, SLOT, batch="next", clock=HandClock(), states=states)
        assert (after.pending, after.failing) == (("b", "d"), ("e",))
        assert after.deltas == tuple(changed)

    def test_the_first(self) -> None:
        first = SlotCommit.after(None, SLOT, batch="b", clock=HandClock(), objects=1)
        assert (first.generation, first.parent_id, first.objects, first.files) == (1, None, 1, ())

    def test_what_is_staged_is_what_is_stored(self) -> None:
        """Byte for byte, with counts that need no parsing."""
        table = slot_table(MemoryObjectStore())
        commit = commit_of(1, files=(TableFile(name="f", rows=2, bytes=9),), failing=("c",))
        staged = commit.staged()
        assert (staged.rows, staged.files, staged.rejects, staged.failing) == (2, 1, 0, 1)
        table.commit(staged, planned_at=table.clock.monotonic())
        stored = table.store.get(LAYOUT.commit(SLOT, 1))
        assert isinstance(stored, StoredObject)
        assert stored.body == staged.body == commit.dumps()


class TestNewest:
    def test_a_young_table_takes_one_list(self) -> None:
        store = CountingStore(MemoryObjectStore())
        table = slot_table(store)
        for slot in (0, 1, 10, 100, 2, 99):
            write(table, *(commit_of(g + 1, Slot(slot)) for g in range(slot % 3 + 1)))
        store.counts.clear()
        wanted = [Slot(n) for n in (0, 1, 2, 3, 10, 11, 100, 999)]
        assert table.newest(wanted) == {0: 1, 1: 2, 2: 3, 3: 0, 10: 2, 11: 0, 100: 2, 999: 0}
        assert store.counts == {"LIST": 1}
        assert table.newest([]) == {}

    @pytest.mark.parametrize("generations", [1, 3, 30])
    def test_pages(self, generations: int) -> None:
        """As many LISTs as pages that tell of enough slots, one more, and never a wrong answer."""
        memory = MemoryObjectStore()
        for slot in range(400):
            for g in range(1, generations + slot % 2):
                memory.put(LAYOUT.commit(Slot(slot), g), b"")
        store = CountingStore(memory)
        newest = slot_table(store).newest([Slot(n) for n in range(1000)])
        known = {slot: generation for slot, generation in newest.items() if generation is not None}
        assert all(g == (generations + s % 2 - 1 if s < 400 else 0) for s, g in known.items())
        assert len(newest) == 1000
        assert len(known) == 1000 or len(known) <= DENSE_PAGE * store.counts["LIST"] + DENSE_PAGE
        assert store.counts["LIST"] <= len(known) / DENSE_PAGE + 1


class TestRemembered:
    """What a table with a memory asks for."""

    def test_a_second_time(self) -> None:
        """1 GET and 1 HEAD in place of a LIST; a slot without a commit 1 HEAD."""
        store, time = CountingStore(MemoryObjectStore()), HandClock()
        table = slot_table(store, time, memory=HeadMemory(time))
        write(table, commit_of(1))
        heads = {SLOT: commit_of(1), Slot(8): None}
        assert table.heads(heads) == heads
        assert store.counts == {"PUT": 1, "LIST": 1, "GET": 1, "HEAD": 1}
        store.counts.clear()
        assert table.heads(heads) == heads
        assert store.counts == {"GET": 1, "HEAD": 2}
        time.now += MAX_RUN_SECONDS / 2
        store.counts.clear()
        assert table.heads(heads) == heads
        assert store.counts == {"GET": 1, "LIST": 1}

    def test_what_another_process_committed(self) -> None:
        memory, time = MemoryObjectStore(), HandClock()
        table = slot_table(memory, time, memory=HeadMemory(time))
        write(table, commit_of(1))
        assert table.heads([SLOT]) == {SLOT: commit_of(1)}
        write(slot_table(memory), commit_of(2))
        assert table.heads([SLOT]) == {SLOT: commit_of(2)}
        memory.delete(LAYOUT.commit(SLOT, 2))
        assert table.heads([SLOT]) == {SLOT: commit_of(1)}

    def test_a_conflict_is_not_recalled(self) -> None:
        memory, time = MemoryObjectStore(), HandClock()
        table = slot_table(memory, time, memory=HeadMemory(time))
        write(table, commit_of(1))
        assert table.memory.recall([SLOT]).heads == {SLOT: 1}
        write(slot_table(memory), commit_of(2))
        late = commit_of(2, commit_id="late").staged()
        assert table.commit(late, planned_at=time.now) == Conflict()
        assert table.memory.recall([SLOT]).heads == {}

    def test_what_it_asked_for_too_late_does_not_stand(self) -> None:
        """What came after it may be gone by then."""
        time = HandClock()
        table = slot_table(MemoryObjectStore(), time, memory=HeadMemory(time))
        write(table, commit_of(1))
        assert table.stands(SLOT, Generation(1), seen_at=time.now - MAX_RUN_SECONDS)
        assert not table.stands(SLOT, Generation(1), seen_at=time.now - MAX_RUN_SECONDS - 1)
        assert table.memory.recall([SLOT]).heads == {}

    def test_the_time_of_what_is_recalled(self) -> None:
        """The earliest; a generation that is known and higher is taken instead, and nothing that is only known."""
        time = HandClock()
        memory = HeadMemory(time, seconds=10)
        memory.note({Slot(1): Generation(4)}, time.now - 9)
        memory.note({Slot(2): Generation(5), Slot(3): Generation(6)}, time.now - 1)
        memory.note({Slot(5): Generation(7)}, time.now - 10)
        known = {
            Slot(1): Generation(3),
            Slot(2): Generation(8),
            Slot(4): Generation(9),
            Slot(5): Generation(9),
        }
        found = memory.recall([Slot(1), Slot(2), Slot(4), Slot(5)], known)
        assert (found.heads, found.seen_at) == ({1: 4, 2: 8}, time.now - 9)

    def test_memories_apart(self) -> None:
        """One for each bucket and endpoint, prefix, id and clock; the oldest unused ones are dropped."""
        config, time = S3Config(bucket="b", endpoint_url="http://a"), HandClock()
        first = head_memory(config, "p/", "id", time)
        others = [
            head_memory(replace(config, bucket="c"), "p/", "id", time),
            head_memory(replace(config, endpoint_url="http://b"), "p/", "id", time),
            head_memory(config, "q/", "id", time),
            head_memory(config, "p/", "other", time),
            head_memory(config, "p/", "id", HandClock()),
        ]
        assert first is head_memory(config, "p/", "id", time)
        assert len({*map(id, [first, *others])}) == 6
        for number in range(REMEMBERED_TABLES):
            head_memory(config, "p/", f"{number}", time)
        assert first is not head_memory(config, "p/", "id", time)


class TestCommitting:
    def test_one_winner(self) -> None:
        table = slot_table(MemoryObjectStore())
        write(table, commit_of(1))
        assert (
            table.commit(commit_of(1, commit_id="late").staged(), planned_at=table.clock.monotonic())
            == Conflict()
        )

    def test_a_run_that_lived_too_long_commits_nothing(self) -> None:
        time = HandClock()
        table = slot_table(MemoryObjectStore(), time, max_run_seconds=10)
        with pytest.raises(FencedError, match="plan again"):
            table.commit(commit_of(1).staged(), planned_at=time.now - 11)
        assert table.head(SLOT) is None

    @pytest.mark.parametrize(("next_parent", "fenced"), [("c1", False), ("other", True), (None, False)])
    def test_a_write_that_took_too_long_looks_back(self, next_parent: str | None, *, fenced: bool) -> None:
        """It landed after the run's time was over: it counts only if what came later descends from it."""
        time = HandClock()
        memory = MemoryObjectStore()

        class Slow(CountingStore):
            def put(self, key: str, body: bytes, **options: Any) -> Any:
                written = super().put(key, body, **options)
                time.now += 100
                for generation in (2, 3) if next_parent else ():
                    parent = next_parent if generation == 2 else "c2"
                    later = commit_of(generation, parent_id=parent)
                    memory.put(LAYOUT.commit(SLOT, generation), later.dumps())
                return written

        table, planned = slot_table(Slow(memory), time, max_run_seconds=10), time.now
        if fenced:
            with pytest.raises(FencedError, match="although a newer history exists"):
                table.commit(commit_of(1).staged(), planned_at=planned)
        else:
            assert isinstance(table.commit(commit_of(1).staged(), planned_at=planned), Written)

    @pytest.mark.parametrize("prefix", ["no-slash", "/t/", "a//b/", ""])
    def test_prefixes_that_cannot_be(self, prefix: str) -> None:
        with pytest.raises(UsageError, match="table prefix"):
            TableLayout(prefix=prefix)
