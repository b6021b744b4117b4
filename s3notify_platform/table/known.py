"""Keeps a record of the table outside the table's prefix. By this record, readers notice if versions of the table were
lost.

`known` is one record for each table. The record is the object `_s3notify-known/{source}` in the platform's bucket or
another bucket, or an item of the records table. The record has the id and the identity of the table, and the newest
version, with the number `n` of this version's manifest. The log (`metaData.id`, `txn.appId`), the sensor's cursor and
the checkpoints of streams have the same id.

Invariants
    - `known` is created first. Then version 0 of the log is created, with the same table id.
    - A version is recorded after it was created. So after a crash, `known` may name an older version than the newest
      version of the log, but never a newer version. If the log ends before the known version, commits were lost.
    - If the log has another `n` for the known version, the known version was replaced. The cause is a writer whose
      lease had ended, or a log that was restored from a backup.
    - If a table begins again, its version numbers are used again. So the table gets a new id, and the record keeps a
      list of the table's former ids.

`read` costs 1 read. `note` costs 1 write if its caller has read the record (`seen`), else also 1 read. Each conflict
with another writer costs 1 read and 1 write more.
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
from s3notify_platform.protocols.updates import CONTENDED_ATTEMPTS, Updates

KNOWN: Final = "_s3notify-known"
"""The partition of these records in a record store, or their folder in a bucket."""

RESTARTS: Final = 2
"""After this number of conflicts with other writers, a command that rewrites the table makes the other writers wait
(`KnownRecord.hold`)."""

HOLD_SECONDS: Final = 600.0
"""The longest time for which writers wait for a command after its last `hold`. After this time, the command counts as
killed.
"""

PUT_BACK: Final = "s3notify table put-back"
"""The command that restores a version (`put_back`) after a writer with an expired lease has replaced the version."""

CONFIRMED_SECONDS: Final = 86_400.0
"""The time for which a confirmation of withdrawals is valid. Without this limit, an old confirmation would allow a
later loss.
"""

LINEAGE_MAX: Final = 64
"""The largest number of versions whose manifest numbers a snapshot keeps. The newest versions are kept."""

Lineage = tuple[tuple[int, int], ...]
"""Versions and the numbers of their manifests, in ascending order."""

FORMER_MAX: Final = 20
"""The number of former ids that a record keeps."""


def known_key(platform_prefix: str) -> str:
    """Returns the key of a table's record: the name in a platform prefix like `_s3notify/{name}/`, or else the whole
    platform prefix.

    Pure.
    """
    usual = re.fullmatch(r"_s3notify/([^/]+)/", platform_prefix)
    return usual[1] if usual else platform_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The unchangeable settings of a table. A table with other values is another table."""

    bucket: str
    prefix: str
    slots: int
    hash: str = HASH

    def leads_to(self, other: "Identity") -> bool:
        """Returns true if `migrate` can make the other table from this one.

        `migrate` can do this if bucket and hash are equal, and one prefix begins with the other prefix.
        """
        nested = self.prefix.startswith(other.prefix) or other.prefix.startswith(self.prefix)
        return nested and (self.bucket, self.hash) == (other.bucket, other.hash)

    def differences(self, other: "Identity") -> list[str]:
        """Returns a text for people for each setting in which `other` differs."""
        mine, others = asdict(self), asdict(other)
        return [
            f"{name} is {others[name]!r}, but {mine[name]!r} in the table"
            for name in mine
            if mine[name] != others[name]
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The record of a table. `version`: the newest version, or -1 if nothing was committed yet. `number`: the `n` of
    the manifest of `version`.

    `identity`: None until a run opens the table. `former`: the former ids of the table. `endpoint` (of the source's
    bucket) and `sensor` (the epoch of the sensor that last opened a batch) are used for warnings. `confirmed`: the
    version that was the newest when a person last confirmed withdrawals (at `confirmed_ms`), or -1 (see `confirms`).
    `refused`: True if a listing lacked too many objects, and no later listing of all slots has shown these objects
    (`withdrawal_guard`). `rewriting`: True if `migrate` is removing the former table's objects. `held`: the command
    (`s3notify {held}`) for which other writers wait, or "" (see `holder`). `held_ms`: the time of the command's last
    `hold`.
    """

    table: str
    version: int = -1
    number: int = 0
    identity: Identity | None = None
    endpoint: str = ""
    sensor: str = ""
    former: tuple[str, ...] = ()
    confirmed: int = -1
    confirmed_ms: int = 0
    refused: bool = False
    rewriting: bool = False
    held: str = ""
    held_ms: int = 0

    def dumps(self) -> bytes:
        """Returns the record as JSON."""
        return json.dumps(asdict(self) | {"v": 2}, separators=(",", ":")).encode()

    @classmethod
    def loads(cls, body: bytes, where: str) -> "Known":
        """Decodes the result of `dumps`. Raises `CorruptError`, with `where` in its message."""
        try:
            found = json.loads(body)
            of = {each.name: found[each.name] for each in fields(cls)}
            identity = Identity(**of["identity"]) if of["identity"] else None
            return cls(**of | {"identity": identity, "former": tuple(of["former"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"{where}: not the record of a table ({body[:80]!r}): restore it") from error

    def confirms(self, generation: int, now_ms: int) -> bool:
        """Returns true if a slot that last changed in version `generation` may lose any number of objects.

        A confirmation is valid for `CONFIRMED_SECONDS`, for slots that have not changed since the confirmation.
        """
        return generation <= self.confirmed and now_ms - self.confirmed_ms <= CONFIRMED_SECONDS * 1000

    def with_confirmation(self, now_ms: int) -> "Known":
        """Returns the record after a person has confirmed withdrawals (`confirms`)."""
        return replace(self, confirmed=self.version, confirmed_ms=now_ms, refused=False)

    def holder(self, now_ms: int) -> str:
        """Returns the command for which other writers wait, or "".

        A killed command holds the table for `HOLD_SECONDS` at most. Wall clocks are enough: the conditional write of
        the version protects the table, and `held` only helps the command to be the first writer.
        """
        return self.held if abs(now_ms - self.held_ms) < HOLD_SECONDS * 1000 else ""

    def topic_user(self, slots: int) -> TopicUser:
        """Returns the table as a user of its source's topic. `slots`: the number of slots of the table's source."""
        return TopicUser(slots=slots, table=self.table, former=self.former)

    def follower(self, table: str) -> "Known":
        """Returns the record of a new table that replaces this table. The new record has no versions yet."""
        return Known(table=table, former=(self.table, *self.former)[:FORMER_MAX], sensor=self.sensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRecord:
    """Reads and changes the record of one table. Any thread and any process may change the record.

    `where`: the location of the record, for messages.
    """

    records: RecordStore
    key: str
    where: str
    clock: Clock = SYSTEM_CLOCK

    def read(self) -> tuple[Known | None, Record | None]:
        """Returns the decoded record, and the record as it is stored. Cost: 1 read."""
        found = self.records.read(KNOWN, self.key)
        return self._decoded(found), found

    def change(
        self, change: Callable[[Known | None], Known | None], *, seen: Record | None = None
    ) -> tuple[Known | None, Record | None]:
        """Replaces the record. `change` may be called more than once.

        `seen`: the record that the caller read last. Cost: 1 read and 1 write. With `seen`, the call needs no read. If
        `change` changes nothing, the call needs no write. `UnavailableError`: the caller may repeat the call.
        """

        def decide(record: Record | None) -> tuple[bytes | None, Known | None]:
            before = self._decoded(record)
            after = change(before)
            return (after.dumps() if after is not None and after != before else None), after

        updates = Updates(self.records, self.clock, rounds=CONTENDED_ATTEMPTS)
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
        """Records a version that was created. Returns the record after the call, which may name a later version.

        `number`: the `n` of the version's manifest. `below`: the versions on which the new version builds, each with
        the `n` of its manifest. If the record has another `n` for one of these versions, another writer has replaced
        that version. In this case, the new version does not count, and the record stays unchanged.
        """
        numbers = dict(below)

        def noted(known: Known | None) -> Known | None:
            if known is None or known.table != table or known.version >= version:
                return known  # the table was forgotten meanwhile, or another writer was faster
            if numbers.get(known.version, known.number) != known.number:
                return known  # the version does not count: a version on which it builds was replaced
            return replace(known, version=version, number=number)

        return self.change(noted, seen=seen)

    def hold(self, command: str) -> None:
        """Makes other writers wait for this command for `HOLD_SECONDS` from now, unless another command already makes
        writers wait. Cost: 1 read and 1 write.
        """
        now_ms = self.clock.wall_ms()

        def held(now: Known | None) -> Known | None:
            if now is None or now.holder(now_ms) not in ("", command):
                return now
            return replace(now, held=command, held_ms=now_ms)

        self.change(held)

    def release(self, command: str) -> None:
        """Ends the wait of other writers for this command, even if an earlier call of the command made them wait. Cost:
        1 to 2 requests.
        """
        self.change(lambda now: replace(now, held="") if now and now.held == command else now)

    def _decoded(self, record: Record | None) -> Known | None:
        return None if record is None else Known.loads(record.value, self.where)
