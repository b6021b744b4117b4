"""What is stored of a slot, read back: commit objects, and the states of its objects."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.errors import CorruptError
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.slots import Slot
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import SlotCommit, TableFile
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.states import (
    DELTA_LIMIT,
    PAGE_OBJECTS,
    StatePage,
    apply_deltas,
    encode_states,
    state_columns,
    states_of,
)
from tests.support.slot_writer import (
    SLOT,
    slot_table,
)
from tests.unit.table.helpers import commit_of

names = st.text("0123456789abcdef", min_size=1, max_size=8)
keys = st.text(min_size=1, max_size=20)
states = st.builds(
    ObjectState,
    key=keys,
    etag=names,
    size=st.integers(0, 2**40),
    offset=st.integers(0, 2**40),
    reach_end=st.booleans(),
    rows=st.integers(0, 2**40),
    rejects=st.integers(0, 99),
    by_record=st.booleans(),
    since=st.integers(0, 99),
    until=st.integers(0, 99),
    reason=st.text(max_size=3),
) | keys.map(lambda key: ObjectState(key=key, etag="", size=0, gone=True))
files = st.lists(
    st.builds(
        TableFile, name=names, rows=st.integers(0, 9), bytes=st.integers(0, 9), since=st.integers(0, 9)
    ),
    max_size=3,
)
commits = st.builds(
    SlotCommit,
    slot=st.integers(0, 999).map(Slot),
    generation=st.integers(1, 10**18).map(Generation),
    commit_id=names,
    parent_id=st.none() | names,
    batch=st.text(max_size=5),
    created_ms=st.integers(0, 2**41),
    signal=st.none() | names,
    schema=st.integers(0, 9),
    source_generation=st.integers(0, 9),
    files=files.map(tuple),
    rejects=files.map(tuple),
    objects=st.integers(0, 9),
    pending=st.lists(keys, max_size=2).map(tuple),
    code_version=names,
    pages=st.lists(st.builds(StatePage, name=names, objects=st.integers(1, 9), first=keys), max_size=2).map(
        tuple
    ),
    deltas=st.lists(states, max_size=4).map(tuple),
)


class TestCommitObject:
    @given(commits)
    def test_round_trip(self, commit: SlotCommit) -> None:
        assert SlotCommit.loads(commit.dumps(), where="x") == commit

    def test_odd_keys(self) -> None:
        for key in (" ", "a\nb", '"\\', "日本🙂", "\x00", "k" * 1024):
            commit = commit_of(1, deltas=(ObjectState(key=key, etag="e", size=1),))
            assert SlotCommit.loads(commit.dumps(), where="x").deltas[0].key == key

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b"{}",
            b'{"format": 3}',
            b"\xff",
            commit_of(1).dumps()[:-5],
            commit_of(1).dumps().replace(b'"slot"', b'"slut"'),
            commit_of(1, deltas=(ObjectState(key="k", etag="e", size=1),)).dumps().replace(b'"e",1,', b""),
        ],
    )
    def test_what_is_none_is_corrupt(self, body: bytes) -> None:
        with pytest.raises(CorruptError, match="somewhere: not a commit object"):
            SlotCommit.loads(body, where="somewhere")

    def test_a_newer_format_says_so(self) -> None:
        fields = json.loads(commit_of(1).dumps()) | {"format": 4}
        with pytest.raises(CorruptError, match="upgrade"):
            SlotCommit.loads(json.dumps(fields).encode(), where="x")


class TestStates:
    @given(st.lists(states, max_size=9))
    def test_base_round_trip(self, drawn: list[ObjectState]) -> None:
        live = apply_deltas({}, drawn)
        assert states_of(state_columns(encode_states(live))) == live

    @given(st.lists(st.lists(states, max_size=5), max_size=12), st.integers(1, 5))
    def test_carried_or_folded_they_are_the_same(self, rounds: list[list[ObjectState]], size: int) -> None:
        """Commit after commit, with 3 deltas and small pages: all of them, or any of them, are what was said."""
        table, live, head = slot_table(MemoryObjectStore()), {}, None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("s3notify_platform.table.states.DELTA_LIMIT", 3)
            patch.setattr("s3notify_platform.table.states.PAGE_OBJECTS", size)
            for number, changed in enumerate(rounds):
                live = apply_deltas(live, changed)
                carried = table.carry(SLOT, head, changed)
                assert len(carried.deltas) <= 3
                assert all(1 <= each.objects <= size for each in carried.pages)
                assert [each.first for each in carried.pages] == sorted(
                    {each.first for each in carried.pages}
                )
                head = commit_of(number + 1, pages=carried.pages, deltas=carried.deltas)
                assert table.states(head) == live
                for key in [*live, "not there", *(state.key for state in changed)]:
                    assert table.states(head, {key}) == ({key: live[key]} if key in live else {})

    def test_a_change_costs_its_page_not_the_slot(self) -> None:
        """Of a slot of many objects, those pages are written that changes fall in, and one page is read for a key."""
        store = CountingStore(MemoryObjectStore())
        table = slot_table(store)
        many = [ObjectState(key=f"{n:06}", etag="e", size=n) for n in range(10 * PAGE_OBJECTS)]
        carried = table.carry(SLOT, None, many)
        assert (len(carried.pages), carried.deltas) == (10, ())
        head = commit_of(1, pages=carried.pages, objects=len(many))
        store.counts.clear()
        assert table.states(head, {"000007"})["000007"].size == 7
        assert store.counts == {"GET": 1}
        changed = [ObjectState(key=f"{n:06}", etag="f", size=0) for n in range(DELTA_LIMIT + 1)]
        store.counts.clear()
        after = table.carry(SLOT, head, changed)
        assert store.counts == {"GET": 1, "PUT": 1}
        assert after.pages[1:] == carried.pages[1:]
        assert after.deltas == ()

    def test_folding_at_the_limit(self) -> None:
        table = slot_table(MemoryObjectStore())
        many = [ObjectState(key=f"{n}", etag="e", size=n) for n in range(DELTA_LIMIT)]
        carried = table.carry(SLOT, None, many)
        assert (carried.pages, len(carried.deltas)) == ((), DELTA_LIMIT)
        more = ObjectState(key="one more", etag="e", size=0)
        carried = table.carry(SLOT, commit_of(1, deltas=carried.deltas), [more])
        assert (len(carried.pages), carried.deltas) == (1, ())
        assert table.states(commit_of(2, pages=carried.pages)) == {s.key: s for s in [*many, more]}

    def test_a_lost_page_is_not_a_fresh_start(self) -> None:
        table = slot_table(MemoryObjectStore())
        lost = StatePage(name="lost", objects=1, first="a")
        with pytest.raises(CorruptError, match="refusing to start it again"):
            table.states(commit_of(1, pages=(lost,)))
        assert table.states(None) == {}


def test_replace_keeps_commits_apart() -> None:
    """Rows are those of the live files."""
    two = (TableFile(name="x", rows=2, bytes=1), TableFile(name="y", rows=3, bytes=1))
    assert replace(commit_of(1), files=two).rows == 5
