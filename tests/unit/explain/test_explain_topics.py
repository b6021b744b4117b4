"""`explain` of an object that topics deliver: attempts, errors, dead letters."""

from s3notify_platform.protocols.notification_queue import (
    DeadLettered,
    ShardConsumer,
    TopicSettings,
    WillRetry,
    Worker,
)
from tests.support.explained import Place, said


def test_other_topics_that_take_it(place):
    """Attempts and last error of an entry in delivery, and why it became a dead letter; the verdict is the source's."""
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


def test_dead_letter_of_the_sources_own_topic():
    """If somebody delivered it as if it were to be pushed: said, with the reason."""
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
