"""What is known of a table on another side: whatever is missing cannot be known from the place that it is missing from.

`known` is one record for each table, outside the platform's prefix: `_s3notify-known/{source}` of the platform's bucket
or of another, or in the records table. It has the table's id, its identity, and the highest generation of each slot.
The id stands also beside the table (`table.json`), in the sensor's cursor, and in what `s3notify ingest` has seen.

`open_table` compares the sides. It refuses a table of which one side is missing, or that another source's settings have
made. A slot whose head is below its known generation has missing commits, and is refused by itself (`missing`).

Invariants
    - `known` is created first. Without generations, an interrupted creation is finished; with generations, the other
      side is missing.
    - Generations are merged after the commits that they name, so `known` may be low after a crash, never high: there is
      no false alarm. The next run that finds the slot's head merges it.
    - A table that starts over has another id, and names those before it (`former`): who has one of these begins again.

Requests: `open_table` 2 GETs; the first time 1 LIST and 2 writes more. `merge` 1 read and 1 write.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Final, TypeVar

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import CorruptError, UnavailableError, UnknownOutcomeError, UsageError
from s3notify_platform.ports import ObjectStore, Record, RecordStore, StoredObject, Written
from s3notify_platform.protocols.notification_queue import TopicUser
from s3notify_platform.protocols.updates import Updates
from s3notify_platform.slots import HASH, Slot
from s3notify_platform.table.layout import Generation, TableLayout

KNOWN: Final = "_s3notify-known"
"""Partition of these records; on a bucket, the folder."""

ATTEMPTS: Final = 30

FORMER_MAX: Final = 20
"""Ids of earlier tables that are kept."""

T = TypeVar("T")


def known_key(platform_prefix: str) -> str:
    """Key of a table's record: the source's name, or the platform prefix if that is no usual one. Pure."""
    usual = re.fullmatch(r"_s3notify/([^/]+)/", platform_prefix)
    return usual[1] if usual else platform_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a table is made from. Another one would be another table."""

    bucket: str
    prefix: str
    slots: int
    hash: str = HASH

    def leads_to(self, other: "Identity") -> bool:
        """Whether a table of this identity can become one of the other: a longer or shorter prefix, or other slots."""
        nested = self.prefix.startswith(other.prefix) or other.prefix.startswith(self.prefix)
        return nested and (self.bucket, self.hash) == (other.bucket, other.hash)

    def differences(self, other: "Identity") -> list[str]:
        """Where `other` differs, for people."""
        mine, others = asdict(self), asdict(other)
        return [
            f"{name} is {others[name]!r} and was {mine[name]!r}"
            for name in mine
            if mine[name] != others[name]
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a table. `identity`: None until a run opens the table; `former`: ids of the tables before it.

    `endpoint` of the source's bucket, and `sensor`, the epoch of the sensor that last opened a batch, are for warnings.
    `confirmed`: any number of objects may leave a slot on top of this generation. `rewriting`: what the former table
    left is being removed (`ingest.migrate`). `last`: a slot of the last `OpenTable.merge`, -1 before the first.
    """

    table: str
    identity: Identity | None = None
    heads: Mapping[Slot, Generation] = field(default_factory=dict)
    endpoint: str = ""
    sensor: str = ""
    former: tuple[str, ...] = ()
    confirmed: Mapping[Slot, Generation] = field(default_factory=dict)
    rewriting: bool = False
    last: int = -1

    def dumps(self) -> bytes:
        """JSON; generations as a list by slot."""
        lists = {"heads": _listed(self.heads), "confirmed": _listed(self.confirmed)}
        body = asdict(self) | {"v": 1} | lists
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def loads(cls, body: bytes, where: str) -> "Known":
        """Inverse of `dumps`; `CorruptError` for anything else."""
        try:
            found = json.loads(body)
            of = {each.name: found[each.name] for each in fields(cls)}
            lists = {name: _unlisted(of[name]) for name in ("heads", "confirmed")}
            identity = Identity(**of["identity"]) if of["identity"] else None
            return cls(**of | lists | {"identity": identity, "former": tuple(of["former"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(
                f"{where}: not what is known of a table ({body[:80]!r}): restore it"
            ) from error

    def topic_user(self, slots: int) -> TopicUser:
        """The table as a user of its topic. `slots`: of its source."""
        return TopicUser(slots=slots, table=self.table, former=self.former)

    def follower(self, table: str) -> "Known":
        """The table that takes its place, without generations."""
        return Known(table=table, former=(self.table, *self.former)[:FORMER_MAX], sensor=self.sensor)


def _listed(generations: Mapping[Slot, Generation]) -> list[int]:
    return [generations.get(Slot(slot), 0) for slot in range(max(generations, default=-1) + 1)]


def _unlisted(generations: list[int]) -> dict[Slot, Generation]:
    return {Slot(slot): Generation(int(n)) for slot, n in enumerate(generations) if n}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSides:
    """Both sides of one table: `known` in `records`, and the id beside it. Thread-safe; any process may change them.

    For messages: the name of the `source`, `where` what is known is, and the `command` of a name and further options.
    """

    store: ObjectStore
    layout: TableLayout
    records: RecordStore
    key: str
    source: str
    where: str
    command: Callable[..., str]
    clock: Clock = SYSTEM_CLOCK

    @property
    def forget(self) -> str:
        """The command that accepts a loss."""
        return self.command("forget", "--slots all")

    def known(self) -> Known | None:
        """What is known. 1 read."""
        return self._decoded(self.records.read(KNOWN, self.key))

    def beside(self) -> str:
        """The id beside the table; "" if there is none. 1 GET."""
        found = self.store.get(self.layout.id)
        if not isinstance(found, StoredObject):
            return ""
        try:
            return str(json.loads(found.body)["table"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(
                f"{self.layout.id}: not the id of a table: restore it, or {self.forget}"
            ) from error

    def put_beside(self, table: str) -> None:
        """Write the id beside the table. 1 PUT."""
        if not isinstance(
            outcome := self.store.put(self.layout.id, json.dumps({"table": table}).encode()), Written
        ):
            raise UnavailableError(f"{self.layout.id}: {outcome}; try again")

    def change(self, change: Callable[[Known | None], Known | None]) -> Known | None:
        """Replace what is known. `change` may be applied twice. 1 read, and 1 write if it differs."""

        def decide(record: Record | None) -> tuple[bytes | None, Known | None]:
            before = self._decoded(record)
            after = change(before)
            return (after.dumps() if after is not None and after != before else None), after

        try:
            return Updates(self.records, self.clock, attempts=ATTEMPTS).change(KNOWN, self.key, decide)[0]
        except UnknownOutcomeError as error:  # safe to apply twice, so the caller may repeat it
            raise UnavailableError(f"{error}: try again") from error

    def new_id(self) -> str:
        """An id for a table."""
        return self.clock.random_bytes(8).hex()

    def has_commits(self) -> bool:
        """Whether the table has any commit. 1 LIST."""
        return bool(self.store.list(self.layout.all_commits, limit=1).objects)

    def _decoded(self, record: Record | None) -> Known | None:
        return None if record is None else Known.loads(record.value, self.where)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTable:
    """A table whose sides agree. `known`: as it was when it was opened; without `id` there is no table yet."""

    sides: TableSides
    known: Known
    warnings: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The table's id; "" if there is none yet."""
        return self.known.table

    def topic_user(self, slots: int) -> TopicUser:
        """The table as a user of its topic. `slots`: of its source."""
        return self.known.topic_user(slots)

    @property
    def heads(self) -> Mapping[Slot, Generation]:
        """The generations that each slot certainly had, before anything of the table was read."""
        return self.known.heads

    def merge(self, heads: Mapping[Slot, Generation]) -> None:
        """Note these generations, which are committed. No request if none is new, else 1 read and 1 write."""
        new = {slot: n for slot, n in heads.items() if n > self.heads.get(slot, 0)}

        def merged(known: Known | None) -> Known | None:
            if known is None or known.table != self.id:
                return None  # a table that was forgotten meanwhile
            higher = {slot: n for slot, n in new.items() if n > known.heads.get(slot, 0)}
            return replace(known, heads={**known.heads, **higher}, last=max(higher)) if higher else known

        if new:
            self.sides.change(merged)

    def confirm(self) -> int:
        """Let any number of objects leave the slots, on top of the commits that they have. Returns how many slots.

        Requests as `merge`.
        """
        known = self.sides.change(
            lambda known: replace(known, confirmed=known.heads) if known and known.table == self.id else None
        )
        return len(known.confirmed) if known is not None else 0

    def claim(self, epoch: str) -> str:
        """Note that the sensor of this epoch works on the table; a warning if another one did. Requests as `merge`."""
        before = self.known.sensor
        if before == epoch:
            return ""
        self.sides.change(
            lambda known: replace(known, sensor=epoch) if known and known.table == self.id else None
        )
        return before and (
            f"another sensor ({before}) works on the table of source {self.sides.source!r}: if the cursor was not "
            "reset, two deployments share one platform_prefix; stop one, or give it a prefix of its own"
        )


def open_table(
    sides: TableSides,
    identity: Identity | None,
    *,
    endpoint: str = "",
    expected: str = "",
    create: bool = True,
) -> OpenTable:
    """The table, if both its sides are there and it is of this `identity`; else an error that says what to do.

    `expected`: the id that a cursor or `ingest.seen` has. With `create` a table that was never there is created, which
    needs an identity; without, its id is "". Without an identity any will do. `CorruptError`: a side is missing.
    `UsageError`: it is of another identity.

    2 GETs; 1 LIST and 2 writes more to create it; 1 write more for another endpoint.
    """
    # In this order, and again, one who creates the table or merges meanwhile does not seem to have lost a side.
    beside = sides.beside()
    known = sides.known()
    if known is not None and known.heads and beside != known.table:
        beside = sides.beside()
    _refuse_missing_side(sides, known, beside, expected)
    warnings: list[str] = []
    if identity is not None and known is not None:
        _refuse_other_identity(sides, known, identity)
    if known is None or beside != known.table or known.identity is None:
        if not create or identity is None:
            return OpenTable(sides=sides, known=known or Known(table=""))
        if known is None and sides.has_commits() and sides.known() is None:
            raise CorruptError(
                f"the table of source {sides.source!r} below {sides.layout.prefix!r} has commits, and no id, and "
                f"nothing is known of it: restore {sides.where}, or accept what is there: {sides.forget}"
            )
        known = _created(sides, identity, endpoint)
    if create and identity is not None and known.endpoint != endpoint:
        warnings.append(
            f"source {sides.source!r} is read at {endpoint or 'AWS S3'}, and was at {known.endpoint or 'AWS S3'}"
        )
        sides.change(lambda now: replace(now, endpoint=endpoint) if now else None)
    return OpenTable(sides=sides, known=known, warnings=tuple(warnings))


def _refuse_missing_side(sides: TableSides, known: Known | None, beside: str, expected: str) -> None:
    place = f"the table of source {sides.source!r} below {sides.layout.prefix!r}"
    if known is not None and known.rewriting:
        raise UsageError(f"{place} is being rewritten: repeat `s3notify table migrate` until it succeeds")
    if known is None and beside:
        raise CorruptError(
            f"what is known of {place} is gone from {sides.where}: restore it, or accept the commits that are there: "
            f"{sides.forget}"
        )
    if known is not None and known.heads and beside != known.table:
        what = f"has the id {beside}, not {known.table}" if beside else "is gone"
        raise CorruptError(
            f"{place} {what}, and {len(known.heads)} of its slots had commits: restore its objects, or accept the "
            f"loss, which takes all objects in again: {sides.forget}"
        )
    if expected and (known is None or (expected != known.table and expected not in known.former)):
        now = f"it is {known.table} now" if known is not None else "nothing is left of it"
        raise CorruptError(
            f"the cursor is of {place} with the id {expected}, and {now}: restore table and {sides.where}, or, to "
            "begin with what is there, reset the sensor's cursor, or use `s3notify ingest --sweep`"
        )


def _created(sides: TableSides, identity: Identity, endpoint: str) -> Known:
    """Create the table, or finish that. `known` first."""
    fresh = sides.new_id()

    def pinned(known: Known | None) -> Known:
        if known is not None and known.identity is not None:
            return known  # another run was first
        return replace(known or Known(table=fresh), identity=identity, endpoint=endpoint)

    known = sides.change(pinned)
    assert known is not None
    _refuse_other_identity(sides, known, identity)
    sides.put_beside(known.table)
    return known


def _refuse_other_identity(sides: TableSides, known: Known, now: Identity) -> None:
    if (was := known.identity) is None or was == now:
        return
    ways = "Set them back, or give the source another name"
    if not known.heads and not sides.has_commits():
        ways += f", or, since nothing is committed yet, begin with them: {sides.forget}"
    elif was.leads_to(now):
        options = [f"--prefix {now.prefix!r}"] if was.prefix != now.prefix else []
        options += [f"--to-slots {now.slots}"] if was.slots != now.slots else []
        ways += f", or rewrite the table: {sides.command('migrate', *options)}"
    raise UsageError(
        f"source {sides.source!r} has other settings than its table: {'; '.join(was.differences(now))}. Nothing was "
        f"written. {ways}"
    )
