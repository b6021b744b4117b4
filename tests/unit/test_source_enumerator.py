"""What a batch has to read, from listing and state; and who reads it. Pure functions, and one listing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.errors import UsageError
from s3notify_platform.ports import ETag
from s3notify_platform.protocols.source_enumerator import (
    OBJECT_COST_BYTES,
    Enumerator,
    ObjectVersion,
    changes_of_slot,
    deal,
)
from s3notify_platform.slots import Slot, slot_of
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore

SLOT = Slot(3)


def versions(etags: dict[str, str]) -> list[ObjectVersion]:
    return [ObjectVersion(slot=SLOT, key=key, etag=ETag(etag), size=1) for key, etag in etags.items()]


def test_changes_of_slot() -> None:
    listed = versions({"same": "1", "overwritten": "2", "new": "1"})
    found = changes_of_slot(SLOT, listed, {"same": "1", "overwritten": "1", "left": "1"}, max_objects=10)
    assert [v.key for v in found.read] == ["new", "overwritten"]
    assert found.gone == ("left",)
    assert found.complete
    assert found
    assert not changes_of_slot(SLOT, versions({"a": "1"}), {"a": "1"}, max_objects=1)


etags = st.dictionaries(st.text(max_size=3), st.sampled_from("12"), max_size=12)


@given(etags, etags, st.integers(1, 5))
def test_bounded_plans_reach_the_bucket(bucket: dict[str, str], state: dict[str, str], limit: int) -> None:
    """Plan after plan, each within its limit, ends with the state being the bucket, and says when."""
    state = dict(state)
    for _ in range(40):
        found = changes_of_slot(SLOT, versions(bucket), state, max_objects=limit)
        assert len(found.read) + len(found.gone) <= limit
        for version in found.read:
            assert state.get(version.key) != version.etag
            state[version.key] = version.etag
        for key in found.gone:
            del state[key]
        assert found.complete == (state == bucket)
        if found.complete:
            return
    pytest.fail("never complete")


@given(st.lists(st.integers(0, 10**9), max_size=60), st.integers(1, 8))
def test_deal_is_balanced(sizes: list[int], tasks: int) -> None:
    """Every split has one task, and no task is loaded by more than Graham's bound."""
    task_of = deal(sizes, tasks)
    assert len(task_of) == len(sizes)
    costs = [size + OBJECT_COST_BYTES for size in sizes]
    loads = [sum(c for c, t in zip(costs, task_of, strict=True) if t == task) for task in range(tasks)]
    assert sum(loads) == sum(costs)
    if sizes:
        assert max(loads) <= sum(costs) / tasks + max(costs)
        assert len(set(task_of)) == min(tasks, len(sizes))


def test_deal_needs_a_task() -> None:
    with pytest.raises(UsageError, match="tasks=0"):
        deal([1], 0)


def test_enumerator_lists_once() -> None:
    """Only wanted slots, only below the prefix; one LIST for each 1,000 objects, however many slots."""
    memory = MemoryObjectStore()
    for number in range(1500):
        memory.put(f"raw/{number}", b"x")
    memory.put("other/1", b"x")
    store = CountingStore(memory)
    wanted = frozenset({Slot(1), Slot(5)})
    found = list(Enumerator(store, prefix="raw/", slots=7).versions(wanted))
    assert {v.slot for v in found} == wanted
    assert {v.key for v in found} == {f"raw/{n}" for n in range(1500) if slot_of(f"raw/{n}", 7) in wanted}
    assert store.counts == {"LIST": 2}


@pytest.mark.parametrize("slots", [0, 1001, -1])
def test_enumerator_checks_its_slots(slots: int) -> None:
    with pytest.raises(UsageError, match="slots"):
        Enumerator(MemoryObjectStore(), prefix="", slots=slots)
