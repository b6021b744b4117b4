"""Objects that cannot be read, because of the object itself or because of the store.

The requests are real; a proxy refuses some.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from s3notify_platform.engine.driver import Ingest
from s3notify_platform.engine.values.results import BatchResult
from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.kernel.limits import OUTAGE_SECONDS
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.protocols.notification_queue import Event, TopicSettings
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.obstore_client import obstore_store
from tests.contracts.fault_proxy import FaultProxy
from tests.support.clocks import HandClock
from tests.support.ingested import keys_of
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server
from tests.support.sources import source_of

pytestmark = pytest.mark.server

SLOTS = 4
ALL = [Slot(n) for n in range(SLOTS)]
BAD, OF_KMS = "raw/bad", b"is not authorized to perform: kms:Decrypt on resource: arn:aws:kms:x:1:key/2"


of_thorough = partial(pytest.param, marks=pytest.mark.thorough)


class Site:
    """A source of 4 slots with 10 good objects and a bad one.

    A proxy is in front of the bucket, but not in front of the platform's own store.
    """

    def __init__(self, server: S3Server, proxy: FaultProxy, **settings: Any) -> None:
        config = server.config(server.make_bucket())
        self.proxy = proxy
        self.clock = HandClock()
        self.store = S3ObjectStore(config)
        self.source = source_of(
            bucket=replace(config, endpoint_url=proxy.url),
            platform=config,
            name="orders",
            prefix="raw/",
            format="jsonl",
            slots=SLOTS,
            commit="native",
            **settings,
        )
        self.good = [f"raw/{n}" for n in range(10)]
        for key in (*self.good, BAD):
            self.store.put(key, b'{"a":1}\n')
        self.slot = slot_of(BAD, SLOTS)

    def ingest(self, **arguments: object) -> BatchResult:
        ingest = Ingest(jobs=LocalJobs(source=self.source), source=self.source, clock=self.clock)
        return ingest.run(ALL, batch="b", **arguments)

    def rows(self) -> Counter[str]:
        return keys_of(self.source)


@pytest.fixture(autouse=True)
def impatient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the client's own retries, which take real time."""
    monkeypatch.setattr("s3notify_platform.engine.read.fetch.open_reader", partial(obstore_store, attempts=1))


@pytest.fixture
def site(ministack: S3Server) -> Iterator[Site]:
    with FaultProxy(ministack.endpoint_url) as proxy:
        site = Site(ministack, proxy)
        yield site
        site.store.close()


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "AccessDenied", b"Access Denied"),
        of_thorough(400, "InvalidRequest", b"The object was stored using a form of Server Side Encryption"),
        of_thorough(403, "InvalidObjectState", b"The operation is not valid for the object's storage class"),
    ],
)
@pytest.mark.parametrize("listing", [True, False])
def test_one_refused_key_affects_no_other_object(
    site: Site, status: int, code: str, message: bytes, listing: bool
) -> None:
    """Otherwise one object that the store refuses to return would keep good objects of the same slot out of the table.
    Without the quarantine on the last attempt, the slot would fail in every later batch.
    """
    if not listing:
        queue = site.source.location.queue()
        queue.topics.create("orders", TopicSettings(slots=SLOTS, shards=1))
        queue.push_many("orders", [Event(key=key, bucket="b") for key in (*site.good, BAD)])
    site.proxy.answers[BAD] = (status, code, message)
    first = site.ingest(listing=listing)
    assert {slot for slot, each in first.slots.items() if not each.ok} == {site.slot}
    assert set(first.slots[site.slot].failed_objects) == {BAD}
    assert site.rows() == Counter(site.good)
    last = site.ingest(listing=listing, last_attempt=ALL).slots[site.slot]
    assert last.ok
    assert set(last.quarantined) == {BAD}
    assert code in last.quarantined[BAD]
    assert site.clock.slept == []


def test_an_expired_object_that_came_back_stays_in_quarantine(
    ministack: S3Server,
) -> None:
    """The object came back with the same bytes, but the store refuses to return it (403). If the object still counted
    as expired, each listing would cause another read, and the object's slot would fail again.
    """
    with FaultProxy(ministack.endpoint_url) as proxy:
        site = Site(ministack, proxy, on_delete="keep_expired")
        site.ingest()
        queue = site.source.location.queue()
        queue.topics.create("orders", TopicSettings(slots=SLOTS, shards=1))
        queue.push("orders", Event(key=BAD, op="delete", bucket="b", name="LifecycleExpiration:Delete"))
        site.store.delete(BAD)
        result = site.ingest()
        queue.remove([entry for entries in result.entries.values() for entry in entries])
        site.store.put(BAD, b'{"a":1}\n')
        proxy.answers[BAD] = (403, "AccessDenied", b"Access Denied")
        assert set(site.ingest(last_attempt=ALL).slots[site.slot].quarantined) == {BAD}
        again = site.ingest().slots[site.slot]
        assert (again.ok, dict(again.failed_objects)) == (True, {})
        site.store.close()


@pytest.mark.parametrize("key", ["raw/a/../b", "raw/./c", "raw/d\0e"])
def test_keys_that_a_store_does_not_accept_are_quarantined(site: Site, key: str) -> None:
    """A listing may show keys that the store itself refuses. Without the quarantine, one such key would make its slot
    fail in every batch. In this test, the listing comes from another store.
    """
    site.store.put(key, b'{"a":1}\n')
    site.proxy.refuses_names = True
    result = site.ingest(last_attempt=ALL)
    assert all(each.ok for each in result.slots.values())
    assert set(result.slots[slot_of(key, SLOTS)].quarantined) == {key}
    assert site.rows() == Counter([*site.good, BAD])


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (503, "SlowDown", b""),
        of_thorough(500, "InternalError", b""),
        of_thorough(429, "TooManyRequests", b""),
        (403, "AccessDenied", OF_KMS),
        of_thorough(400, "KMS.DisabledException", b"The key is disabled"),
    ],
)
def test_an_outage_of_one_object_does_not_quarantine_it(
    site: Site, status: int, code: str, message: bytes
) -> None:
    """Otherwise an outage during the last attempt would bring a good object to quarantine. The object's earlier rows
    would leave the table, and its new rows would be missing until a person retries the object.
    """
    site.proxy.answers[BAD] = (status, code, message)
    last = site.ingest(last_attempt=ALL)
    assert {slot for slot, each in last.slots.items() if not each.ok} == {site.slot}
    assert set(last.slots[site.slot].unavailable) == {BAD}
    assert (last.slots[site.slot].failed_objects, last.slots[site.slot].quarantined) == ({}, {})
    assert site.rows() == Counter(site.good)
    assert OUTAGE_SECONDS <= sum(site.clock.slept) < 2 * OUTAGE_SECONDS
    assert len(site.clock.slept) < 20
    site.proxy.answers.clear()
    assert site.ingest().slots[site.slot].ok
    assert site.rows() == Counter([*site.good, BAD])


def test_an_object_that_waits_for_the_store_does_not_block_others(ministack: S3Server) -> None:
    """Otherwise one unavailable object would keep the later objects of its slot out of the table until the outage ends.
    In this test, a round reads only one object of a slot.
    """
    with FaultProxy(ministack.endpoint_url) as proxy:
        site = Site(ministack, proxy, max_objects=SLOTS)
        first = site.good[0]
        site.proxy.answers[first] = (503, "SlowDown", b"")
        result = site.ingest()
        assert set(result.slots[slot_of(first, SLOTS)].unavailable) == {first}
        assert site.rows() == Counter([*site.good[1:], BAD])
        site.store.close()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "SlowDown"), (403, "AccessDenied"), (400, "ExpiredToken"), (401, "Unauthorized")],
)
def test_an_outage_of_all_objects_fails_the_run(site: Site, status: int, code: str) -> None:
    """Otherwise expired credentials or a throttled bucket would bring all objects of the source to quarantine. The
    objects' rows would be missing even after the outage, until a person retries the objects.
    """
    for key in (*site.good, BAD, "raw/.s3notify-no-such-object"):
        site.proxy.answers[key] = (status, code, b"")
    last = site.ingest(last_attempt=ALL)
    assert not any(each.ok for each in last.slots.values())
    assert not any(each.quarantined or each.failed_objects for each in last.slots.values())
    assert sum(len(each.unavailable) for each in last.slots.values()) == 11
    site.proxy.answers.clear()
    assert all(each.ok for each in site.ingest().slots.values())
    assert site.rows() == Counter([*site.good, BAD])


def test_an_outage_that_ends_while_the_run_waits_costs_only_time(site: Site) -> None:
    """Not only the reads of a run, but also its plan must wait for the store."""
    site.proxy.outage = lambda: site.clock.now < 1000 + OUTAGE_SECONDS / 2
    result = site.ingest(last_attempt=ALL)
    assert all(each.ok and not each.quarantined for each in result.slots.values())
    assert site.rows() == Counter([*site.good, BAD])
    assert OUTAGE_SECONDS / 2 <= sum(site.clock.slept) < OUTAGE_SECONDS


@pytest.mark.thorough
def test_a_long_outage_fails_the_run(site: Site) -> None:
    """No slot can be planned during the outage. If the run ended without an error, its slots would seem to have no
    changes. If the run did not wait for a minute first, even a short outage would fail the batch.
    """
    site.proxy.outage = lambda: True
    with pytest.raises(UnavailableError, match="503"):
        site.ingest(last_attempt=ALL)
    assert sum(site.clock.slept) >= OUTAGE_SECONDS
