"""Lanes: a chain of chains. Done when all lanes are, told so once, for at most two requests a stamp."""

import json
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.errors import TagExists, TagNotFound, UnavailableError, UsageError
from s3notify_platform.protocols.ack_chain import (
    AckChains,
    Acked,
    AlreadyAcked,
    AlreadyFailed,
    Stamped,
    child_stamp,
    new_stamp,
    overdue,
    xor,
)
from s3notify_platform.protocols.ack_chain.plans import family, lane_of
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.support.faults import CrashedError, Fault, FaultyStore, at
from tests.unit.protocols.ack_chain.test_ack_chain import Hand, methods, over

LANES = 4
NAMES = [str(n) for n in range(12)]


@pytest.fixture
def records():
    return MemoryRecordStore()


@pytest.fixture
def chains(records):
    return AckChains(records, clock=Hand())


def by_lane(names=NAMES, lanes=LANES):
    found = {}
    for name in names:
        found.setdefault(lane_of(name, lanes), []).append(name)
    return found


def one_of_each():
    """A child of each of two lanes."""
    return [names[0] for names in list(by_lane().values())[:2]]


@given(st.text(), st.text(), st.integers(1, 64))
def test_a_family_has_one_lane(parent, child, lanes):
    """So a parent's end and its children's starts are one write."""
    assert lane_of(f"{family(parent)}/{child}", lanes) == lane_of(parent, lanes) < lanes


def test_children_spread_over_lanes():
    """Evenly enough that 64 stampers meet few others."""
    spread = by_lane(map(str, range(1000)), 8)
    assert sorted(spread) == list(range(8))
    assert max(map(len, spread.values())) < 170


def test_one_lane_is_stored_as_it_was(chains, records):
    """No trace of lanes, so that older readers and the npm package's table know the record."""
    chains.open_batch("t", NAMES)
    assert not any("lane" in field for field in json.loads(records.read("ack", "t").value))
    assert not list(records.scan("ack.lanes"))


def test_a_chain_with_lanes_is_done_when_all_lanes_are(chains):
    """Its facts are those of one record."""
    opened = chains.open_batch("t", NAMES, lanes=LANES, deadline_seconds=60, payload="p")
    assert opened == chains.state("t")
    assert (opened.missing, opened.payload, opened.deadline_seconds) == (tuple(NAMES), "p", 60)
    assert overdue(opened, 60)
    for name in NAMES[:-1]:
        assert isinstance(chains.stamp_children("t", [name]), Stamped)
        assert chains.state("t").status == "open"
    assert chains.state("t").missing == (NAMES[-1],)
    assert chains.stamp_children("t", [NAMES[-1]], "last") == Acked()
    assert (chains.state("t").status, chains.state("t").missing) == ("acked", ())
    assert chains.stamp_children("t", [NAMES[-1]], "last") == Acked()
    assert chains.stamp_children("t", NAMES[:3]) == AlreadyAcked()
    assert chains.state("t").children == opened.children


def test_the_xor_of_the_lanes_is_the_state(chains, records):
    """At every moment, that of the stamps of all children that are out."""
    chains.open_batch("t", NAMES, lanes=LANES)
    chains.stamp_children("t", NAMES, starts=[f"{n}/a" for n in NAMES])
    for n in NAMES:
        lanes = [json.loads(record.value) for record in records.scan("ack.lanes")]
        seed = bytes.fromhex(lanes[0]["seed"])
        out = [child_stamp(seed, name) for name in chains.state("t").missing]
        assert reduce(xor, (bytes.fromhex(lane["stamp"]) for lane in lanes)) == reduce(xor, out)
        outcome = chains.stamp_children("t", [f"{n}/a"])
    assert outcome == Acked()


def test_a_stamp_costs_two_requests(records):
    """One more at first, to find out about lanes, and to make one; two more to tell the chain that one is done."""
    AckChains(records).open_batch("t", map(str, range(64)), lanes=LANES)
    chains, faulty = over(records)
    lanes = by_lane(map(str, range(64)))
    first, *rest = lanes[0]
    chains.stamp_children("t", [first])
    assert methods(faulty) == ["read", "read", "create"]
    faulty.calls.clear()
    for name in rest[:-1]:
        chains.stamp_children("t", [name])
    assert methods(faulty) == ["read", "replace"] * (len(rest) - 1)
    faulty.calls.clear()
    chains.stamp_children("t", rest[-1:])
    assert methods(faulty) == ["read", "replace"] * 2
    faulty.calls.clear()
    for number in (1, 2, 3):
        outcome = chains.stamp_children("t", lanes[number])
    assert outcome == Acked()
    assert methods(faulty) == ["read", "read", "create", "read", "replace"] * 3


def test_state_reads_the_lanes_that_are_not_done(records):
    """1 request, and 1 for each of them."""
    chains, faulty = over(records)
    chains.open_batch("t", NAMES, lanes=LANES)
    chains.stamp_children("t", by_lane()[1])
    faulty.calls.clear()
    chains.state("t")
    assert methods(faulty) == ["read"] * LANES


def test_children_of_several_lanes_in_one_call(chains):
    """Each lane in turn; repeated by another process, nothing changes."""
    chains.open_batch("t", NAMES, lanes=LANES)
    assert chains.stamp_children("t", NAMES[:6], "op") == Stamped(missing=6)
    assert chains.stamp_children("t", NAMES[:6], "other") == Stamped(missing=6)
    assert chains.stamp_children("t", NAMES, "op") == Acked()


def test_a_parents_end_and_its_childrens_starts_are_one_write(records):
    """A crash before it leaves the parent out, a crash after it the children."""
    chains, _ = over(records)
    chains.open_batch("t", ["1"], lanes=LANES)
    for fault, missing in ((Fault.CRASH_BEFORE, ("1",)), (Fault.CRASH_AFTER, ("1/a", "1/b"))):
        dying, _ = over(records, at("create", fault))
        with pytest.raises(CrashedError):
            dying.stamp_children("t", ["1"], starts=["1/a", "1/b"])
        assert chains.state("t").missing == missing
        assert chains.state("t").status == "open"
    assert chains.stamp_children("t", ["1"], starts=["1/a", "1/b"]) == Stamped(missing=2)
    assert chains.stamp_children("t", ["1/a", "1/b"]) == Acked()
    assert chains.state("t").children == ("1", "1/a", "1/b")


def test_what_lanes_cannot_hold_is_refused_before_anything_is_written(chains, records):
    """Strangers, children begun away from their parent, raw stamps, wrong numbers."""
    for lanes in (0, -1, 65):
        with pytest.raises(UsageError, match="1 to 64"):
            chains.open_batch("t", NAMES, lanes=lanes)
    chains.open_batch("t", NAMES, lanes=LANES)
    with pytest.raises(UsageError, match=r"no children \['99'\]"):
        chains.stamp_children("t", ["1", "99"])
    with pytest.raises(UsageError, match="parent/child"):
        chains.stamp_children("t", ["1"], starts=["2/a"])
    with pytest.raises(UsageError, match="parent/child"):
        chains.stamp_children("t", [], starts=["1/a"])
    with pytest.raises(UsageError, match="by name"):
        chains.stamp("t", new_stamp())
    assert chains.stamp_children("t", []) == Stamped(missing=0)
    assert not list(records.scan("ack.lanes"))
    with pytest.raises(TagExists):
        chains.open_batch("t", NAMES, lanes=2)


@pytest.mark.parametrize("knows", [False, True])
def test_a_stamper_that_dies_before_the_tombstone(records, knows):
    """The next `state` finishes the chain in its name, and its own retry is the one that is `Acked`."""
    others = AckChains(records)
    others.open_batch("t", NAMES, lanes=LANES)
    lanes = by_lane()
    for number in list(lanes)[1:]:
        others.stamp_children("t", lanes[number])
    last = lanes[next(iter(lanes))]
    chains, _ = over(records, at("replace", Fault.CRASH_BEFORE, key="ack/t"))
    if knows:
        chains.stamp_children("t", [])
    with pytest.raises(CrashedError):
        chains.stamp_children("t", last, "dying")
    assert json.loads(records.read("ack", "t").value)["status"] == "open"
    assert others.state("t").status == "acked"
    assert json.loads(records.read("ack", "t").value)["status"] == "acked"
    assert others.stamp_children("t", last, "another") == AlreadyAcked()
    assert chains.stamp_children("t", last, "dying") == Acked()


def test_another_stamper_finishes_for_the_dead_too(records):
    """Without anybody asking for the state."""
    chains, _ = over(records, at("replace", Fault.CRASH_BEFORE, key="ack/t"))
    a, b = one_of_each()
    chains.open_batch("t", [a, b], lanes=LANES)
    with pytest.raises(CrashedError):
        chains.stamp_children("t", [a], "dying")
    other = AckChains(records)
    assert other.stamp_children("t", [b], "b") == Stamped(missing=0)
    assert other.stamp_children("t", [a], "again") == AlreadyAcked()
    assert chains.stamp_children("t", [a], "dying") == Acked()


def test_a_state_that_cannot_finish_a_chain_still_tells_it(records):
    """Asking is not a reason to fail; the next one tries again."""
    chains, _ = over(records, at("replace", Fault.CRASH_BEFORE, key="ack/t"))
    chains.open_batch("t", ["1"], lanes=LANES)
    with pytest.raises(CrashedError):
        chains.stamp_children("t", ["1"], "dying")
    refused, _ = over(records, lambda call: Fault.REFUSED if call.method == "replace" else Fault.NONE)
    assert (refused.state("t").status, refused.state("t").missing) == ("open", ())
    assert [state.status for state in chains.states()] == ["acked"]


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE])
@pytest.mark.parametrize("method", ["create", "replace"])
@pytest.mark.parametrize("nth", [0, 1, 2])
def test_any_write_in_doubt_is_applied_once(records, fault, method, nth):
    """To a lane, to make one, to end the chain."""
    AckChains(records).open_batch("t", NAMES, lanes=LANES)
    chains, faulty = over(records, at(method, fault, nth=nth), late_by_calls=1 + nth)
    outcomes = [chains.stamp_children("t", [name], name) for name in NAMES]
    faulty.settle()
    assert outcomes.count(Acked()) == 1
    assert AckChains(records).state("t").status == "acked"


def test_a_failed_chain_takes_no_more_stamps(chains, records):
    """In lanes that were stamped and in those that were not, and it keeps what was missing."""
    chains.open_batch("t", NAMES, lanes=LANES)
    chains.stamp_children("t", NAMES[:2])
    found = chains.fail("t", "died")
    assert (found.status, found.reason, found.missing) == ("failed", "died", tuple(NAMES[2:]))
    for client in (chains, AckChains(records)):
        for name in NAMES:
            assert client.stamp_children("t", [name]) == AlreadyFailed(reason="died")
    assert chains.fail("t", "other reason") == found == chains.state("t")


def test_a_failure_that_was_cut_off_is_one(records):
    """The chain's own record decides; repeating it tells the lanes."""
    chains, _ = over(records)
    chains.open_batch("t", NAMES, lanes=LANES)
    with pytest.raises(CrashedError):
        over(records, at("create", Fault.CRASH_BEFORE))[0].fail("t", "died")
    assert chains.state("t").status == "failed"
    chains.fail("t", "later")
    assert chains.stamp_children("t", NAMES) == AlreadyFailed(reason="died")


def test_a_chain_that_is_done_cannot_fail(records):
    """Not even if its last stamper died before it could say so."""
    chains, _ = over(records, at("replace", Fault.CRASH_BEFORE, key="ack/t"))
    chains.open_batch("t", ["1"], lanes=LANES)
    with pytest.raises(CrashedError):
        chains.stamp_children("t", ["1"])
    assert chains.fail("t", "late").status == "acked"


def test_a_deleted_chain_leaves_nothing(chains, records):
    """Its tag is free, and stampers that knew it are told."""
    chains.open_batch("t", NAMES, lanes=LANES)
    chains.stamp_children("t", NAMES[:5])
    AckChains(records).delete("t")
    assert not [*records.scan("ack"), *records.scan("ack.lanes")]
    with pytest.raises(TagNotFound):
        chains.stamp_children("t", NAMES)
    chains.open_batch("t", NAMES, lanes=2)
    chains.stamp_children("t", NAMES[:1])
    AckChains(records).delete("t")
    AckChains(records).open_batch("t", ["new", "1"], lanes=3)
    assert chains.stamp_children("t", ["new"]) == Stamped(missing=0)
    assert chains.state("t").missing == ("1",)


def test_a_chain_created_anew_with_the_same_children(chains, records):
    """A stamper that knew the old one makes no lane of it, and stamps the new one."""
    for _ in range(2):
        AckChains(records).open_batch("t", NAMES, lanes=LANES)
        assert chains.stamp_children("t", NAMES[:1]) == AckChains(records).stamp_children("t", NAMES[:1])
        assert chains.state("t").missing == tuple(NAMES[1:])
        AckChains(records).delete("t")
    assert not list(records.scan("ack.lanes"))


def test_purge_takes_lanes_along(records):
    """Those of purged chains, and those that a deletion which died has left; no others."""
    clock = Hand()
    chains = AckChains(records, clock=clock, tombstone_seconds=10)
    for tag in ("acked", "failed", "open", "open/er"):
        chains.open_batch(tag, NAMES, lanes=LANES)
        chains.stamp_children(tag, NAMES if tag == "acked" else NAMES[:5])
    chains.fail("failed", "x")
    faulty = FaultyStore(records, at("remove", Fault.CRASH_AFTER))
    chains.open_batch("deleted", NAMES, lanes=LANES)
    chains.stamp_children("deleted", NAMES[:5])
    with pytest.raises(CrashedError):
        AckChains(faulty).delete("deleted")
    clock.now = 11
    before = [chains.state(tag) for tag in ("open", "open/er")]
    assert chains.purge() == 2
    assert list(chains.states()) == before
    assert {record.key.split("/")[0] for record in records.scan("ack.lanes")} == {"open"}
    assert chains.stamp_children("open/er", NAMES) == Acked()


def test_a_store_that_is_down_is_said_to_be(records):
    """Nothing was applied in the lane that failed; a repeat makes the call whole."""
    chains, _ = over(records, at("read", Fault.REFUSED, nth=3))
    chains.open_batch("t", NAMES, lanes=LANES)
    with pytest.raises(UnavailableError):
        chains.stamp_children("t", NAMES, "op")
    assert chains.stamp_children("t", NAMES, "op") == Acked()


def test_many_chains_with_lanes_are_not_all_remembered(records, monkeypatch):
    """What is forgotten is looked up again."""
    monkeypatch.setattr("s3notify_platform.protocols.ack_chain.chains.KNOWN_MAX", 2)
    chains = AckChains(records)
    for tag in "abcde":
        chains.open_batch(tag, ["1", "2"], lanes=2)
        chains.stamp_children(tag, ["1"])
    assert len(chains._known) <= 2
    assert [chains.stamp_children(tag, ["2"]) for tag in "abcde"] == [Acked()] * 5
