"""The work of a batch, computed from listing and state, and the assignment of this work to tasks. Most of the tests
call pure functions. One test lists a bucket.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.protocols.source_enumerator import (
    OBJECT_COST_BYTES,
    Choice,
    Enumerator,
    ObjectState,
    ObjectVersion,
    Split,
    assign,
    changes_of_slot,
    cut_to_bytes,
    parts_of,
)
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore

SLOT = Slot(3)


def versions(etags: dict[str, str]) -> list[ObjectVersion]:
    return [ObjectVersion(slot=SLOT, key=key, etag=ETag(etag), size=1) for key, etag in etags.items()]


def states(etags: dict[str, str], **fields: Any) -> dict[str, ObjectState]:
    return {key: ObjectState(key=key, etag=etag, size=1, **fields) for key, etag in etags.items()}


def test_new_overwritten_and_missing_objects_are_changes() -> None:
    listed = versions({"same": "1", "overwritten": "2", "new": "1"})
    known = states({"same": "1", "overwritten": "1", "left": "1"})
    found = changes_of_slot(SLOT, listed, known, max_objects=10)
    assert [s.version.key for s in found.read] == ["new", "overwritten"]
    assert {(s.start, s.end, s.by_record) for s in found.read} == {(0, 1, False)}
    assert found.gone == ("left",)
    assert found.complete
    assert found
    assert not changes_of_slot(SLOT, versions({"a": "1"}), states({"a": "1"}), max_objects=1)


@pytest.mark.parametrize("touched", [None, ["rows", "none", "here"]])
def test_rows_of_missing_objects_may_be_kept(touched: list[str] | None) -> None:
    """Otherwise rows of an archived object would be withdrawn, or an object without rows would stay in quarantine for
    ever.
    """
    known = states({"rows": "1", "here": "1"}, rows=1) | states({"none": "1"})
    here = versions({"here": "1"})
    found = changes_of_slot(
        SLOT, here, known, max_objects=9, touched=touched, stays=lambda state: state.rows > 0
    )
    assert (found.read, found.gone) == ((), ("none",))
    assert changes_of_slot(SLOT, here, known, max_objects=9, touched=touched).gone == ("none", "rows")


def test_reading_of_an_object_resumes_at_its_offset() -> None:
    """Otherwise a large object would be read from its beginning in each round, or a changed object from an
    old offset.
    """
    begun = states({"a": "1", "b": "1"}, offset=7, reach_end=False, by_record=True)
    listed = versions({"a": "1", "b": "2"})
    found = changes_of_slot(SLOT, listed, begun, max_objects=9, pending=["a", "b"])
    assert [(s.version.key, s.start, s.by_record) for s in found.read] == [("a", 7, True), ("b", 0, False)]
    stale = changes_of_slot(SLOT, listed, begun, max_objects=9, pending=["a"], stale=["a"])
    assert [(s.version.key, s.start) for s in stale.read] == [("a", 0), ("b", 0)]


def test_a_pending_key_that_was_read_to_its_end_is_read_again() -> None:
    """Otherwise a retry of an object that was already read would do nothing."""
    done = states({"a": "1", "b": "1"}, offset=7)
    found = changes_of_slot(SLOT, versions({"a": "1", "b": "1"}), done, max_objects=9, pending=["a"])
    assert [(s.version.key, s.start) for s in found.read] == [("a", 0)]


sizes = st.lists(st.lists(st.integers(0, 50), max_size=5), max_size=5)


@given(sizes, st.integers(1, 60), st.integers(1, 20), st.booleans())
def test_rounds_within_a_limit_read_everything_once(
    slots: list[list[int]], max_bytes: int, least: int, cuttable: bool
) -> None:
    """Otherwise a part of an object would be read twice or never, or a round would read more than its limit."""
    work = []
    for number, of_slot in enumerate(slots):
        listed = [
            ObjectVersion(slot=Slot(number), key=f"{n}", etag=ETag("e"), size=size)
            for n, size in enumerate(of_slot)
        ]
        work.append(changes_of_slot(Slot(number), listed, {}, max_objects=9))
    read: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for _ in range(1000):
        taken = list(cut_to_bytes(work, max_bytes, least=least, cuttable=lambda _: cuttable))
        sizes_taken = [s.end - s.start for each in taken for s in each.read]
        longest = max((s.end - s.start for each in work for s in each.read), default=0)
        allowed = max(max_bytes, least) if cuttable else max(max_bytes, longest)
        assert sum(sizes_taken) <= allowed or len([n for n in sizes_taken if n]) == 1 or cuttable
        left = []
        for each, done in zip(work, taken, strict=True):
            ends = {}
            for split in done.read:
                read.setdefault((each.slot, split.version.key), []).append((split.start, split.end))
                ends[split.version.key] = split.end
            rest = tuple(
                replace(s, start=ends.get(s.version.key, s.start))
                for s in each.read
                if ends.get(s.version.key) != s.end
            )
            assert done.complete == (not rest)
            left.append(replace(each, read=rest))
        work = left
        if not any(work):
            break
    assert not any(work)
    for number, of_slot in enumerate(slots):
        for n, size in enumerate(of_slot):
            parts = read[number, f"{n}"]
            assert [start for start, _ in parts] == [0, *(end for _, end in parts[:-1])]
            assert parts[-1][1] == size


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 30))
def test_parts_cover_the_split(start: int, length: int, size: int) -> None:
    """Otherwise a part of a large object would be read by two tasks or by none, or an empty object would have
    no part.
    """
    version = ObjectVersion(slot=SLOT, key="k", etag=ETag("e"), size=start + length)
    parts = parts_of(Split(version=version, start=start, end=start + length), size)
    assert parts[0].start == start
    assert parts[-1].end == start + length
    assert all(one.end == other.start for one, other in pairwise(parts))
    assert all(part.end - part.start <= size for part in parts)


etags = st.dictionaries(st.text(max_size=3), st.sampled_from("12"), max_size=12)


@given(etags, etags, st.integers(1, 5))
def test_bounded_plans_together_include_the_whole_bucket(
    bucket: dict[str, str], state: dict[str, str], limit: int
) -> None:
    """Otherwise bounded plans would never include all objects of the bucket, or would report too early that they do."""
    state = dict(state)
    for _ in range(40):
        found = changes_of_slot(SLOT, versions(bucket), states(state), max_objects=limit)
        assert len(found.read) + len(found.gone) <= limit
        for version in (split.version for split in found.read):
            assert state.get(version.key) != version.etag
            state[version.key] = version.etag
        for key in found.gone:
            del state[key]
        assert found.complete == (state == bucket)
        if found.complete:
            return
    pytest.fail("never complete")


@given(st.lists(st.integers(0, 10**9), max_size=60), st.integers(1, 8))
def test_tasks_have_balanced_loads(sizes: list[int], tasks: int) -> None:
    """Otherwise a split would have no task or two tasks, or the load of a task would exceed Graham's bound."""
    task_of = assign(sizes, tasks)
    assert len(task_of) == len(sizes)
    costs = [size + OBJECT_COST_BYTES for size in sizes]
    loads = [sum(c for c, t in zip(costs, task_of, strict=True) if t == task) for task in range(tasks)]
    assert sum(loads) == sum(costs)
    if sizes:
        assert max(loads) <= sum(costs) / tasks + max(costs)
        assert len(set(task_of)) == min(tasks, len(sizes))


def test_an_assignment_needs_a_task() -> None:
    with pytest.raises(UsageError, match="tasks=0"):
        assign([1], 0)


def test_the_enumerator_lists_once() -> None:
    """Otherwise a listing would cost one LIST for each slot, or return objects of other slots or prefixes."""
    memory = MemoryObjectStore()
    for number in range(1500):
        memory.put(f"raw/{number}", b"x")
    memory.put("other/1", b"x")
    store = CountingStore(memory)
    wanted = frozenset({Slot(1), Slot(5)})
    found = list(Enumerator(store, Choice(prefix="raw/"), slots=7).versions(wanted))
    assert {v.slot for v in found} == wanted
    assert {v.key for v in found} == {f"raw/{n}" for n in range(1500) if slot_of(f"raw/{n}", 7) in wanted}
    assert store.counts == {"LIST": 2}


@pytest.mark.parametrize("slots", [0, 1001, -1])
def test_the_enumerator_checks_its_slot_count(slots: int) -> None:
    with pytest.raises(UsageError, match="slots"):
        Enumerator(MemoryObjectStore(), Choice(), slots=slots)
