"""A topic serves the tables that it names. The first table that uses a topic claims this topic."""

from typing import Any

import pytest

from s3notify_platform.kernel.errors import NotFoundError, UsageError
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, TopicSettings, TopicUser
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.support.faults import Call, Fault, FaultyStore

PROD, DEV = TopicUser(table="prod", slots=1000), TopicUser(table="dev", slots=1000)
EVERY = range(1000)


@pytest.fixture
def queue() -> NotificationQueue:
    """A queue whose topic `orders` has one entry."""
    queue = NotificationQueue(MemoryRecordStore())
    queue.topics.create("orders", TopicSettings())
    queue.push("orders", Event(key="raw/a"))
    return queue


def test_the_first_table_claims_a_topic_and_others_are_refused(queue: NotificationQueue) -> None:
    """Otherwise two deployments with one topic would take each other's entries."""
    assert len(queue.entries("orders", EVERY, user=PROD)) == 1
    with pytest.raises(
        UsageError, match=r"'orders' serves table prod, not table dev of this source: .*queue_prefix"
    ):
        queue.entries("orders", EVERY, user=DEV)
    with pytest.raises(UsageError, match="queue_prefix"):
        queue.topics.delete("orders", user=DEV)
    with pytest.raises(UsageError, match="which has none"):
        queue.topics.delete("orders", user=TopicUser(slots=1000))
    assert len(queue.entries("orders", EVERY)) == 1
    queue.topics.delete("orders", user=PROD)
    with pytest.raises(NotFoundError):
        queue.topics.get("orders")


def test_only_one_of_two_concurrent_tables_claims_a_topic() -> None:
    """Otherwise two tables that claim a topic at the same time would both take its entries."""
    inner = MemoryRecordStore()
    other = NotificationQueue(inner)
    other.topics.create("orders", TopicSettings())
    raced = []

    def fault(call: Call) -> Fault:
        if call.method == "replace" and not raced:
            raced.append(other.entries("orders", EVERY, user=PROD))
        return Fault.NONE

    records: Any = FaultyStore(inner, fault)
    queue = NotificationQueue(records)
    with pytest.raises(UsageError, match="serves table prod"):
        queue.entries("orders", EVERY, user=DEV)
    assert raced
    assert other.topics.get("orders").tables == ("prod",)


def test_a_topic_that_a_table_has_just_claimed_is_not_deleted() -> None:
    """Otherwise a topic would be deleted although a table has begun to use it meanwhile."""
    inner = MemoryRecordStore()
    other = NotificationQueue(inner)
    other.topics.create("orders", TopicSettings())
    raced = []

    def fault(call: Call) -> Fault:
        if call.method == "replace" and not raced:
            raced.append(other.entries("orders", EVERY, user=PROD))
        return Fault.NONE

    records: Any = FaultyStore(inner, fault)
    with pytest.raises(UsageError, match="serves table prod"):
        NotificationQueue(records).topics.delete("orders", served=False)
    assert raced
    assert other.topics.get("orders").tables == ("prod",)


def test_named_tables_share_a_topic(queue: NotificationQueue) -> None:
    """Otherwise the removal of one source would delete the topic of another source."""
    queue.topics.update("orders", TopicSettings(), tables=("prod", "dev"))
    assert len(queue.entries("orders", EVERY, user=DEV)) == 1
    queue.topics.delete("orders", user=DEV)
    assert queue.topics.get("orders").tables == ("prod",)
    assert len(queue.entries("orders", EVERY, user=PROD)) == 1


def test_a_restarted_table_replaces_its_former_id(queue: NotificationQueue) -> None:
    """Otherwise, after `table forget`, a source could not use its own topic."""
    queue.entries("orders", EVERY, user=PROD)
    queue.entries("orders", EVERY, user=TopicUser(table="next", former=("prod",), slots=1000))
    assert queue.topics.get("orders").tables == ("next",)
    with pytest.raises(UsageError, match="serves table next"):
        queue.entries("orders", EVERY, user=PROD)


def test_a_user_with_other_slots_is_refused(queue: NotificationQueue) -> None:
    """Otherwise a source would look for entries in other slots than those of its topic, and find none."""
    with pytest.raises(UsageError, match="'orders' has 1000 slots, but its source has 40"):
        queue.entries("orders", range(40), user=TopicUser(table="prod", slots=40))
    assert queue.topics.get("orders").tables == ()


def test_a_claimed_topic_costs_no_additional_requests() -> None:
    """Otherwise the check of a topic's tables would cost a request at each read of entries."""
    calls: list[str] = []

    def count(call: Call) -> Fault:
        calls.append(call.method)
        return Fault.NONE

    records: Any = FaultyStore(MemoryRecordStore(), count)
    queue = NotificationQueue(records)
    queue.topics.create("orders", TopicSettings(shards=1))
    queue.entries("orders", EVERY, user=PROD)
    calls.clear()
    queue.entries("orders", EVERY)
    unchecked, calls[:] = [*calls], []
    queue.entries("orders", EVERY, user=PROD)
    assert calls == unchecked
