"""`explain` for an object in delivered topics: attempts, errors, dead letters."""

from s3notify_platform.protocols.notification_queue import (
    DeadLettered,
    ShardConsumer,
    TopicSettings,
    WillRetry,
    Worker,
)
from tests.support.explained import KEY, Place, said
from tests.support.sources import with_settings


def test_entries_in_other_topics_are_explained(place):
    """The user must see an entry's attempts and last error, and the reason of a dead letter. The verdict is about the
    source only.
    """
    place.queue.topics.create(
        "push", TopicSettings(shards=1, endpoint='{"url": "https://x"}', max_attempts=2)
    )
    place.queue.topics.create("elsewhere", TopicSettings(shards=1, prefix="other/"))
    place.put()
    place.commit(place.state())
    (consumer,) = consumers(place, "push")
    (entry,) = consumer.take(10)
    assert isinstance(consumer.failed(entry, "503 from x"), WillRetry)
    answer = place.ask()
    assert answer.verdict.kind == "committed"
    (line,) = [line for line in answer.lines if line.startswith("topic 'push' (pushed)")]
    assert "put queued for 0 s" in line
    assert "1 attempts" in line
    assert "last error: 503 from x" in line
    assert not [line for line in answer.lines if "elsewhere" in line]
    place.pass_time(2)
    (entry,) = consumer.take(10)
    assert "taken by" in "".join(place.ask().lines)
    assert isinstance(consumer.failed(entry, "503 again"), DeadLettered)
    answer = place.ask()
    assert answer.verdict.kind == "committed"
    (line,) = [line for line in answer.lines if line.startswith("topic 'push' (pushed)")]
    assert "dead letter because:" in line
    assert "503 again" in line


def test_a_dead_letter_in_the_sources_own_topic_is_explained():
    """The source's own topic has no endpoint, so entries that a worker delivers become dead letters. Without the
    verdict `dead`, the answer would say that the change was not announced.
    """
    place = Place().with_topic(max_attempts=1)
    place.put()
    for consumer in consumers(place, "orders"):
        for entry in consumer.take(10):
            assert isinstance(consumer.failed(entry, "no such endpoint"), DeadLettered)
    kind, text = said(place.ask())
    assert kind == "dead"
    assert "no such endpoint" in text


def consumers(place, topic):
    worker = Worker(place.queue, serves=lambda found: found.name == topic)
    worker.balance()
    worker.balance()
    return [ShardConsumer(worker, lease) for lease in worker.leases if lease.topic == topic]


def test_with_signals_root_the_root_replaces_the_slots_signal():
    """A source with `signals: root` has no signals of single slots. If the answer looked for a slot's signal, each
    change would seem to lack a signal, and a user would suspect the writer.
    """
    place = Place().with_topic(signals="root")
    place.source = with_settings(place.source, signals="root")
    place.put()
    assert said(place.ask()) == ("waiting", "waiting in the queue for 0 s; nothing of it is committed")
    place.commit(place.state())
    assert said(place.ask())[0] == "committed"
    place.pass_time(5)
    place.store.put(KEY, b"two")
    kind, text = said(place.ask(seen=b""))
    assert kind == "unseen"
    assert "signal is older than the object" in text
    assert not any("never signalled" in line for line in place.ask().lines)
