"""Records on a bucket: names, numbers of requests, and writes whose outcome is unknown."""

from collections import deque
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.attempts import ATTEMPTS
from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.ports import Conflict, Unknown, Version, Written
from s3notify_platform.protocols.updates import Changed, Stored, Updates
from s3notify_platform.stores.bucket_records import (
    ADD_ATTEMPTS,
    PAST_TOKENS,
    ObjectRecordStore,
    quote,
    unquote,
)
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.contracts.ignoring_store import IgnoringStore
from tests.support.clocks import HurriedClock

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


class LossyStore(CountingStore):
    """A store that loses the next PUTs and DELETEs. With `request`, the request is lost and not applied. With
    `response`, the request is applied, but its response is lost.
    """

    def __init__(self, store):
        super().__init__(store)
        self.losses = deque()
        self.before_answer = lambda: None

    def put(self, key, body, *, precondition=None, metadata=None):
        loss = self.losses.popleft() if self.losses else None
        if loss == "request":
            return Unknown(cause="lost")
        outcome = super().put(key, body, precondition=precondition, metadata=metadata)
        if loss == "response":
            self.before_answer()
            return Unknown(cause="lost")
        return outcome

    def delete(self, key, *, precondition=None):
        loss = self.losses.popleft() if self.losses else None
        if loss == "request":
            return Unknown(cause="lost")
        outcome = super().delete(key, precondition=precondition)
        return Unknown(cause="lost") if loss == "response" else outcome


def begun(records):
    """Returns the same record store, after it has tested whether the bucket honours conditions on DELETE."""
    records.remove("p", "begun", expected=Version(records.create("p", "begun", b"").etag))
    return records


@pytest.fixture
def store():
    return LossyStore(MemoryObjectStore())


@pytest.fixture
def records(store):
    return ObjectRecordStore(store, "r/", clock=HurriedClock())


@given(NAMES)
def test_quoted_names_have_no_slash_and_can_be_unquoted(name):
    """Otherwise a name with unusual characters would be lost, or would be outside of its partition."""
    quoted = quote(name)
    assert unquote(quoted) == name
    assert "/" not in quoted
    assert "\\" not in quoted
    assert quoted not in (".", "..")
    assert quoted.isascii()


@given(NAMES, NAMES)
def test_quoted_names_keep_their_order(one, other):
    """Otherwise a scan would return records in another order than the order of their keys."""
    assert (one < other) == (quote(one) < quote(other))


def test_plain_names_stay_readable():
    assert quote("batch-17_A") == "batch-17_A"


@pytest.mark.parametrize("loss", ["request", "response"])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_retries_recognise_their_own_first_attempt(records, store, loss, times):
    """Otherwise a retry after a lost answer would conflict with its own first attempt."""
    updates = Updates(begun(records), HurriedClock())
    store.losses.extend([loss] * times)
    assert isinstance(updates.create("p", "a", b"1"), Stored)
    store.losses.clear()
    version = records.read("p", "a").version
    store.losses.extend([loss] * times)
    assert isinstance(updates.replace("p", "a", b"2", expected=version), Stored)
    store.losses.clear()
    assert records.add("p", "n", 1) == 1
    store.losses.extend([loss] * times)
    assert records.add("p", "n", 1) == 2
    store.losses.clear()
    version = records.read("p", "a").version
    store.losses.extend([loss] * times)
    removed = updates.remove("p", "a", expected=version)
    if loss == "request":
        assert isinstance(removed, Stored)
    else:
        assert removed == Changed(record=None, in_doubt=True)
    assert records.read("p", "a") is None


def test_a_write_in_doubt_is_sent_once(records, store):
    """Otherwise a write with an unknown outcome could be sent again and overwrite a later write. The caller must read
    first.
    """
    begun(records)
    store.counts.clear()
    store.losses.append("response")
    assert isinstance(records.create("p", "a", b"1"), Unknown)
    version = records.read("p", "a").version
    store.losses.append("request")
    assert isinstance(records.replace("p", "a", b"2", expected=version), Unknown)
    store.losses.append("request")
    assert isinstance(records.remove("p", "a", expected=version), Unknown)
    assert store.counts == {"PUT": 1, "GET": 1}


def test_an_add_without_any_answer_is_unknown(records, store):
    """Otherwise an addition that may have been applied would be reported as failed, or be tried for ever."""
    store.losses.extend(["request"] * 20)
    assert isinstance(records.add("p", "n", 1), Unknown)
    assert len(store.losses) == 20 - ATTEMPTS


@pytest.mark.parametrize("loss", ["request", "response"])
@pytest.mark.parametrize("others", [1, 3, PAST_TOKENS])
@pytest.mark.parametrize("warm", [True, False])
def test_an_add_in_doubt_is_resolved_after_later_additions(store, loss, others, warm):
    """Otherwise an addition would count twice or not at all. RGW also answers 500 to a writer that lost a race. So a
    counter stores tokens, which show whether an addition was applied.
    """
    records = ObjectRecordStore(store, "r/", clock=HurriedClock())
    rival = ObjectRecordStore(store.store, "r/", clock=HurriedClock())
    (records if warm else rival).add("p", "n", 1)
    inner, store.get = store.get, lambda *args, **kwargs: (others_write(), inner(*args, **kwargs))[1]
    pending = [others] if warm else [0, others]

    def others_write():
        for _ in range(pending.pop(0) if pending else 0):
            rival.add("p", "n", 1)

    store.losses.append(loss)
    total = records.add("p", "n", 1)
    assert total == (2 if loss == "response" else 2 + others)
    store.get = inner
    assert records.read("p", "n").value == b"%d" % (2 + others)


def test_an_add_followed_by_too_many_others_is_unknown(store):
    """Otherwise an addition would count twice or not at all if the counter no longer has its token."""
    records = ObjectRecordStore(store, "r/", clock=HurriedClock())
    records.add("p", "n", 1)

    def others_write():
        for _ in range(PAST_TOKENS + 1):
            records.add("p", "n", 1)

    store.before_answer = others_write
    store.losses.append("response")
    assert isinstance(records.add("p", "n", 1), Unknown)


def test_a_cached_counter_is_read_before_a_refusal(records, store):
    """Otherwise room would be refused because of an old cached total, although other processes have given room back."""
    assert records.add("p", "n", 5, ceiling=5) == 5
    ObjectRecordStore(store, "r/").add("p", "n", -3)
    assert records.add("p", "n", 3, ceiling=5) == 5
    ObjectRecordStore(store, "r/").add("p", "n", 2)
    assert records.add("p", "n", -7) == 0


def test_operations_send_only_the_requests_of_the_docstring(records, store):

    def cost(work):
        store.counts.clear()
        work()
        return dict(store.counts)

    version = lambda: records.read("p", "a").version
    assert cost(lambda: records.create("p", "a", b"1")) == {"PUT": 1}
    assert cost(lambda: records.read("p", "a")) == {"GET": 1}
    now = version()
    assert cost(lambda: records.replace("p", "a", b"2", expected=now)) == {"PUT": 1}
    now = version()
    assert cost(lambda: records.remove("p", "a", expected=now)) == {"PUT": 1, "DELETE": 3}
    records.create("p", "a", b"1")
    now = version()
    assert cost(lambda: records.remove("p", "a", expected=now)) == {"DELETE": 1}
    assert cost(lambda: records.add("p", "n", 1)) == {"GET": 1, "PUT": 1}
    assert cost(lambda: records.add("p", "n", 1)) == {"PUT": 1}
    ObjectRecordStore(store, "r/").add("p", "n", 1)
    assert cost(lambda: records.add("p", "n", 1)) == {"GET": 1, "PUT": 2}
    assert cost(lambda: records.read("p", "n")) == {"GET": 1}
    assert records.read("p", "n").value == b"4"
    assert cost(lambda: list(records.scan("p"))) == {"LIST": 1, "GET": 1}
    assert [meta.key for meta in store.store.list("").objects] == ["r/p/n"]


def test_records_whose_keys_do_not_recur_leave_no_tombstone(store):
    """Otherwise each removed record would leave a tombstone for ever if the store ignores conditions on DELETE."""
    ignoring = CountingStore(IgnoringStore(store, ignores={"delete"}))
    records = ObjectRecordStore(ignoring, "r/", keys_recur=lambda partition: partition == "again")
    for partition in ("once", "again"):
        etag = records.create(partition, "a", b"1").etag
        ignoring.counts.clear()
        assert records.remove(partition, "a", expected=Version(etag)) == Written(etag=None)
    assert ignoring.counts == {"PUT": 1}
    assert [meta.key for meta in store.list("").objects] == ["r/again/a"]
    assert records.read("again", "a") is None


def test_a_scan_deletes_tombstones(records, store):
    """Otherwise the tombstone of a killed process would cost a GET in each scan."""
    records.create("p", "a", b"1")
    found = records.read("p", "a")
    delete = store.store.delete
    store.store.delete = lambda *_, **__: Unknown(cause="lost")
    assert isinstance(records.remove("p", "a", expected=found.version), Written)
    assert "r/p/a" in [meta.key for meta in store.store.list("").objects]
    store.store.delete = delete
    assert list(records.scan("p")) == []
    assert "r/p/a" not in [meta.key for meta in store.store.list("").objects]


def test_objects_that_are_not_records_are_reported(records, store):
    """Otherwise another program's object would be read as a record, or be overwritten."""
    store.put("r/p/a", b"not ours")
    with pytest.raises(CorruptError, match="not ours"):
        records.read("p", "a")
    assert store.get("r/p/a").body == b"not ours"


@pytest.mark.parametrize(("partition", "key"), [("", "a"), ("p", ""), ("p", "é" * 200)])
def test_impossible_names_are_refused_before_a_request(records, partition, key):
    with pytest.raises(UsageError):
        records.create(partition, key, b"")


def test_an_add_ends_if_the_counter_keeps_changing(records, store):
    """Otherwise a writer would try for ever to change a very busy counter, or would not know whether its addition was
    applied.
    """

    class Busy(LossyStore):
        def put(self, key, body, *, precondition=None, metadata=None):
            return Conflict()

    busy = ObjectRecordStore(Busy(MemoryObjectStore()), "r/", clock=HurriedClock())
    with pytest.raises(Exception, match=f"{ADD_ATTEMPTS} attempts"):
        busy.add("p", "n", 1)


def test_a_scan_reads_ahead_in_order():
    """Otherwise a scan would return records out of order, exceed its parallelism, or report an error too early."""
    together = Barrier(4, timeout=10)

    class Waiting(MemoryObjectStore):
        def get(self, key, **conditions):
            together.wait()
            return super().get(key, **conditions)

    store = Waiting()
    writing = ObjectRecordStore(MemoryObjectStore(), "r/")
    for number in range(12):
        writing.create("p", f"{number:02}", b"%d" % number)
    store._objects = writing._store._objects
    records = ObjectRecordStore(store, "r/", parallelism=4)
    assert [record.value for record in records.scan("p")] == [b"%d" % number for number in range(12)]
    store.put("r/p/05", b"no record")
    scan = records.scan("p")
    assert [next(scan).key for _ in range(5)] == ["00", "01", "02", "03", "04"]
    with pytest.raises(CorruptError):
        next(scan)


def test_a_scan_does_not_read_known_records_again(store, records):
    """Otherwise each scan would read all records, although LIST shows which of them changed."""
    for key in "abc":
        records.create("p", key, b"1")
    known = {record.key: record for record in records.scan("p")}
    records.replace("p", "b", b"2", expected=known["b"].version)
    store.counts.clear()
    assert [record.value for record in records.scan("p", known=known)] == [b"1", b"2", b"1"]
    assert store.counts == {"LIST": 1, "GET": 1}


def test_parallelism_is_at_least_one(store):
    with pytest.raises(UsageError, match="parallelism"):
        ObjectRecordStore(store, "r/", parallelism=0)
