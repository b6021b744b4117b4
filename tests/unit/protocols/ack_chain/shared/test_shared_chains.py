"""Chains shared with the npm package: each stamp counts once, even if its response is lost."""

import itertools

import pytest

from s3notify_platform.kernel.errors import (
    BufferLengthsUnequal,
    CorruptError,
    StaleLocalData,
    TagNotFound,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from s3notify_platform.protocols.ack_chain import (
    Acked,
    Stamped,
    xor,
)
from s3notify_platform.protocols.ack_chain.shared import SHARED_ATTEMPTS, SharedChains, plans
from tests.support.clocks import HandClock, HurriedClock
from tests.support.faults import CrashedError, Fault, FaultyStore, at

A, B, C = (bytes([byte]) * 16 for byte in (1, 2, 4))


@pytest.fixture
def chains(records):
    return SharedChains(records, clock=HandClock())


def over(records, schedule=lambda _: Fault.NONE, **kwargs):
    faulty = FaultyStore(records, schedule, **kwargs)
    return SharedChains(faulty, clock=HurriedClock()), faulty


def methods(faulty):
    return [call.method for call, _ in faulty.calls]


# Create, stamp, ack


def test_a_parents_end_and_its_childrens_starts_go_into_one_stamp(chains):
    """Otherwise the chain would look done between the parent's end and the children's start."""
    chains.create("t", A, children={"parent": A})
    chains.stamp("t", xor(A, B, C), children=["parent"], starts=["b", "c"])
    assert chains.state("t").missing == ("b", "c")
    assert chains.stamp("t", B, children=["b"]) == Stamped(missing=1)
    assert chains.stamp("t", C, children=["c"]) == Acked()
    assert chains.state("t").children == ("b", "c", "parent")


def test_children_must_add_up_to_the_stamp(chains):
    """Otherwise a chain would be created that its children can never ack."""
    with pytest.raises(UsageError, match="not the XOR"):
        chains.create("t", A, children={"a": A, "b": B})
    with pytest.raises(BufferLengthsUnequal):
        chains.create("t", A, children={"a": A, "b": b"x" * 8})


def test_each_operation_sends_only_the_documented_requests(records):
    """Otherwise a batch of 1000 slots in 4 runs would cost more than 9 requests until it is acked."""
    chains, faulty = over(records)
    chains.open_batch("batch", map(str, range(1000)), payload="{}")
    for run in range(4):
        outcome = chains.stamp_children("batch", map(str, range(run, 1000, 4)), f"run-{run}")
    assert outcome == Acked()
    assert methods(faulty) == ["create"] + ["read", "replace"] * 4
    faulty.calls.clear()
    chains.state("batch")
    chains.delete("batch")
    assert methods(faulty) == ["read", "read", "remove"]


def test_a_batch_names_its_missing_children(chains, records):
    """Otherwise the sensor would not learn which slots are missing, or the record would be large."""
    opened = chains.open_batch(
        "t", map(str, range(0, 1000, 2)), deadline_seconds=60, payload='{"digests": "…"}'
    )
    assert opened == chains.state("t")
    assert (opened.payload, opened.deadline_seconds) == ('{"digests": "…"}', 60)
    assert chains.stamp_children("t", map(str, range(0, 996, 2))) == Stamped(missing=2)
    assert chains.state("t").missing == ("996", "998")
    assert len(records.read("ack", "t").value) < 6000
    assert [state.tag for state in chains.states()] == ["t"]


def test_children_are_begun_by_name(chains):
    """Otherwise a parent that repeats its stamp would begin its children twice."""
    chains.open_batch("t", ["1"])
    assert chains.stamp_children("t", ["1"], starts=["1/a", "1/b"]) == Stamped(missing=2)
    assert chains.stamp_children("t", ["1"], starts=["1/a", "1/b"]) == Stamped(missing=2)
    assert chains.stamp_children("t", ["1/a", "1/b"]) == Acked()


def test_a_raw_stamp_is_refused_if_only_some_of_its_children_have_ended(chains):
    """Otherwise a stamp would be applied although some of its children have ended. A raw stamp is the XOR of its
    children, and cannot be applied in part.
    """
    chains.create("t", xor(A, B, C), children={"a": A, "b": B, "c": C})
    assert chains.stamp("t", A, children=["a"]) == Stamped(missing=2)
    assert chains.stamp("t", A, children=["a"]) == Stamped(missing=2)
    with pytest.raises(UsageError, match="another operation"):
        chains.stamp("t", xor(A, B), children=["a", "b"])
    with pytest.raises(UsageError, match="no children"):
        chains.stamp("t", A, children=["x"])
    with pytest.raises(UsageError, match="created with stamps"):
        chains.stamp_children("t", ["b"])
    assert chains.stamp("t", xor(B, C), children=["b", "c"]) == Acked()


def test_wrong_calls_write_nothing(chains, records):
    """Otherwise a wrong call would leave records behind, or not say what to correct."""
    with pytest.raises(UsageError, match="no children"):
        chains.open_batch("t", [])
    with pytest.raises(UsageError, match="tag"):
        chains.open_batch("", ["1"])
    with pytest.raises(UsageError, match="deadline"):
        chains.open_batch("t", ["1"], deadline_seconds=0)
    with pytest.raises(UsageError, match="payload"):
        chains.open_batch("t", ["1"], payload="x" * 100_001)
    assert not list(records.scan("ack"))
    chains.open_batch("t", ["1"])
    with pytest.raises(UsageError, match=r"no children \['2'\]"):
        chains.stamp_children("t", ["1", "2"])
    assert chains.state("t").missing == ("1",)


def test_the_number_of_raw_stamps_is_bounded(chains, monkeypatch):
    """Otherwise a chain with endless raw stamps would grow beyond the item size of DynamoDB."""
    monkeypatch.setattr(plans, "OPERATIONS_MAX", 1)
    chains.create("t", xor(A, B))
    chains.stamp("t", A)
    with pytest.raises(UsageError, match="XOR several"):
        chains.stamp("t", C)


# Failure, deadline, purge


def test_an_acked_chain_cannot_fail(chains):
    """Otherwise `fail` would report an acked chain as failed."""
    chains.open_batch("t", ["1"])
    chains.stamp_children("t", ["1"])
    assert chains.fail("t", "late").status == "acked"


def test_purge_removes_chains_some_time_after_they_were_closed(records):
    """Otherwise closed chains would stay for ever, or open chains would be removed."""
    clock = HandClock()
    chains = SharedChains(records, clock=clock, tombstone_seconds=10)
    chains.open_batch("open", ["1"])
    chains.open_batch("acked", ["1"])
    chains.stamp_children("acked", ["1"])
    chains.open_batch("failed", ["1"])
    chains.fail("failed", "x")
    assert chains.purge() == 0
    clock.now += 11
    assert chains.purge() == 2
    assert [state.tag for state in chains.states()] == ["open"]


@pytest.mark.parametrize("value", [b"", b"{}", b'{"v":2,"status":"open"}', b"[1]", b"\xff"])
def test_corrupt_records_raise_corrupt_error(chains, records, value):
    """Otherwise a corrupt record would be mistaken for a missing chain."""
    records.create("ack", "t", value)
    with pytest.raises(CorruptError):
        chains.state("t")


# Faults


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE])
@pytest.mark.parametrize("late_by", [1, 2, 3])
def test_a_stamp_in_doubt_is_applied_once(records, fault, late_by):
    """Otherwise a stamp would count twice, or not at all, after a lost, refused or late response."""
    SharedChains(records).create("t", xor(A, B))
    chains, faulty = over(records, at("replace", fault), late_by_calls=late_by)
    assert chains.stamp("t", A) == Stamped(missing=None)
    faulty.settle()
    assert chains.stamp("t", B) == Acked()


def test_the_last_stamp_of_a_chain_gets_acked_even_if_it_is_in_doubt(records):
    """Otherwise the caller would not learn that its stamp was the last one. The npm package crashes in this case."""
    SharedChains(records).create("t", A)
    chains, _ = over(records, at("replace", Fault.LOST))
    assert chains.stamp("t", A) == Acked()


@pytest.mark.parametrize("fault", [Fault.CRASH_AFTER, Fault.CRASH_BEFORE])
@pytest.mark.parametrize("method", ["read", "replace"])
def test_a_stamp_repeated_after_a_crash_is_applied_once(records, fault, method):
    """Otherwise a process that repeats the operation of a crashed process would stamp twice."""
    SharedChains(records).create("t", xor(A, B))
    chains, _ = over(records, at(method, fault))
    with pytest.raises(CrashedError):
        chains.stamp("t", A, operation_id="op")
    assert SharedChains(records).stamp("t", A, operation_id="op") == Stamped(missing=None)
    assert SharedChains(records).stamp("t", B, operation_id="op2") == Acked()


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE])
def test_a_deletion_in_doubt_is_reported_as_done(records, fault):
    """Otherwise the chain would stay, or the caller would get an error although the chain is deleted."""
    chains, faulty = over(records, at("remove", fault))
    chains.open_batch("t", ["1"])
    chains.delete("t")
    faulty.settle()
    with pytest.raises(TagNotFound):
        chains.state("t")


def test_a_deletion_in_doubt_spares_a_chain_that_was_created_meanwhile(records):
    """Otherwise a repeated deletion would delete a new chain that has the same tag."""
    chains, _ = over(records, at("remove", Fault.LOST))
    chains.open_batch("t", ["1"])
    reading, reads = records.read, itertools.count()

    def read(partition, key):
        if next(reads) == 1:
            SharedChains(records).open_batch("t", ["new"])
        return reading(partition, key)

    records.read = read
    chains.delete("t")
    assert chains.state("t").children == ("new",)


def test_an_error_before_any_write_is_raised_unchanged(records):
    """Otherwise the caller would not learn that nothing was applied and that it may retry."""
    SharedChains(records).open_batch("t", ["1"])
    for method, call in {
        "read": lambda chains: chains.stamp_children("t", ["1"]),
        "scan": lambda chains: list(chains.states()),
    }.items():
        chains, _ = over(records, at(method, Fault.REFUSED))
        with pytest.raises(UnavailableError):
            call(chains)
    chains, _ = over(records, at("read", Fault.REFUSED))
    with pytest.raises(UnavailableError):
        chains.delete("t")


def test_a_stamper_gives_up_with_an_error_after_a_number_of_attempts(records):
    """Otherwise a stamper would retry for ever if other stampers are always faster, or if the store never answers."""
    SharedChains(records).open_batch("t", ["1", "2"])
    chains, faulty = over(records)
    reading = records.read

    def read_then_change(partition, key):
        record = reading(partition, key)
        records.replace(partition, key, record.value, expected=record.version)
        return record

    records.read = read_then_change
    with pytest.raises(StaleLocalData):
        chains.stamp_children("t", ["1"])
    assert methods(faulty).count("replace") == SHARED_ATTEMPTS
    with pytest.raises(StaleLocalData):
        chains.delete("t")
    records.read = reading

    chains, _ = over(records, lambda call: Fault.REFUSED if call.number else Fault.NONE)
    with pytest.raises(UnknownOutcomeError):
        chains.stamp_children("t", ["1"])
    chains, _ = over(records, lambda call: Fault.REFUSED if call.number else Fault.NONE)
    with pytest.raises(UnknownOutcomeError):
        chains.delete("t")
    chains, _ = over(records, lambda _: Fault.REFUSED)
    with pytest.raises(UnknownOutcomeError):
        chains.open_batch("new", ["1"])
