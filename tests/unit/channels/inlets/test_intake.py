"""The intake of all inlets: entries of every topic, then signals; duplicates, limits, failures, poison."""

import pytest

from s3notify_platform.channels.inlets.intake import Intake
from s3notify_platform.channels.inlets.poison import PoisonStore
from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.kernel.limits import MAX_KEY_BYTES
from s3notify_platform.kernel.ports import Unknown
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import QUEUED, Publisher, signal_key
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, Rule, TopicSettings
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.clocks import HandClock
from tests.support.faults import Fault
from tests.support.intake_site import SIGNALS, Site, event


def test_an_event_is_queued_and_then_signalled():
    """A signal before its entry would make the consumer miss the change. A signal without the mark of queued writers
    would make the consumer list the bucket.
    """
    site = Site()
    there = []
    put = site.objects.put

    def noted(*args, **kwargs):
        there.append(site.keys())
        return put(*args, **kwargs)

    site.objects.put = noted
    reported = event(etag="e", size=3, time_ms=5)
    accepted = site.intake.accept([reported])
    assert (accepted.outcomes, accepted.retry_after_seconds) == (("queued",), None)
    (entry,) = site.queue.entries("orders", range(1000))
    assert entry.event == reported
    assert there == [["k"], ["k"]]
    assert site.signal("k").metadata == {QUEUED: "1"}


def test_every_topic_that_takes_the_key_gets_an_entry():
    """Otherwise a topic would miss changes, or get changes of another bucket or prefix."""
    site = Site(
        raw=TopicSettings(bucket="b", prefix="raw/"),
        csv=TopicSettings(prefix="raw/csv/"),
        other=TopicSettings(bucket="other"),
    )
    reported = [event("raw/a"), event("raw/csv/b"), event("c"), Event(key="raw/d", bucket="other")]
    assert site.intake.accept(reported).outcomes == ("queued", "queued", "ignored", "ignored")
    assert sorted(site.keys("raw")) == ["raw/a", "raw/csv/b"]
    assert site.keys("csv") == ["raw/csv/b"]
    assert site.keys("other") == []
    assert site.signal("c") is None
    counts = site.intake.counts()
    assert (counts["received"], counts["queued"], counts["ignored"]) == (4, 2, 2)


def test_changes_of_the_platforms_own_objects_are_ignored():
    """Otherwise a topic that takes all keys would get entries for its own entries, without end."""
    site = Site(all=TopicSettings(), excluded=("_s3notify/",))
    assert site.intake.accept([event("_s3notify/queue/x"), event("x")]).outcomes == ("ignored", "queued")
    with pytest.raises(UsageError, match="must not contain an empty prefix"):
        Intake(site.queue, [], bucket="b", excluded=("",))


def test_each_keyspace_is_signalled_for_its_keys():
    """A bucket may have several sources. Each source must be signalled for all of its own keys, and for no
    other keys.
    """
    site = Site(targets=(("raw/", "_1/"), ("", "_2/")))
    site.intake.accept([event("raw/a"), event("c")])
    assert site.signal("raw/a", "_1/")
    assert site.signal("raw/a", "_2/")
    assert site.signal("c", "_1/") is None
    assert site.signal("c", "_2/")


def test_a_completed_event_is_a_duplicate():
    """Otherwise each repeated report would cost an entry and a signal."""
    site = Site()
    assert site.intake.accept([event(), event(), event("l")]).outcomes == ("queued", "duplicate", "queued")
    before = site.signal("k")
    calls = len(site.records.calls)
    assert site.intake.accept([event()]).outcomes == ("duplicate",)
    assert site.signal("k") == before
    assert [call.key for call, _ in site.records.calls[calls:]] == ["topics"]
    assert sorted(site.keys()) == ["k", "l"]


@pytest.mark.parametrize(
    "other",
    [
        event(sequencer="00"),
        event(sequencer="02"),
        event(etag="f"),
        event(op="delete"),
    ],
)
def test_only_an_identical_event_is_a_duplicate(other):
    """Otherwise a later change of the same object would be dropped."""
    site = Site()
    site.intake.accept([event()])
    assert site.intake.accept([other]).outcomes == ("queued",)


def test_an_event_without_a_sequencer_is_never_a_duplicate():
    """Otherwise the last change would be missed if an object changes from A to B and back to A."""
    site = Site()
    reported = [event(sequencer="", etag=etag) for etag in ("a", "b", "a")]
    assert site.intake.accept(reported).outcomes == ("queued",) * 3
    assert len(site.keys()) == 3


def test_the_memory_of_events_is_bounded():
    """Otherwise the inlet's memory would grow with each event. If a forgotten event is reported again, the only effect
    is a second entry in the queue.
    """
    site = Site(memory=4)  # enough for two events, each with an entry and a signal
    site.intake.accept([event("a")])
    site.intake.accept([event("b"), event("c")])
    assert site.intake.accept([event("c")]).outcomes == ("duplicate",)
    assert site.intake.accept([event("a")]).outcomes == ("queued",)


def test_a_full_topic_does_not_delay_another():
    """Otherwise one full topic would stop all other topics, or each retry would add another entry to the
    other topics.
    """
    site = Site(full=TopicSettings(capacity=1, shards=1), orders=TopicSettings())
    site.intake.accept([event("first")])
    accepted = site.intake.accept([event()])
    assert accepted.outcomes == ("full",)
    assert accepted.retry_after_seconds > 0
    assert "'full' is full" in accepted.cause
    assert sorted(site.keys("orders")) == ["first", "k"]
    signal = site.signal("k")
    assert signal
    assert site.intake.accept([event()]).outcomes == ("full",)
    assert site.signal("k") == signal
    assert len(site.keys("orders")) == 2
    site.queue.remove(site.queue.entries("full", range(1000)))
    assert site.intake.accept([event()]).outcomes == ("queued",)
    assert site.keys("full") == ["k"]
    assert len(site.keys("orders")) == 2
    assert site.signal("k").etag != signal.etag
    assert site.intake.accept([event()]).outcomes == ("duplicate",)


def test_a_signal_in_flight_does_not_count_for_a_later_entry():
    """Two inlets may receive one event. Without this rule, a signal that the other inlet sent before the entry was
    queued would count as the entry's signal.
    """
    site = Site(full=TopicSettings(capacity=1, shards=1), orders=TopicSettings())
    site.intake.accept([event("first")])
    publisher = site.intake._targets[0].publisher
    signal = publisher.signal

    def meanwhile(keys, **queued):
        publisher.signal = signal
        site.queue.remove(site.queue.entries("full", range(1000)))
        site.faults["signals"] = Fault.THROTTLED
        assert site.intake.accept([event()]).outcomes == ("unavailable",)
        site.faults["signals"] = Fault.NONE
        return signal(keys, **queued)

    publisher.signal = meanwhile
    assert site.intake.accept([event()]).outcomes == ("full",)
    before = site.signal("k")
    assert site.keys("full") == ["k"]
    assert site.intake.accept([event()]).outcomes == ("queued",)
    assert site.signal("k") != before


def test_an_event_without_its_signal_must_be_reported_again():
    """Otherwise a change would be in the queue, and no consumer would look for it."""
    site = Site()
    site.faults["signals"] = Fault.THROTTLED
    accepted = site.intake.accept([event()])
    assert accepted.outcomes == ("unavailable",)
    assert accepted.retry_after_seconds > 0
    site.faults["signals"] = Fault.NONE
    assert site.intake.accept([event()]).outcomes == ("queued",)
    assert site.signal("k")
    assert site.keys() == ["k"]


@pytest.mark.parametrize("fault", [Fault.THROTTLED, Fault.LOST, Fault.REFUSED])
def test_nothing_is_signalled_while_the_store_is_down(fault):
    """Otherwise a consumer would be signalled before the entry is in the queue, and miss the change."""
    site = Site()
    site.faults["records"] = fault
    accepted = site.intake.accept([event()])
    assert accepted.outcomes == ("unavailable",)
    assert accepted.cause
    assert site.signal("k") is None
    site.faults["records"] = Fault.NONE
    assert site.intake.accept([event()]).outcomes == ("queued",)
    assert site.signal("k")


@pytest.mark.parametrize(
    ("store", "method", "fault"),
    [
        ("signals", "put", Fault.THROTTLED),
        ("records", "add", Fault.THROTTLED),
        ("records", "create", Fault.REFUSED),
        ("records", "replace", Fault.REFUSED),
    ],
)
def test_the_cause_of_an_outage_names_no_key(store, method, fault):
    """An inlet writes the cause to its log. If the cause named a key, the key would stay there after `erase`, which
    cannot remove keys from logs.
    """
    site = Site()
    getattr(site, store).schedule = lambda call: fault if call.method == method else Fault.NONE
    accepted = site.intake.accept([event("secret-person")])
    assert accepted.outcomes == ("unavailable",)
    assert accepted.cause
    assert "secret-person" not in accepted.cause


def test_unreadable_topics_are_requested_once_for_a_batch():
    """Otherwise, in an outage, each event of a batch would cause its own requests, with retries."""
    site = Site()
    scans = 0

    def down(**_):
        nonlocal scans
        scans += 1
        raise UnavailableError("away")

    site.queue.topics.all = down
    assert site.intake.accept([event("a"), event("b")]).outcomes == ("unavailable",) * 2
    assert scans == 1


def test_a_deleted_topic_gets_no_entries():
    """Otherwise a deleted topic would make all later events fail."""
    site = Site(orders=TopicSettings(), other=TopicSettings(prefix="x/"))
    site.intake.accept([event("a")])
    site.queue.topics.delete("other")
    assert site.intake.accept([event("x/1")]).outcomes == ("queued",)
    site.queue.topics.delete("orders")
    assert site.intake.accept([event("b")]).outcomes == ("ignored",)
    assert site.signal("b") is None


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (event("x" * (MAX_KEY_BYTES + 1)), "1025 bytes"),
        (event(""), "0 bytes"),
        (event("\ud800"), "not UTF-8"),
        (event("a\0b"), "NUL"),
        (event("a/../b"), "segment"),
        (event("./b"), "segment"),
        (event("a/."), "segment"),
        (event(etag="e" * 300), "more than 200"),
        (event(sequencer="0" * 300), "more than 200"),
        (event(etag="é"), "is invalid"),
        (event(size=2**80), "is invalid"),
        (event("\x01" * MAX_KEY_BYTES), "larger than topic 'orders' allows"),
        (event(name="ObjectCreated:" + "x" * 200), "sequencer or name has more than 200"),
        (event(name="ObjectCreated:\xfc"), "sequencer, name or size is invalid"),
        (event(version_id="v" * 1025), "version id has more than 1024"),
        (event(configuration_id="c" * 256), "configuration id has more than 255"),
        (event(configuration_id="\ud800"), "unprintable characters"),
    ],
)
def test_an_event_that_no_topic_can_hold_is_kept_as_poison(bad, reason):
    """Otherwise one invalid event would block all later events, or would be lost without a reason."""
    site = Site()
    assert site.intake.accept([event("a"), bad, event("b")], origin="test").outcomes == (
        "queued",
        "failed",
        "queued",
    )
    assert sorted(site.keys()) == ["a", "b"]
    site.intake.accept([bad])
    (poison,) = site.intake.poison.all()
    assert reason in poison.reason
    assert poison.origin == "test"


@pytest.mark.parametrize("small", ["a", "z"])
def test_an_event_fails_only_after_each_topic_has_taken_or_refused_it(small):
    """Otherwise an event that is too large for one topic would be dropped, and would never reach a topic that is
    temporarily full.
    """
    site = Site(
        full=TopicSettings(capacity=1, shards=1),
        **{small: TopicSettings(max_event_bytes=220)},
    )
    site.intake.accept([event("a")])
    assert site.keys("full") == ["a"]
    assert site.intake.accept([event("k" * 200)]).outcomes == ("full",)
    site.queue.remove(site.queue.entries("full", range(1000)))
    assert site.intake.accept([event("k" * 200)]).outcomes == ("failed",)
    assert site.keys("full") == ["k" * 200]


def test_an_error_is_raised_for_refused_credentials():
    """Otherwise an inlet with wrong credentials would wait for ever."""
    site = Site()

    class Refused(MemoryObjectStore):
        def put(self, *args, **kwargs):
            raise UsageError("refused access")

    site.intake._targets = (Keyspace(prefix="", publisher=Publisher(Refused(), prefix="s/", parallelism=1)),)
    with pytest.raises(UsageError, match="refused access"):
        site.intake.accept([event()])
    assert site.intake.counts()["received"] == 1


# Poison


def quarantine(limit=3):
    return PoisonStore(NotificationQueue(MemoryRecordStore(), clock=HandClock(), parallelism=1), limit=limit)


def test_poison_is_kept_once_and_up_to_a_limit():
    """Otherwise a sender that repeats malformed posts could fill the queue's storage."""
    poison = quarantine()
    for body in (b"a", b"b", b"a", b"c"):
        assert poison.keep(body, origin="test", reason="none")
    assert not poison.keep(b"d", origin="test", reason="none")
    assert poison.keep(b"a", origin="test", reason="none")
    assert sorted(kept.body for kept in poison.all()) == [b"a", b"b", b"c"]
    assert poison.discard(frozenset({poison.all()[0].id})) == 1
    assert poison.keep(b"d", origin="test", reason="none")
    assert poison.discard() == 3
    assert poison.keep(b"a", origin="test", reason="again")
    assert [kept.reason for kept in poison.all()] == ["again"]


def test_two_inlets_count_the_same_poison_once():
    records = MemoryRecordStore()
    first, second = (
        PoisonStore(NotificationQueue(records, clock=HandClock(), parallelism=1), limit=2) for _ in range(2)
    )
    assert first.keep(b"a", origin="1", reason="none")
    assert second.keep(b"a", origin="2", reason="none")
    assert second.keep(b"b", origin="2", reason="none")
    assert not second.keep(b"c", origin="2", reason="none")


def test_long_poison_is_cut():
    """Otherwise one large message could fill the storage. The original length of a message is kept with its
    beginning.
    """
    poison = quarantine()
    poison.keep(b"x" * 200_000, origin="test", reason="r" * 1000)
    (kept,) = poison.all()
    assert (len(kept.body), kept.length, len(kept.reason)) == (128 * 1024, 200_000, 500)


def test_poison_that_cannot_be_counted_is_not_kept():
    """Otherwise uncounted poison messages could exceed the limit of their storage. The sender repeats the message
    later.
    """
    poison = quarantine()
    poison._records.add = lambda *args, **kwargs: Unknown(cause="timeout")
    with pytest.raises(UnavailableError):
        poison.keep(b"a", origin="test", reason="none")
    assert poison.all() == ()


def test_rules_select_events_by_their_names():
    """Otherwise a topic for copies would get other changes, or the ids of an event would be changed on the way to its
    entry.
    """
    copies = TopicSettings(bucket="b", rules=(Rule(events=("ObjectCreated:Copy",)),))
    site = Site(orders=TopicSettings(bucket="b", prefix="raw/"), copies=copies)
    copied = event("raw/a", name="ObjectCreated:Copy", version_id="v1", configuration_id="日本")
    outcomes = site.intake.accept([copied, event("raw/b"), event("c"), event("d", op="delete")]).outcomes
    assert outcomes == ("queued", "queued", "ignored", "ignored")
    assert sorted(site.keys()) == ["raw/a", "raw/b"]
    (entry,) = site.queue.entries("copies", range(1000))
    assert (entry.event.event_name, entry.event.version_id) == ("ObjectCreated:Copy", "v1")
    assert entry.event.configuration_id == "日本"


def test_hidden_files_are_neither_queued_nor_signalled_for_their_source():
    """Otherwise a source would get entries and batches for temporary files of Spark. Other topics must still get these
    files.
    """
    site = Site(
        targets=[("raw/", SIGNALS, "orders"), ("raw/", "_all/")],
        orders=TopicSettings(bucket="b"),
        hooks=TopicSettings(bucket="b"),
    )
    hidden = ["raw/_temporary/0/part-0", "raw/day=1/_SUCCESS", "raw/.part-0.crc", "raw/day=1/"]
    shown = ["raw/day=1/part-0", "raw/_day=1/part-0"]
    accepted = site.intake.accept([event(key, f"{n:02}") for n, key in enumerate([*hidden, *shown])])
    assert set(accepted.outcomes) == {"queued"}
    assert sorted(site.keys("orders")) == sorted(shown)
    assert sorted(site.keys("hooks")) == sorted([*hidden, *shown])
    slots = {slot_of(key) for key in shown}
    assert {slot for slot in range(1000) if site.objects.head(signal_key(SIGNALS, slot))} == slots
    assert all(site.signal(key, "_all/") for key in hidden)
    alone = Site(targets=[("raw/", SIGNALS, "orders")])
    assert set(alone.intake.accept([event(key) for key in hidden]).outcomes) == {"ignored"}


def test_a_topic_gets_hidden_files_outside_of_its_sources_prefix():
    """Otherwise the topic would miss hidden files that are outside of its source's prefix."""
    site = Site(targets=[("raw/1/", SIGNALS, "orders")], orders=TopicSettings(bucket="b"))
    site.intake.accept([event("raw/2/x.json", "01"), event("raw/_2/x.json", "02"), event("raw/1/_x", "03")])
    assert sorted(site.keys("orders")) == ["raw/2/x.json", "raw/_2/x.json"]


def test_a_topic_with_other_slots_than_its_source_is_refused():
    """Otherwise the source's consumer would look for the topic's entries in the wrong slots."""
    site = Site(targets=[("", SIGNALS, "orders")], orders=TopicSettings(slots=40))
    with pytest.raises(UsageError, match="'orders' has 40 slots, but its source has 1000"):
        site.intake.accept([event()])
    assert not [*site.queue.pending("orders")]
