"""How a batch finds out what changed: by a listing of the bucket, or by the entries of the source's topic.

The one place that decides it, for the sensor and `s3notify ingest`. An entry names a change, unless the
change is older than the topic, or its writer does not queue. So, the first that holds:

    everything   the topic is not the one since which everything was compared: compare all slots with a listing
    rescan       there is no topic, or slots wait in the backlog, or a writer that does not queue was seen lately, or
                 has signalled: compare these and the changed slots with a listing, once one is due
    follow       otherwise: look at the keys that the entries of the changed slots name, and list nothing

What a batch finds out about its writers is noted by `note_writers`, before the batch counts as done. Slots that are
left come again by `ask_again`.
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
    """How a batch finds out what changed, as this module says. `slots`: of which ones, unless it is `everything`.

    `topic`: the epoch of the source's topic, "" if it has none.
    """

    how: How
    topic: str
    slots: frozenset[Slot] = frozenset()
    wait_seconds: float = 0.0
    """Before these are over no rescan is due."""

    @property
    def listing(self) -> bool:
        """Whether the bucket is listed."""
        return self.how != "follow"

    @property
    def everything(self) -> bool:
        """Whether all slots are compared, whatever was signalled."""
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
    """What is to be done about `changed` slots, and those that wait for a rescan. Pure.

    `topic`: the epoch of the source's topic, "" if it has none. `enumerated`: the one since which everything was
    compared. `unqueued`: a changed slot's signal is of a writer that does not queue. Rescans are `list_seconds` apart,
    the last one at `listed_ms`, both by the wall clock of `now_ms`.
    """
    if topic and topic != enumerated:
        return Decision(how="everything", topic=topic)
    if topic and not rescans.slots and not unqueued and not rescans.unqueued_writers(now_ms):
        return Decision(how="follow", topic=topic, slots=frozenset(changed))
    return Decision(
        how="rescan",
        topic=topic,
        slots=frozenset({*changed, *rescans.slots}),
        # A clock that was set back must not stop it.
        wait_seconds=min(list_seconds, max(0.0, list_seconds - (now_ms - listed_ms) / 1000)),
    )


def topic_epoch(queue: NotificationQueue, topic: str, user: TopicUser, *, signals: str = "slots") -> str:
    """Which life of the topic this is; "" if there is none. 1 request, and as `Topics.serve`.

    `UsageError` if the topic has other slots than its user, or other `signals`, or serves other tables.
    """
    found = queue.topics.find(topic)
    if found is None:
        return ""
    check_signals(topic, found.settings, signals)
    return queue.topics.serve(found, user).epoch


def topic_problem(location: Location) -> str:
    """Why the source cannot use its topic, with what to do; "" if it can, or there is none. 2 requests."""
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
    """Note that a writer does not queue, if the batch found one. No request if not, else as `RescanBacklog.add`.

    `unannounced`: changes that a listing found and no entry names; where everything is compared, or without a topic,
    these are nothing unusual.
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
    """Have slots taken up by the next batch, and compared by a listing; else by what is known of them.

    No request without slots; else 1 read and 1 write for a listing, 1 PUT for each slot and one for the root.
    """
    if not (wanted := sorted(set(slots))):
        return
    if listing:
        RescanBacklog(location.records(store), clock=clock).add(wanted)
    location.slot_signals(store, clock=clock).signal_slots(wanted)
