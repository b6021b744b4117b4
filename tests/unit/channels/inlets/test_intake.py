"""What all inlets share: entries of every topic, then signals; duplicates, limits, trouble, poison."""

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


def test_what_is_accepted_is_queued_and_then_signalled():
    """The entry holds what was reported, and the slot's signal, which comes after it, says that there is one."""
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


def test_every_topic_that_takes_the_key_gets_it():
    """By bucket and prefix; another bucket's change, and one that nobody follows, are ignored and not signalled."""
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


def test_own_objects_are_never_news():
    """Or a topic that takes all keys would get its own entries for ever."""
    site = Site(all=TopicSettings(), excluded=("_s3notify/",))
    assert site.intake.accept([event("_s3notify/queue/x"), event("x")]).outcomes == ("ignored", "queued")
    with pytest.raises(UsageError, match="no empty prefix"):
        Intake(site.queue, [], bucket="b", excluded=("",))


def test_each_keyspace_is_signalled_for_its_keys():
    """A bucket may have several sources."""
    site = Site(targets=(("raw/", "_1/"), ("", "_2/")))
    site.intake.accept([event("raw/a"), event("c")])
    assert site.signal("raw/a", "_1/")
    assert site.signal("raw/a", "_2/")
    assert site.signal("c", "_1/") is None
    assert site.signal("c", "_2/")


def test_what_was_seen_through_is_a_duplicate():
    """In one batch or later; it costs neither entry nor signal."""
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
def test_only_the_very_same_change_is_a_duplicate(other):
    """Another sequencer, an older one too, another version or operation is another change."""
    site = Site()
    site.intake.accept([event()])
    assert site.intake.accept([other]).outcomes == ("queued",)


def test_without_a_sequencer_nothing_is_a_duplicate():
    """Of A, B, A again the last is a change."""
    site = Site()
    reported = [event(sequencer="", etag=etag) for etag in ("a", "b", "a")]
    assert site.intake.accept(reported).outcomes == ("queued",) * 3
    assert len(site.keys()) == 3


def test_memory_is_bounded():
    """What left it is queued again, which is harmless."""
    site = Site(memory=4)  # an entry and a signal each
    site.intake.accept([event("a")])
    site.intake.accept([event("b"), event("c")])
    assert site.intake.accept([event("c")]).outcomes == ("duplicate",)
    assert site.intake.accept([event("a")]).outcomes == ("queued",)


def test_a_full_topic_does_not_hold_up_another():
    """It gets its entry and signal at once, and only once; the full one when there is room, with another signal."""
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


def test_a_signal_under_way_does_not_stand_for_a_later_entry():
    """Of two callers with the same event one signals while the other one queues, and cannot signal: not done."""
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


def test_what_is_not_signalled_is_not_done():
    """It is signalled when it is reported again, and has one entry."""
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
def test_while_the_store_is_away_nothing_is_done(fault):
    """No signal goes ahead of its entry."""
    site = Site()
    site.faults["records"] = fault
    accepted = site.intake.accept([event()])
    assert accepted.outcomes == ("unavailable",)
    assert accepted.cause
    assert site.signal("k") is None
    site.faults["records"] = Fault.NONE
    assert site.intake.accept([event()]).outcomes == ("queued",)
    assert site.signal("k")


def test_topics_that_cannot_be_listed_are_asked_for_once():
    """Not for each event of a batch, each with its own retries."""
    site = Site()
    scans = 0

    def down(**_):
        nonlocal scans
        scans += 1
        raise UnavailableError("away")

    site.queue.topics.all = down
    assert site.intake.accept([event("a"), event("b")]).outcomes == ("unavailable",) * 2
    assert scans == 1


def test_a_topic_that_was_deleted_meanwhile_takes_nothing():
    """It is ignored, and the others get theirs."""
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
        (event(name="ObjectCreated:" + "x" * 200), "event name has more than 200"),
        (event(name="ObjectCreated:\xfc"), "event name or size is invalid"),
        (event(version_id="v" * 1025), "version id has more than 1024"),
        (event(configuration_id="c" * 256), "configuration id 255"),
        (event(configuration_id="\ud800"), "is no text"),
    ],
)
def test_what_no_topic_can_hold_does_not_block_the_rest(bad, reason):
    """It is kept as poison, once, with its reason."""
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
def test_what_fails_in_one_topic_waits_for_another(small):
    """Only when all is done may the reporter forget it, whichever comes first."""
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


def test_refused_credentials_are_for_the_operator():
    """They are raised, not waited for."""
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


def test_poison_is_kept_once_and_only_so_much_of_it():
    """The same bytes are kept once; above the limit somebody has to look first."""
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


def test_two_inlets_keep_the_same_poison_once():
    """And count it once."""
    records = MemoryRecordStore()
    first, second = (
        PoisonStore(NotificationQueue(records, clock=HandClock(), parallelism=1), limit=2) for _ in range(2)
    )
    assert first.keep(b"a", origin="1", reason="none")
    assert second.keep(b"a", origin="2", reason="none")
    assert second.keep(b"b", origin="2", reason="none")
    assert not second.keep(b"c", origin="2", reason="none")


def test_long_poison_is_cut():
    """Its length says so."""
    poison = quarantine()
    poison.keep(b"x" * 200_000, origin="test", reason="r" * 1000)
    (kept,) = poison.all()
    assert (len(kept.body), kept.length, len(kept.reason)) == (128 * 1024, 200_000, 500)


def test_poison_that_cannot_be_counted_is_not_kept():
    """The reporter keeps it meanwhile."""
    poison = quarantine()
    poison._records.add = lambda *args, **kwargs: Unknown(cause="timeout")
    with pytest.raises(UnavailableError):
        poison.keep(b"a", origin="test", reason="none")
    assert poison.all() == ()


def test_rules_tell_events_by_their_names():
    """What no rule takes is ignored; ids of others are kept as they came."""
    copies = TopicSettings(bucket="b", rules=(Rule(events=("ObjectCreated:Copy",)),))
    site = Site(orders=TopicSettings(bucket="b", prefix="raw/"), copies=copies)
    copied = event("raw/a", name="ObjectCreated:Copy", version_id="v1", configuration_id="日本")
    outcomes = site.intake.accept([copied, event("raw/b"), event("c"), event("d", op="delete")]).outcomes
    assert outcomes == ("queued", "queued", "ignored", "ignored")
    assert sorted(site.keys()) == ["raw/a", "raw/b"]
    (entry,) = site.queue.entries("copies", range(1000))
    assert (entry.event.event_name, entry.event.version_id) == ("ObjectCreated:Copy", "v1")
    assert entry.event.configuration_id == "日本"


def test_what_a_source_skips_costs_it_nothing():
    """What Spark leaves beside its files is neither in the source's topic nor signalled; other topics get it."""
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


def test_what_is_not_below_a_source_is_not_hidden_from_its_topic():
    """A topic that is wider than the inlet's prefix goes on to get the rest."""
    site = Site(targets=[("raw/1/", SIGNALS, "orders")], orders=TopicSettings(bucket="b"))
    site.intake.accept([event("raw/2/x.json", "01"), event("raw/_2/x.json", "02"), event("raw/1/_x", "03")])
    assert sorted(site.keys("orders")) == ["raw/2/x.json", "raw/_2/x.json"]


def test_a_topic_of_a_source_with_other_slots_is_refused_by_name():
    """Its signals are of 1000 slots; nothing is queued."""
    site = Site(targets=[("", SIGNALS, "orders")], orders=TopicSettings(slots=40))
    with pytest.raises(UsageError, match="'orders' has 40 slots, and its source 1000"):
        site.intake.accept([event()])
    assert not [*site.queue.pending("orders")]
