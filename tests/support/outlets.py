"""Delivery without threads or sockets. The worker does one step at a time, and endpoints are functions."""

from collections import Counter

from s3notify_platform.channels.delivery.delivery_worker import Delivery
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.delivery.push import Delivered, Down, Rejected
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, TopicSettings
from s3notify_platform.protocols.notification_queue.owners import BALANCE_SECONDS

GONE = Down(error="refused", reached=False)
SILENT = Down(error="timed out", reached=True)

ENDPOINT = Endpoint(url="https://hooks.example.com/", batch_size=8, concurrency=2).dumps()


class FakePush:
    """An endpoint that calls `answer(entries)` for each request, and counts the received entries by key."""

    def __init__(self, answer=lambda _: Delivered(), *, before=lambda: None):
        self.answer = answer
        self.before = before
        self.delivered = Counter()
        self.entries = []
        self.sizes = []
        self.closed = False

    def post_many(self, topic, batches):
        answers = []
        for batch in batches:
            self.before()
            answer = self.answer(batch)
            self.sizes.append(len(batch))
            if answer == Delivered():
                self.delivered.update(entry.event.key for entry in batch)
                self.entries += batch
            answers.append(answer)
        return answers

    def close(self):
        self.closed = True


class SteppedDelivery(Delivery):
    """A delivery worker. `step` does one heartbeat, and one turn of each shard. `pushes`: the endpoints by URL."""

    def __init__(self, queue, pushes, **settings):
        if not isinstance(pushes, dict):
            pushes = {Endpoint.loads(ENDPOINT).url: pushes}
        super().__init__(queue, connect=lambda endpoint: pushes[endpoint.url], **settings)
        self.messages = []
        self._progress = self.messages.append

    def start(self, shard):
        self.shards[shard.lease.topic, shard.lease.shard] = shard

    def step(self):
        self.beat()
        self.turn()

    def turn(self):
        """Gives each shard one turn. Returns the seconds that the shards then want to wait."""
        return [
            shard.turn()
            for shard in tuple(self.shards.values())
            if not shard.paused and not shard.ended.is_set()
        ]

    def stop(self):
        self._end()


class WithoutLogin(dict):
    """The endpoints of a worker. Access to any other endpoint fails, as if the login for this endpoint were unset."""

    def __missing__(self, url):
        raise UsageError("set S3NOTIFY_SEND_A")


def queue_over(records, clock):
    return NotificationQueue(records, clock=clock, parallelism=1)


def create(queue, name="t", **fields):
    queue.topics.create(name, TopicSettings(**{"capacity": 200, "shards": 1, "endpoint": ENDPOINT} | fields))


def push(queue, count, topic="t"):
    queue.push_many(topic, [Event(key=f"k{n:03}") for n in range(count)])


def refusing(*keys):
    def answer(entries):
        return Rejected(error="HTTP 400") if {e.event.key for e in entries} & {*keys} else Delivered()

    return answer


def run_for(delivery, clock, seconds, step=0.25):
    """Runs the delivery for this time. A heartbeat happens every `BALANCE_SECONDS`, with turns of shards in between."""
    ends, beat_at = clock.now + seconds, clock.now
    while clock.now < ends:
        if clock.now >= beat_at:
            delivery.beat()
            beat_at = clock.now + BALANCE_SECONDS
        delivery.turn()
        clock.now += step
