"""Tests that a bucket's changes arrive in its notification queue, and measures the delay, for `s3notify doctor`.

A probe object is written below the source's prefix, under a hidden name that no source reads. A separate topic receives
the probe's entry. So events, inlet and queue are tested together, and the source's own topic, signals and table are not
affected. Other topics that take keys below this prefix get an entry for the probe, as for any object. The topic is
removed before the object.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.kernel.errors import NotFoundError, UnavailableError, UsageError
from s3notify_platform.kernel.ports import ObjectMeta, ObjectStore, Unknown
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import root_key, signal_key
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings
from s3notify_platform.stores.probe import PROBE

ARRIVAL_POLL_SECONDS: Final = 0.25
ARRIVAL_SECONDS: Final = 8.0
ASK_SECONDS: Final = 2.0

TOPIC: Final = "probe-of-"
_KNOWN_SECONDS: Final = 0.05
"""The time until writers know the new topic (`known_seconds`). This time can be short: only an inlet announces the
probe, and inlets read the topics for each batch.
"""


def probe_arrival(
    queue: NotificationQueue,
    bucket: ObjectStore,
    *,
    source: str,
    bucket_name: str,
    prefix: str,
    wait_seconds: float,
    hopeless: Callable[[], bool] = lambda: False,
    clock: Clock = SYSTEM_CLOCK,
) -> float | None:
    """Seconds from the end of a write until the change was in the queue; None if the change did not arrive within
    `wait_seconds`.

    `hopeless`: called every few seconds after `ARRIVAL_SECONDS`; if it returns True, the wait ends.

    `RefusedError`: the bucket may not be written to. The call leaves nothing behind. If this process is killed, the
    next probe of the source takes over the topic, and the hidden object stays. Cost: about 10 requests, and 4 more for
    each second of the wait.
    """
    queue = NotificationQueue(queue.records, clock=clock, known_seconds=_KNOWN_SECONDS)
    name, key = f"{TOPIC}{source}"[:63], f"{prefix}{PROBE}{unique_name(clock)}"
    queue.topics.create(name, TopicSettings(slots=1, shards=1, bucket=bucket_name, prefix=f"{prefix}{PROBE}"))
    written = True
    try:
        try:
            outcome = bucket.put(key, b"")
        except UsageError:
            written = False
            raise
        if isinstance(outcome, Unknown):
            raise UnavailableError(f"it is unknown if {key!r} was written: {outcome.cause}; try again")
        began, asked = clock.monotonic(), ARRIVAL_SECONDS
        while (waited := clock.monotonic() - began) < wait_seconds:
            if any(entry.event.key == key for entry in queue.entries(name, [0])):
                return waited
            if waited >= asked:
                if hopeless():
                    return None
                asked = waited + ASK_SECONDS
            clock.sleep(ARRIVAL_POLL_SECONDS)
        return None
    finally:
        with suppress(
            NotFoundError
        ):  # a concurrent probe deleted the topic: one of the two probes may return None
            queue.topics.delete(name)
        if written:
            bucket.delete(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The newest object of a source, and the delay until its slot was signalled. The delay is None if no signal came
    after the object.
    """

    key: str
    seconds: float | None


def newest_arrival(
    signals: ObjectStore,
    *,
    keyspace_prefix: str,
    slots: int,
    root: bool,
    chosen: Iterable[ObjectMeta],
) -> Newest | None:
    """The newest object and its delay; None if there is no object. The call writes nothing. Cost: 1 HEAD.

    `chosen`: all of the source's objects. Both times, of the object and of the signal, are by the store's clock.
    """
    newest = max(chosen, key=lambda meta: meta.modified_ms, default=None)
    if newest is None:
        return None
    signal = root_key(keyspace_prefix) if root else signal_key(keyspace_prefix, slot_of(newest.key, slots))
    moved = signals.head(signal)
    # Both times are cut to whole seconds, because a HEAD returns no fractions of a second, but a LIST may.
    late = moved.modified_ms // 1000 - newest.modified_ms // 1000 if moved is not None else -1
    return Newest(key=newest.key, seconds=float(late) if late >= 0 else None)
