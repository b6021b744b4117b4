"""The queued publisher: entries by topic, refusals, and requests."""

from collections import Counter

import pytest

from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.channels.publish.pending_change import Refused
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import TOPICS_KNOWN_SECONDS
from s3notify_platform.kernel.ports import ABSENT, Conflict, IfMatch, Unknown, Written
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import QUEUED, Delete, NotSignalledError, Publisher, Put, root_key
from s3notify_platform.protocols.notification_queue import (
    Event,
    NotificationQueue,
    Rule,
    TopicSettings,
    keys_recur,
)
from s3notify_platform.protocols.updates import WRITER
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.clocks import HandClock
from tests.support.counted import CountedRecords
from tests.support.faults import CrashedError, Fault, FaultyStore, at
from tests.support.queued_publisher import KS, meanwhile


def test_a_put_is_in_the_queue_before_its_signal(world):
    """Without the writer's id in entry and object, the reconciler could not resolve the write. Without the mark
    of queued writers in the signal, the consumer would list the bucket.
    """
    written = world.publisher().put("a", b"12345", precondition=ABSENT, metadata={"mine": "1"})
    (entry,) = world.queue.entries("t", [slot_of("a")])
    found = world.objects.head("a")
    assert written == Written(etag=found.etag)
    event = entry.event
    assert (event.op, event.bucket, event.etag, event.size) == ("put", "b", found.etag, 5)
    assert event.precondition == ABSENT
    assert found.metadata == {"mine": "1", WRITER: event.writer}
    assert event.writer
    assert (world.mark("a"), world.objects.head(root_key(KS)).metadata[QUEUED]) == ("1", "1")
    calls = [f"{call.method} {call.key}" for call, _ in world.faulty_objects.calls]
    assert calls == ["put a", f"put {KS}{slot_of('a')}", f"put {KS}_"]


def test_a_delete_is_announced(world):
    """The signal has the queued mark, so the consumer reads entries instead of a listing. Without an entry, the rows of
    the deleted object would stay in the table until the next sweep.
    """
    etag = world.objects.put("a", b"1").etag
    assert world.publisher().delete("a", precondition=IfMatch(etag=etag)) == Written(etag=None)
    (entry,) = world.queue.entries("t", [slot_of("a")])
    assert (entry.event.op, entry.event.precondition) == ("delete", IfMatch(etag=etag))
    assert entry.event.writer
    assert world.mark("a") == "1"


def test_rules_select_the_changes_of_a_topic(world):
    """Otherwise a topic would get changes that its rules exclude, or a change that no topic takes would not be
    signalled.
    """
    world.queue.topics.delete("t")
    world.topic("csv", rules=(Rule(suffix=".csv", events=("ObjectCreated:Put",)),))
    world.topic("gone", rules=(Rule(regex=r"raw/\d+\..*", events=("ObjectRemoved:*",)),))
    publisher = world.publisher()
    publisher.publish([Put(key="raw/1.csv", body=b"1"), Put(key="raw/1.txt", body=b"1")])
    assert (world.mark("raw/1.csv"), world.mark("raw/1.txt")) == ("1", None)
    publisher.publish([Delete(key="raw/1.txt"), Delete(key="raw/x.txt")])
    assert [(op, key) for op, key, _ in world.announced("csv")] == [("put", "raw/1.csv")]
    assert [(op, key) for op, key, _ in world.announced("gone")] == [("delete", "raw/1.txt")]


def test_a_conflict_leaves_nothing_in_the_queue(world):
    """Otherwise each conflict would leave an entry or a reservation in the queue, or would use up the queue's space."""
    publisher = world.publisher()
    world.objects.put("a", b"1")
    assert publisher.put_if_absent("a", b"2") == Conflict()
    assert publisher.put_if_match("a", b"2", "other") == Conflict()
    assert publisher.delete("a", precondition=IfMatch(etag="other")) == Conflict()
    assert (world.announced(), world.reserved(), world.mark("a")) == ([], 0, None)
    assert world.queue.stats("t").counted == 0


def test_a_full_queue_refuses_a_put_before_anything_is_written(world):
    """Otherwise the object would be written without an entry, or other topics would keep a reservation for
    the object.
    """
    world.topic("a-wide")
    world.topic("small", capacity=2, shards=1)
    publisher = world.publisher()
    changes = [Put(key=f"k{n}", body=b"1") for n in range(4)]
    outcomes = publisher.publish(changes)
    assert [type(outcome) for outcome in outcomes] == [Written, Written, Refused, Refused]
    assert outcomes[2] == Refused(retry_after_seconds=1.0, topic="small")
    assert world.objects.head("k2") is None
    for topic in ("a-wide", "small", "t"):
        assert [key for _, key, _ in world.announced(topic)] == ["k0", "k1"]
        assert world.queue.stats(topic).counted == 2
    assert isinstance(publisher.put("k9", b"1"), Refused)
    assert world.mark("k9") is None


def test_every_topic_that_takes_the_key_gets_an_entry(world):
    """Otherwise a topic would miss changes, or get changes of another bucket or prefix."""
    world.topic("raw", prefix="raw/", bucket="b")
    world.topic("else", bucket="c")
    world.publisher().publish([Put(key="raw/a", body=b"1"), Put(key="x", body=b"1")])
    assert [key for _, key, _ in world.announced("raw")] == ["raw/a"]
    assert [key for _, key, _ in world.announced("t")] == ["raw/a", "x"]
    assert world.announced("else") == []


def test_signals_are_not_marked_as_queued_if_no_topic_takes_their_changes(world):
    """Otherwise a consumer would look for an entry instead of listing, and would miss the change."""
    world.queue.topics.delete("t")
    world.topic("raw", prefix="raw/")
    publisher = world.publisher()
    publisher.publish([Put(key="x", body=b"1"), Put(key="raw/a", body=b"1")])
    assert (world.mark("x"), world.mark("raw/a")) == (None, "1")
    assert world.objects.head(root_key(KS)).metadata == {}
    assert [key for _, key, _ in world.announced("raw")] == ["raw/a"]


def test_every_source_of_the_bucket_is_signalled(world):
    """Otherwise one of several sources of a bucket would miss changes, or a failed signal would not be reported."""
    other = Publisher(
        FaultyStore(world.objects, at("put", Fault.THROTTLED, nth=2)), prefix="other/", parallelism=1
    )
    publisher = QueuedPublisher(
        Publisher(world.objects, prefix=KS, parallelism=1),
        world.queue,
        bucket="b",
        others=[Keyspace(publisher=other, prefix="raw/")],
    )
    publisher.publish([Put(key="raw/a", body=b"1"), Put(key="x", body=b"1")])
    assert world.objects.head(f"other/{slot_of('raw/a')}").metadata == {QUEUED: "1"}
    assert world.objects.head(f"other/{slot_of('x')}") is None
    assert (world.mark("raw/a"), world.mark("x")) == ("1", "1")
    with pytest.raises(NotSignalledError) as caught:
        publisher.announce(["x", "raw/b"])
    assert caught.value.keys == ("raw/b",)


def test_rules_select_changes_by_metadata(world):
    """Otherwise a topic would get objects with other metadata. A deletion has no metadata."""
    world.queue.topics.delete("t")
    world.topic("sales", rules=(Rule(metadata=(("team", "sales"),)),))
    publisher = world.publisher()
    publisher.put("a", b"1", metadata={"team": "sales", "of": "2"})
    publisher.publish([Put(key="b", body=b"2", metadata={"team": "other"}), Put(key="c", body=b"3")])
    publisher.delete("a")
    assert [entry.event.key for entry in world.queue.entries("sales", range(1000))] == ["a"]


@pytest.mark.parametrize("first", [True, False], ids=["the first", "another"])
def test_a_topic_created_during_the_write_gets_the_entry(world, first):
    """The new topic's consumer may have listed the bucket before the write ended. Without an entry, this consumer would
    miss the object.
    """
    if first:
        world.queue.topics.delete("t")
    publisher = world.publisher(objects=meanwhile("a", lambda: world.topic("late")))
    outcome = publisher.put("a", b"1")
    assert world.announced("late") == [("put", "a", outcome.etag)]
    assert world.mark("a") == "1"


def test_a_new_topic_is_known_after_two_seconds(world):
    """Otherwise a topic that is two seconds old would miss the change of a killed writer."""
    publisher = world.publisher()
    publisher.put("a", b"1")
    world.topic("late")
    world.clock.now += TOPICS_KNOWN_SECONDS
    publisher = world.publisher(objects=at("put", Fault.CRASH_BEFORE), queue=publisher._queue)
    with pytest.raises(CrashedError):
        publisher.put("b", b"1")
    assert world.reserved("late") == 1


def test_a_new_topic_gets_a_reservation_for_a_write_in_doubt(world):
    """Otherwise a write whose outcome is unknown, and which is applied later, would never be announced to the new
    topic.
    """
    publisher = world.publisher(objects=meanwhile("a", lambda: world.topic("late"), Fault.REFUSED))
    assert isinstance(publisher.put_if_absent("a", b"1"), Unknown)
    late, known = world.queue.topics.all()
    scans = (world.queue.shards.scan(late, shard) for shard in range(2))
    (entry,) = (entry for scan in scans for segment in scan for entry in segment.entries)
    assert (entry.state, entry.event.announced_to) == ("reserved", (known.epoch, late.epoch))


@pytest.mark.parametrize("full", [True, False], ids=["full", "unreadable"])
def test_a_missing_entry_in_a_new_topic_is_an_error(world, full):
    """Otherwise a consumer would look for an entry that does not exist, instead of listing the bucket."""
    written = []

    def make():
        written.append(True)
        world.topic("late", capacity=1, shards=1)
        world.queue.push("late", Event(key="x", bucket="b"))

    def unseen(call):
        lost = written and not full and (call.method, call.key) == ("scan", "topics")
        return Fault.THROTTLED if lost else Fault.NONE

    publisher = world.publisher(objects=meanwhile("a", make), records=unseen)
    with pytest.raises(NotSignalledError) as caught:
        publisher.put("a", b"1")
    assert caught.value.keys == ("a",)
    assert isinstance(caught.value.outcomes[0], Written)
    assert world.mark("a") is None
    assert (world.announced(), world.reserved()) == ([], 1), "the reconciler announces the reserved change"


def test_a_deleted_topic_is_forgotten(world):
    """Otherwise a writer that knew the deleted topic would fail, or keep reservations in it."""
    publisher = world.publisher()
    world.topic("gone")
    world.clock.now += 100
    publisher.put("a", b"1")
    world.queue.topics.delete("gone")
    assert isinstance(publisher.put("b", b"1"), Written)
    assert [key for _, key, _ in world.announced()] == ["a", "b"]
    assert world.reserved() == 0


def test_the_entry_exists_before_the_signal_moves(world):
    """Otherwise a consumer that follows the signal would not find the change."""
    seen = []

    def schedule(call):
        if call.method == "put" and call.key.startswith(KS):
            seen.append([key for _, key, _ in world.announced()])
        return Fault.NONE

    world.publisher(objects=schedule).put("a", b"1")
    assert seen == [["a"], ["a"]]


def test_announce_reports_current_objects_and_deletions(world):
    """Otherwise objects of other writers could not be announced."""
    etag = world.objects.put("a", b"12").etag
    world.publisher().announce(["a", "gone", "a"])
    assert world.announced() == [("delete", "gone", None), ("put", "a", etag)]
    assert (world.mark("a"), world.mark("gone")) == ("1", "1")


def test_announce_applies_rules_by_metadata_but_not_by_event(world):
    """Otherwise a topic would get objects that its rule by metadata excludes."""
    world.queue.topics.delete("t")
    world.topic("sales", rules=(Rule(events=("ObjectCreated:Copy",), metadata=(("team", "sales"),)),))
    for team in ("sales", "hr"):
        world.objects.put(team, b"1", metadata={"team": team})
    world.publisher().announce(["sales", "hr", "gone"])
    assert [key for _, key, _ in world.announced("sales")] == ["sales"]


def test_invalid_changes_are_refused_without_a_trace(world):
    """Otherwise an invalid change would leave a reservation behind, or stop the other changes of its batch."""
    publisher = world.publisher()
    with pytest.raises(UsageError, match="twice"):
        publisher.publish([Put(key="a", body=b"1"), Delete(key="a")])
    with pytest.raises(UsageError, match="own"):
        publisher.put(f"{KS}1", b"1")
    with pytest.raises(UsageError, match="max_event_bytes"):
        publisher.put("x" * 5000, b"1")
    assert world.queue.stats("t").counted == 0
    with pytest.raises(UsageError, match="bytes"):
        publisher.publish([Put(key="a", body=b"1"), Put(key="x" * 1100, body=b"1")])
    assert [key for _, key, _ in world.announced()] == ["a"]
    assert world.queue.stats("t").counted == 1
    with pytest.raises(UsageError, match="metadata of 'b'"):
        publisher.publish([Put(key="b", body=b"1", metadata={"title": "a\nb"}), Put(key="c", body=b"1")])
    assert [key for _, key, _ in world.announced()] == ["a", "c"]
    assert world.reserved() == 0
    assert publisher.publish([]) == ()


# Costs


def test_each_call_sends_the_requests_that_its_docstring_states(world):
    """Otherwise a put could cost more than its documentation says. Each call of this record store is one request."""
    records, store = CountedRecords(world.records), CountingStore(world.objects)
    queue = NotificationQueue(records, clock=world.clock)
    publisher = QueuedPublisher(Publisher(store, prefix=KS, clock=world.clock), queue, bucket="b")

    def cost(work):
        store.counts.clear()
        return records.cost(work), dict(store.counts)

    publisher.put("warm", b"1")
    one = {"create": 1, "replace": 1}
    assert cost(lambda: publisher.put("a", b"1")) == (one | {"add": 1}, {"PUT": 3})
    assert cost(lambda: publisher.delete("a")) == (one, {"DELETE": 1, "PUT": 2})
    publisher.put("b", b"1")
    refused = {"add": 1, "create": 1, "remove": 1}
    assert cost(lambda: publisher.put_if_absent("warm", b"1")) == (refused, {"PUT": 1})
    batch = [Put(key=f"k{n}", body=b"1") for n in range(40)]
    slots = {slot_of(change.key) for change in batch}
    assert cost(lambda: publisher.publish(batch)) == (one | {"add": 1}, {"PUT": 40 + len(slots) + 1})
    world.clock.now += TOPICS_KNOWN_SECONDS
    assert cost(lambda: publisher.put("c", b"1")) == (one | {"add": 1, "scan": 1}, {"PUT": 3})


class Distant(CountingStore):
    """A store whose requests take 25 ms."""

    def __init__(self, store, clock):
        super().__init__(store)
        self.clock = clock

    def _target(self, method):
        self.clock.now += 0.025
        return super()._target(method)


def test_a_put_with_the_queue_on_the_bucket_needs_four_more_requests():
    """Otherwise a durable entry would cost more than about four requests. Topics are read every two seconds, and one
    request reserves space for 32 puts.
    """
    clock = HandClock()
    store = Distant(MemoryObjectStore(), clock)
    queue = NotificationQueue(ObjectRecordStore(store, "r/", keys_recur=keys_recur), clock=clock)
    queue.topics.create("t", TopicSettings())
    publisher = QueuedPublisher(Publisher(store, prefix=KS, clock=clock, parallelism=1), queue, bucket="b")
    costs = []
    for number in range(600):
        store.counts.clear()
        assert isinstance(publisher.put(f"k{number}", b"1"), Written)
        costs.append((store.counts - Counter({"PUT": 1})).total())
    assert costs[0] == 8, "topics, their record, a counter"
    # The first puts also read each of the eight counters once.
    steady = costs[300:]
    assert max(steady) == 5
    assert min(steady) == 4
    assert sum(steady) <= 4.2 * len(steady)


def test_a_topic_with_other_slots_than_its_source_is_refused():
    """Otherwise the source's consumer would look for entries in other slots. Other topics may have any number of
    slots.
    """
    records, objects = MemoryRecordStore(), MemoryObjectStore()
    queue = NotificationQueue(records, clock=HandClock())
    queue.topics.create("copies", TopicSettings())
    publisher = QueuedPublisher(Publisher(objects, prefix="s/", slots=40), queue, bucket="b", topic="orders")
    assert isinstance(publisher.put("k", b"1"), Written)
    queue.topics.create("orders", TopicSettings())
    for publish in (lambda: publisher.put("l", b"1"), lambda: publisher.announce(["k"])):
        with pytest.raises(UsageError, match="'orders' has 1000 slots, but its source has 40"):
            publish()
    assert objects.head("l") is None
