"""Native conditional commit: one winner, and no verdict by guess."""

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


def test_the_first_wins_and_the_second_has_lost_for_one_request_each(store):
    """Create: 1 PUT, whoever wins."""
    counting = CountingStore(store)
    commit: ConditionalCommit = NativeCommit(counting)
    first = commit.put_if_absent(PATH, b"1", metadata={"m": "v"})
    assert first == Written(etag=store.head(PATH).etag)
    assert commit.put_if_absent(PATH, b"2") == Conflict()
    assert counting.counts == {"PUT": 2}
    assert store.head(PATH).metadata["m"] == "v"


def test_update_under_an_etag(store):
    """Update: 1 PUT; the old ETag has lost from then on."""
    commit = NativeCommit(store)
    first = commit.put_if_absent(PATH, b"1")
    second = commit.put_if_match(PATH, b"2", first.etag)
    assert isinstance(second, Written)
    assert commit.put_if_match(PATH, b"3", first.etag) == Conflict()
    assert commit.put_if_match("absent", b"3", first.etag) == Conflict()
    assert store.get(PATH).body == b"2"


def test_a_lost_response_found_to_be_our_own_is_success(store):
    """Not a conflict with oneself: PUT, HEAD."""
    commit, faulty = commit_over(store, at("put", Fault.LOST))
    assert commit.put_if_absent(PATH, b"1") == Written(etag=store.head(PATH).etag)
    assert methods(faulty) == ["put", "head"]


def test_an_unapplied_unknown_is_sent_again_under_the_same_writer(store):
    """PUT, HEAD, PUT."""
    commit, faulty = commit_over(store, at("put", Fault.REFUSED))
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)
    assert methods(faulty) == ["put", "head", "put"]


@pytest.mark.parametrize("late_by", [1, 2, 3])
def test_an_attempt_that_lands_late_is_found_to_be_ours(store, late_by):
    """Before our look, between look and retry, or after: committed once."""
    faulty = FaultyStore(store, at("put", Fault.LATE), late_by_calls=late_by)
    outcome = NativeCommit(faulty, clock=HurriedClock()).put_if_absent(PATH, b"1")
    faulty.settle()
    assert outcome == Written(etag=store.head(PATH).etag)


def test_unknown_while_another_was_first_is_lost(store):
    """The other's object was written under the same precondition: only one of us can have met it."""
    NativeCommit(store).put_if_absent(PATH, b"other")
    commit, _ = commit_over(store, at("put", Fault.LOST))
    assert commit.put_if_absent(PATH, b"1") == Conflict()


def test_unknown_while_another_updated_first_is_lost(store):
    """The same for updates."""
    etag = NativeCommit(store).put_if_absent(PATH, b"0").etag
    NativeCommit(store).put_if_match(PATH, b"other", etag)
    commit, _ = commit_over(store, at("put", Fault.REFUSED))
    assert commit.put_if_match(PATH, b"1", etag) == Conflict()


def test_applied_but_replaced_before_we_looked_is_unknown_not_lost(store):
    """Our update went in and another's on top of it: `Conflict` would have it applied twice."""
    etag = NativeCommit(store).put_if_absent(PATH, b"0").etag

    commit, faulty = commit_over(store, at("put", Fault.LOST))
    looking = store.head

    def replace_then_head(path):
        store.head = looking
        NativeCommit(store).put_if_match(path, b"2", looking(path).etag)
        return looking(path)

    store.head = replace_then_head
    with pytest.raises(UnknownOutcomeError, match="in doubt"):
        commit.put_if_match(PATH, b"1", etag)
    assert methods(faulty) == ["put", "head"]


def test_a_foreign_object_after_an_unknown_is_unknown(store):
    """It carries no proof: a plain write may have replaced ours."""
    store.put(PATH, b"foreign")
    commit, _ = commit_over(store, at("put", Fault.REFUSED))
    with pytest.raises(UnknownOutcomeError):
        commit.put_if_absent(PATH, b"1")


def test_a_conflict_that_came_and_went_is_unknown(store):
    """Refused, looked, conflict, and then nothing there: it may have been our own late attempt."""
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


def test_it_is_bounded_and_says_unknown(store):
    """A store that never answers: ATTEMPTS rounds, then `UnknownOutcomeError`, never `failed`."""
    commit, faulty = commit_over(store, lambda call: Fault.REFUSED if call.method == "put" else Fault.NONE)
    with pytest.raises(UnknownOutcomeError, match="not confirmed"):
        commit.put_if_absent(PATH, b"1")
    assert methods(faulty).count("put") == ATTEMPTS
    commit, faulty = commit_over(store, lambda _: Fault.REFUSED)
    with pytest.raises(UnknownOutcomeError, match=r"not confirmed.*head"):
        commit.put_if_absent(PATH, b"1")
    assert methods(faulty) == ["put"] + ["head"] * ATTEMPTS


def test_heads_are_retried(store):
    """A failed look is no verdict."""
    commit, _ = commit_over(store, scripted({0: Fault.LOST, 1: Fault.REFUSED, 2: Fault.REFUSED}))
    assert isinstance(commit.put_if_absent(PATH, b"1"), Written)


def test_unavailable_before_anything_was_sent_is_passed_on(store):
    """Nothing was applied, and the caller may retry; in a later round it leaves the outcome unknown."""

    class Down(MemoryObjectStore):
        def put(self, *args, **kwargs):
            raise UnavailableError("down")

    with pytest.raises(UnavailableError, match="down"):
        NativeCommit(Down(), clock=HurriedClock()).put_if_absent(PATH, b"1")
    commit, _ = commit_over(Down(), at("put", Fault.REFUSED))
    with pytest.raises(UnknownOutcomeError):
        commit.put_if_absent(PATH, b"1")


def test_a_store_that_tells_no_etag_is_asked_for_it(store):
    """Written always carries the ETag."""
    putting = store.put
    store.put = lambda *args, **kwargs: Written(etag=None) if putting(*args, **kwargs) else None
    assert NativeCommit(store).put_if_absent(PATH, b"1") == Written(etag=store.head(PATH).etag)


def test_copy_if_absent(store):
    """One COPY; the copy carries this call's writer id over the metadata of its source."""
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


def test_a_copy_in_doubt_is_looked_up(store):
    """By the writer id that it carries; another's copy of the same source is not ours."""
    store.put("source", b"1")
    commit, faulty = commit_over(store, at("copy", Fault.LOST))
    assert commit.copy_if_absent("source", PATH) == Written(etag=store.head(PATH).etag)
    assert methods(faulty) == ["copy", "head"]
    commit, faulty = commit_over(store, at("copy", Fault.REFUSED))
    assert commit.copy_if_absent("source", PATH) == Conflict()
    commit, faulty = commit_over(store, at("copy", Fault.REFUSED))
    assert isinstance(commit.copy_if_absent("source", "target"), Written)
    assert methods(faulty) == ["copy", "head", "copy"]


def test_a_source_that_goes_while_a_copy_is_in_doubt_leaves_it_unknown(store):
    """The copy may have been made, or may be under way: not `NotFoundError`, which says that nothing was."""
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


def test_delete_if_match(store):
    """One DELETE; the version is gone by this call, or it was not there."""
    first = store.put(PATH, b"1").etag
    second = store.put(PATH, b"2").etag
    counting = CountingStore(store)
    commit = NativeCommit(counting)
    assert commit.delete_if_match(PATH, first) == Conflict()
    assert store.get(PATH).body == b"2"
    assert commit.delete_if_match(PATH, second) == Written(etag=None)
    assert commit.delete_if_match(PATH, second) == Conflict()
    assert counting.counts == {"DELETE": 3}


def test_a_delete_in_doubt_leaves_nothing_to_judge_by(store):
    """Gone, but by whom: unknown. Still there: sent again. Replaced under the same ETag: lost."""
    etag = NativeCommit(store).put_if_absent(PATH, b"1").etag
    commit, faulty = commit_over(store, at("delete", Fault.LOST))
    with pytest.raises(UnknownOutcomeError, match="in doubt"):
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
def test_where_a_condition_is_ignored_the_probe_says_so_and_leases_do_without(store, ignores):
    """What this file assumes of a store, and cannot see by itself."""
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


def test_judge_is_pure_and_cautious():
    """The table of verdicts."""

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
