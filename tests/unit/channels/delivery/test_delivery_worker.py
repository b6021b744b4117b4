"""The delivery worker, step by step: batches, outages, the counting of attempts, isolation of topics."""

import threading

import pytest

from s3notify_platform.channels.delivery.circuit import PROBE_CEILING_SECONDS
from s3notify_platform.channels.delivery.delivery_worker import Delivery
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.push import Delivered, Rejected
from s3notify_platform.channels.delivery.shard_delivery import grouped
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, TopicSettings
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.support.counted import CountedRecords
from tests.support.faults import Fault, FaultyStore, at
from tests.support.outlets import (
    ENDPOINT,
    GONE,
    SILENT,
    FakePush,
    SteppedDelivery,
    WithoutLogin,
    create,
    push,
    queue_over,
    refusing,
    run_for,
)
from tests.support.waiting import until


def test_entries_are_delivered_once_in_batches_as_large_as_the_endpoint_allows(queue):
    push(queue, 20)
    hook = FakePush()
    delivery = SteppedDelivery(queue, hook)
    delivery.step()
    delivery.step()
    assert hook.sizes == [8, 8, 4]
    assert set(hook.delivered.values()) == {1}
    assert queue.stats("t").depth == 0
    assert delivery.counts() == {
        "delivered": 20, "failed": 0, "dead": 0, "requests": 3, "shards": 1, "waited_ms": 0, "unusable_topics": 0,
    }  # fmt: skip


def test_a_refused_event_is_isolated_in_one_turn(queue):
    """Otherwise one bad event would delay the other events of its batch. The good events of the batch are delivered in
    the same turn, for about 2 log2(n) requests.
    """
    push(queue, 8)
    hook = FakePush(refusing("k002"))
    delivery = SteppedDelivery(queue, hook)
    delivery.step()
    assert len(hook.delivered) == 7
    assert {entry.attempts for entry in hook.entries} == {1}
    assert len(hook.sizes) == 7
    (left,) = queue.entries("t", range(1000))
    assert (left.event.key, left.attempts, left.last_error) == ("k002", 1, "HTTP 400")
    assert not any("down" in message for message in delivery.messages)


def test_entries_that_failed_are_sent_alone(queue, clock):
    """Otherwise an event that makes the endpoint hang would block the other events of its batch for ever."""
    push(queue, 6)

    def answer(entries):
        return SILENT if any(entry.event.key == "k004" for entry in entries) else Delivered()

    hook = FakePush(answer)
    delivery = SteppedDelivery(queue, hook)
    run_for(delivery, clock, 30)
    assert len(hook.delivered) == 5
    assert set(hook.sizes) == {6, 1}
    assert {entry.attempts for entry in hook.entries} == {2}
    assert queue.stats("t").dead == 0


def test_only_entries_that_were_never_tried_share_a_batch():
    """Otherwise an event that makes the endpoint fail could share its batch with the same other events again and again.
    Each failure would count as an attempt of all these events, and good events could become dead letters.
    """

    class Tried:
        def __init__(self, attempts):
            self.attempts = attempts

    entries = [Tried(n) for n in (1, 1, 2, 1, 3)]
    assert [[e.attempts for e in batch] for batch in grouped(entries, 2)] == [[1, 1], [1], [2], [3]]
    assert list(grouped([], 2)) == []


@pytest.mark.parametrize("answer", [GONE, SILENT, Rejected(error="HTTP 500")])
def test_an_outage_costs_the_backlog_no_attempts(queue, clock, answer):
    """Otherwise waiting entries, which have only three attempts, would become dead letters after an outage of 60 s."""
    queue.topics.update("t", TopicSettings(capacity=200, shards=1, endpoint=ENDPOINT, max_attempts=3))
    push(queue, 100)
    down = [True]
    hook = FakePush(lambda _: answer if down[0] else Delivered())
    delivery = SteppedDelivery(queue, hook)
    run_for(delivery, clock, 60)
    tried = len(hook.sizes)
    assert tried < 40
    attempts = [entry.attempts for entry in queue.entries("t", range(1000))]
    assert len(attempts) == 100
    assert max(attempts) < 3
    assert sum(attempts) <= (0 if answer == GONE else 16 + tried)
    down[0] = False
    run_for(delivery, clock, PROBE_CEILING_SECONDS + 15)
    assert set(hook.delivered.values()) == {1}
    assert len(hook.delivered) == 100
    assert queue.stats("t").dead == 0


def test_an_attempt_counts_only_if_it_reached_the_endpoint(queue, clock):
    """Otherwise entries would become dead letters after hours without a connection. If the endpoint answers with status
    500 for hours, entries become dead letters, since each attempt reached the endpoint.
    """
    queue.topics.update("t", TopicSettings(capacity=200, shards=1, endpoint=ENDPOINT, max_attempts=3))
    push(queue, 1)
    mood = [GONE]
    delivery = SteppedDelivery(queue, FakePush(lambda _: mood[0]))
    run_for(delivery, clock, 600, step=1)
    assert queue.stats("t").dead == 0
    assert queue.entries("t", range(1000))[0].last_error == "refused"
    mood[0] = Rejected(error="HTTP 500")
    run_for(delivery, clock, 600, step=1)
    (letter,) = queue.dead("t")
    assert letter.reason == "3 attempts: HTTP 500"
    assert delivery.counts()["dead"] == 1


def test_entries_expire_while_the_endpoint_is_down(queue, clock):
    """In an outage, the worker takes entries only for probes. If entries expired only when they are taken, old entries
    would fill the queue.
    """
    queue.topics.update("t", TopicSettings(capacity=200, shards=1, endpoint=ENDPOINT, ttl_seconds=100))
    push(queue, 50)
    delivery = SteppedDelivery(queue, FakePush(lambda _: GONE))
    run_for(delivery, clock, 80, step=1)
    assert queue.stats("t").dead == 0
    run_for(delivery, clock, 80, step=1)
    assert queue.stats("t").dead == 50
    assert queue.stats("t").depth == 0


def test_a_bad_endpoint_does_not_affect_other_topics(queue, clock):
    """Otherwise an endpoint that is down, unusable or malformed would stop the delivery of other topics."""
    create(queue, "down", endpoint=Endpoint(url="https://down.example/").dumps())
    create(queue, "none", endpoint=Endpoint(url="https://unusable.example/").dumps())
    create(queue, "text", endpoint="not json")
    for topic in ("t", "down", "none", "text"):
        push(queue, 5, topic)
    hook, dead = FakePush(), FakePush(lambda _: GONE)

    delivery = SteppedDelivery(
        queue, WithoutLogin({"https://hooks.example.com/": hook, "https://down.example/": dead})
    )
    run_for(delivery, clock, 10)
    assert len(hook.delivered) == 5
    assert len(delivery.messages) == 3
    assert "topic 'down': down: refused" in delivery.messages
    assert "topic 'none' is not delivered by this worker: set S3NOTIFY_SEND_A" in delivery.messages
    assert any(
        "topic 'text' is not delivered by this worker: not a valid endpoint" in message
        for message in delivery.messages
    )
    assert queue.stats("none").depth == queue.stats("text").depth == 5
    assert {entry.attempts for entry in queue.entries("none", range(1000))} == {0}


def test_a_changed_endpoint_is_used_from_the_next_heartbeat(queue, clock):
    """Otherwise entries would still be sent to the old endpoint, or would wait while the old endpoint's circuit is
    open.
    """
    old, new = FakePush(lambda _: GONE), FakePush()
    urls = {"https://hooks.example.com/": old, "https://new.example/": new}
    push(queue, 5)
    delivery = SteppedDelivery(queue, urls)
    run_for(delivery, clock, 5)
    moved = TopicSettings(capacity=200, shards=1, endpoint=Endpoint(url="https://new.example/").dumps())
    queue.topics.update("t", moved)
    run_for(delivery, clock, 5)
    assert old.closed
    assert not old.delivered
    assert len(new.delivered) == 5


def test_the_deletion_of_a_topic_ends_its_deliveries_and_connections(queue, clock):
    hook = FakePush()
    push(queue, 3)
    delivery = SteppedDelivery(queue, hook)
    delivery.step()
    queue.topics.delete("t")
    delivery.step()
    delivery.step()
    assert delivery.shards == {}
    assert hook.closed


def test_busy_shards_move_to_a_new_worker(queue, clock):
    """Otherwise a new worker would get no shards as long as the first worker is busy."""
    create(queue, "busy", shards=4, capacity=1000)
    hook = FakePush()
    first, second = SteppedDelivery(queue, hook), SteppedDelivery(queue, hook)
    first.beat()
    for shard in first.shards.values():
        shard.turning.acquire()  # so that a heartbeat happens during a turn
    second.beat()
    first.beat()
    assert len(first.shards) == 5
    paused = [shard for shard in first.shards.values() if shard.paused]
    assert len(paused) == 2
    for shard in paused:
        shard.turning.release()  # ends the turn; a paused shard starts no other turn
    first.beat()
    second.beat()
    assert (len(first.shards), len(second.shards)) == (3, 2)
    assert not any(shard.paused for shard in first.shards.values())


def test_entries_of_a_failed_turn_are_taken_again(queue, clock):
    """Otherwise, after an unexpected error, the entries of the failed turn would stay undelivered until a restart of
    the worker.
    """
    push(queue, 3)
    broken = [True]

    def answer(_):
        if broken[0]:
            raise RuntimeError("a defect")
        return Delivered()

    hook = FakePush(answer)
    delivery = SteppedDelivery(queue, hook)
    delivery.beat()
    with pytest.raises(RuntimeError):
        delivery.turn()
    broken[0] = False
    run_for(delivery, clock, 5)
    assert len(hook.delivered) == 3


def test_a_lapsed_lease_stops_the_posts(queue, clock):
    """Otherwise entries would be delivered twice: by this worker, and by the shard's next owner."""
    push(queue, 64)
    late = []

    def answer(_):
        if not late:
            late.append(True)
            clock.now += 6  # no heartbeat happens in these 6 s
        return Delivered()

    hook = FakePush(answer)
    delivery = SteppedDelivery(queue, hook)
    delivery.step()
    assert len(hook.delivered) == 16  # one wave of requests was sent
    run_for(delivery, clock, 10)
    assert len(hook.delivered) == 64
    assert set(hook.delivered.values()) == {1}
    assert {entry.attempts for entry in hook.entries} <= {1, 2}


def tried_once(delivery, clock, mood, hook):
    """Makes each entry fail once, and waits until the backoff of the entries has ended. After this attempt, each entry
    is sent alone.
    """
    mood[0] = SILENT
    delivery.step()
    mood[0] = Delivered()
    # This call closes the circuit, as a delivery by another shard would.
    delivery.shards["t", 0]._target().circuit.note(Delivered(), "")
    hook.sizes.clear()
    clock.now += 3
    delivery.beat()


@pytest.mark.parametrize(("answer", "tried"), [(Delivered(), []), (SILENT, [2, 2])], ids=["lapse", "outage"])
def test_a_lapsed_lease_or_an_outage_ends_the_posts_of_a_turn(queue, clock, answer, tried):
    """Otherwise entries that were never sent would lose attempts."""
    push(queue, 16)
    mood = [SILENT]

    def post(_):
        if mood[0] == Delivered():
            clock.now += 3  # the lease lapses after two posts
        return mood[0]

    hook = FakePush(post)
    delivery = SteppedDelivery(queue, hook)
    tried_once(delivery, clock, mood, hook)
    mood[0] = answer
    delivery.turn()
    assert hook.sizes == [1, 1]
    assert sorted(entry.attempts for entry in queue.entries("t", range(1000))) == [1] * 14 + tried


def test_an_empty_shard_leaves_the_probe_to_others(queue, clock):
    """Otherwise an empty shard would use up each probe, and nobody would notice that the endpoint works again."""
    create(queue, "two", shards=2, endpoint=Endpoint(url="https://two.example/").dumps())
    mood = [GONE]
    hook = FakePush(lambda _: mood[0])
    delivery = SteppedDelivery(
        queue, {"https://two.example/": hook, "https://hooks.example.com/": FakePush()}
    )
    queue.push("two", Event(key="k"))
    run_for(delivery, clock, 20)
    mood[0] = Delivered()
    run_for(delivery, clock, PROBE_CEILING_SECONDS + 5)
    assert hook.delivered == {"k": 1}


def test_entries_whose_removal_failed_are_not_delivered_twice(records, clock):
    queue = queue_over(FaultyStore(records, at("remove", Fault.THROTTLED)), clock)
    create(queue)
    push(queue, 4)
    hook = FakePush()
    run_for(SteppedDelivery(queue, hook), clock, 5)
    assert set(hook.delivered.values()) == {1}
    assert queue.stats("t").depth == 0


def test_deliveries_continue_after_an_outage_of_the_store(records, clock):
    """Otherwise an outage of the store would end the worker."""
    away = [True]
    faulty = FaultyStore(records, lambda _: Fault.THROTTLED if away[0] else Fault.NONE)
    queue = queue_over(faulty, clock)
    away[0] = False
    create(queue)
    push(queue, 4)
    hook = FakePush()
    delivery = SteppedDelivery(queue, hook)
    delivery.beat()
    away[0] = True
    delivery.step()
    assert any("is not reachable" in message for message in delivery.messages)
    assert not hook.delivered
    away[0] = False
    run_for(delivery, clock, 5)
    assert len(hook.delivered) == 4


def test_requests_of_a_turn(clock):
    """Otherwise a turn could cost more than two writes for each segment, or turns could send requests to the store
    while the endpoint is down.
    """
    records = CountedRecords(MemoryRecordStore())
    queue = NotificationQueue(records, clock=clock)
    create(queue)
    push(queue, 8)
    mood = [Delivered()]
    delivery = SteppedDelivery(queue, FakePush(lambda _: mood[0]))
    delivery.beat()
    assert records.cost(delivery.turn) == {"scan": 1, "replace": 1, "read": 1, "remove": 1, "add": 2}
    push(queue, 8)
    mood[0] = GONE
    delivery.turn()
    delivery.turn()
    assert delivery.shards
    records.counts.clear()
    # A scan for expired entries is due every 30 s, so also in this turn.
    delivery.turn()
    records.counts.clear()
    for _ in range(5):
        delivery.turn()
    assert not records.counts


# The service


class Alongside:
    name = "reconcile"

    def __init__(self):
        self.began = threading.Event()

    def run(self, stop, progress):
        self.began.set()
        stop.wait()
        progress("reconciler ends")

    def counts(self):
        return {"resolved": 2}


def test_the_service_delivers_until_it_is_stopped():
    """Otherwise a clean stop would leave threads, connections or leases behind."""
    queue = NotificationQueue(MemoryRecordStore())
    create(queue, shards=4)
    push(queue, 40)
    hook = FakePush()
    reconciler, reports, stop = Alongside(), [], threading.Event()
    delivery = Delivery(queue, connect=lambda _: hook, alongside=[reconciler], beat_seconds=0.05)
    thread = threading.Thread(target=delivery.run, args=(stop, reports.append))
    thread.start()
    assert reconciler.began.wait(5)
    until(lambda: len(hook.delivered) == 40)
    until(lambda: delivery.counts()["shards"] == 4)
    assert delivery.counts()["reconcile_resolved"] == 2
    stop.set()
    thread.join(5)
    assert not thread.is_alive()
    assert set(hook.delivered.values()) == {1}
    assert hook.closed
    assert reports == ["reconciler ends"]
    second = SteppedDelivery(queue, FakePush())
    second.beat()
    assert len(second.shards) == 4


def test_a_shard_with_an_unreadable_entry_is_reported_and_does_not_block_others():
    records = MemoryRecordStore()
    queue = NotificationQueue(records)
    create(queue, shards=2)
    for n in range(20):
        queue.push("t", Event(key=f"k{n}"))
    in_shard_0 = sum(entry.shard == 0 for entry in queue.entries("t", range(1000)))
    records.create("queue.t", "001-999.zzz", b"garbage")
    hook, reports, stop = FakePush(), [], threading.Event()
    delivery = Delivery(queue, connect=lambda _: hook, beat_seconds=0.05)
    thread = threading.Thread(target=delivery.run, args=(stop, reports.append))
    thread.start()
    until(lambda: reports and len(hook.delivered) == in_shard_0)
    stop.set()
    thread.join(5)
    assert len(hook.delivered) == in_shard_0
    assert len(reports) == 1
    assert "shard 1 is not delivered" in reports[0]
    assert "999.zzz" in reports[0]


def test_errors_that_only_an_operator_can_fix_end_the_service():
    """Otherwise a service without credentials would run for ever, and deliver nothing."""

    class NoCredentials:
        def __getattr__(self, _):
            def call(*args, **kwargs):
                raise UsageError("no credentials")

            return call

    delivery = Delivery(NotificationQueue(NoCredentials()))
    with pytest.raises(UsageError, match="no credentials"):
        delivery.run(threading.Event(), lambda _: None)
