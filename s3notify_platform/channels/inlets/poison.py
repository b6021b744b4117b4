"""Poison: messages that an inlet cannot process. Such messages are kept with the queue until a person has inspected
them.

A message that is not an S3 event message fails on every retry. An event that no topic can store also fails on every
retry. Such messages must not block other messages. So poison is first kept here with a reason, and then removed from
its origin.

| partition / key of the record | JSON value |
|---|---|
| poison / {32 hex digits of the message's SHA-256} | origin, reason, time, length, and the first `MAX_POISON_BYTES` |
| poison-count / all | the number of kept messages, which is limited |

The same bytes are kept once, however often they are received.
"""

import json
from base64 import b64decode, b64encode
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Final

from s3notify_platform.kernel.attempts import ATTEMPTS, attempts
from s3notify_platform.kernel.errors import CorruptError, UnavailableError
from s3notify_platform.kernel.limits import MAX_POISON, MAX_POISON_BYTES
from s3notify_platform.kernel.ports import Conflict, Record
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.protocols.updates import Stored

if TYPE_CHECKING:
    from s3notify_platform.kernel.clock import Clock

POISON, POISON_COUNT, ALL = "poison", "poison-count", "all"

REMEMBERED: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonMessage:
    """A kept message. `length`: the message's size in bytes. If `length` is greater than the size of `body`, `body` is
    only the message's beginning.
    """

    id: str
    origin: str
    reason: str
    time_ms: int
    length: int
    body: bytes


class PoisonStore:
    """The poison of one queue's inlets. Thread-safe."""

    def __init__(self, queue: NotificationQueue, *, limit: int = MAX_POISON) -> None:
        self._records = queue.records
        self._updates = queue.updates
        self._clock: Clock = queue.clock
        self._limit = limit
        self._kept: OrderedDict[str, None] = OrderedDict()
        self._lock = Lock()

    def keep(self, body: bytes, *, origin: str, reason: str) -> bool:
        """Keeps a message. Returns False if `limit` messages are kept already. Cost: 2 requests (3 on a bucket), 0 if
        the message was kept before.

        `UnavailableError`, `UnknownOutcomeError`: try again.
        """
        name = sha256(body).hexdigest()[:32]
        with self._lock:
            if name in self._kept:
                return True
        if self._records.read(POISON, name) is None:
            if not self._count(1):
                return False
            value = {
                "v": 1,
                "origin": origin,
                "reason": reason[:500],
                "time_ms": self._clock.wall_ms(),
                "length": len(body),
                "body": b64encode(body[:MAX_POISON_BYTES]).decode("ascii"),
            }
            if not isinstance(self._updates.create(POISON, name, json.dumps(value).encode("ascii")), Stored):
                self._count(-1)  # another inlet has kept the message first
        with self._lock:
            self._kept[name] = None
            while len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)
        return True

    def all(self) -> tuple[PoisonMessage, ...]:
        """All kept messages. One scan."""
        return tuple(_decode(record) for record in self._records.scan(POISON))

    def discard(self, ids: frozenset[str] | None = None) -> int:
        """Removes all kept messages, or only `ids`; returns the number removed. Cost: 1 scan, and 2 requests for each
        message.
        """
        removed = 0
        for record in self._records.scan(POISON):
            if ids is not None and record.key not in ids:
                continue
            if isinstance(self._updates.remove(POISON, record.key, expected=record.version), Stored):
                self._count(-1)
                removed += 1
            with self._lock:
                self._kept.pop(record.key, None)
        return removed

    def _count(self, amount: int) -> bool:
        """Changes the count; returns False if the limit is reached. If an answer is lost, the count may become too
        high.
        """
        for attempt in attempts(self._clock, ATTEMPTS):
            try:
                outcome = self._records.add(
                    POISON_COUNT, ALL, amount, ceiling=self._limit if amount > 0 else None
                )
            except UnavailableError:
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                if isinstance(outcome, int | Conflict) or amount < 0:
                    return isinstance(outcome, int)
        raise UnavailableError("poison could not be counted: try again")


def _decode(record: Record) -> PoisonMessage:
    try:
        fields = json.loads(record.value)
        return PoisonMessage(
            id=record.key,
            origin=fields["origin"],
            reason=fields["reason"],
            time_ms=fields["time_ms"],
            length=fields["length"],
            body=b64decode(fields["body"], validate=True),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"poison {record.key!r} cannot be decoded: {record.value[:80]!r}") from error
