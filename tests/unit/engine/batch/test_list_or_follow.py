"""The decision to list the bucket or to follow entries, and the note that some writer does not queue."""

import pytest

from s3notify_platform.engine.batch.list_or_follow import Decision, decide, note_writers, topic_epoch
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings, TopicUser
from s3notify_platform.protocols.source_enumerator import UNQUEUED_SECONDS, Failed, RescanBacklog, Rescans
from s3notify_platform.protocols.source_enumerator.rescan import PARTITION
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.clocks import HandClock

NOW_MS = 10_000_000
CHANGED = [Slot(1), Slot(2)]


def decided(
    rescans: Rescans | None = None, *, topic: str = "t", enumerated: str = "t", **when: float
) -> Decision:
    return decide(
        CHANGED,
        rescans or Rescans(),
        topic=topic,
        enumerated=enumerated,
        now_ms=NOW_MS,
        **when,  # type: ignore[arg-type]
    )


def test_entries_are_followed_if_every_change_has_an_entry() -> None:
    """Otherwise each batch would list the whole bucket, and the cost of a small change would grow with the
    bucket. In this test, all slots have been compared since the topic's creation, no slot waits for a rescan,
    and all writers queue.
    """
    decision = decided()
    assert (decision.how, decision.slots, decision.listing) == ("follow", frozenset(CHANGED), False)


@pytest.mark.parametrize("enumerated", ["", "an earlier one"])
def test_a_new_topic_causes_a_comparison_of_all_slots(enumerated: str) -> None:
    """A new topic has no entries for earlier changes. If the next batch followed entries, the table would lack the
    earlier changes. The comparison does not wait until a listing is due, because all other batches wait for the
    comparison.
    """
    waiting = Rescans(slots={Slot(7): 1}, unqueued_ms=NOW_MS)
    decision = decided(waiting, enumerated=enumerated, listed_ms=NOW_MS, list_seconds=10)
    assert (decision.everything, decision.listing, decision.wait_seconds) == (True, True, 0)


def test_signalled_slots_are_listed_if_there_is_no_topic() -> None:
    decision = decided(topic="", enumerated="")
    assert (decision.how, decision.slots) == ("rescan", frozenset(CHANGED))


def test_slots_of_the_backlog_are_compared_together_with_changed_slots() -> None:
    """A listing of the bucket costs the same, however many slots are compared. If the slots of the backlog were
    compared separately, their comparison would cost a second listing.
    """
    decision = decided(Rescans(slots={Slot(7): 3}))
    assert (decision.how, decision.slots) == ("rescan", frozenset({*CHANGED, Slot(7)}))


def test_an_unqueued_writer_is_remembered_for_a_while() -> None:
    """Otherwise, the signals of other writers could hide the next signals of this writer."""
    seen_ms = NOW_MS - int(UNQUEUED_SECONDS * 1000)
    assert decided(Rescans(unqueued_ms=seen_ms + 1)).how == "rescan"
    assert decided(Rescans(unqueued_ms=seen_ms)).how == "follow"


def test_rescans_wait_until_list_seconds_have_passed() -> None:
    """Without the wait, a busy source would list its whole bucket in one batch after another. A batch that reads
    entries lists nothing, so a wait would only delay the rows of the batch.
    """
    waiting = Rescans(slots={Slot(7): 3})
    assert decided(waiting, listed_ms=NOW_MS - 4_000, list_seconds=10).wait_seconds == 6
    assert decided(waiting, listed_ms=NOW_MS - 10_000, list_seconds=10).wait_seconds == 0
    assert decided(listed_ms=NOW_MS, list_seconds=10).wait_seconds == 0


def test_a_clock_that_was_set_back_does_not_stop_rescans() -> None:
    """If the clock is set back, the last rescan seems to be in the future. The wait must not be longer than usual."""
    decision = decided(topic="", enumerated="", listed_ms=NOW_MS + 3_600_000, list_seconds=10)
    assert decision.wait_seconds == 10


@pytest.mark.parametrize(
    ("how", "topic", "noted"),
    [
        ("follow", "t", False),  # this batch looks only at changes that entries name
        ("rescan", "t", True),  # a change without an entry
        ("rescan", "", False),  # without a topic no change has an entry
        ("everything", "t", False),  # changes before the topic have no entry
    ],
)
def test_an_unqueued_writer_is_noted(how: str, topic: str, noted: bool) -> None:
    """A change without an entry shows a writer that does not queue. If the backlog did not note this fact, later
    batches would follow entries, and could miss the writer's next change.
    """
    clock = HandClock()
    backlog = RescanBacklog(ObjectRecordStore(MemoryObjectStore(clock=clock), "r/", clock=clock), clock=clock)
    decision = Decision(how=how, topic=topic)  # type: ignore[arg-type]
    note_writers(backlog, decision, unannounced=1)
    rescans = backlog.read()
    assert (set(rescans.slots), rescans.unqueued_writers(clock.wall_ms())) == (set(), noted)
    note_writers(backlog, decision, unannounced=0)
    assert backlog.read() == rescans


def test_a_topic_with_another_slot_count_is_refused_with_its_name() -> None:
    """Otherwise, the source would look for entries in the wrong slots, and never find them."""
    queue = NotificationQueue(MemoryRecordStore())
    assert topic_epoch(queue, "orders", TopicUser(slots=40)) == ""
    queue.topics.create("orders", TopicSettings())
    with pytest.raises(UsageError, match="'orders' has 1000 slots, but its source has 40"):
        topic_epoch(queue, "orders", TopicUser(slots=40))


def test_a_topic_with_other_signals_is_refused_with_its_name() -> None:
    """Otherwise, the topic's writers would move signals that the source does not look at."""
    queue = NotificationQueue(MemoryRecordStore())
    queue.topics.create("orders", TopicSettings(signals="root"))
    user = TopicUser(slots=1000)
    assert topic_epoch(queue, "orders", user, signals="root")
    with pytest.raises(
        UsageError,
        match="'orders' has the setting signals: root, but its source has slots: set signals: root",
    ):
        topic_epoch(queue, "orders", user)


@pytest.mark.parametrize("letter", ["x", "é", "\0", '"', "\ud800"])
def test_a_backlog_of_all_slots_fits_one_item(letter):
    """DynamoDB accepts items of at most 400 KB, but the reasons of failures may have any length. Without a limit for
    reasons, the failures of many slots could not be stored. A process that starts later would then not know the failed
    slots.
    """
    records = MemoryRecordStore()
    failed = {
        Slot(slot): Failed(attempts=99, not_before_ms=2**44, reason=letter * 10_000, trace="t" * 4096)
        for slot in range(1000)
    }
    RescanBacklog(records).note_failed(failed)
    (record,) = records.scan(PARTITION)
    assert len(record.value) < 400 * 1024
    assert RescanBacklog(records).read().failed[Slot(7)].reason
