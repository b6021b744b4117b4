"""Values of batches and their JSON: the payload for a batch's runs, and the sensor's state between ticks."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final, Self

from s3notify_platform.engine.batch.list_or_follow import Decision
from s3notify_platform.engine.values.row_schema import json_of, of_json
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.keyspace import WatcherState

EVERYTHING: Final = -1
"""In a batch that compares the whole source, this number means all slots.

For example, the first batch compares the whole source, and so does one batch for each new topic.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPayload:
    """The payload of a batch's ack chain, for the batch's runs: the batch's slots, the signals seen, and the way to
    find the changes.

    `rescans`: the slots of the rescan backlog that this batch compares with a listing, in the form of `Rescans.slots`.
    `last_attempt`: slots that are parked (not retried for a long time) if they fail again. Unreadable objects of these
    slots go to quarantine in this batch. `topic`: the topic's epoch when the batch was opened. `signalled_ms` (by the
    store's clock) and `opened_ms` (by the sensor's clock) are only displayed.
    """

    slots: tuple[int, ...] = ()
    signals: Mapping[str, str] = field(default_factory=dict)
    listing: bool = True
    rescans: Mapping[str, int] = field(default_factory=dict)
    last_attempt: tuple[int, ...] = ()
    topic: str = ""
    signalled_ms: int = 0
    opened_ms: int = 0

    @property
    def decision(self) -> Decision:
        """The batch's decision on how to find the changes."""
        if EVERYTHING in self.slots:
            return Decision(how="everything", topic=self.topic)
        slots = frozenset(map(Slot, self.slots))
        return Decision(how="rescan" if self.listing else "follow", topic=self.topic, slots=slots)

    def dumps(self) -> str:
        """JSON."""
        return json_of(self)

    @classmethod
    def loads(cls, text: str) -> Self:
        """Inverse of `dumps`. An empty text means a batch that lists the bucket."""
        found: Self = of_json(cls, json.loads(text) if text else {})
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """A run to request. `slots`: the slots that the run ingests, or `EVERYTHING`."""

    batch: str
    part: int
    parts: int
    slots: tuple[int, ...]

    @property
    def run_key(self) -> str:
        """The run key. Equal requests have equal run keys, so that Dagster launches each request only once."""
        return f"{self.batch}-{self.part}of{self.parts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBatch:
    """A batch in flight. `chain`: the version of the batch's ack chain. `topic`: the topic's epoch when the batch was
    opened.

    `progress`: for each run, its number of heartbeats, and the sensor's wall time in ms when this number last changed.
    """

    id: str
    chain: str
    slots: tuple[int, ...]
    parts: int
    opened_ms: int
    listing: bool = False
    topic: str = ""
    progress: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A slot that was not committed by its last batch. `not_before_ms`: the earliest time of the slot's next request.

    A parked slot is requested sooner if it changes.
    """

    attempts: int
    not_before_ms: int
    reason: str
    group: int
    """The slot's group, named by the group's first slot. The slots of a group are requested together.

    The slots that failed in the same batch become two groups.
    """
    parked: bool = False
    """True if the slot has failed `max_attempts` times, and was the only slot of its last batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorState:
    """The sensor's state in Dagster's cursor. The state has 11 KB of digests, 5 bytes for each slot in flight, and, for
    each group of failing slots, 100 bytes plus the reason. `ShortCursor` stores the digests separately. If there are
    many groups, `ShortCursor` stores the groups separately, too.

    `enumerated`: the topic's epoch in which all slots were compared; "" if all slots must be compared next. `backlog`:
    true if slots waited for a rescan when the backlog was last read. `listed_ms`, `bucket_listed_ms`: when the keyspace
    and the bucket were last listed. `topic_ms`: when the topic was last read. `table`: the id of the source's table
    (`table.open_table`); "" before the first batch.
    """

    epoch: str
    table: str = ""
    next_batch: int = 0
    enumerated: str = ""
    backlog: bool = False
    listed_ms: int = 0
    bucket_listed_ms: int = 0
    topic_ms: int = 0
    watch: WatcherState = field(default_factory=WatcherState)
    open: tuple[OpenBatch, ...] = ()
    retried: bool = False
    """True if the last batch was a retry of failed slots. The next batch then has other slots, if other slots wait."""
    ranges: tuple[tuple[int, int], ...] = ()
    """For each parallel run, the first and the last slot of the run's share; empty if there is only one run."""
    failing: Mapping[int, Failing] = field(default_factory=dict)

    def dumps(self) -> str:
        """JSON, for Dagster's cursor."""
        # Each reason is stored once, and slots with equal values are grouped.
        reasons = sorted({item.reason for item in self.failing.values()})
        groups: dict[Failing, list[int]] = {}
        for slot, item in sorted(self.failing.items()):
            groups.setdefault(replace(item, reason=str(reasons.index(item.reason))), []).append(slot)
        body = {field.name: getattr(self, field.name) for field in fields(self)}
        failing = {"reasons": reasons, "groups": list(groups.items())}
        return json_of(body | {"watch": self.watch.dumps(), "failing": failing})

    @classmethod
    def loads(cls, text: str) -> Self:
        """Inverse of `dumps`. Raises `CorruptError` for any other text: then the cursor must be reset."""
        try:
            body = json.loads(text)
            body["watch"] = WatcherState.loads(body["watch"])
            body["open"] = of_json(tuple[OpenBatch, ...], body["open"])
            body["ranges"] = tuple((int(first), int(last)) for first, last in body["ranges"])
            reasons = body["failing"]["reasons"]
            groups = [(of_json(Failing, item), slots) for item, slots in body["failing"]["groups"]]
            body["failing"] = {
                slot: replace(item, reason=reasons[int(item.reason)])
                for item, slots in groups
                for slot in slots
            }
            return cls(**body)
        except (ValueError, LookupError, TypeError, AttributeError, CorruptError) as error:
            raise CorruptError(
                "the sensor's cursor was not written by this version: reset the cursor in the UI (nothing is lost)"
            ) from error
