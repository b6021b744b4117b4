"""The age of the oldest change that is not committed. The upkeep's sensor uses this age to materialize `{source}_queue`
without a run.

An uncommitted change is found in one of three ways:

- An entry of the source's topic names the change.
- The sensor has not seen the newest signal of the change's slot.
- The slot is in flight or failing, and no commit of the slot has seen the newest signal.

A signal has the time of its slot's last change. An entry has the time of its own change. Ages depend on the wall clocks
of store, writers and reader.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import dagster as dg

from s3notify_platform.engine.batch.batches import EVERYTHING, SensorState
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import CorruptError, NotFoundError
from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.sensor_views import sensor_state
from s3notify_platform.protocols.keyspace import signal_key
from s3notify_platform.table.snapshot import Absent

SLOTS_READ: Final = 100
"""Maximum number of uncommitted slots that are examined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """`oldest_seconds`: 0 if everything is committed. `slots`: the number of slots that may have
    uncommitted changes.
    """

    oldest_seconds: float
    slots: int


def freshness(
    io: SlotIOManager,
    instance: dg.DagsterInstance,
    *,
    queue_seconds: float | None = None,
) -> Freshness:
    """The freshness of the source's table.

    `queue_seconds`: the age of the oldest entry, if the caller has scanned the topic. Cost: 1 HEAD, and 1 LIST of the
    keyspace if the root signal has changed. Uncommitted slots also cost the requests of `LogTable.newest`, and 1 HEAD
    for each slot.
    """
    if queue_seconds is None:
        with suppress(NotFoundError):  # nothing was ever announced
            queue_seconds = io.clients.queue.oldest_age_seconds(io.name)
    watcher, now_ms = io.clients.watcher(), SYSTEM_CLOCK.wall_ms()
    state = sensor_state(instance, io.name, io.clients.records)
    seen, before = watcher.fresh_state(), state
    if before is not None and before.watch.slots == seen.slots:
        seen = before.watch
    behind = set(watcher.observe(seen, relist=False).changed) | _unsettled(state)
    looked = sorted(behind)[:SLOTS_READ]
    taken, place = _taken(io) if looked else {}, io.source.location.keyspace_prefix
    signals = in_parallel(
        lambda slot: io.clients.store.head(signal_key(place, slot)), looked, REQUESTS_IN_FLIGHT
    )
    since = [
        signal.modified_ms
        for slot, signal in zip(looked, signals, strict=True)
        if signal is not None and not (slot in taken and signal.etag.startswith(taken[slot]))
    ]
    if state is not None:
        since += [batch.opened_ms for batch in state.open if EVERYTHING in batch.slots]
    ages = [(now_ms - since_ms) / 1000 for since_ms in since]
    # With `signals: root`, a slot may have no signal. The slot's entries in the queue show that changes of the slot are
    # not committed, and since when.
    named = sum(signal is None for signal in signals) if io.source.location.signals == "root" else 0
    return Freshness(
        oldest_seconds=max(0.0, queue_seconds or 0.0, *ages),
        slots=len(since) + named + len(behind) - len(looked),
    )


def _taken(io: SlotIOManager) -> Mapping[Slot, str]:
    """For each slot, the signal that the slot's last commit saw. The signals are read from the table."""
    try:
        found = io.source.table().newest()
    except CorruptError:  # no run can commit to this table
        return {}
    if isinstance(found, Absent):
        return {}
    return {slot: facts.signal for slot, facts in found.manifest.slots.items() if facts.signal}


def _unsettled(state: SensorState | None) -> set[Slot]:
    if state is None:
        return set()
    asked = {slot for batch in state.open for slot in batch.slots} | state.failing.keys()
    return {Slot(slot) for slot in asked if slot != EVERYTHING}
