"""What chains promise in either form: a record for each stamp, or one record that all stampers change."""

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
    """16 bytes of ours; shorter than 8 is refused, zero is refused, and so is another length than the chain's."""
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


def test_a_chain_of_raw_stamps(chains):
    """create, stamp, stamp: the XOR decides."""
    chains.create("t", xor(A, B))
    assert chains.stamp("t", A) == Stamped(missing=None)
    assert chains.state("t").status == "open"
    assert chains.stamp("t", B) == Acked()
    assert chains.state("t").status == "acked"


def test_existing_tags_are_refused(chains):
    """Open or closed."""
    chains.open_batch("t", ["1"])
    with pytest.raises(TagExists):
        chains.create("t", A)
    chains.stamp_children("t", ["1"])
    with pytest.raises(TagExists):
        chains.open_batch("t", ["1"])


def test_a_stamp_returns_the_xor(chains):
    """As the npm package's does: what is left, with what others have stamped, and zero bytes at the end; repeated, too.

    Outcomes are equal whatever the XOR is.
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
def test_a_tag_that_has_ended_is_used_again_where_asked_for(chains, how):
    """At once, as often as it ends; an open one is not."""
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
def test_a_tag_used_again_in_doubt(kind, records, fault, method):
    """It is our chain, once, though the answer was lost."""
    kind(records).open_batch("t", ["old"])
    kind(records).stamp_children("t", ["old"])
    chains, faulty = over(kind, records, at(method, fault))
    chains.open_batch("t", ["new"], reuse=True)
    faulty.settle()
    assert chains.state("t").missing == ("new",)
    assert chains.stamp_children("t", ["new"]) == Acked()


def test_unknown_tags_and_finished_ones_are_distinguished(chains):
    """`TagNotFound` and `AlreadyAcked`."""
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
    """Also by another process, and also after the chain was acked."""
    one, other = kind(records), kind(records)
    one.create("t", xor(A, B))
    assert one.stamp("t", A, operation_id="op-a") == Stamped(missing=None)
    assert other.stamp("t", A, operation_id="op-a") == Stamped(missing=None)
    assert other.stamp("t", B, operation_id="op-b") == Acked()
    assert one.stamp("t", B, operation_id="op-b") == Acked()
    assert one.stamp("t", A, operation_id="op-a") == AlreadyAcked()


def test_named_children_are_applied_once_whoever_stamps_them(chains):
    """Two runs that finish the same slots do not cancel out, under any operation id."""
    chains.open_batch("t", ["1", "2", "3"])
    assert chains.stamp_children("t", ["1", "2"], "run") == Stamped(missing=1)
    assert chains.stamp_children("t", ["1", "2"], "other") == Stamped(missing=1)
    assert chains.stamp_children("t", ["2"], "other") == Stamped(missing=1)
    assert chains.stamp_children("t", ["1", "2", "3"], "run") == Acked()


def test_a_failed_chain_keeps_reason_and_missing_children(chains):
    """It stays failed; stamps on it get `AlreadyFailed`."""
    chains.open_batch("t", ["1", "2"])
    chains.stamp_children("t", ["1"])
    assert chains.fail("t", "run died").status == "failed"
    assert chains.stamp_children("t", ["2"]) == AlreadyFailed(reason="run died")
    found = chains.fail("t", "another reason")
    assert (found.status, found.reason, found.missing) == ("failed", "run died", ("2",))


def test_overdue_is_judged_by_the_callers_own_elapsed_time(chains):
    """Never by the wall clock in the record."""
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
def test_a_creation_in_doubt_is_found_to_be_ours(kind, records, fault, late_by):
    """Not a conflict with oneself."""
    chains, faulty = over(kind, records, at("create", fault), late_by_calls=late_by)
    chains.open_batch("t", ["1"])
    faulty.settle()
    assert chains.state("t").missing == ("1",)


def test_a_creation_in_doubt_while_anothers_exists(kind, records):
    """`TagExists`, after looking."""
    kind(records).open_batch("t", ["1"])
    chains, _ = over(kind, records, at("create", Fault.REFUSED))
    with pytest.raises(TagExists):
        chains.open_batch("t", ["2"])
