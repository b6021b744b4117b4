"""Ack chains: each child and each operation counts once, even if a response is lost, and no stamper waits for
another."""

import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import (
    CorruptError,
    TagNotFound,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.protocols.ack_chain import (
    AckChains,
    Acked,
    AlreadyAcked,
    AlreadyFailed,
    Chain,
    Stamped,
    keys_recur,
    new_stamp,
    xor,
)
from s3notify_platform.protocols.ack_chain.chain_records import head_key, is_head
from s3notify_platform.protocols.ack_chain.chains import TAG_BYTES_MAX
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.clocks import HandClock, HurriedClock
from tests.support.faults import CrashedError, Fault, FaultyStore, at

A, B, C = (bytes([byte]) * 16 for byte in (1, 2, 4))
SLOTS = [str(slot) for slot in range(1000)]


@pytest.fixture
def chains(records):
    return AckChains(records, clock=HandClock())


def over(records, schedule=lambda _: Fault.NONE, **kwargs):
    faulty = FaultyStore(records, schedule, **kwargs)
    return AckChains(faulty, clock=HurriedClock()), faulty


def methods(faulty):
    return [call.method for call, _ in faulty.calls]


# Create, stamp, ack


def test_a_parents_end_and_its_childrens_starts_go_into_one_stamp(chains):
    """Otherwise the chain would look done between the two stamps, or a repeated stamp would begin the
    children twice.
    """
    chains.open_batch("t", ["1"])
    for _ in range(2):
        assert chains.stamp_children("t", ["1"], starts=["1/a", "1/b"]) == Stamped(missing=2)
    assert chains.state("t").children == ("1", "1/a", "1/b")
    assert chains.stamp_children("t", ["1/b"]) == Stamped(missing=1)
    assert chains.state("t").missing == ("1/a",)
    assert chains.stamp_children("t", ["1/a", "1/b"]) == Acked()


def test_each_operation_sends_only_the_documented_requests(records):
    """Otherwise an operation would cost more requests than documented."""
    chains, faulty = over(records)
    chain = chains.open_batch("batch", SLOTS, payload="{}")
    for run in range(4):
        outcome = chains.stamp_children(chain, SLOTS[run::4], f"run-{run}")
    assert outcome == Acked()
    assert methods(faulty) == ["create"] + ["create", "scan"] * 4 + ["create"]
    faulty.calls.clear()
    assert chains.stamp_children("batch", ["1"]) == AlreadyAcked()
    assert methods(faulty) == ["read", "create", "scan"]
    faulty.calls.clear()
    chains.state(chain)
    chains.chain("batch")
    assert methods(faulty) == ["scan", "read"]
    failing = chains.open_batch("failing", ["1"])
    faulty.calls.clear()
    chains.fail(failing, "x")
    assert methods(faulty) == ["scan", "create"]
    whole = chains.open_batch("whole", SLOTS)
    faulty.calls.clear()
    assert chains.finish(whole, "run") == Acked()
    assert methods(faulty) == ["create"]


def test_a_stamp_on_a_bucket_lists_keys_once():
    """Otherwise a stamp on a bucket would read other stamps or the head, instead of listing keys once."""
    objects = CountingStore(MemoryObjectStore())
    chains = AckChains(ObjectRecordStore(objects, "r/", keys_recur=keys_recur))
    chain = chains.open_batch("batch", SLOTS, payload="x" * 50_000)
    for run in range(9):
        chains.stamp_children(chain, SLOTS[run::10])
    chains.state(chain)
    assert objects.counts == {"PUT": 10, "LIST": 10}
    objects.counts.clear()
    assert chains.stamp_children(chain, SLOTS[9::10]) == Acked()
    assert objects.counts == {"PUT": 2, "LIST": 1}
    objects.counts.clear()
    assert chains.state("batch").status == "acked"
    assert objects.counts == {"LIST": 1, "GET": 2}
    objects.counts.clear()
    assert list(chains.open_states()) == []
    assert objects.counts == {"LIST": 1}
    objects.counts.clear()
    chains.delete(chain)
    assert objects.counts == {"LIST": 1, "DELETE": 12 + 2, "PUT": 1}, "a DELETE is tried out first"
    assert not objects.list("").objects


def test_exactly_one_of_sixty_four_concurrent_stampers_gets_acked(records):
    """Otherwise two stampers would get `Acked`, or the number of requests would grow faster than the number of
    stampers.
    """
    chains, faulty = over(records)
    names = [str(n) for n in range(64)]
    chain = pickle.loads(pickle.dumps(chains.open_batch("t", names)))
    faulty.calls.clear()
    with ThreadPoolExecutor(64) as pool:
        outcomes = list(pool.map(lambda name: chains.stamp_children(chain, [name]), names))
    assert outcomes.count(Acked()) == 1
    saw = sum(not isinstance(outcome, Stamped) for outcome in outcomes)
    assert len(faulty.calls) <= 2 * 64 + 1 + 3 * (saw - 1)


def test_a_batch_names_its_missing_children(chains):
    """Otherwise the sensor would not learn the missing slots, the payload and the deadline."""
    opened = chains.open_batch(
        "t", map(str, range(0, 1000, 2)), deadline_seconds=60, payload='{"digests": "…"}'
    )
    assert opened == chains.chain("t")
    state = chains.state("t")
    assert (state.payload, state.deadline_seconds) == ('{"digests": "…"}', 60)
    assert chains.stamp_children("t", map(str, range(0, 996, 2))) == Stamped(missing=2)
    assert chains.state("t").missing == ("996", "998")
    assert [state.tag for state in chains.open_states()] == list(chains.tags()) == ["t"]


@pytest.mark.parametrize("seed", range(3))
def test_children_may_have_any_names(chains, seed):
    """Otherwise a name of unusual form or length would be lost or confused with another name."""
    dice = random.Random(seed)
    first = [
        *SLOTS,
        *(f"{n}/{m}" for n in range(50) for m in range(9)),
        "007",
        "-1",
        "é/1",
        "a b",
        "x" * 900,
        "",
    ]
    begun = [f"{n}/0/{m}" for n in range(300) for m in (0, 1, 5)] + ["late", "-"]
    chain = chains.open_batch("t", first)
    chains.stamp_children(chain, first[:1], starts=begun)
    left = [*first[1:], *begun]
    dice.shuffle(left)
    while left:
        share, left = left[:700], left[700:]
        outcome = chains.stamp_children(chain, share)
        assert set(chains.state(chain).missing) == set(left)
        assert outcome == (Stamped(missing=len(left)) if left else Acked())


def test_finish_ends_a_chain_in_one_stamp(chains):
    """Otherwise a repeated `finish` would get another answer, or a failed chain would be finished."""
    chain = chains.open_batch("t", SLOTS)
    chains.stamp_children(chain, SLOTS[:3])
    assert chains.finish(chain, "run") == chains.finish(chain, "run") == Acked()
    assert chains.stamp_children(chain, SLOTS, "run") == Acked()
    assert chains.stamp_children(chain, ["1"]) == chains.finish(chain, "other") == AlreadyAcked()
    state = chains.state(chain)
    assert (state.status, state.missing, len(state.children)) == ("acked", (), len(SLOTS))
    failed = chains.open_batch("f", ["1"])
    chains.fail(failed, "too late")
    assert chains.finish(failed) == AlreadyFailed(reason="too late")
    with pytest.raises(UsageError, match="created with stamps"):
        chains.finish(chains.create("raw", new_stamp()))


def test_chains_with_similar_tags_are_separate(chains):
    """Otherwise a chain would count the stamps of another chain whose tag has the same beginning."""
    for tag in ("t", "t.", "t/1", "t 1", "tt"):
        chains.open_batch(tag, ["1", "2"])
    chains.stamp_children("t", ["1", "2"])
    chains.stamp_children("t/1", ["1"])
    assert {tag: chains.state(tag).missing for tag in chains.tags()} == {
        "t": (),
        "t 1": ("1", "2"),
        "t.": ("1", "2"),
        "t/1": ("2",),
        "tt": ("1", "2"),
    }
    assert [state.tag for state in chains.open_states()] == ["t 1", "t.", "t/1", "tt"]


def test_wrong_calls_write_nothing(chains, records):
    """Otherwise a wrong call would leave records behind, or not say what to correct."""
    with pytest.raises(UsageError, match="no children"):
        chains.open_batch("t", [])
    for tag in ("", "a\0b", "x" * (TAG_BYTES_MAX + 1)):
        with pytest.raises(UsageError, match="tag"):
            chains.open_batch(tag, ["1"])
    with pytest.raises(UsageError, match="deadline"):
        chains.open_batch("t", ["1"], deadline_seconds=0)
    with pytest.raises(UsageError, match="payload"):
        chains.open_batch("t", ["1"], payload="x" * 100_001)
    assert not list(records.scan("ack"))
    chains.open_batch("t", ["1"])
    chains.create("raw", A)
    before = list(records.scan("ack"))
    with pytest.raises(UsageError, match=r"no children \['2'\]"):
        chains.stamp_children("t", ["1", "2"])
    with pytest.raises(UsageError, match="by their names"):
        chains.stamp("t", A)
    with pytest.raises(UsageError, match="created with stamps"):
        chains.stamp_children("raw", ["1"])
    assert list(records.scan("ack")) == before


# Failure, deadline, purge


def test_an_acked_chain_cannot_fail(records):
    """Otherwise, if the last stamper dies before it closes the chain, the chain could fail, and nobody would get
    `Acked`.
    """
    chains = AckChains(records)
    chains.open_batch("t", ["1"])
    chains.stamp_children("t", ["1"])
    assert chains.fail("t", "late").status == "acked"
    chains.open_batch("u", ["1"])
    dying, _ = over(records, at("scan", Fault.CRASH_BEFORE))
    with pytest.raises(CrashedError):
        dying.stamp_children("u", ["1"], "op")
    assert chains.fail("u", "late").status == "acked"
    outcomes = [chains.stamp_children("u", ["1"], operation) for operation in ("op", "other", "op", None)]
    assert outcomes == [Acked(), AlreadyAcked(), Acked(), AlreadyAcked()]


def test_purge_removes_chains_some_time_after_they_were_closed(records):
    """Otherwise records of closed chains would stay for ever, or open chains would be removed."""
    clock = HandClock()
    chains = AckChains(records, clock=clock, tombstone_seconds=10, parallelism=3)
    chains.open_batch("open", ["1", "2"])
    chains.stamp_children("open", ["1"])
    kept = list(records.scan("ack"))
    chains.open_batch("acked", ["1", "2", "3"])
    for name in "123":
        chains.stamp_children("acked", [name])
    chains.open_batch("failed", ["1"])
    chains.fail("failed", "x")
    assert chains.purge() == 0
    clock.now += 11
    assert chains.purge() == 2
    assert list(records.scan("ack")) == kept


def test_a_stamp_of_a_deleted_chain_leaves_nothing(records):
    """Otherwise the stamp of a deleted chain would stay, or count in the next chain with its tag."""
    chains = AckChains(records)
    chain = chains.open_batch("t", ["1"])
    chains.delete("t")
    for _ in range(2):
        before = list(records.scan("ack"))
        for call in (
            lambda: chains.stamp_children(chain, ["1"]),
            lambda: chains.state(chain),
            lambda: chains.fail(chain, "x"),
        ):
            with pytest.raises(TagNotFound):
                call()
        assert list(records.scan("ack")) == before
        if not before:
            chains.open_batch("t", ["1"])
    assert chains.state("t").missing == ("1",)


def test_purge_removes_the_stamp_that_a_dying_stamper_left_on_a_deleted_chain(records):
    """Otherwise the stamp of the dying stamper would stay for ever, or stamps of the current chain would be removed."""
    chains = AckChains(records)
    chain = chains.open_batch("t", ["1"])
    chains.delete("t")
    dying, _ = over(records, at("scan", Fault.CRASH_BEFORE))
    with pytest.raises(CrashedError):
        dying.stamp_children(chain, ["1"])
    chains.open_batch("t", ["1", "2"])
    chains.stamp_children("t", ["1"])
    assert len(list(records.scan("ack"))) == 3
    assert chains.purge() == 0
    assert len(list(records.scan("ack"))) == 2
    assert chains.state("t").missing == ("2",)


def test_a_chain_that_begins_during_a_purge_is_spared():
    """Otherwise the purge would remove stamps of a chain whose head it has not seen."""
    records = MemoryRecordStore()
    scanning = records.scan

    def scan(partition, **kwargs):
        AckChains(records).open_batch("t", ["1", "2"])
        AckChains(records).stamp_children("t", ["1"])
        return iter([record for record in scanning(partition, **kwargs) if not is_head(record.key)])

    purging, faulty = over(records)
    faulty.store = type(
        "Paged", (), {"scan": staticmethod(scan), "__getattr__": lambda _, n: getattr(records, n)}
    )()
    assert purging.purge() == 0
    assert AckChains(records).state("t").missing == ("2",)


@pytest.mark.parametrize("value", [b"", b"{}", b'{"v":1,"status":"open"}', b"[1]", b"\xff"])
def test_corrupt_records_raise_corrupt_error(chains, records, value):
    """Otherwise a corrupt record would be mistaken for a missing chain, or for an open chain."""
    records.create("ack", head_key("t"), value)
    with pytest.raises(CorruptError):
        chains.state("t")
    chain = chains.open_batch("u", ["1"])
    records.create("ack", chain.closed_key, value)
    with pytest.raises(CorruptError):
        chains.state("u")
    for key in ("s.!..", "s.A", "s.AAAA..", "s..x."):
        chain = chains.open_batch(f"v{key}", ["1"])
        records.create("ack", chain.key(key), b"")
        with pytest.raises(CorruptError):
            chains.state(chain)


def test_a_chain_is_restored_from_its_version_and_children(chains):
    """Otherwise the sensor, which keeps a chain without its payload, could not use the chain."""
    opened = chains.open_batch("t", ["1", "2"], payload="much")
    kept = Chain.of("t", opened.version, ["2", "1"])
    assert kept == replace(opened, payload="", created_ms=0)
    chains.stamp_children("t", ["1"])
    assert chains.state(kept).missing == ("2",)


# Faults


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE, Fault.THROTTLED])
@pytest.mark.parametrize("late_by", [1, 2, 3])
@pytest.mark.parametrize(("method", "nth"), [("create", 0), ("create", 1), ("scan", 0)])
def test_a_stamp_in_doubt_is_applied_once(records, fault, late_by, method, nth):
    """Otherwise a stamp, or the end of a chain, would be lost or count twice after a lost, refused or late response."""
    AckChains(records).create("t", xor(A, B))
    for stamp, outcome in ((A, Stamped(missing=None)), (B, Acked())):
        chains, faulty = over(records, at(method, fault, nth=nth), late_by_calls=late_by)
        assert chains.stamp("t", stamp) == outcome
        faulty.settle()
    assert AckChains(records).state("t").status == "acked"


@pytest.mark.parametrize("fault", [Fault.CRASH_AFTER, Fault.CRASH_BEFORE])
@pytest.mark.parametrize("method", ["read", "create", "scan"])
def test_a_stamp_repeated_after_a_crash_is_applied_once(records, fault, method):
    """Otherwise a process that repeats the operation of a crashed process would stamp twice."""
    AckChains(records).create("t", xor(A, B))
    chains, _ = over(records, at(method, fault))
    with pytest.raises(CrashedError):
        chains.stamp("t", A, operation_id="op")
    assert AckChains(records).stamp("t", A, operation_id="op") == Stamped(missing=None)
    assert AckChains(records).stamp("t", B, operation_id="op2") == Acked()


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE])
@pytest.mark.parametrize("nth", [0, 1])
def test_a_deletion_in_doubt_is_reported_as_done(records, fault, nth):
    """Otherwise the chain would stay, or the purge would not find the rest of the chain."""
    chains, faulty = over(records, at("remove", fault, nth=nth))
    chains.open_batch("t", ["1", "2"])
    chains.stamp_children("t", ["1"])
    chains.delete("t")
    faulty.settle()
    with pytest.raises(TagNotFound):
        chains.state("t")
    chains.purge()
    assert not list(records.scan("ack"))


def test_an_error_before_any_write_is_raised_unchanged(records):
    """Otherwise the caller would not learn that nothing was applied. If an earlier attempt may have been applied,
    however, the outcome must be unknown.
    """
    chain = AckChains(records).open_batch("t", ["1"])
    for call in (
        lambda chains: chains.stamp_children("t", ["1"]),
        lambda chains: chains.stamp_children(chain, ["1"]),
        lambda chains: list(chains.open_states()),
        lambda chains: chains.delete("t"),
    ):
        chains, _ = over(records, lambda _: Fault.THROTTLED)
        with pytest.raises(UnavailableError):
            call(chains)
    assert AckChains(records).state("t").missing == ("1",)
    for chain_or_tag, method in (("new", "open_batch"), (chain, "stamp_children")):
        chains, _ = over(records, lambda _: Fault.REFUSED)
        with pytest.raises(UnknownOutcomeError):
            getattr(chains, method)(chain_or_tag, ["1"])
    chains, _ = over(records, lambda call: Fault.REFUSED if call.method == "remove" else Fault.NONE)
    with pytest.raises(UnknownOutcomeError):
        chains.delete("t")


def test_no_stamp_has_a_key_that_is_too_long_for_a_file_name():
    """Otherwise some servers would lose a stamp of many slots. These servers use the last part of a key as a file name
    of at most 255 bytes.
    """
    objects = MemoryObjectStore()
    chains = AckChains(ObjectRecordStore(objects, "records/"), clock=HandClock())
    chain = chains.open_batch("eeb39d77-74bc-456c-baef-ff30366c1448/af8e5919c38f2e99fadedbe57bc39596", SLOTS)
    some = random.Random(1).sample(SLOTS, 500)
    assert chains.stamp_children(chain, some) == Stamped(missing=500)
    assert {*chains.state(chain).missing} == {*SLOTS} - {*some}
    assert max(len(meta.key.rpartition("/")[2]) for meta in list_all(objects, "records/")) <= 255
