"""A record of the table outside the table's prefix. By this record, a loss of versions is noticed.

`known` is one record for each table. The record is stored as `_s3notify-known/{source}` in the platform's bucket or
another one, or in the records table. The record has the table's id, its identity, and the newest version with the
number `n` of its manifest. The log (`metaData.id`, `txn.appId`), the sensor's cursor and the checkpoints of streams
have the same id.

Invariants
    - `known` is created first. Then version 0 of the log is created, with the same id.
    - A version is recorded after it was created. So after a crash, `known` may be behind the log, but is never ahead of
      it. If the log ends before the known version, commits are lost.
    - If the log has another `n` for the known version, another version has replaced it. Either a writer's lease had
      ended, or the log was restored from a backup.
    - A table that starts over gets a new id, and keeps a list of its former ids, because version numbers are used
      again.

Requests: `read` takes 1. `note` takes 1 write. Each other writer that was first adds 1 read and 1 write.
"""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Final

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import CorruptError, UnavailableError, UnknownOutcomeError
from s3notify_platform.kernel.ports import Record, RecordStore
from s3notify_platform.kernel.slots import HASH
from s3notify_platform.protocols.notification_queue import TopicUser
from s3notify_platform.protocols.updates import Updates

KNOWN: Final = "_s3notify-known"
"""The partition of these records in a record store; on a bucket, their folder."""

ATTEMPTS: Final = 30

PUT_BACK: Final = "s3notify table put-back"
"""The command that restores a version that an overrun lease has replaced (`put_back`)."""

LINEAGE: Final = 64
"""A snapshot keeps the manifest numbers of this many versions, the newest ones."""

Lineage = tuple[tuple[int, int], ...]
"""Versions and the numbers of their manifests, as they were read, ascending."""

FORMER_MAX: Final = 20
"""The number of former ids that a record keeps."""


def known_key(platform_prefix: str) -> str:
    """The key of a table's record: the source's name, or the whole platform prefix if it is not `_s3notify/{name}/`.

    Pure.
    """
    usual = re.fullmatch(r"_s3notify/([^/]+)/", platform_prefix)
    return usual[1] if usual else platform_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The settings of a table that cannot change. With other values, it would be another table."""

    bucket: str
    prefix: str
    slots: int
    hash: str = HASH

    def leads_to(self, other: "Identity") -> bool:
        """True if `migrate` can make the other table from this one.

        This is so if only the slots differ, or one prefix is the beginning of the other.
        """
        nested = self.prefix.startswith(other.prefix) or other.prefix.startswith(self.prefix)
        return nested and (self.bucket, self.hash) == (other.bucket, other.hash)

    def differences(self, other: "Identity") -> list[str]:
        """A text for people: the settings in which `other` differs."""
        mine, others = asdict(self), asdict(other)
        return [
            f"{name} is {others[name]!r} and was {mine[name]!r}"
            for name in mine
            if mine[name] != others[name]
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The record. `version`: -1 if nothing was committed yet. `number`: the `n` of that version's manifest.

    `identity`: None until a run opens the table. `former`: the former ids of the table. `endpoint` (of the source's
    bucket) and `sensor` (the epoch of the sensor that last opened a batch) are used for warnings. `confirmed`: a
    version that is built on this version, or on an earlier one, may remove any number of objects. `rewriting`:
    `migrate` is removing the former table's objects. `held`: the command (`s3notify {held}`) that rewrites the table
    while other writers wait; "" if there is none.
    """

    table: str
    version: int = -1
    number: int = 0
    identity: Identity | None = None
    endpoint: str = ""
    sensor: str = ""
    former: tuple[str, ...] = ()
    confirmed: int = -1
    rewriting: bool = False
    held: str = ""

    def dumps(self) -> bytes:
        """The record as JSON."""
        return json.dumps(asdict(self) | {"v": 2}, separators=(",", ":")).encode()

    @classmethod
    def loads(cls, body: bytes, where: str) -> "Known":
        """Inverse of `dumps`. Raises `CorruptError`, with `where` in its message."""
        try:
            found = json.loads(body)
            of = {each.name: found[each.name] for each in fields(cls)}
            identity = Identity(**of["identity"]) if of["identity"] else None
            return cls(**of | {"identity": identity, "former": tuple(of["former"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"{where}: not the record of a table ({body[:80]!r}): restore it") from error

    def topic_user(self, slots: int) -> TopicUser:
        """The table as a user of its topic. `slots`: the number of slots of its source."""
        return TopicUser(slots=slots, table=self.table, former=self.former)

    def follower(self, table: str) -> "Known":
        """The record of the table that replaces this one. The new record has no versions yet."""
        return Known(table=table, former=(self.table, *self.former)[:FORMER_MAX], sensor=self.sensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRecord:
    """Reads and changes the record of one table. Thread-safe; any process may change the record.

    `where`: the record's place, for messages.
    """

    records: RecordStore
    key: str
    where: str
    clock: Clock = SYSTEM_CLOCK

    def read(self) -> tuple[Known | None, Record | None]:
        """The decoded record, and the record as it is stored. 1 read."""
        found = self.records.read(KNOWN, self.key)
        return self._decoded(found), found

    def change(
        self, change: Callable[[Known | None], Known | None], *, seen: Record | None = None
    ) -> tuple[Known | None, Record | None]:
        """Replace the record. `change` may be called twice.

        `seen`: the record as it was last read; if it is given, the read is saved. 1 read and 1 write; without a change,
        only the read. `UnavailableError`: repeat the call.
        """

        def decide(record: Record | None) -> tuple[bytes | None, Known | None]:
            before = self._decoded(record)
            after = change(before)
            return (after.dumps() if after is not None and after != before else None), after

        updates = Updates(self.records, self.clock, rounds=ATTEMPTS)
        try:
            return updates.change(KNOWN, self.key, decide, known=seen)
        except UnknownOutcomeError as error:  # the change is safe to apply twice, so the caller may repeat it
            raise UnavailableError(f"{error}: try again") from error

    def note(
        self,
        table: str,
        version: int,
        number: int,
        *,
        seen: Record | None = None,
        below: Lineage = (),
    ) -> tuple[Known | None, Record | None]:
        """Record a version that was created. Returns the record afterwards, which may name a later version.

        `below`: the versions that it builds on. If the record has another number for one of them, the record stays
        unchanged.
        """
        numbers = dict(below)

        def noted(known: Known | None) -> Known | None:
            if known is None or known.table != table or known.version >= version:
                return known  # the table was forgotten meanwhile, or another writer was faster
            if numbers.get(known.version, known.number) != known.number:
                return known  # the version does not count: one of the versions that it builds on was replaced
            return replace(known, version=version, number=number)

        return self.change(noted, seen=seen)

    def hold(self, command: str) -> None:
        """Make other writers wait for this command, unless they already wait for another one. 1 read and 1 write."""
        self.change(lambda now: replace(now, held=command) if now and not now.held else now)

    def release(self, command: str) -> None:
        """Let other writers go on, also if an earlier run of the command held the table. 1 to 2 requests."""
        self.change(lambda now: replace(now, held="") if now and now.held == command else now)

    def _decoded(self, record: Record | None) -> Known | None:
        return None if record is None else Known.loads(record.value, self.where)
