"""Native conditional commit: one writer wins, and an outcome is never guessed."""

import pytest

from s3notify_platform.kernel.attempts import ATTEMPTS
from s3notify_platform.kernel.errors import NotFoundError, UnavailableError, UnknownOutcomeError
from s3notify_platform.kernel.ports import ABSENT, Conflict, ETag, IfMatch, ObjectMeta, Written
from s3notify_platform.protocols.conditional_commit import (
    EXPECTED,
    ConditionalCommit,
    DynamoCommit,
    NativeCommit,
    judge,
)
from s3notify_platform.protocols.updates import WRITER
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from s3notify_platform.stores.probe import probe
from tests.contracts.ignoring_store import IgnoringStore
from tests.support.clocks import HurriedClock
from tests.support.faults import Fault, FaultyStore, at, scripted
from tests.support.record_leases import RecordLeases

PATH = "commits/1"


@pytest.fixture
def store():
    return MemoryObjectStore()


def commit_over(store, schedule):
    faulty = FaultyStore(store, schedule)
    return NativeCommit(faulty, clock=HurriedClock()), faulty


def methods(faulty):
    return [call.method for call, _ in faulty.calls]


def test_winner_and_loser_pay_one_request_each(store):
    """Otherwise a second writer would overwrite the first, or a commit would cost more than 1 PUT."""
    counting = CountingStore(store)
    commit: ConditionalCommit = NativeCommit(counting)
    first = commit.put_if_absent(PATH, b"1", metadata={"m": "v"})
    assert first == Written(etag=store.head(PATH).etag)
    assert commit.put_if_absent(PATH, b"2") == Conflict()
    assert counting.counts == {"PUT": 2}
    assert store.head(PATH).metadata["m"] == "v"


def test_an_update_needs_the_current_etag(store):
    """Otherwise an update under an old ETag would overwrite a newer version."""
    commit = NativeCommit(store)
    first = commit.put_if_absent(PATH, b"1")
    second = commit.put_if_match(PATH, b"2", first.etag)
    assert isinstance(second, Written)
    assert commit.put_if_match(PATH, b"3", first.etag) == Conflict()
    assert commit.put_if_match("absent", b"3", first.etag) == Conflict()
    assert store.get(PATH).body == b"2"


def test_a_write_with_a_lost_response_is_recognised(store):
    """Otherwise a writer would get a conflict with its own write."""
    commit, faulty = commit_over(store, at("put", Fault.LOST))
    assert commit.put_if_absent(PATH, b"1") == Written(etag=store.head(PATH).etag)
    assert methods(faulty) == ["put", "head"]


def test_an_unapplied_write_in_doubt_is_sent_again(store):
    """Otherwise a writer would give up although its write was not applied."""
    commit, faulty = commit_over(store, at("put", Fault.REFUSED))
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert methods(faulty) == ["put", "head", "put"]


@pytest.mark.parametrize("late_by", [1, 2, 3])
def test_an_attempt_that_is_applied_late_is_recognised(store, late_by):
    """Otherwise a late attempt would be committed twice. The attempt is applied before the HEAD, before the retry, or
    after the retry.
    """
    faulty = FaultyStore(store, at("put", Fault.LATE), late_by_calls=late_by)
    outcome = NativeCommit(faulty, clock=HurriedClock()).put_if_absent(PATH, b"1")
    faulty.settle()
    assert outcome == Written(etag=store.head(PATH).etag)


def test_a_write_in_doubt_loses_against_an_earlier_create(store):
    """Otherwise the outcome would be unknown, although the stored object decides it. This object was created under the
    same precondition, which only one write can meet.
    """
    NativeCommit(store).put_if_absent(PATH, b"other")
    commit, _ = commit_over(store, at("put", Fault.LOST))
    assert commit.put_if_absent(PATH, b"1") == Conflict()


def test_a_write_in_doubt_loses_against_an_earlier_update(store):
    """Otherwise the outcome would be unknown, although the stored object decides it. This object was written under the
    same precondition, which only one update can meet.
    """
    etag = NativeCommit(store).put_if_absent(PATH, b"0").etag
    NativeCommit(store).put_if_match(PATH, b"other", etag)
    commit, _ = commit_over(store, at("put", Fault.REFUSED))
    assert commit.put_if_match(PATH, b"1", etag) == Conflict()


def test_the_outcome_is_unknown_if_a_write_in_doubt_was_applied_and_replaced(store):
    """If the outcome were `Conflict`, the caller would apply its update a second time."""
    etag = NativeCommit(store).put_if_absent(PATH, b"0").etag

    commit, faulty = commit_over(store, at("put", Fault.LOST))
    looking = store.head

    def replace_then_head(path):
        store.head = looking
        NativeCommit(store).put_if_match(path, b"2", looking(path).etag)
        return looking(path)

    store.head = replace_then_head
    with pytest.raises(UnknownOutcomeError, match="outcome of an attempt is unknown"):
        commit.put_if_match(PATH, b"1", etag)
    assert methods(faulty) == ["put", "head"]


def test_the_outcome_is_unknown_if_a_foreign_object_is_found_after_a_write_in_doubt(store):
    """A plain write may have replaced our write, so the outcome `Conflict` would be a guess."""
    store.put(PATH, b"foreign")
    commit, _ = commit_over(store, at("put", Fault.REFUSED))
    with pytest.raises(UnknownOutcomeError):
        commit.put_if_absent(PATH, b"1")


def test_the_outcome_is_unknown_after_a_conflict_with_an_object_that_has_disappeared(store):
    """The conflicting object may have been our own late attempt, so the outcome `Conflict` would be a guess."""
    commit, faulty = commit_over(store, at("put", Fault.REFUSED))
    putting = faulty.store.put
    calls = 0

    def conflict_then_gone(path, body, **kwargs):
        nonlocal calls
        calls += 1
        store.put = MemoryObjectStore.put.__get__(store)
        putting(path, b"other", **kwargs)
        outcome = putting(path, body, **kwargs)
        store.delete(path)
        return outcome

    store.put = conflict_then_gone
    with pytest.raises(UnknownOutcomeError):
        commit.put_if_absent(PATH, b"1")
    assert calls == 1


def test_a_store_that_never_answers_gives_an_unknown_outcome(store):
    """Otherwise a writer would retry for ever, or report that its write failed."""
    commit, faulty = commit_over(store, lambda call: Fault.REFUSED if call.method == "put" else Fault.NONE)
    with pytest.raises(UnknownOutcomeError, match="not confirmed"):
        commit.put_if_absent(PATH, b"1")
    assert methods(faulty).count("put") == ATTEMPTS
    commit, faulty = commit_over(store, lambda _: Fault.REFUSED)
    with pytest.raises(UnknownOutcomeError, match=r"not confirmed.*head"):
        commit.put_if_absent(PATH, b"1")
    assert methods(faulty) == ["put"] + ["head"] * ATTEMPTS


def test_failed_heads_are_retried(store):
    """Otherwise a failed HEAD would be mistaken for an answer."""
    commit, _ = commit_over(store, scripted({0: Fault.LOST, 1: Fault.REFUSED, 2: Fault.REFUSED}))
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)


def test_an_error_before_any_write_is_raised_unchanged(store):
    """Otherwise the caller would not learn that nothing was applied. If an earlier attempt may have been applied,
    however, the outcome must be unknown.
    """

    class Down(MemoryObjectStore):
        def put(self, *args, **kwargs):
            raise UnavailableError("down")

    with pytest.raises(UnavailableError, match="down"):
        NativeCommit(Down(), clock=HurriedClock()).put_if_absent(PATH, b"1")
    commit, _ = commit_over(Down(), at("put", Fault.REFUSED))
    with pytest.raises(UnknownOutcomeError):
        commit.put_if_absent(PATH, b"1")


def test_a_missing_etag_is_read_by_a_head(store):
    """Otherwise `Written` would lack the ETag that the next update needs."""
    putting = store.put
    store.put = lambda *args, **kwargs: Written(etag=None) if putting(*args, **kwargs) else None
    assert NativeCommit(store).put_if_absent(PATH, b"1") == Written(etag=store.head(PATH).etag)


def test_a_copy_carries_the_writer_id_of_its_call(store):
    """Otherwise a copy would keep the writer id of its source, so it could not be recognised after a lost answer."""
    store.put("source", b"1", metadata={"kept": "k", WRITER: "of the source", EXPECTED: "old"})
    counting = CountingStore(store)
    commit = NativeCommit(counting)
    assert commit.copy_if_absent("source", PATH) == Written(etag=store.head(PATH).etag)
    assert commit.copy_if_absent("source", PATH) == Conflict()
    assert counting.counts == {"COPY": 2}
    found = store.head(PATH).metadata
    assert (found["kept"], found[EXPECTED]) == ("k", "*")
    assert found[WRITER] != "of the source"
    with pytest.raises(NotFoundError, match="nothing"):
        commit.copy_if_absent("nothing", "target")


def test_a_copy_in_doubt_is_recognised_by_its_writer_id(store):
    """Otherwise another writer's copy of the same source would be mistaken for our copy."""
    store.put("source", b"1")
    commit, faulty = commit_over(store, at("copy", Fault.LOST))
    assert commit.copy_if_absent("source", PATH) == Written(etag=store.head(PATH).etag)
    assert methods(faulty) == ["copy", "head"]
    commit, faulty = commit_over(store, at("copy", Fault.REFUSED))
    assert commit.copy_if_absent("source", PATH) == Conflict()
    commit, faulty = commit_over(store, at("copy", Fault.REFUSED))
    assert isinstance(commit.copy_if_absent("source", "target"), Written)
    assert methods(faulty) == ["copy", "head", "copy"]


def test_a_copy_in_doubt_stays_unknown_if_its_source_disappears(store):
    """If the error were `NotFoundError`, it would say that nothing was copied, although the copy may exist or be in
    flight.
    """
    store.put("source", b"1")
    commit, faulty = commit_over(store, at("copy", Fault.REFUSED))
    looking = store.head

    def head(path):
        store.delete("source")
        return looking(path)

    store.head = head
    with pytest.raises(UnknownOutcomeError, match="not confirmed"):
        commit.copy_if_absent("source", PATH)
    assert methods(faulty).count("copy") == ATTEMPTS


def test_a_delete_removes_only_the_expected_version(store):
    """Otherwise a delete under an old ETag would remove a newer version."""
    first = store.put(PATH, b"1").etag
    second = store.put(PATH, b"2").etag
    counting = CountingStore(store)
    commit = NativeCommit(counting)
    assert commit.delete_if_match(PATH, first) == Conflict()
    assert store.get(PATH).body == b"2"
    assert commit.delete_if_match(PATH, second) == Written(etag=None)
    assert commit.delete_if_match(PATH, second) == Conflict()
    assert counting.counts == {"DELETE": 3}


def test_the_outcome_of_a_delete_in_doubt_is_unknown_if_the_object_does_not_exist(store):
    """Otherwise the outcome would say that the caller deleted the object, although another client may have
    deleted it.
    """
    etag = NativeCommit(store).put_if_absent(PATH, b"1").etag
    commit, faulty = commit_over(store, at("delete", Fault.LOST))
    with pytest.raises(UnknownOutcomeError, match="outcome of an attempt is unknown"):
        commit.delete_if_match(PATH, etag)
    store.put(PATH, b"1")
    commit, faulty = commit_over(store, at("delete", Fault.REFUSED))
    assert commit.delete_if_match(PATH, etag) == Written(etag=None)
    assert methods(faulty) == ["delete", "head", "delete"]
    store.put(PATH, b"1")
    NativeCommit(store).put_if_match(PATH, b"2", etag)
    commit, faulty = commit_over(store, at("delete", Fault.REFUSED))
    assert commit.delete_if_match(PATH, etag) == Conflict()
    assert store.get(PATH).body == b"2"


@pytest.mark.parametrize("ignores", ["copy", "delete"])
def test_the_probe_reports_an_ignored_condition_and_leases_work_without_conditions(store, ignores):
    """Otherwise a store that ignores a condition would overwrite or delete objects, and nobody would learn of this."""
    ignoring = IgnoringStore(store, {ignores})
    found = probe(ignoring, "")
    assert (found.copy_if_absent, found.delete_if_match) == (ignores != "copy", ignores != "delete")
    store.put("source", b"1")
    first = store.put(PATH, b"there").etag
    second = store.put(PATH, b"there now").etag
    leases = DynamoCommit(ignoring, RecordLeases(MemoryRecordStore()))
    for commit, holds in ((leases, True), (NativeCommit(ignoring), False)):
        outcome = (
            commit.copy_if_absent("source", PATH)
            if ignores == "copy"
            else commit.delete_if_match(PATH, first)
        )
        assert (outcome == Conflict()) == holds
        assert (store.head(PATH) is not None and store.head(PATH).etag == second) == holds


def test_judge_gives_a_verdict_only_if_it_is_proven():
    """Otherwise a write could be reported as written or lost without proof."""

    def found(writer, expected, etag="e"):
        return ObjectMeta(key=PATH, etag=ETag(etag), size=1, metadata={WRITER: writer, EXPECTED: expected})

    update = IfMatch(etag=ETag("old"))
    assert judge(found("me", "*"), "me", ABSENT) == Written(etag=ETag("e"))
    assert judge(found("you", "*"), "me", ABSENT) == Conflict()
    assert judge(found("you", "old"), "me", update) == Conflict()
    assert judge(None, "me", ABSENT) is None
    assert judge(found("you", "x", "old"), "me", update) is None
    for nothing, precondition in (
        (found("you", "e0"), ABSENT),
        (found("you", "newer"), update),
        (None, update),
    ):
        with pytest.raises(UnknownOutcomeError):
            judge(nothing, "me", precondition)
