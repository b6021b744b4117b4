"""Writes in doubt: the outcome is right even if the read that checks it fails."""

import pytest

from s3notify_platform.kernel.attempts import ATTEMPTS
from s3notify_platform.kernel.errors import UnavailableError, UnknownOutcomeError
from s3notify_platform.kernel.ports import Record
from s3notify_platform.protocols.updates import REMOVE, Changed, Stored, Updates
from tests.support.clocks import HandClock
from tests.support.faults import Fault, FaultyStore, scripted

DOUBTS = [Fault.LOST, Fault.REFUSED, Fault.LATE]


def writes(records, faults):
    """Returns `Updates` over a record store whose calls have these faults, in order."""
    return Updates(FaultyStore(records, scripted(dict(enumerate(faults)))), HandClock())


@pytest.mark.parametrize("looking", [[], [Fault.THROTTLED], [Fault.THROTTLED, Fault.LOST]])
@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_write_in_doubt_is_recognised_once_it_is_stored(records, doubt, looking):
    """Otherwise a writer would get a conflict with its own first or second attempt."""
    faults = [doubt, *looking]
    outcome = writes(records, faults).create("p", "a", b"1")
    assert outcome == Stored(version=records.read("p", "a").version)
    outcome = writes(records, faults).replace("p", "a", b"2", expected=outcome.version)
    assert outcome == Stored(version=records.read("p", "a").version)
    assert records.read("p", "a").value == b"2"


@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_removal_in_doubt_is_reported_as_in_doubt(records, doubt):
    """Otherwise the outcome would say that the caller removed the record, although another client may have
    removed it.
    """
    version = records.create("p", "a", b"1").etag
    outcome = writes(records, [doubt]).remove("p", "a", expected=version)
    assert records.read("p", "a") is None
    if doubt is Fault.LOST:
        assert outcome == Changed(record=None, in_doubt=True)
    else:
        assert isinstance(outcome, Stored)


def test_a_conflict_returns_the_stored_record(records):
    """Otherwise a caller would need another read, or would treat the outcome of its own attempt as unknown."""
    records.create("p", "a", b"other")
    outcome = writes(records, []).create("p", "a", b"1")
    assert (outcome.record.value, outcome.in_doubt) == (b"other", False)
    assert writes(records, []).replace("p", "none", b"1", expected="9") == Changed(
        record=None, in_doubt=False
    )


@pytest.mark.parametrize("doubt", [Fault.REFUSED, Fault.LATE])
def test_a_creation_that_must_be_sent_once_is_not_repeated(records, doubt):
    """Otherwise a record that was created and meanwhile removed would be created again."""
    with pytest.raises(UnknownOutcomeError):
        writes(records, [doubt]).create("p", "a", b"1", once=True)
    assert isinstance(
        writes(records, [Fault.LOST, Fault.THROTTLED]).create("p", "b", b"1", once=True), Stored
    )
    assert isinstance(writes(records, [Fault.THROTTLED]).create("p", "c", b"1", once=True), Stored)


def test_a_store_that_never_answers_is_given_up(records):
    """Otherwise a caller would retry for ever, or could not distinguish a write that was not applied from a write whose
    outcome is unknown.
    """
    with pytest.raises(UnavailableError):
        writes(records, [Fault.THROTTLED] * 100).create("p", "a", b"1")
    faulty = FaultyStore(records, lambda call: Fault.REFUSED)
    with pytest.raises(UnknownOutcomeError):
        Updates(faulty, HandClock()).create("p", "a", b"1")
    # A write is never sent again before a read has shown that it was not applied.
    assert [call.method for call, _ in faulty.calls] == ["create"] + ["read"] * ATTEMPTS
    faulty = FaultyStore(records, lambda call: Fault.REFUSED if call.method == "create" else Fault.NONE)
    with pytest.raises(UnknownOutcomeError):
        Updates(faulty, HandClock()).create("p", "a", b"1")
    assert [call.method for call, _ in faulty.calls] == ["create", "read"] * ATTEMPTS


@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_change_that_removes_a_record_returns_only_its_own_result(records, doubt):
    """Otherwise two callers would both report that they removed the record."""
    records.create("p", "a", b"1")

    def empty(found):
        return (REMOVE, found.value) if found is not None else (None, "gone")

    result, left = writes(records, [Fault.NONE, doubt]).change("p", "a", empty)
    assert left is records.read("p", "a") is None
    assert result == ("gone" if doubt is Fault.LOST else b"1")


def test_a_change_begins_with_the_known_record(records):
    """Otherwise a change of a known record would cost a read, or overwrite a newer state of the record."""
    known = Record(key="a", value=b"1", version=records.create("p", "a", b"1").etag)
    faulty = FaultyStore(records)
    updates = Updates(faulty, HandClock())

    def longer(found):
        return found.value + b"+", found.value

    assert updates.change("p", "a", longer, known=known)[0] == b"1"
    assert [call.method for call, _ in faulty.calls] == ["replace"]
    assert updates.change("p", "a", longer, known=known)[0] == b"1+"
    assert [call.method for call, _ in faulty.calls[1:]] == ["replace", "read", "replace"]
    assert records.read("p", "a").value == b"1++"


def test_a_patient_change_outlasts_an_outage(records):
    """Otherwise a change would fail in a short outage, although its outcome is known."""
    away = [Fault.THROTTLED] * 3
    with pytest.raises(UnavailableError):
        writes(records, away).change("p", "a", lambda _: (b"1", None))
    assert writes(records, away).change("p", "a", lambda _: (b"1", None), patient=True)[1].value == b"1"
    with pytest.raises(UnavailableError):
        writes(records, [Fault.THROTTLED] * 100).change("p", "a", lambda _: (b"2", None), patient=True)


@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_change_in_doubt_is_applied_once(records, doubt):
    """Otherwise a counter would count twice after a lost answer."""
    records.create("p", "a", b"1")

    def one_more(found):
        value = b"%d" % (int(found.value) + 1)
        return value, value

    result, record = writes(records, [Fault.NONE, doubt]).change("p", "a", one_more)
    assert (result, record.value, records.read("p", "a").value) == (b"2", b"2", b"2")
