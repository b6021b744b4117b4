"""Guarantees of both forms of chains: one record for each stamp, or one record that all stampers change."""

import pytest

from s3notify_platform.kernel.errors import (
    BufferLengthsUnequal,
    TagExists,
    TagNotFound,
    UsageError,
    ZeroBufferNoOp,
)
from s3notify_platform.protocols.ack_chain import (
    AckChains,
    Acked,
    AlreadyAcked,
    AlreadyFailed,
    Stamped,
    new_stamp,
    overdue,
    xor,
)
from s3notify_platform.protocols.ack_chain.shared import SharedChains
from tests.support.clocks import HandClock, HurriedClock
from tests.support.faults import Fault, FaultyStore, at

A, B, C = (bytes([byte]) * 16 for byte in (1, 2, 4))


@pytest.fixture(params=[AckChains, SharedChains])
def kind(request):
    return request.param


@pytest.fixture
def chains(kind, records):
    return kind(records, clock=HandClock())


def over(kind, records, schedule, **kwargs):
    faulty = FaultyStore(records, schedule, **kwargs)
    return kind(faulty, clock=HurriedClock()), faulty


def test_stamps_are_random_and_long_enough(chains):
    """Otherwise a chain would accept a stamp of zeros, a stamp that is too short or too long, or stamps of different
    lengths.
    """
    assert len(new_stamp()) == 16
    assert new_stamp() != new_stamp()
    for wrong in (b"1234567", b"x" * 129):
        with pytest.raises(UsageError, match="8 to 128"):
            chains.create("t", wrong)
    with pytest.raises(ZeroBufferNoOp):
        chains.create("t", bytes(16))
    chains.create("t", b"12345678")
    with pytest.raises(ZeroBufferNoOp):
        chains.stamp("t", bytes(8))
    with pytest.raises(BufferLengthsUnequal):
        chains.stamp("t", A)


def test_a_chain_of_raw_stamps_is_acked_by_its_last_stamp(chains):
    """Otherwise a chain of raw stamps would be acked too early, or never."""
    chains.create("t", xor(A, B))
    assert chains.stamp("t", A) == Stamped(missing=None)
    assert chains.state("t").status == "open"
    assert chains.stamp("t", B) == Acked()
    assert chains.state("t").status == "acked"


def test_a_tag_in_use_is_refused(chains):
    """Otherwise a second creation would replace an open or finished chain, although its caller did not ask for that."""
    chains.open_batch("t", ["1"])
    with pytest.raises(TagExists):
        chains.create("t", A)
    chains.stamp_children("t", ["1"])
    with pytest.raises(TagExists):
        chains.open_batch("t", ["1"])


def test_a_stamp_returns_the_xor(chains):
    """Otherwise `stamp` would return another XOR than the npm package's `stamp`, or two equal outcomes would count as
    different because of their XOR.
    """
    chains.create("t", xor(A, B, C))
    assert chains.stamp("t", A, operation_id="a").xor == xor(B, C)
    assert chains.stamp("t", B).xor == C
    assert chains.stamp("t", A, operation_id="a").xor == C
    assert chains.stamp("t", A, operation_id="a") == Stamped(missing=None)
    last = [chains.stamp("t", C, operation_id="c") for _ in range(2)]
    assert [one.xor for one in last] == [bytes(16)] * 2
    assert last == [Acked()] * 2


@pytest.mark.parametrize("how", ["acked", "failed"])
def test_reuse_replaces_a_chain_that_has_ended(chains, how):
    """Otherwise a caller could not use its tag again at once, or an open chain with this tag would be replaced."""
    chains.create("t", A, payload="1", reuse=True)
    for number in range(2, 5):
        with pytest.raises(TagExists):
            chains.open_batch("t", ["1"], reuse=True)
        if how == "acked":
            chains.stamp("t", A)
        else:
            chains.fail("t", "no")
        with pytest.raises(TagExists):
            chains.create("t", A)
        chains.create("t", A, payload=str(number), deadline_seconds=9, reuse=True)
        state = chains.state("t")
        assert (state.status, state.payload, state.reason) == ("open", str(number), None)
    chains.stamp("t", A)
    chains.open_batch("t", ["1", "2"], reuse=True)
    assert chains.state("t").missing == ("1", "2")
    assert chains.stamp_children("t", ["1"]) == Stamped(missing=1)
    assert chains.stamp_children("t", ["2"]) == Acked()


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE])
@pytest.mark.parametrize("method", ["create", "replace"])
def test_a_reuse_in_doubt_creates_one_chain(kind, records, fault, method):
    """Otherwise, after a lost answer, the caller would mistake its own new chain for another caller's chain."""
    kind(records).open_batch("t", ["old"])
    kind(records).stamp_children("t", ["old"])
    chains, faulty = over(kind, records, at(method, fault))
    chains.open_batch("t", ["new"], reuse=True)
    faulty.settle()
    assert chains.state("t").missing == ("new",)
    assert chains.stamp_children("t", ["new"]) == Acked()


def test_unknown_and_finished_tags_are_distinguished(chains):
    """Otherwise a caller could not tell a finished chain (`AlreadyAcked`) from an unknown tag (`TagNotFound`)."""
    for call in (
        lambda: chains.stamp("t", A),
        lambda: chains.stamp_children("t", ["1"]),
        lambda: chains.state("t"),
        lambda: chains.fail("t", "no"),
        lambda: chains.delete("t"),
    ):
        with pytest.raises(TagNotFound):
            call()
    chains.open_batch("t", ["1"])
    assert chains.stamp_children("t", ["1"]) == Acked()
    assert chains.stamp_children("t", ["1"]) == AlreadyAcked()
    chains.delete("t")
    with pytest.raises(TagNotFound):
        chains.state("t")


def test_a_stamp_with_the_same_operation_id_is_applied_once(kind, records):
    """Otherwise a retry, from another process or after the chain was acked, would stamp twice."""
    one, other = kind(records), kind(records)
    one.create("t", xor(A, B))
    assert one.stamp("t", A, operation_id="op-a") == Stamped(missing=None)
    assert other.stamp("t", A, operation_id="op-a") == Stamped(missing=None)
    assert other.stamp("t", B, operation_id="op-b") == Acked()
    assert one.stamp("t", B, operation_id="op-b") == Acked()
    assert one.stamp("t", A, operation_id="op-a") == AlreadyAcked()


def test_named_children_count_once_whoever_stamps_them(chains):
    """Otherwise the stamps of two runs that finish the same slots would cancel each other out."""
    chains.open_batch("t", ["1", "2", "3"])
    assert chains.stamp_children("t", ["1", "2"], "run") == Stamped(missing=1)
    assert chains.stamp_children("t", ["1", "2"], "other") == Stamped(missing=1)
    assert chains.stamp_children("t", ["2"], "other") == Stamped(missing=1)
    assert chains.stamp_children("t", ["1", "2", "3"], "run") == Acked()


def test_a_failed_chain_keeps_reason_and_missing_children(chains):
    """Otherwise an operator would not learn why a chain failed, or a late stamp would change the failed chain."""
    chains.open_batch("t", ["1", "2"])
    chains.stamp_children("t", ["1"])
    assert chains.fail("t", "run died").status == "failed"
    assert chains.stamp_children("t", ["2"]) == AlreadyFailed(reason="run died")
    found = chains.fail("t", "another reason")
    assert (found.status, found.reason, found.missing) == ("failed", "run died", ("2",))


def test_overdue_uses_the_callers_own_elapsed_time(chains):
    """Otherwise a wrong wall clock would fail a chain too early."""
    chains.open_batch("t", ["1"], deadline_seconds=60)
    state = chains.state("t")
    assert not overdue(state, 59.9)
    assert overdue(state, 60)
    chains.open_batch("u", ["1"])
    assert not overdue(chains.state("u"), 1e9)
    chains.stamp_children("t", ["1"])
    assert not overdue(chains.state("t"), 1e9)


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE])
@pytest.mark.parametrize("late_by", [1, 2, 3])
def test_a_creation_in_doubt_is_recognised(kind, records, fault, late_by):
    """Otherwise, after a lost answer, a caller would get a conflict with its own chain."""
    chains, faulty = over(kind, records, at("create", fault), late_by_calls=late_by)
    chains.open_batch("t", ["1"])
    faulty.settle()
    assert chains.state("t").missing == ("1",)


def test_a_creation_in_doubt_finds_another_callers_chain(kind, records):
    """Otherwise a caller would mistake another caller's chain for its own."""
    kind(records).open_batch("t", ["1"])
    chains, _ = over(kind, records, at("create", Fault.REFUSED))
    with pytest.raises(TagExists):
        chains.open_batch("t", ["2"])
