"""The delivery worker, step by step: splitting, outages, what counts as an attempt, and isolation."""

import threading

import pytest

from s3notify_platform.channels.delivery.circuit import PROBE_CEILING_SECONDS, REFUSED_MAX, Circuit
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.push import Delivered, Down, Rejected
from s3notify_platform.channels.delivery.shard import grouped
from s3notify_platform.channels.delivery.worker import Delivery
from s3notify_platform.errors import UsageError
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, TopicSettings
from s3notify_platform.protocols.notification_queue.owners import BEAT_SECONDS
from s3notify_platform.slots import slot_of
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.support.clocks import HandClock
from tests.support.counted import CountedRecords
from tests.support.faults import Fault, FaultyStore, at
from tests.support.outlets import ENDPOINT, FakePush, SteppedDelivery

GONE = Down(error="refused", reached=False)
SILENT = Down(error="timed out", reached=True)


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def records():
    return MemoryRecordStore()


def queue_over(records, clock):
    return NotificationQueue(records, clock=clock, parallelism=1)


@pytest.fixture
def queue(records, clock):
    queue = queue_over(records, clock)
    create(queue)
    return queue


def create(queue, name="t", **fields):
    queue.topics.create(name, TopicSettings(**{"capacity": 200, "shards": 1, "endpoint": ENDPOINT} | fields))


def push(queue, count, topic="t"):
    queue.push_many(topic, [Event(key=f"k{n:03}") for n in range(count)])


def refusing(*keys):
    def answer(entries):
        return Rejected(error="HTTP 400") if {e.event.key for e in entries} & {*keys} else Delivered()

    return answer


def run_for(delivery, clock, seconds, step=0.25):
    """Beats every `BEAT_SECONDS`, turns in between."""
    ends, beat_at = clock.now + seconds, clock.now
    while clock.now < ends:
        if clock.now >= beat_at:
            delivery.beat()
            beat_at = clock.now + BEAT_SECONDS
        delivery.turn()
        clock.now += step


def test_batches(queue):
    """As large as the endpoint takes; each entry once, nothing left."""
    push(queue, 20)
    hook = FakePush()
    delivery = SteppedDelivery(queue, hook)
    delivery.step()
    delivery.step()
    assert hook.sizes == [8, 8, 4]
    assert set(hook.told.values()) == {1}
    assert queue.stats("t").depth == 0
    assert delivery.counts() == {
        "delivered": 20, "failed": 0, "dead": 0, "requests": 3, "shards": 1,
    }  # fmt: skip


def test_the_event_to_blame_is_found_in_one_turn(queue):
    """Its neighbours go out at once, with their first attempt; it costs about 2 log2(n) requests."""
    push(queue, 8)
    hook = FakePush(refusing("k002"))
    delivery = SteppedDelivery(queue, hook)
    delivery.step()
    assert len(hook.told) == 7
    assert {entry.attempts for entry in hook.entries} == {1}
    assert len(hook.sizes) == 7
    (left,) = queue.entries("t", range(1000))
    assert (left.event.key, left.attempts, left.last_error) == ("k002", 1, "HTTP 400")
    assert not any("down" in message for message in delivery.messages)


def test_what_failed_before_travels_alone(queue, clock):
    """A batch that was not answered: whoever is to blame, the others go out next time."""
    push(queue, 6)

    def answer(entries):
        return SILENT if any(entry.event.key == "k004" for entry in entries) else Delivered()

    hook = FakePush(answer)
    delivery = SteppedDelivery(queue, hook)
    run_for(delivery, clock, 30)
    assert len(hook.told) == 5
    assert set(hook.sizes) == {6, 1}
    assert {entry.attempts for entry in hook.entries} == {2}
    assert queue.stats("t").dead == 0


def test_grouping():
    """First tries in batches, the others one by one."""

    class Tried:
        def __init__(self, attempts):
            self.attempts = attempts

    entries = [Tried(n) for n in (1, 1, 2, 1, 3)]
    assert [[e.attempts for e in batch] for batch in grouped(entries, 2)] == [[1, 1], [1], [2], [3]]
    assert list(grouped([], 2)) == []


@pytest.mark.parametrize("answer", [GONE, SILENT, Rejected(error="HTTP 500")])
def test_an_outage_costs_the_backlog_no_attempts(queue, clock, answer):
    """60 s down with 100 entries waiting: none dies, though three attempts are all they have."""
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
    assert set(hook.told.values()) == {1}
    assert len(hook.told) == 100
    assert queue.stats("t").dead == 0


def test_only_what_may_have_been_looked_at_counts(queue, clock):
    """Hours without a connection bury nothing; hours of 500 do."""
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


def test_time_used_up_while_nothing_can_be_delivered(queue, clock):
    """All of it goes to the dead letters soon, though only probes are sent."""
    queue.topics.update("t", TopicSettings(capacity=200, shards=1, endpoint=ENDPOINT, ttl_seconds=100))
    push(queue, 50)
    delivery = SteppedDelivery(queue, FakePush(lambda _: GONE))
    run_for(delivery, clock, 80, step=1)
    assert queue.stats("t").dead == 0
    run_for(delivery, clock, 80, step=1)
    assert queue.stats("t").dead == 50
    assert queue.stats("t").depth == 0


def test_one_endpoint_is_nobody_elses_trouble(queue, clock):
    """Down, unusable, or badly set: other topics are delivered."""
    create(queue, "down", endpoint=Endpoint(url="https://down.example/").dumps())
    create(queue, "none", endpoint=Endpoint(url="https://unusable.example/").dumps())
    create(queue, "text", endpoint="not json")
    for topic in ("t", "down", "none", "text"):
        push(queue, 5, topic)
    hook, dead = FakePush(), FakePush(lambda _: GONE)

    class Refusing(dict):
        def __missing__(self, url):
            raise UsageError("set S3NOTIFY_PUSH_A, the HMAC key")

    delivery = SteppedDelivery(
        queue, Refusing({"https://hooks.example.com/": hook, "https://down.example/": dead})
    )
    run_for(delivery, clock, 10)
    assert len(hook.told) == 5
    assert len(delivery.messages) == 3
    assert "topic 'down': down: refused" in delivery.messages
    assert "topic 'none' is not delivered: set S3NOTIFY_PUSH_A, the HMAC key" in delivery.messages
    assert any("topic 'text' is not delivered: no valid endpoint" in message for message in delivery.messages)
    assert queue.stats("none").depth == queue.stats("text").depth == 5
    assert {entry.attempts for entry in queue.entries("none", range(1000))} == {0}


def test_an_endpoint_that_is_changed(queue, clock):
    """The new one is used from the next beat, with a fresh circuit; the old one's connections end."""
    old, new = FakePush(lambda _: GONE), FakePush()
    urls = {"https://hooks.example.com/": old, "https://new.example/": new}
    push(queue, 5)
    delivery = SteppedDelivery(queue, urls)
    run_for(delivery, clock, 5)
    moved = TopicSettings(capacity=200, shards=1, endpoint=Endpoint(url="https://new.example/").dumps())
    queue.topics.update("t", moved)
    run_for(delivery, clock, 5)
    assert old.closed
    assert not old.told
    assert len(new.told) == 5


def test_a_topic_that_is_deleted(queue, clock):
    """Its deliveries and its connections end."""
    hook = FakePush()
    push(queue, 3)
    delivery = SteppedDelivery(queue, hook)
    delivery.step()
    queue.topics.delete("t")
    delivery.step()
    delivery.step()
    assert delivery.shards == {}
    assert hook.closed


def test_shards_move_to_newcomers_though_they_are_busy(queue, clock):
    """A shard that is never idle is paused until it is released; nothing is delivered twice."""
    create(queue, "busy", shards=4, capacity=1000)
    hook = FakePush()
    first, second = SteppedDelivery(queue, hook), SteppedDelivery(queue, hook)
    first.beat()
    for shard in first.shards.values():
        shard.turning.acquire()  # in the middle of a turn, as far as beats can see
    second.beat()
    first.beat()
    assert len(first.shards) == 5
    paused = [shard for shard in first.shards.values() if shard.paused]
    assert len(paused) == 2
    for shard in paused:
        shard.turning.release()  # ends its turn, and takes no other one
    first.beat()
    second.beat()
    assert (len(first.shards), len(second.shards)) == (3, 2)
    assert not any(shard.paused for shard in first.shards.values())


def test_entries_of_a_turn_that_broke_are_taken_again(queue, clock):
    """Whatever went wrong in it."""
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
    assert len(hook.told) == 3


def test_a_lease_that_lapsed_stops_the_posts(queue, clock):
    """What is in hand is not posted any more; it goes out once the lease is renewed."""
    push(queue, 64)
    late = []

    def answer(_):
        if not late:
            late.append(True)
            clock.now += 6  # the beats stand still meanwhile
        return Delivered()

    hook = FakePush(answer)
    delivery = SteppedDelivery(queue, hook)
    delivery.step()
    assert len(hook.told) == 16  # one wave
    run_for(delivery, clock, 10)
    assert len(hook.told) == 64
    assert set(hook.told.values()) == {1}
    assert {entry.attempts for entry in hook.entries} <= {1, 2}


def tried_once(delivery, clock, mood, hook):
    """Lets every entry fail once, so that each travels alone from now on; their backoff is over."""
    mood[0] = SILENT
    delivery.step()
    mood[0] = Delivered()
    delivery.shards["t", 0]._target().circuit.note(Delivered(), "")  # as if by another shard
    hook.sizes.clear()
    clock.now += 3
    delivery.beat()


def test_a_lease_that_lapsed_in_the_middle_of_a_turn(queue, clock):
    """The rest of it is not posted, and keeps its attempts."""
    push(queue, 16)
    mood = [SILENT]

    def answer(_):
        if mood[0] == Delivered():
            clock.now += 3
        return mood[0]

    hook = FakePush(answer)
    delivery = SteppedDelivery(queue, hook)
    tried_once(delivery, clock, mood, hook)
    delivery.turn()
    assert hook.sizes == [1, 1]
    assert {entry.attempts for entry in queue.entries("t", range(1000))} == {1}
    assert queue.stats("t").depth == 14


def test_an_outage_in_the_middle_of_a_turn(queue, clock):
    """The rest of it is not posted, and keeps its attempts."""
    push(queue, 16)
    mood = [SILENT]
    hook = FakePush(lambda _: mood[0])
    delivery = SteppedDelivery(queue, hook)
    tried_once(delivery, clock, mood, hook)
    mood[0] = SILENT
    delivery.turn()
    assert hook.sizes == [1, 1]
    assert sorted(entry.attempts for entry in queue.entries("t", range(1000))) == [1] * 14 + [2] * 2


def test_a_shard_that_has_nothing_to_probe_with_leaves_it_to_others(queue, clock):
    """Only one of two shards holds an entry: the endpoint's return is noticed by it."""
    create(queue, "two", shards=2, endpoint=Endpoint(url="https://two.example/").dumps())
    mood = [GONE]
    hook = FakePush(lambda _: mood[0])
    delivery = SteppedDelivery(
        queue, {"https://two.example/": hook, "https://hooks.example.com/": FakePush()}
    )
    key = next(f"k{n}" for n in range(100) if slot_of(f"k{n}") >= 500)
    queue.push("two", Event(key=key))
    run_for(delivery, clock, 20)
    mood[0] = Delivered()
    run_for(delivery, clock, PROBE_CEILING_SECONDS + 5)
    assert hook.told == {key: 1}


def test_what_is_owed_is_not_told_twice(records, clock):
    """The store refuses removals for a while."""
    queue = queue_over(FaultyStore(records, at("remove", Fault.THROTTLED)), clock)
    create(queue)
    push(queue, 4)
    hook = FakePush()
    run_for(SteppedDelivery(queue, hook), clock, 5)
    assert set(hook.told.values()) == {1}
    assert queue.stats("t").depth == 0


def test_a_store_that_is_away(records, clock):
    """Beats and turns go on, and make it good."""
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
    assert any("cannot be reached" in message for message in delivery.messages)
    assert not hook.told
    away[0] = False
    run_for(delivery, clock, 5)
    assert len(hook.told) == 4


def test_requests(clock):
    """For each entry two writes; an outage with nobody's probe due costs nothing but beats."""
    records = CountedRecords(MemoryRecordStore())
    queue = NotificationQueue(records, clock=clock)
    create(queue)
    push(queue, 8)
    mood = [Delivered()]
    delivery = SteppedDelivery(queue, FakePush(lambda _: mood[0]))
    delivery.beat()
    assert records.cost(delivery.turn) == {"scan": 1, "replace": 8, "read": 1, "remove": 8, "add": 2}
    push(queue, 8)
    mood[0] = GONE
    delivery.turn()
    delivery.turn()
    assert delivery.shards
    records.counts.clear()
    delivery.turn()  # looks for what has used up its time, once in a while
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
        progress("care ends")

    def counts(self):
        return {"resolved": 2}


def test_the_service_runs_until_it_is_stopped():
    """In threads, with others alongside; its shards are free at once after it."""
    queue = NotificationQueue(MemoryRecordStore())
    create(queue, shards=4)
    push(queue, 40)
    hook = FakePush()
    reconciler, told, stop = Alongside(), [], threading.Event()
    delivery = Delivery(queue, connect=lambda _: hook, alongside=[reconciler], beat_seconds=0.05)
    thread = threading.Thread(target=delivery.run, args=(stop, told.append))
    thread.start()
    assert reconciler.began.wait(5)
    for _ in range(500):
        if len(hook.told) == 40:
            break
        threading.Event().wait(0.01)
    assert delivery.counts()["shards"] == 4
    assert delivery.counts()["reconcile_resolved"] == 2
    stop.set()
    thread.join(5)
    assert not thread.is_alive()
    assert set(hook.told.values()) == {1}
    assert hook.closed
    assert told == ["care ends"]
    second = SteppedDelivery(queue, FakePush())
    second.beat()
    assert len(second.shards) == 4


def test_a_shard_in_trouble_is_told_and_holds_up_no_other():
    """An entry that cannot be read: a person is called by the log, the others go on."""
    records = MemoryRecordStore()
    queue = NotificationQueue(records)
    create(queue, shards=2)
    push(queue, 20)
    records.create("queue.t.001", "999.zzz", b"garbage")
    in_shard_0 = sum(entry.slot < 500 for entry in queue.entries("t", range(500)))
    hook, told, stop = FakePush(), [], threading.Event()
    delivery = Delivery(queue, connect=lambda _: hook, beat_seconds=0.05)
    thread = threading.Thread(target=delivery.run, args=(stop, told.append))
    thread.start()
    for _ in range(500):
        if told and len(hook.told) == in_shard_0:
            break
        threading.Event().wait(0.01)
    stop.set()
    thread.join(5)
    assert len(hook.told) == in_shard_0
    assert len(told) == 1
    assert "shard 1 is not delivered" in told[0]
    assert "999.zzz" in told[0]


def test_what_only_an_operator_can_mend_ends_the_service():
    """Credentials that are not there, say."""

    class NoCredentials:
        def __getattr__(self, _):
            def call(*args, **kwargs):
                raise UsageError("no credentials")

            return call

    delivery = Delivery(NotificationQueue(NoCredentials()))
    with pytest.raises(UsageError, match="no credentials"):
        delivery.run(threading.Event(), lambda _: None)


# The circuit


@pytest.fixture
def told():
    return []


@pytest.fixture
def circuit(clock, told):
    return Circuit(clock, report=told.append, base_seconds=1.0, ceiling_seconds=8.0)


def probe(circuit, clock):
    for _ in range(200):
        if (admission := circuit.admit(10)).limit:
            return admission
        clock.now += 0.1
    raise AssertionError("no probe")


def test_one_probe_at_a_time(circuit, clock, told):
    """After a wait that grows with each that fails, to its ceiling; the one that is accepted closes."""
    assert circuit.admit(10).limit == 10
    circuit.note(GONE, "a")
    waits = []
    for _ in range(10):
        before = clock.now
        admission = probe(circuit, clock)
        waits.append(clock.now - before)
        assert (admission.limit, admission.probe) == (1, True)
        assert circuit.admit(10).limit == 0
        circuit.note(GONE, "a", probe=True)
    assert max(waits) <= 8.1
    assert max(waits) > 2.0
    circuit.note(Delivered(), "a", probe=probe(circuit, clock).probe)
    assert circuit.admit(10).limit == 10
    assert len(told) == 2
    assert told[0] == "down: refused"
    assert told[1].startswith("delivers again, after ")


def test_a_probe_that_is_not_sent_is_free_for_others(circuit, clock):
    """Its shard had nothing to send."""
    circuit.note(GONE, "a")
    probe(circuit, clock)
    circuit.release()
    assert circuit.admit(1).probe


def test_what_was_under_way_makes_no_wait_longer(circuit, clock):
    """A wave that fails counts once; the endpoint's own wish is kept."""
    for _ in range(30):
        circuit.note(SILENT, "a")
    before = clock.now
    probe(circuit, clock)
    assert clock.now - before <= 2.1
    circuit.release()
    circuit.note(Down(error="HTTP 429", reached=False, retry_after_seconds=15.0), "a")
    before = clock.now
    probe(circuit, clock)
    assert clock.now - before >= 14.9


def test_refusals_open_it_only_if_nothing_else_comes(circuit):
    """One bad event, however often; or many, with good ones between."""
    for _ in range(3 * REFUSED_MAX):
        circuit.note(Rejected(error="x"), "bad")
    for n in range(3 * REFUSED_MAX):
        circuit.note(Rejected(error="x"), f"bad {n}")
        circuit.note(Delivered(), "good")
    assert not circuit.is_open
    for n in range(REFUSED_MAX):
        assert not circuit.is_open
        circuit.note(Rejected(error="x"), f"bad {n}")
    assert circuit.is_open
