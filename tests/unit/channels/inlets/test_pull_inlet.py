"""The pull inlet: the outcome of each message, over a queue that can hide messages."""

from threading import Event as Stop
from threading import Thread

import pytest

from s3notify_platform.channels.inlets.pull_inlet import FULL_CEILING_SECONDS, PullInlet
from s3notify_platform.kernel.errors import CorruptError, UnavailableError, UsageError
from s3notify_platform.kernel.ports import Message
from s3notify_platform.protocols.notification_queue import TopicSettings, encode_events
from tests.support.faults import Fault
from tests.support.intake_site import Site, event


class Queue:
    """A message queue in memory. `deleted` has the ids of deleted messages, and `hidden` the ids of hidden messages,
    each with the seconds for which the message is hidden. `raises`: failed deletions raise an error, instead of
    returning the messages.
    """

    batch_size = 10

    def __init__(self, *bodies, max_received=None, receives=1, raises=False):
        self.waiting = [
            Message(id=str(n), body=body, receipt=f"r{n}", receives=receives) for n, body in enumerate(bodies)
        ]
        self.deleted = []
        self.hidden = []
        self.max_received = max_received
        self.raises = raises
        self.asked = []
        self.fails = 0
        self.received = Stop()

    def receive(self, *, wait_seconds, visibility_seconds, limit):
        self.asked.append((wait_seconds, limit))
        if self.fails:
            self.fails -= 1
            raise UnavailableError("SQS is away")
        found, self.waiting = self.waiting[:limit], self.waiting[limit:]
        if not found:
            self.received.set()
        return tuple(found)

    def delete(self, messages):
        if self.fails:
            self.fails -= 1
            if self.raises:
                raise UnavailableError("SQS is away")
            return messages
        self.deleted += [message.id for message in messages]
        return ()

    def hide(self, messages, seconds):
        self.hidden += [(message.id, seconds) for message in messages]
        return ()

    def max_receives(self):
        return self.max_received


def body(*events):
    return encode_events(events).decode()


def inlet_of(queue, site, **settings):
    return PullInlet(queue, site.intake, name="sqs", clock=site.clock, **settings)


def handled(queue, site, **settings):
    inlet = inlet_of(queue, site, **settings)
    inlet._has_dead_letters = queue.max_receives() is not None
    trouble = inlet.handle(inlet._receive())
    return inlet, trouble


def test_messages_are_deleted_when_their_events_are_durable():
    """Otherwise a crash would lose changes. Messages with test events, or with changes of other buckets, must be
    deleted, too.
    """
    site = Site()
    queue = Queue(
        body(event("a"), event("b")),
        body(event("a")),
        '{"Service": "Amazon S3", "Event": "s3:TestEvent"}',
        body(event("c")).replace('"name":"b"', '"name":"other"'),
    )
    inlet, trouble = handled(queue, site)
    assert trouble is None
    assert queue.deleted == ["0", "1", "2", "3"]
    assert sorted(site.keys()) == ["a", "b"]
    counts = inlet.counts()
    assert (counts["messages_received"], counts["messages_deleted"], counts["received"]) == (4, 4, 4)
    assert (counts["queued"], counts["duplicates"], counts["ignored"]) == (2, 1, 1)


def test_messages_are_gathered_while_more_are_available():
    """Otherwise the inlet would wait in each request for messages, or each batch would have only ten messages."""
    queue = Queue(*(body(event(f"k{n}")) for n in range(25)))
    handled(queue, Site(), gather=100, wait_seconds=3)
    assert queue.asked == [(3, 10), (0, 10), (0, 10)]
    assert len(queue.deleted) == 25
    queue = Queue(*(body(event(f"k{n}")) for n in range(25)))
    handled(queue, Site(), gather=12)
    assert [limit for _, limit in queue.asked] == [10, 2]


def test_messages_received_before_an_outage_are_processed():
    """Otherwise messages that were received before an outage would stay hidden by the heartbeat for ever."""
    queue = Queue(*(body(event(f"k{n}")) for n in range(25)))
    receive = queue.receive

    def failing(**arguments):
        if len(queue.asked) == 1:
            queue.fails = 1
        return receive(**arguments)

    queue.receive = failing
    inlet, trouble = handled(queue, Site())
    assert trouble is None
    assert len(queue.deleted) == 10
    assert inlet._held == {}


@pytest.mark.parametrize("max_received", [None, 100])
def test_poison_is_left_to_dead_letters_or_kept(max_received):
    """Otherwise one malformed message would block the queue, or would be lost."""
    site = Site()
    queue = Queue("hello", body(event("a")), max_received=max_received)
    inlet, trouble = handled(queue, site)
    assert trouble is None
    assert inlet.counts()["messages_poison"] == 1
    assert site.keys() == ["a"]
    kept = [(poison.body, poison.origin) for poison in site.intake.poison.all()]
    if max_received:
        assert queue.deleted == ["1"]
        assert kept == []
    else:
        assert queue.deleted == ["0", "1"]
        assert kept == [(b"hello", "sqs")]
    assert queue.hidden == []


def test_poison_is_not_deleted_before_it_is_kept():
    """Otherwise a malformed message that cannot be kept would be deleted, and so lost."""
    site = Site()
    site.faults["records"] = Fault.THROTTLED
    queue = Queue("hello")
    inlet, trouble = handled(queue, site)
    assert trouble is not None
    assert queue.deleted == []
    assert inlet._held
    site.faults["records"] = Fault.NONE
    site.intake.poison._limit = 0
    assert inlet.handle(list(inlet._held.values())) is None
    assert queue.deleted == []
    assert queue.hidden[0][0] == "0"


def test_the_inlet_keeps_messages_while_the_store_is_down():
    """Otherwise messages would be received again and again in an outage, until the message service moves them to its
    dead letters.
    """
    site = Site()
    site.faults["signals"] = Fault.THROTTLED
    queue = Queue(body(event("a")))
    inlet, trouble = handled(queue, site)
    assert trouble is not None
    assert queue.deleted == []
    site.faults["signals"] = Fault.NONE
    assert inlet.handle(list(inlet._held.values())) is None
    assert queue.deleted == ["0"]
    assert inlet._held == {}
    assert site.keys() == ["a"]


def test_messages_for_a_full_topic_are_received_again_later():
    """Otherwise messages for a full topic would be received all the time, or would delay messages for other topics."""
    for receives, least in ((1, 5), (4, 40), (50, FULL_CEILING_SECONDS)):
        site = Site(small=TopicSettings(capacity=1, shards=1, prefix="s/"), orders=TopicSettings(prefix="o/"))
        site.intake.accept([event("s/first")])
        queue = Queue(body(event("s/a")), body(event("o/a")), receives=receives)
        inlet, trouble = handled(queue, site)
        assert trouble is None
        assert queue.deleted == ["1"]
        ((name, seconds),) = queue.hidden
        assert name == "0"
        assert least <= seconds <= least + 5
        assert inlet._held == {}


def breaks_on(site, key):
    accept = site.intake.accept

    def broken(events, **arguments):
        events = list(events)
        if any(one.key == key for one in events):
            raise ZeroDivisionError("a defect")
        return accept(events, **arguments)

    site.intake.accept = broken


@pytest.mark.parametrize(("receives", "max_received"), [(1, None), (10, None), (10, 100)])
def test_a_message_that_causes_a_defect_does_not_block_others(receives, max_received):
    """Otherwise one message could stop the inlet for ever. A message that is received for the tenth time is treated as
    poison.
    """
    site = Site()
    breaks_on(site, "bad")
    queue = Queue(
        body(event("a")), body(event("bad")), body(event("b")), receives=receives, max_received=max_received
    )
    inlet, trouble = handled(queue, site)
    assert trouble is None
    assert sorted(site.keys()) == ["a", "b"]
    dead_lettered = receives == 10 and not max_received
    assert queue.deleted == (["0", "1", "2"] if dead_lettered else ["0", "2"])
    assert inlet.counts()["messages_failed"] == 1
    assert ["ZeroDivisionError" in p.reason for p in site.intake.poison.all()] == [True] * dead_lettered


@pytest.mark.parametrize("error", [UsageError, CorruptError])
def test_errors_that_only_a_person_can_fix_do_not_count_as_poison(error):
    """Otherwise valid messages would be deleted or kept as poison while the credentials are wrong."""
    site = Site()

    def broken(events, **arguments):
        raise error("look here")

    site.intake.accept = broken
    queue = Queue(body(event("a")), receives=99)
    inlet = inlet_of(queue, site)
    with pytest.raises(error, match="look here"):
        inlet.run(Stop(), lambda _: None)
    assert queue.deleted == []
    assert site.intake.poison.all() == ()
    assert queue.hidden == [("0", 0)]


@pytest.mark.parametrize("raises", [False, True])
def test_a_failed_deletion_is_retried_and_then_given_up(raises):
    """Otherwise a failed deletion would stop the inlet. The message is received again, and recognised as a
    duplicate.
    """
    site = Site()
    queue = Queue(body(event("a")), raises=raises)
    inlet = inlet_of(queue, site)
    messages = inlet._receive()
    queue.fails = 2
    assert inlet.handle(messages) is None
    assert queue.deleted == ["0"]
    inlet._held = {message.id: message for message in messages}
    queue.fails = 99
    assert inlet.handle(messages) is None
    assert inlet.counts()["messages_deleted"] == 1
    assert inlet.counts()["duplicates"] == 1


def test_the_inlet_runs_until_it_is_stopped():
    """Otherwise an outage of the message service would end the inlet, or would not be reported."""
    site = Site()
    queue = Queue(*(body(event(f"k{n}")) for n in range(30)))
    queue.fails = 1
    reports = []
    stop = Stop()
    inlet = inlet_of(queue, site, gather=10)
    runner = Thread(target=inlet.run, args=(stop, reports.append))
    runner.start()
    assert queue.received.wait(20)
    stop.set()
    runner.join(10)
    assert not runner.is_alive()
    assert len(site.keys()) == 30
    assert reports[0] == "SQS is away"
    assert reports[1:] == ["messages_received=10 messages_deleted=10 received=10 queued=10"]
    assert inlet.counts()["queued"] == 30


def test_a_stop_makes_messages_in_progress_visible():
    """Otherwise, after a stop, other inlets would have to wait until the visibility timeout of these messages ends."""
    site = Site()
    site.faults["records"] = Fault.THROTTLED
    queue = Queue(body(event("a")))
    stop = Stop()
    inlet = inlet_of(queue, site)
    inlet.run(stop, lambda _: stop.set())
    assert queue.hidden == [("0", 0)]
    assert queue.deleted == []


def test_messages_that_cannot_be_hidden_do_not_end_the_inlet():
    """Otherwise, while a topic is full, an outage of the message service would end the inlet with an error. Moreover, a
    clean stop during the outage would leave connections open.
    """
    site = Site(small=TopicSettings(capacity=1, shards=1, prefix="s/"), orders=TopicSettings(prefix="o/"))
    site.intake.accept([event("s/first")])
    closed = Stop()
    site.intake.direct.close = closed.set
    queue = Queue(body(event("s/a")), body(event("o/a")))

    def away(messages, seconds):
        raise UnavailableError("SQS is away")

    queue.hide = away
    inlet, trouble = handled(queue, site)
    assert trouble is None
    assert queue.deleted == ["1"]
    stop = Stop()
    stop.set()
    inlet.run(stop, lambda _: None)
    assert closed.is_set()


@pytest.mark.parametrize("failures", [[], [UnavailableError("SQS is away"), TypeError("a defect")]])
def test_a_heartbeat_keeps_messages_in_progress_hidden(failures):
    """Otherwise another inlet would also receive the messages of a batch that takes long. After a failed heartbeat,
    further heartbeats must follow.
    """
    site = Site()
    queue = Queue(body(event("a")))
    beaten = Stop()
    hide = queue.hide
    left = [*failures]

    def hidden(messages, seconds):
        if messages and left:
            raise left.pop(0)
        if messages:
            beaten.set()
        return hide(messages, seconds)

    queue.hide = hidden
    accept = site.intake.accept

    def slow(events, **arguments):
        assert beaten.wait(20)
        return accept(events, **arguments)

    site.intake.accept = slow
    stop = Stop()
    inlet = inlet_of(queue, site, visibility_seconds=3)
    runner = Thread(target=inlet.run, args=(stop, lambda _: None))
    runner.start()
    assert queue.received.wait(20)
    stop.set()
    runner.join(10)
    assert queue.hidden[0] == ("0", 3)
    assert queue.deleted == ["0"]


def test_settings_out_of_bounds_are_refused():
    with pytest.raises(UsageError):
        inlet_of(Queue(), Site(), wait_seconds=-1)
