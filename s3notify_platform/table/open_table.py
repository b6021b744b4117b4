"""Opens a table whose log and record agree. Creates a table. Accepts a loss of versions, so that the table can be used
again.

The log has the table's id and its versions. The record (`known`), which is outside the table's prefix, has the id, the
identity and the newest version. A table is refused if its log or its record is missing, or if the table was made with
other settings. The refusal comes before any write. The message names the command that solves the problem.

`open_table` makes the requests of `LogTable.newest`. The creation of a table costs 2 writes more, and the requests of
`Committer.create`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.deletion import delete_for_certain
from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.protocols.notification_queue import TopicUser
from s3notify_platform.table.commit import Committed, Committer
from s3notify_platform.table.delta.actions import MetaData, Protocol
from s3notify_platform.table.delta.log_state import NO_VERSION
from s3notify_platform.table.known import Identity, Known
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.proposal import Proposal
from s3notify_platform.table.snapshot import Absent, LogReader, Snapshot

ID_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TableName:
    """The name of a table in messages. `source`: the name of the table's source.

    `command`: makes the text of a command for the table (`s3notify table NAME …`).
    """

    source: str
    command: Callable[..., str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTable:
    """A table whose log and record agree. If the table does not exist yet, `id` is empty and `snapshot` is None."""

    name: TableName
    known: Known
    snapshot: Snapshot | None = None
    warnings: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The table's id; "" if there is no table yet."""
        return self.known.table

    def topic_user(self, slots: int) -> TopicUser:
        """Returns the table as a user of its source's topic. `slots`: the number of slots of the table's source."""
        return self.known.topic_user(slots)


def open_table(
    table: LogTable,
    name: TableName,
    identity: Identity | None,
    *,
    endpoint: str = "",
    expected: str = "",
    create: tuple[MetaData, Protocol] | None = None,
    derived: bool = False,
) -> OpenTable:
    """Returns the table, if it is complete and has this `identity` (None: any). Otherwise raises an error whose message
    says what to do.

    `derived`: True if the table is made from the source's table. For such a table, the caller has already compared the
    settings with the identity of the source's table. A migration may have changed the identity of the source's table.
    So a derived table with another identity gets `identity`, except a table with another number of slots, which is
    refused.

    `expected`: the table's id in a cursor, or in the record of seen signals. `create`: metadata and protocol of version
    0. If `create` is set, a table that never existed is created, with a new `MetaData.id`. `CorruptError`: the log or
    the record is missing. `UsageError`: the table has another identity, or is being rewritten.
    """
    reader = table.reader
    try:
        found = table.newest()
    except CorruptError:
        known, _ = reader.known.read()
        _refuse_rewriting(name, known)
        raise
    known = found.known
    fits = derived and (isinstance(found, Absent) or _has_slots(known, identity))
    _refuse(name, known, None if fits else identity, expected)
    if isinstance(found, Absent):
        if create is None or identity is None:
            return OpenTable(name=name, known=known or Known(table=""))
        found = _created(table, name, identity, endpoint, create, derived=derived)
        known = found.known
    assert known is not None, "the reader has compared log and record"
    warnings: list[str] = []
    if (
        create is not None
        and identity is not None
        and (known.identity, known.endpoint) != (identity, endpoint)
    ):
        if known.identity is not None and known.endpoint != endpoint:
            warnings.append(
                f"source {name.source!r} is read at {endpoint or 'AWS S3'}, and was read at "
                f"{known.endpoint or 'AWS S3'} before"
            )
        changed, record = reader.known.change(
            lambda now: replace(now, identity=identity, endpoint=endpoint) if now else None, seen=found.record
        )
        found, known = replace(found, known=changed, record=record), changed or known
    return OpenTable(name=name, known=known, snapshot=found, warnings=tuple(warnings))


def claim(reader: LogReader, table: OpenTable, epoch: str) -> str:
    """Records that the sensor of this epoch uses the table.

    Returns a warning if another sensor used the table before. Cost: 1 read and 1 write.
    """
    before = table.known.sensor
    if before == epoch:
        return ""
    reader.known.change(lambda now: replace(now, sensor=epoch) if now and now.table == table.id else now)
    return before and (
        f"another sensor ({before}) uses the table of source {table.name.source!r}: if the cursor was not reset, "
        "two deployments share one platform_prefix; stop one deployment, or give it another prefix"
    )


def confirm(reader: LogReader, table: OpenTable) -> int:
    """Allows withdrawals of any number of objects (`Known.confirms`). Returns the newest version. Cost: 1 read and 1
    write.
    """
    now_ms = reader.clock.wall_ms()
    known, _ = reader.known.change(
        lambda now: now.with_confirmation(now_ms) if now and now.table == table.id else now
    )
    return known.confirmed if known is not None else -1


def _refuse(name: TableName, known: Known | None, identity: Identity | None, expected: str) -> None:
    _refuse_rewriting(name, known)
    if known is not None and identity is not None:
        _refuse_other_identity(name, known, identity)
    if expected and (known is None or (expected != known.table and expected not in known.former)):
        now = f"the present table is {known.table}" if known is not None else "no table is left"
        raise CorruptError(
            f"the cursor belongs to the table of source {name.source!r} with the id {expected}, and {now}: "
            "restore the table and its record, or begin with the present table (reset the sensor's cursor, or "
            "use `s3notify ingest --sweep`)"
        )


def _has_slots(known: Known | None, identity: Identity | None) -> bool:
    was = known.identity if known is not None else None
    return was is not None and identity is not None and was.slots == identity.slots


def _refuse_rewriting(name: TableName, known: Known | None) -> None:
    if known is not None and known.rewriting:
        raise UsageError(
            f"the table of source {name.source!r} is being rewritten: repeat `s3notify table migrate` until it succeeds"
        )


def another_name(source: str) -> str:
    """The advice to rename a source, for messages. The advice names the topic that would stay behind and fill up."""
    return (
        "give the source another name (then delete the topic of its former name, which would fill up: "
        f"`s3notify topics delete {source} --served`)"
    )


def _refuse_other_identity(name: TableName, known: Known, now: Identity) -> None:
    if (was := known.identity) is None or was == now:
        return
    ways = f"Restore the former settings, or {another_name(name.source)}"
    if known.version <= 0:
        ways += f", or, since nothing is committed yet, begin with the new settings: {name.command('forget')}"
    elif was.leads_to(now):
        options = [f"--to-prefix {now.prefix!r}"] if was.prefix != now.prefix else []
        options += [f"--to-slots {now.slots}"] if was.slots != now.slots else []
        ways += f", or rewrite the table: {name.command('migrate', *options)}"
    raise UsageError(
        f"source {name.source!r} has other settings than its table: {'; '.join(was.differences(now))}. "
        f"Nothing was written. {ways}"
    )


def _created(
    table: LogTable,
    name: TableName,
    identity: Identity,
    endpoint: str,
    create: tuple[MetaData, Protocol],
    *,
    derived: bool,
) -> Snapshot:
    """Creates the table, or finishes its creation: the record first, then version 0."""
    committer = table.committer
    fresh = new_id(committer.clock)

    def pinned(known: Known | None) -> Known:
        if known is not None and known.identity is not None and not derived:
            return known  # another run was first
        return replace(known or Known(table=fresh), identity=identity, endpoint=endpoint)

    known, _ = committer.reader.known.change(pinned)
    assert known is not None, "the record was just written"
    _refuse_other_identity(name, known, identity)
    metadata, protocol = create
    committer.create(table=known.table, metadata=replace(metadata, id=known.table), protocol=protocol)
    found = table.newest()
    if isinstance(found, Absent):
        raise CorruptError(f"the table of source {name.source!r} was removed while it was created: try again")
    return found


def new_id(clock: Clock) -> str:
    """Returns a random id for a new table."""
    return clock.random_bytes(ID_BYTES).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class _NewId:
    """A change that only gives the table a new id."""

    table: str

    def onto(self, base: Snapshot) -> Proposal | None:
        """See `Change`."""
        return Proposal(metadata=replace(base.metadata, id=self.table), operation="SET TBLPROPERTIES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """The result of `forget`, which accepts the loss of versions. `table`: the new id, or "" if there is no table.
    `version`: the last version that remains.
    """

    table: str = ""
    version: int = -1


def forget(committer: Committer, backlog: Callable[[], None]) -> Forgotten:
    """Accepts that versions or the record are missing. The table gets a new id, and keeps the versions that remain.

    Version numbers are used again, so cursors and streams with the former id begin again. `backlog` is called first.
    `backlog` makes later batches compare every slot with a listing of the bucket. The source's runs must be stopped
    before the call. The call may be repeated. Until a call has succeeded, the table is refused.

    Requests: 1 LIST, 1 DELETE for each version after a missing version, and the requests of `LogReader.open` and of a
    commit.
    """
    reader = committer.reader
    known, _ = reader.known.read()
    left = reader.longest()
    if known is None and left is None:
        return Forgotten()
    backlog()
    fresh = new_id(committer.clock)
    was = known or Known(table=left.table if left else fresh)
    # A table without a commit may begin again with other settings.
    begun = max(was.version, -1 if left is None else left.version) > 0
    identity = was.identity if begun else None
    # The record is written first. After a crash at this point, log and record differ, and the command can be repeated.
    reader.known.change(lambda _: replace(was.follower(fresh), identity=identity, endpoint=was.endpoint))
    if left is None:
        _remove_beyond(reader, NO_VERSION)
        return Forgotten(table=fresh)
    _remove_beyond(reader, left.version)
    done = committer.commit(_NewId(table=fresh), left)
    assert isinstance(done, Committed), "this change always changes the id"
    return Forgotten(table=fresh, version=left.version)


def _remove_beyond(reader: LogReader, version: int) -> None:
    """Removes the versions and checkpoints after `version` (`NO_VERSION`: all of them), newest first."""
    layout = reader.layout
    beyond: dict[str, int] = {}
    for meta in list_all(reader.store, layout.log):
        number = layout.version_of(meta.key)
        number = layout.checkpoint_of(meta.key) if number is None else number
        if number is not None and number > version:
            beyond[meta.key] = number
    if reader.last_checkpoint() > version:
        delete_for_certain(reader.store, layout.last_checkpoint)  # readers then find the checkpoint by a LIST
    for key in sorted(beyond, key=lambda key: beyond[key], reverse=True):
        delete_for_certain(reader.store, key)
