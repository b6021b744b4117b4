"""Topics whose endpoint a worker cannot use are left to other workers."""

from s3notify_platform.channels.delivery.delivery_worker import TROUBLE_SECONDS
from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.protocols.notification_queue import Event, TopicSettings
from tests.support.outlets import ENDPOINT, FakePush, SteppedDelivery, WithoutLogin, create, push, run_for


def test_a_worker_without_a_login_leaves_the_topic_to_workers_with_the_login(queue, clock):
    """Otherwise the entries of this worker's share would wait for ever, although another worker could deliver them. A
    worker that has the login at its next start gets a share again.
    """
    url = "https://login.example/"
    create(queue, "login", shards=4, endpoint=Endpoint(url=url).dumps())
    queue.push_many("login", [Event(key=f"k{n}") for n in range(40)])
    hook = FakePush()
    without = SteppedDelivery(queue, WithoutLogin({"https://hooks.example.com/": FakePush()}))
    able = SteppedDelivery(queue, {"https://hooks.example.com/": FakePush(), url: hook})
    for _ in range(4):
        without.step()
        clock.now += 2
    assert without.counts()["shards"] == 5  # nobody can deliver the topic, so its entries can only expire
    for _ in range(4):
        able.step()
        without.step()
        clock.now += 2
    assert {topic for topic, _ in without.shards} <= {"t"}
    assert len(without.shards) + len(able.shards) == 5
    assert len(hook.delivered) == 40
    assert without.counts()["unusable_topics"] == 1
    assert without.messages == ["topic 'login' is not delivered by this worker: set S3NOTIFY_SEND_A"]
    without.stop()
    again = SteppedDelivery(queue, {"https://hooks.example.com/": FakePush(), url: hook})
    for _ in range(4):
        able.step()
        again.step()
        clock.now += 2
    assert sorted((len(able.shards), len(again.shards))) == [2, 3]


def test_a_worker_gets_its_share_of_a_topic_whose_endpoint_it_can_use_now(queue, clock):
    """Otherwise a topic that was corrected would be delivered by other workers only, or by nobody."""
    hook = FakePush()
    delivery = SteppedDelivery(queue, WithoutLogin({"https://new.example/": hook}))
    push(queue, 5)
    run_for(delivery, clock, 5)
    assert delivery.counts()["unusable_topics"] == 1
    moved = TopicSettings(capacity=200, shards=1, endpoint=Endpoint(url="https://new.example/").dumps())
    queue.topics.update("t", moved)
    run_for(delivery, clock, 5)
    assert len(hook.delivered) == 5
    assert delivery.counts()["unusable_topics"] == 0


def test_an_endpoint_that_was_unusable_for_a_short_time_is_used_again(queue, clock):
    """Otherwise a certificate that was missing for a moment would stop the deliveries of a topic's only worker, until
    the worker is restarted.
    """
    hook, pushes = FakePush(), WithoutLogin()
    delivery = SteppedDelivery(queue, pushes)
    push(queue, 5)
    run_for(delivery, clock, 5)
    assert delivery.counts()["unusable_topics"] == 1
    pushes[Endpoint.loads(ENDPOINT).url] = hook
    run_for(delivery, clock, TROUBLE_SECONDS + 5)
    assert len(hook.delivered) == 5
    assert delivery.counts()["unusable_topics"] == 0
