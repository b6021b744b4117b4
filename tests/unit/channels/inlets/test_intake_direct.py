"""Inlets and topics that are not persistent: each reported change is sent once, before the report is answered."""

import pytest

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.channels.inlets.http_inlet import HttpInletSettings
from s3notify_platform.channels.inlets.intake import intake_of
from s3notify_platform.channels.inlets.sqs_inlet import SqsInletSettings
from s3notify_platform.channels.service import ServiceContext
from s3notify_platform.protocols.notification_queue import Event, TopicSettings
from s3notify_platform.stores.config import S3Config
from tests.support.endpoints import Receiver
from tests.support.http_inlet import ceph, post, serving
from tests.support.intake_site import Site, event
from tests.support.pushing import LOOPBACK


def direct(server, **settings):
    """Settings of a topic that is not persistent."""
    return TopicSettings(persistent=False, endpoint=Endpoint(url=server.url).dumps(), **settings)


@pytest.fixture
def server():
    with Receiver().serving() as server:
        yield server


@pytest.fixture
def sites():
    """Makes sites, and closes their connections after the test."""
    made = []

    def site(**settings):
        made.append(Site(egress=LOOPBACK, **settings))
        return made[-1]

    yield site
    for each in made:
        each.intake.direct.close()


def test_a_reported_change_is_sent_once(server, sites):
    """Otherwise a receiver would get a change again whenever the store or a queue reports it again. An event without a
    sequencer is sent each time, since it may be a new change.
    """
    site = sites(now=direct(server, prefix="raw/"), orders=TopicSettings(bucket="b"))
    reported = [event("raw/a"), event("raw/b", "02"), event("raw/b", "02"), event("c")]
    assert site.intake.accept(reported).outcomes == ("queued", "queued", "duplicate", "queued")
    assert site.intake.accept([event("raw/a")]).outcomes == ("duplicate",)
    assert server.keys == {"raw/a": 1, "raw/b": 1}
    assert sorted(site.keys()) == ["c", "raw/a", "raw/b"]
    for _ in range(2):
        site.intake.accept([event("raw/n", "")])
    assert server.keys["raw/n"] == 2
    counts = site.intake.counts()
    assert (counts["sent"], counts["unsent"]) == (4, 0)


def test_a_change_that_is_reported_again_during_its_sending_is_sent_once(server, sites):
    """Otherwise a receiver that is slower than the sender's timeout would get each change twice."""
    site = sites(now=direct(server))
    repeated = []

    def slow(_):
        if not repeated:
            repeated.append(None)
            repeated.append(site.intake.accept([event("a")]).outcomes)
        return 200

    server.answer = slow
    assert site.intake.accept([event("a")]).outcomes == ("queued",)
    assert repeated[1] == ("duplicate",)
    assert server.keys == {"a": 1}


def test_a_full_topic_causes_no_second_notification(server, sites):
    """Otherwise each repeated report to a full topic would be sent to the endpoint again."""
    site = sites(now=direct(server), small=TopicSettings(capacity=1, shards=1))
    assert site.intake.accept([event("a"), event("b")]).outcomes == ("queued", "full")
    site.queue.remove(site.queue.entries("small", range(1000)))
    assert site.intake.accept([event("b")]).outcomes == ("queued",)
    assert server.keys == {"a": 1, "b": 1}


def test_a_change_is_answered_as_done_if_only_a_topic_without_a_queue_takes_it(server, sites):
    """Otherwise the counts would say that no topic takes the change. A failed notification is answered as done, too, so
    that the sender does not report the change again.
    """
    site = sites(now=direct(server))
    assert site.intake.accept([event("a")]).outcomes == ("queued",)
    assert site.intake.accept([event("a")]).outcomes == ("duplicate",)
    server.answer = lambda _: 500
    accepted = site.intake.accept([event("b")])
    assert (accepted.outcomes, accepted.retry_after_seconds) == (("queued",), None)
    assert (server.tries, site.intake.counts()["unsent"]) == (2, 1)


def test_foreign_and_invalid_events_are_not_sent(server, sites):
    """Otherwise a receiver would get changes of other buckets, of the platform's own objects, or with a key that it
    cannot read.
    """
    site = sites(excluded=("_own/",), now=direct(server))
    odd = [Event(key="a", bucket="other"), event("_own/a"), event("k" * 2000)]
    assert site.intake.accept(odd).outcomes == ("ignored", "ignored", "failed")
    assert server.tries == 0


@pytest.mark.parametrize("allowed", [True, False])
def test_the_options_of_an_inlet_permit_the_endpoints(server, sites, allowed):
    """Otherwise an operator could not permit an internal endpoint, or the creator of a topic could make the inlet send
    to an internal endpoint.
    """
    site = sites(now=direct(server))
    context = ServiceContext(
        name="http",
        queue=site.queue,
        platform=S3Config(bucket="b", endpoint_url="http://127.0.0.1:9", region="r"),
        bucket="b",
    )
    given = {"allow_networks": ("127.0.0.0/8",), "allow_http": True} if allowed else {}
    settings = HttpInletSettings(secret_envs=("RECEIVER_SECRET",), port=0, **given)
    with serving(settings.build(context)) as receiver:
        assert post(receiver, ceph("a"))[0] == 200
        counts = receiver.counts()
    assert (counts["sent"], counts["unsent"], server.tries) == ((1, 0, 1) if allowed else (0, 1, 0))
    pulled = SqsInletSettings(queue_url="https://sqs.example.com/1/q", **given)
    intake = intake_of(context, pulled.egress())
    intake.accept([event("b")])
    assert intake.counts()["sent"] == allowed
    intake.direct.close()
