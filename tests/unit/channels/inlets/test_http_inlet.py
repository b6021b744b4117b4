"""The HTTP inlet over real HTTP on loopback: authentication, durability, answers."""

import base64
import hmac
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.notification_queue import TopicSettings
from tests.support.faults import Fault
from tests.support.http_inlet import BEARER, SECRET, ask, ceph, connect, minio, post, running
from tests.support.intake_site import Site, event
from tests.support.waiting import until


def test_posts_of_ceph_and_minio_are_queued_and_signalled():
    """Otherwise a change could be answered with 200, and then be lost. Several posts share one connection."""
    site = Site()
    with running(site) as receiver, connect(receiver) as connection:
        assert ask(connection, ceph("a+b%2Fc"))[0] == 200
        assert sorted(site.keys()) == ["a+b%2Fc"]
        assert site.signal("a+b%2Fc")
        local = connection.sock.getsockname()
        assert ask(connection, minio("a+b%2Fd"))[0] == 200
        assert ask(connection, ceph("a+b%2Fc"))[0] == 200
        assert connection.sock.getsockname() == local
        assert sorted(site.keys()) == ["a b/d", "a+b%2Fc"]
        counts = receiver.counts()
    assert (counts["posts_ok"], counts["queued"], counts["duplicates"]) == (3, 2, 1)
    assert receiver.reports[0].startswith("listening on 127.0.0.1:")


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "headers",
    [
        BEARER,
        {"authorization": f"bearer  {SECRET}"},
        {"authorization": SECRET},
        {"authorization": basic("rgw", SECRET)},
        {"authorization": basic("", SECRET)},
        {"x-s3notify-secret": SECRET},
    ],
)
def test_the_secret_is_accepted_in_each_form(headers):
    """Otherwise Ceph or MinIO could not authenticate, since each of them sends the secret in another form."""
    site = Site()
    with running(site) as receiver:
        assert post(receiver, ceph("a"), headers)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {SECRET}x"},
        {"authorization": f"Bearer {SECRET[:-1]}"},
        {"authorization": basic(SECRET, "")},
        {"authorization": "Basic !!!"},
        {"authorization": "Basic " + base64.b64encode(b"\xff\xff").decode()},
        {"authorization": "RECEIVER_SECRET"},
        {"x-s3notify-secret": "no", "authorization": f"Bearer {SECRET}"},
    ],
)
def test_a_missing_or_wrong_secret_is_refused(headers):
    """Otherwise a stranger could queue changes, fill the store of poison messages, or learn the secret from
    an answer.
    """
    site = Site()
    with running(site) as receiver:
        status, text, answer = post(receiver, ceph("a"), headers)
        assert status == 401
        assert SECRET.encode() not in text + str(answer.headers).encode()
        assert receiver.counts()["posts_unauthorized"] == 1
    assert site.keys() == []
    assert site.intake.poison.all() == ()
    assert SECRET not in repr(receiver.reports)


@pytest.mark.parametrize(("given", "status"), [(SECRET, 200), ("the-next-secret-of-all", 200), ("no", 401)])
def test_secrets_are_compared_in_constant_time(monkeypatch, given, status):
    """Otherwise the time of an answer would show how much of a guessed secret is right. All digests are compared, and
    have equal length.
    """
    monkeypatch.setenv("NEXT", "the-next-secret-of-all")
    compared = []

    def compare(one, other):
        compared.append((len(one), len(other)))
        return constant(one, other)

    constant = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", compare)
    with running(Site()) as receiver:
        assert post(receiver, ceph("a"), {"x-s3notify-secret": given})[0] == status
    assert compared == [(32, 32), (32, 32)]


def test_an_old_and_a_new_secret_are_both_accepted(monkeypatch):
    """Otherwise posts would be refused while a secret is changed."""
    monkeypatch.setenv("NEXT", "the-next-secret-of-all")
    with running(Site()) as receiver:
        assert post(receiver, ceph("a"))[0] == 200
        assert post(receiver, ceph("a"), {"authorization": "Bearer the-next-secret-of-all"})[0] == 200


@pytest.mark.parametrize("body", [b"", b"hello", b"{}", b"[" * 3000])
def test_malformed_posts_are_kept_as_poison(body):
    """Otherwise nobody would learn why a post was malformed, or the sender would repeat it for ever."""
    site = Site()
    with running(site) as receiver:
        assert post(receiver, body)[0] == 400
        assert post(receiver, body)[0] == 400
        assert receiver.counts()["posts_malformed"] == 2
        assert post(receiver, ceph("a"))[0] == 200
    (poison,) = site.intake.poison.all()
    assert (poison.body, poison.origin) == (body, "http")
    assert "no S3 event message" in poison.reason


def test_posts_without_a_change_of_the_bucket_are_accepted():
    """Otherwise a sender would repeat test events, and changes of other buckets, for ever."""
    site = Site()
    with running(site) as receiver:
        assert post(receiver, '{"Event": "s3:TestEvent"}')[0] == 200
        assert post(receiver, ceph("a").replace('"name": "b"', '"name": "other"'))[0] == 200
    assert site.keys() == []


def test_only_health_checks_and_posts_to_the_root_path_are_accepted():
    """Otherwise a load balancer could not check the inlet without the secret."""
    with running(Site()) as receiver:
        assert post(receiver, b"", {}, method="GET", path="/health")[:2] == (200, b"ok\n")
        assert post(receiver, b"", {}, method="HEAD", path="/health?x=1")[:2] == (200, b"")
        assert post(receiver, b"", {}, method="GET", path="/")[0] == 401
        status, _, answer = post(receiver, b"", method="GET")
        assert (status, answer.getheader("allow")) == (405, "POST")
        assert post(receiver, b"", path="/other")[0] == 404


def test_posts_are_refused_while_the_store_is_down():
    """Otherwise a change, or a malformed post, would be lost in an outage of the store."""
    site = Site()
    with running(site) as receiver:
        for fault in ("records", "signals"):
            site.faults[fault] = Fault.THROTTLED
            status, text, answer = post(receiver, ceph("a"))
            assert (status, int(answer.getheader("retry-after")) >= 1) == (503, True)
            assert b"unavailable" in text
            if fault == "records":
                assert post(receiver, b"hello")[0] == 503
                assert site.signal("a") is None
            site.faults[fault] = Fault.NONE
        assert post(receiver, ceph("a"))[0] == 200
        assert receiver.counts()["posts_refused"] == 3
    assert site.keys() == ["a"]
    assert site.signal("a")


def test_a_full_topic_refuses_posts():
    """Otherwise a change would be lost if its topic is full."""
    site = Site(orders=TopicSettings(capacity=1, shards=1))
    with running(site) as receiver:
        assert post(receiver, ceph("a"))[0] == 200
        status, text, answer = post(receiver, ceph("b"))
        assert (status, text) == (503, b"a topic is full\n")
        assert answer.getheader("retry-after") == "1"
        site.queue.remove(site.queue.entries("orders", range(1000)))
        assert post(receiver, ceph("b"))[0] == 200


def test_concurrent_posts_share_a_batch_and_have_their_own_answers():
    """Ceph sends one change in each post. Without batches, each post would need its own requests to the store."""
    site = Site(
        targets=[("", "_s/")],
        orders=TopicSettings(prefix="a"),
        full=TopicSettings(capacity=1, shards=1, prefix="b"),
    )
    site.intake.accept([event("b0")])
    batches, gate = [], threading.Semaphore(0)
    accept = site.intake.accept

    def slow(events, **arguments):
        batches.append(len(events))
        assert gate.acquire(timeout=20)
        return accept(events, **arguments)

    site.intake.accept = slow
    keys = [f"{'ab'[n % 2]}{n}" for n in range(1, 31)]
    with running(site) as receiver, ThreadPoolExecutor(len(keys)) as pool:
        posts = [pool.submit(post, receiver, ceph(key)) for key in keys]
        until(lambda: len(receiver._posts) + sum(batches) == len(keys))
        for _ in keys:
            gate.release()
        statuses = {key: found.result()[0] for key, found in zip(keys, posts, strict=True)}
    assert statuses == {key: 200 if key[0] == "a" else 503 for key in keys}
    assert len(batches) <= 5
    assert sorted(site.keys("orders")) == sorted(key for key in keys if key[0] == "a")


def test_a_defect_is_answered_with_503():
    """Otherwise an unexpected error would lose the change, or end the inlet."""
    site = Site()
    accept = site.intake.accept
    site.intake.accept = lambda *a, **k: 1 / 0
    with running(site) as receiver:
        assert post(receiver, ceph("a"))[0] == 503
        site.intake.accept = accept
        assert post(receiver, ceph("a"))[0] == 200


def test_errors_that_only_an_operator_can_fix_end_the_inlet():
    """Otherwise the inlet would run although the bucket is missing, and would refuse posts for ever."""
    site = Site()

    def broken(*args, **kwargs):
        raise UsageError("no such bucket")

    site.intake.accept = broken
    with running(site) as receiver:
        assert post(receiver, ceph("a"))[0] == 503
        receiver.thread.join(20)
        assert not receiver.thread.is_alive()
    assert [str(error) for error in receiver.errors] == ["no such bucket"]
