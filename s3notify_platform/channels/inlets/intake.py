"""Intake, shared by all inlets: reported changes become entries of every matching topic, then signals.

Guarantees. If the outcome of an event is `queued` or `duplicate`, the event is durable in every matching topic that is
persistent. After the event became durable, the signal of the event's slot moved. The event was also sent to the
matching topics that are not persistent (`direct_delivery`), or counts as unsent. So the sender may drop the event.
Events with the outcome `full` or `unavailable` must be reported again. Repeated or reordered reports do no damage: an
entry only names the object to read.

Duplicates. An event with a sequencer is identified by key, operation, sequencer and ETag. If all steps of an event are
among the last `MEMORY` steps of this process, the event is dropped. A step is the entry in one topic, the signal in one
keyspace, or the direct delivery. Each step is remembered on its own, so a full topic causes no second entry in other
topics. A topic that is not persistent gets an event again if the event is reported to another process, or after this
process has forgotten the event's steps. An event without a sequencer never counts as a duplicate. Otherwise, after an
object changes from A to B and back to A, the last change would be missed. An event with an older sequencer is not
dropped either. Each sequencer comes from the clock of one gateway, but MinIO and Ceph run several gateways. Ceph also
writes the bytes of a sequencer in little-endian order. So the event with the smaller sequencer may be the later change.

Requests for a batch of n events in s slots: 1 scan of the topics, the requests of `push_many` for each topic, and s + 1
PUTs for each keyspace.
"""

import json
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from threading import Lock
from typing import Final, Literal, assert_never

from s3notify_platform.channels.delivery.direct_delivery import DirectDelivery
from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.inlets.poison import PoisonStore
from s3notify_platform.channels.keyspaces import Keyspace, checked, named_in_root, source_of
from s3notify_platform.channels.service import ServiceContext
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import NotFoundError, UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.kernel.limits import MAX_CONFIGURATION_ID, MAX_EVENT_FIELD, MAX_VERSION_ID
from s3notify_platform.kernel.ports import unaddressable
from s3notify_platform.protocols.keyspace import NotSignalledError, Publisher
from s3notify_platform.protocols.notification_queue import (
    EntryCommitted,
    Event,
    NotificationQueue,
    QuotaExceeded,
)
from s3notify_platform.protocols.notification_queue.reserving import RETRY_AFTER_SECONDS
from s3notify_platform.stores.open_store import open_store

MEMORY: Final = 100_000
"""Number of steps that are remembered, which take about 15 MB."""

POISON_RETRY_SECONDS: Final = 60.0

_RETRY = (UnavailableError, UnknownOutcomeError)

Outcome = Literal["queued", "duplicate", "ignored", "failed", "full", "unavailable"]
"""The outcome of an event. Queued, duplicate: everything is done, also if only topics without a queue take the event.
Ignored: the event belongs to another bucket, or no topic takes the event. Failed: the event can never be queued, and is
kept as poison. Full, unavailable: report the event again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """An outcome for each event, in the order of the events. `retry_after_seconds` is set if some events must be
    reported again.
    """

    outcomes: tuple[Outcome, ...]
    retry_after_seconds: float | None = None
    cause: str = ""
    """The reason why events must be reported again, as text."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of events by outcome."""
        return Counter(self.outcomes)


_DIRECT: Final = "direct delivery"
"""The step in which events are sent to topics that are not persistent."""

_RANK: Mapping[Outcome | None, int] = {None: 0, "failed": 1, "full": 2, "unavailable": 3}


@dataclass(slots=True, kw_only=True, eq=False)
class _Report:
    """One event of a batch that is being processed."""

    event: Event
    identity: bytes | None
    valid: bool = False
    """True if topics may take the event."""
    taken: bool = False
    """True if at least one topic takes the event."""
    queued_at: int = 0
    """The tick (see `_Memory`) of the event's newest entry; 0 if the event has no entry."""
    news: bool = False
    """True if a step was done for the first time."""
    outcome: Outcome | None = None

    def is_at_least(self, outcome: Outcome) -> None:
        """Records a failure. After several failures, an outcome that requires another report has precedence."""
        if _RANK[outcome] > _RANK[self.outcome]:
            self.outcome = outcome


@dataclass(slots=True, kw_only=True)
class _Retry:
    retry_after_seconds: float | None = None
    cause: str = ""

    def note(self, cause: str, seconds: float = RETRY_AFTER_SECONDS) -> None:
        self.retry_after_seconds = max(self.retry_after_seconds or 0.0, seconds)
        self.cause = self.cause or cause


class _Memory:
    """The last steps, each with a tick: a number that rises with each call of `tick`. Thread-safe.

    An entry's tick is drawn after the entry is durable; a signal's tick is drawn before the signal is sent. So if the
    signal's tick is greater than the entry's tick, the signal was sent after the entry became durable.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._done: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        self._ticks = 0
        self._lock = Lock()

    def tick(self) -> int:
        with self._lock:
            self._ticks += 1
            return self._ticks

    def when(self, step: str, report: _Report) -> int:
        """The tick of a step; 0 if the step was not done, or is no longer remembered."""
        with self._lock:
            return self._done.get((step, report.identity), 0) if report.identity is not None else 0

    def note(self, step: str, report: _Report, tick: int) -> None:
        if report.identity is None:
            return
        with self._lock:
            place = (step, report.identity)
            self._done[place] = max(tick, self._done.get(place, 0))
            if len(self._done) > self._limit:
                self._done.popitem(last=False)


class Intake:
    """Puts the reported changes of one bucket into the queue, and moves the signals of the bucket's keyspaces.
    Thread-safe.

    `excluded`: prefixes of the platform's own objects, whose changes are ignored. Otherwise, if a topic takes all keys
    of the queue's own bucket, each entry of the topic would cause another entry, without end.
    """

    def __init__(
        self,
        queue: NotificationQueue,
        targets: Sequence[Keyspace],
        *,
        bucket: str,
        excluded: Sequence[str] = (),
        memory: int = MEMORY,
        egress: Egress | None = None,
    ) -> None:
        """`egress`: the endpoints that direct delivery may reach; default: https to public addresses."""
        if not bucket or "" in excluded:
            raise UsageError(
                "an intake needs the name of one bucket; `excluded` must not contain an empty prefix"
            )
        self.bucket = bucket
        self.poison = PoisonStore(queue)
        self.direct = DirectDelivery(queue, egress=egress)
        self._queue = queue
        self._targets = tuple(targets)
        self._excluded = tuple(excluded)
        self._memory = _Memory(memory)
        self._lock = Lock()
        self._sending: set[bytes | None] = set()
        self._counts: Counter[str] = Counter()

    def accept(self, events: Iterable[Event], *, origin: str = "") -> Accepted:
        """Queues, signals and sends new events. Returns when the events are durable, or cannot be made durable now.

        `UsageError` for problems that only an operator can fix: a missing bucket, refused credentials.
        """
        trouble = _Retry()
        reports = [_Report(event=event, identity=_identity(event)) for event in events]
        try:
            distinct = _first_of_each(reports)
            for topic, wanted in self._by_topic(distinct, trouble, origin).items():
                self._push(topic, wanted, trouble, origin)
            for number, target in enumerate(self._targets):
                self._signal(_signal_step(number), target, distinct, trouble)
            self._send([report for report in distinct if report.valid])
            _settle(reports)
        finally:
            with self._lock:
                self._counts["received"] += len(reports)
                self._counts.update(report.outcome or "unavailable" for report in reports)
                now_ms = SYSTEM_CLOCK.wall_ms()
                self._counts["behind_ms"] += sum(
                    max(0, now_ms - report.event.time_ms)
                    for report in reports
                    if report.outcome == "queued" and report.event.time_ms
                )
        return Accepted(
            outcomes=tuple(report.outcome or "queued" for report in reports),
            retry_after_seconds=trouble.retry_after_seconds,
            cause=trouble.cause,
        )

    def counts(self) -> Mapping[str, int]:
        """The numbers of events since this process began: received, and by outcome. An event that is reported again
        counts again.

        `behind_ms`: milliseconds from event to queue, added up over all queued events. The event's time is by the
        store's clock, the queue's time by this machine's clock. `sent`, `unsent`: see `DirectDelivery.counts`.
        """
        with self._lock:
            counts = self._counts.copy()
        kinds = ("received", "queued", "ignored", "failed", "full", "unavailable", "behind_ms")
        counted = {**{kind: counts[kind] for kind in kinds}, "duplicates": counts["duplicate"]}
        return {**counted, **self.direct.counts()}

    def _by_topic(self, reports: Sequence[_Report], trouble: _Retry, origin: str) -> dict[str, list[_Report]]:
        wanted: dict[str, list[_Report]] = {}
        try:
            # The topics are read after the changes happened. If a topic is created after this read, the topic's
            # consumer lists first, and so finds these changes.
            topics, down = checked(self._queue.see_topics(), self._targets), False
        except _RETRY as error:
            topics, down = (), True
            trouble.note(str(error))
        for report in reports:
            event = report.event
            if event.bucket != self.bucket or event.key.startswith(self._excluded):
                continue
            if reason := _unfit(event):
                self._fail(report, reason, trouble, origin)
            elif down:
                report.is_at_least("unavailable")
            else:
                report.valid = True
                skipping = {t.topic for t in self._targets if t.skips_hidden and t.is_hidden(event.key)}
                for topic in self._queue.takers(topics, event.bucket, event):
                    if topic.name in skipping:
                        continue
                    wanted.setdefault(topic.name, []).append(report)
        return wanted

    def _push(self, topic: str, reports: Sequence[_Report], trouble: _Retry, origin: str) -> None:
        step = f"topic {topic}"
        lacking = []
        for report in reports:
            if before := self._memory.when(step, report):
                report.taken = True
                report.queued_at = max(report.queued_at, before)
            else:
                lacking.append(report)
        try:
            large = {report for report in lacking if not self._queue.fits(topic, report.event)}
            fitting = [report for report in lacking if report not in large]
            outcomes = self._queue.push_many(topic, [report.event for report in fitting]) if fitting else ()
        except NotFoundError:
            return  # the topic was deleted after the topics were read
        except _RETRY as error:
            trouble.note(str(error))
            for report in lacking:
                report.is_at_least("unavailable")
            return
        for report in (report for report in lacking if report in large):
            self._fail(report, f"larger than topic {topic!r} allows", trouble, origin)
        for report, outcome in zip(fitting, outcomes, strict=True):
            report.taken = True
            match outcome:
                case EntryCommitted():
                    report.news = True
                    report.queued_at = self._memory.tick()
                    self._memory.note(step, report, report.queued_at)
                case QuotaExceeded(retry_after_seconds=seconds):
                    report.is_at_least("full")
                    trouble.note(f"topic {topic!r} is full", seconds)
                case _ as unreachable:
                    assert_never(unreachable)

    def _signal(self, step: str, target: Keyspace, reports: Sequence[_Report], trouble: _Retry) -> None:
        """Signals each event that has an entry, even if another topic was full. When the full topic gets its entry,
        this entry is signalled, too.
        """
        began = self._memory.tick()
        lacking = [
            report
            for report in reports
            if target.takes(report.event.key) and report.queued_at > self._memory.when(step, report)
        ]
        missing: frozenset[str] = frozenset()
        try:
            keys = [report.event.key for report in lacking]
            named = named_in_root(self._queue, self.bucket, (report.event for report in lacking))
            alone = all((key, target.topic) in named for key in keys)
            target.publisher.signal(keys, queued=keys, alone=alone)
        except NotSignalledError as error:
            if isinstance(error.__cause__, UsageError):
                raise error.__cause__ from error
            missing = frozenset(error.keys)
            trouble.note(str(error))
        for report in lacking:
            if report.event.key in missing:
                report.is_at_least("unavailable")
            else:
                report.news = True
                self._memory.note(step, report, began)

    def _send(self, reports: Sequence[_Report]) -> None:
        """Sends each event only once to the topics that are not persistent. The event may be reported again because of
        other topics, or during the sending.
        """
        todo = []
        with self._lock:
            for report in reports:
                if report.identity in self._sending or self._memory.when(_DIRECT, report):
                    report.taken = True
                else:
                    todo.append(report)
            begun = {report.identity for report in todo} - {None}
            self._sending |= begun
        try:
            taken = self.direct.send(self.bucket, (report.event for report in todo))
            for report, is_taken in zip(todo, taken, strict=True):
                if is_taken:
                    report.taken = report.news = True
                    self._memory.note(_DIRECT, report, self._memory.tick())
        finally:
            with self._lock:
                self._sending -= begun

    def _fail(self, report: _Report, reason: str, trouble: _Retry, origin: str) -> None:
        try:
            body = json.dumps(asdict(report.event), default=str).encode("ascii")
            if self.poison.keep(body, origin=origin, reason=reason):
                report.is_at_least("failed")
            else:
                report.is_at_least("full")
                trouble.note("too much poison is kept: inspect and discard some of it", POISON_RETRY_SECONDS)
        except _RETRY as error:
            report.is_at_least("unavailable")
            trouble.note(str(error))


def intake_of(context: ServiceContext, egress: Egress | None = None) -> Intake:
    """The intake of an inlet with this context. `egress`: see `Intake`. Cost: no request."""
    platform = context.platform
    store = open_store(platform)
    signals = [space.signals for space in context.keyspaces if context.bucket == platform.bucket]
    targets = [
        Keyspace(
            publisher=Publisher(store, prefix=space.signals, slots=space.slots),
            prefix=space.prefix,
            topic=space.topic or source_of(space.signals),
            skips_hidden=space.skips_hidden,
        )
        for space in context.keyspaces
    ]
    excluded = (*context.excluded, *signals)
    return Intake(context.queue, targets, bucket=context.bucket, excluded=excluded, egress=egress)


def _signal_step(number: int) -> str:
    return f"signal {number}"


def _first_of_each(reports: Sequence[_Report]) -> list[_Report]:
    first: dict[bytes | int, _Report] = {}
    for report in reports:
        first.setdefault(report.identity or id(report), report)
    return list(first.values())


def _settle(reports: Sequence[_Report]) -> None:
    """Fills in the outcomes of successful events. If a batch repeats an event, the first outcome applies to all."""
    first: dict[bytes, _Report] = {}
    for report in reports:
        original = first.setdefault(report.identity, report) if report.identity is not None else report
        if original is not report:
            report.outcome = "duplicate" if original.outcome == "queued" else original.outcome
        elif report.outcome is None and not report.taken:
            report.outcome = "ignored"
        elif report.outcome is None:
            report.outcome = "queued" if report.news else "duplicate"


def _identity(event: Event) -> bytes | None:
    if not event.sequencer:
        return None
    parts = json.dumps([event.bucket, event.key, event.op, event.sequencer, event.etag])
    return blake2b(parts.encode("ascii"), digest_size=16).digest()


def _unfit(event: Event) -> str:
    """The reason why no topic can take the event; empty if the event is valid."""
    if reason := unaddressable(event.key):
        return f"S3 clients cannot address the event's key: {reason}"
    if max(len(event.etag or ""), len(event.sequencer), len(event.name)) > MAX_EVENT_FIELD:
        return f"the event's ETag, sequencer or name has more than {MAX_EVENT_FIELD} characters"
    if len(event.version_id) > MAX_VERSION_ID or len(event.configuration_id) > MAX_CONFIGURATION_ID:
        return (
            f"the event's version id has more than {MAX_VERSION_ID} characters, or its configuration id has more than "
            f"{MAX_CONFIGURATION_ID}"
        )
    if not f"{event.version_id}{event.configuration_id}".isprintable():
        return "the event's version id or configuration id has unprintable characters"
    plain = f"{event.etag or ''}{event.sequencer}{event.name}".isascii()
    if not plain or not 0 <= (event.size or 0) < 2**63:
        return "the event's ETag, sequencer, name or size is invalid"
    return ""
