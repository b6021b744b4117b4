"""Decides how a batch finds out what changed: by a listing of the bucket, or by the entries of the source's topic.

Both the sensor and `s3notify ingest` decide here. Each change has an entry, except changes that are older than the
topic, and changes by a writer that does not queue. So the decision is the first of these cases that applies:

    everything   this topic was made after the last comparison of all slots: compare all slots with a listing
    rescan       there is no topic, or slots wait in the backlog, or a writer that does not queue was seen lately, or
                 such a writer has signalled a changed slot: compare the changed slots and the slots in the backlog with
                 a listing, once a listing is due
    follow       otherwise: look at the keys that the entries of the changed slots name, and list nothing

Before a batch counts as done, `note_writers` notes whether the batch found a writer that does not queue. `ask_again`
requests again the slots that a batch did not read completely.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicUser
from s3notify_platform.protocols.notification_queue.topic_settings import check_for_source
from s3notify_platform.protocols.source_enumerator import RescanBacklog, Rescans
from s3notify_platform.source.location import Location

How = Literal["everything", "rescan", "follow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision on how a batch finds the changes (see the module's docstring).

    `slots`: the slots to look at, unless `how` is `everything`. `topic`: the epoch of the source's topic; "" without a
    topic.
    """

    how: How
    topic: str
    slots: frozenset[Slot] = frozenset()
    wait_seconds: float = 0.0
    """Seconds until a rescan is due."""

    @property
    def listing(self) -> bool:
        """True if the bucket is listed."""
        return self.how != "follow"

    @property
    def everything(self) -> bool:
        """True if all slots are compared, signalled or not."""
        return self.how == "everything"


def decide(
    changed: Iterable[Slot],
    rescans: Rescans,
    *,
    topic: str,
    enumerated: str,
    now_ms: int,
    unqueued: bool = False,
    listed_ms: int = 0,
    list_seconds: float = 0.0,
) -> Decision:
    """Decides how a batch looks at the `changed` slots, and at the slots that wait for a rescan. Pure.

    `topic`: the epoch of the source's topic; "" without a topic. `enumerated`: the epoch in which all slots were
    compared. `unqueued`: true if a writer that does not queue has signalled a changed slot. Rescans are `list_seconds`
    apart. The last rescan was at `listed_ms`. `now_ms` and `listed_ms` are times of the same wall clock.
    """
    if topic and topic != enumerated:
        return Decision(how="everything", topic=topic)
    if topic and not rescans.slots and not unqueued and not rescans.unqueued_writers(now_ms):
        return Decision(how="follow", topic=topic, slots=frozenset(changed))
    return Decision(
        how="rescan",
        topic=topic,
        slots=frozenset({*changed, *rescans.slots}),
        # The wait is at most `list_seconds`, even if the clock was set back. Otherwise listings could stop for a long
        # time.
        wait_seconds=min(list_seconds, max(0.0, list_seconds - (now_ms - listed_ms) / 1000)),
    )


def topic_epoch(queue: NotificationQueue, topic: str, user: TopicUser, *, signals: str = "slots") -> str:
    """Returns the topic's epoch, which changes when the topic is made again; "" without a topic.

    Cost: 1 request, and the requests of `Topics.serve`. Raises `UsageError` if the topic has another slot count than
    `user`, or another setting `signals`, or if the topic serves other tables.
    """
    found = queue.topics.find(topic)
    if found is None:
        return ""
    check_for_source(topic, found.settings, signals)
    return queue.topics.serve(found, user).epoch


def topic_problem(location: Location) -> str:
    """Returns the reason why the source cannot use its topic, and the remedy. Returns "" if there is no problem, or no
    topic.

    Cost: 2 requests.
    """
    known, _ = location.known().read()
    user = known.topic_user(location.slots) if known is not None else TopicUser(slots=location.slots)
    found = location.queue().topics.find(location.name)
    try:
        if found is not None:
            check_for_source(location.name, found.settings, location.signals)
            user.claimed(found)
            user.released(found)
    except UsageError as error:
        return str(error)
    return ""


def note_writers(backlog: RescanBacklog, decision: Decision, *, unannounced: int) -> None:
    """Notes in the backlog that a writer does not queue, if the batch found such a writer.

    The note costs the requests of `RescanBacklog.add`. `unannounced`: the number of changes that a listing found and no
    entry names. Without a topic, or when all slots are compared, unannounced changes are normal.
    """
    if decision.how == "rescan" and decision.topic and unannounced:
        backlog.add((), unqueued=True)


def ask_again(
    location: Location,
    slots: Iterable[Slot],
    *,
    listing: bool,
    store: ObjectStore | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Makes the next batch look at these slots again. With `listing`, the batch lists the bucket. Otherwise the batch
    uses the slots' entries and states. Cost: 1 PUT for each slot, and 1 PUT for the root; with `listing`, also 1 read
    and 1 write of the backlog. Without slots, no request is sent.
    """
    if not (wanted := sorted(set(slots))):
        return
    if listing:
        RescanBacklog(location.records(store), clock=clock).add(wanted)
    location.slot_signals(store, clock=clock).signal_slots(wanted)
