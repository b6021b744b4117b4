"""Decides how a batch finds out what changed: by a listing of the bucket, or by the entries of the source's topic.

The sensor and `s3notify ingest` both use this decision, and no other. An entry names a change, unless the change is
older than the topic, or its writer does not queue. So the first of these cases that applies is chosen:

    everything   everything was last compared before this topic was made: compare all slots with a listing
    rescan       there is no topic, slots wait in the backlog, or a writer that does not queue was seen lately or has
                 signalled: compare these and the changed slots with a listing, once a listing is due
    follow       otherwise: look at the keys that the entries of the changed slots name, and list nothing

`note_writers` notes the batch's findings about its writers, before the batch counts as done. `ask_again` requests slots
again that a batch did not read completely.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicUser
from s3notify_platform.protocols.notification_queue.topic_settings import check_signals
from s3notify_platform.protocols.source_enumerator import RescanBacklog, Rescans
from s3notify_platform.source.location import Location

How = Literal["everything", "rescan", "follow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision: how a batch finds out what changed (see this module).

    `slots`: the slots to look at, unless `how` is `everything`. `topic`: the epoch of the source's topic, "" if it has
    none.
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
    """Decides how to look at the `changed` slots and at the slots that wait for a rescan. Pure.

    `topic`: the epoch of the source's topic, "" if it has none. `enumerated`: the epoch in which everything was
    compared. `unqueued`: true if a writer that does not queue has signalled a changed slot. Rescans are `list_seconds`
    apart; the last one was at `listed_ms`. `now_ms` and `listed_ms` are times of the same wall clock.
    """
    if topic and topic != enumerated:
        return Decision(how="everything", topic=topic)
    if topic and not rescans.slots and not unqueued and not rescans.unqueued_writers(now_ms):
        return Decision(how="follow", topic=topic, slots=frozenset(changed))
    return Decision(
        how="rescan",
        topic=topic,
        slots=frozenset({*changed, *rescans.slots}),
        # The wait is bounded, so that a clock that was set back does not stop listings.
        wait_seconds=min(list_seconds, max(0.0, list_seconds - (now_ms - listed_ms) / 1000)),
    )


def topic_epoch(queue: NotificationQueue, topic: str, user: TopicUser, *, signals: str = "slots") -> str:
    """The topic's epoch, which changes when the topic is made again; "" without a topic.

    Costs 1 request, and the requests of `Topics.serve`. `UsageError` if the topic has another slot count than `user`,
    or another setting `signals`, or serves other tables.
    """
    found = queue.topics.find(topic)
    if found is None:
        return ""
    check_signals(topic, found.settings, signals)
    return queue.topics.serve(found, user).epoch


def topic_problem(location: Location) -> str:
    """Why the source cannot use its topic, and the remedy; "" if it can, or if there is no topic. 2 requests."""
    known, _ = location.known().read()
    user = known.topic_user(location.slots) if known is not None else TopicUser(slots=location.slots)
    found = location.queue().topics.find(location.name)
    try:
        if found is not None:
            check_signals(location.name, found.settings, location.signals)
            user.claimed(found)
            user.released(found)
    except UsageError as error:
        return str(error)
    return ""


def note_writers(backlog: RescanBacklog, decision: Decision, *, unannounced: int) -> None:
    """Notes that a writer does not queue, if the batch found such a writer.

    Requests, in that case: those of `RescanBacklog.add`. `unannounced`: changes that a listing found and no entry
    names. Such changes are normal without a topic, or where everything is compared.
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
    """Makes the next batch look at these slots again: in a listing if `listing`, else by their entries and states.

    Requests, if there are any slots: 1 PUT for each slot, and 1 PUT for the root. With `listing`, also 1 read and 1
    write of the backlog.
    """
    if not (wanted := sorted(set(slots))):
        return
    if listing:
        RescanBacklog(location.records(store), clock=clock).add(wanted)
    location.slot_signals(store, clock=clock).signal_slots(wanted)
