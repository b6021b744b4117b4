"""Topics with `signals: root`: publisher, inlets and reconciler move only the root, with exceptions."""

import pytest

from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.channels.reconcile.reconciler_service import UNSIGNALLED_SECONDS, ReconcilerService
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import NotSignalledError, Publisher, Put
from s3notify_platform.protocols.notification_queue import NotificationQueue, Rule, TopicSettings
from tests.support.faults import CrashedError, Fault, FaultyStore, at
from tests.support.intake_site import SIGNALS, Site, event
from tests.support.queued_publisher import KS, World


@pytest.fixture
def world():
    """A source `t` whose root is moved alone."""
    world = World()
    world.topic(signals="root")
    return world


def opened(world, objects=None, records=None, topic="t", others=()):
    queue = NotificationQueue(records or world.records, clock=world.clock, parallelism=1)
    plain = Publisher(objects or world.objects, prefix=KS, clock=world.clock, parallelism=1)
    return QueuedPublisher(plain, queue, bucket="b", topic=topic, others=others)


def signals(world, prefix=KS):
    """The names of the existing signals."""
    return {meta.key.removeprefix(prefix) for meta in world.objects.list(prefix).objects}


def slots(*keys):
    return {str(slot_of(key)) for key in keys} | {"_"}


def test_a_put_moves_only_the_root(world):
    """Otherwise a put would need one more request, or the root would move before the entry is in the queue."""
    faulty = FaultyStore(world.objects)
    opened(world, faulty).put("a", b"1")
    assert [f"{call.method} {call.key}" for call, _ in faulty.calls] == ["put a", f"put {KS}_"]
    opened(world).publish([Put(key=key, body=b"2") for key in "abc"])
    opened(world).announce(["d"])
    assert signals(world) == {"_"}
    assert sorted({key for _, key, _ in world.announced()}) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("topic", ["", "other"])
def test_a_publisher_of_another_source_moves_the_signal_of_the_slot(world, topic):
    opened(world, topic=topic).put("a", b"1")
    assert signals(world) == slots("a")


def test_each_source_is_signalled_as_its_own_topic_says(world):
    """Otherwise a source whose topic has the setting `signals: slots` would miss changes."""
    world.topic("slots", prefix="raw/")
    other = Publisher(world.objects, prefix="other/", parallelism=1)
    both = [Keyspace(publisher=other, prefix="raw/", topic="slots")]
    opened(world, others=both).put("raw/a", b"1")
    assert (signals(world), signals(world, "other/")) == ({"_"}, slots("raw/a"))


def test_a_change_that_the_topic_does_not_take_moves_the_signal_of_its_slot(world):
    """Otherwise the source's consumer would miss a change that has no entry because the topic's rules exclude it."""
    world.queue.topics.delete("t")
    world.topic(signals="root", rules=(Rule(suffix=".csv"),))
    world.topic("all")
    opened(world).put("a.csv", b"1")
    assert signals(world) == {"_"}
    opened(world).publish([Put(key="a.csv", body=b"2"), Put(key="b", body=b"2")])
    assert signals(world) == slots("a.csv", "b")


def test_a_change_that_is_not_announced_moves_the_signal_of_its_slot(world):
    """Otherwise the consumer would find neither an entry nor a signal of the change."""

    def schedule(call):
        return Fault.REFUSED if call.method == "replace" and world.objects.head("a") else Fault.NONE

    publisher = opened(world, records=FaultyStore(world.records, schedule))
    with pytest.raises(NotSignalledError):
        publisher.put("a", b"1")
    assert signals(world) == slots("a")


def test_new_settings_of_a_topic_that_was_created_again_apply_to_running_writers(world):
    """Otherwise a running writer would still use the signals that the deleted topic demands, and the consumer would
    miss changes.
    """
    publisher = opened(world)
    publisher.put("a", b"1")
    world.queue.topics.delete("t")
    publisher.put("a", b"2")
    assert signals(world) == slots("a"), "the topic is deleted"
    world.topic(signals="slots")
    publisher.put("b", b"3")
    assert signals(world) == slots("a", "b")


def test_an_inlet_moves_only_the_root():
    site = Site(
        targets=(("", SIGNALS, "orders"),),
        orders=TopicSettings(bucket="b", signals="root", rules=(Rule(prefix="k"),)),
        all=TopicSettings(bucket="b"),
    )
    assert site.intake.accept([event("k")]).outcomes == ("queued",)
    assert signals(site, SIGNALS) == {"_"}
    assert site.intake.accept([event("other")]).outcomes == ("queued",)
    assert signals(site, SIGNALS) == slots("other")


@pytest.fixture
def reconciler(world):
    publisher = Publisher(world.objects, prefix=KS, clock=world.clock, parallelism=1)
    queue = NotificationQueue(world.records, clock=world.clock, parallelism=1)
    return ReconcilerService(queue, world.objects, [Keyspace(publisher=publisher)], bucket="b")


def test_the_reconciler_does_not_repeat_a_signal_of_the_root(world, reconciler):
    opened(world).put("a", b"1")
    reconciler.reconcile()
    opened(world).put("b", b"1")
    for _ in range(3):
        reconciler.reconcile()
        world.clock.now += UNSIGNALLED_SECONDS / 2
    # An entry from before the first pass may lack its signal. The consumer finds this entry when the root moves for any
    # reason.
    assert signals(world) == {"_"}


def test_the_reconciler_signals_entries_if_the_root_did_not_move_for_them(world, reconciler):
    """Otherwise a change would not be found if its writer was killed between the commit and the signal of the root."""
    opened(world).put("a", b"1")
    reconciler.reconcile()
    with pytest.raises(CrashedError):
        opened(world, FaultyStore(world.objects, at("put", Fault.CRASH_BEFORE, nth=1))).put("b", b"1")
    reconciler.reconcile()
    world.clock.now += UNSIGNALLED_SECONDS + 1
    reconciler.reconcile()
    assert str(slot_of("b")) in signals(world)
