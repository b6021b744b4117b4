"""Migrates a source's table to another prefix, or to another number of slots. The new prefix must begin with the
present prefix, or the present prefix must begin with the new prefix.

With another prefix, the table stays, and its identity changes. The next listing compares all slots, one by one, so the
table is complete all the time. The tables of slot assets, `latest` and `cluster_by` stay, too. The next batch that
opens such a table gives it the new identity (`open_table`).

With another number of slots, a new table replaces the present table, because each row moves to another slot. The data
of the former table and of the slot assets is removed, and the next run ingests all objects again. Until the next run
ends, rows are missing. Rows of objects that have left the bucket (kept by `on_delete`) are lost.

In both cases the source's topic is created again, and all objects are compared once. Stop the source's sensor and runs
first: a run that was planned with the former settings may still commit.

Steps. Each step is safe to repeat: if the command was killed, repeat the command. Steps 1 and 2 are done only for
another number of slots.
    1. The table's record (`table.known`) names the new table, and says that the new table is being written. From now on
       runs refuse the table.
    2. The former tables and the signals of slots that no longer exist are removed.
    3. All slots are added to the rescan backlog. Slots that no longer exist leave the backlog with their failures. The
       topic is deleted, and created again for the new identity, with the same settings. The topic's record keeps the
       settings meanwhile (`Topics.renew`).
    4. One signal moves, so that a sensor sees that there is work.
    5. The record gets the new identity, and no longer says that the table is being written. This is the last step,
       because a repetition does nothing if the record has the new identity.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from s3notify_platform.kernel.deletion import delete_for_certain
from s3notify_platform.kernel.errors import NotFoundError, UsageError
from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.parallel import Track, in_parallel, untracked
from s3notify_platform.kernel.ports import ObjectStore, list_all
from s3notify_platform.kernel.slots import SLOT_COUNT, Slot, check_slot_count
from s3notify_platform.maintenance.task import Report
from s3notify_platform.protocols.keyspace import signal_key
from s3notify_platform.protocols.notification_queue import TopicUser
from s3notify_platform.protocols.notification_queue.topic_store import Topics
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.source.location import Location
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.known import Identity, Known, KnownRecord
from s3notify_platform.table.open_table import another_name, new_id, open_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """The result of a migration. `removed`: objects of the former table."""

    before: Identity
    after: Identity
    removed: int = 0


def migrate(
    location: Location,
    *,
    prefix: str | None = None,
    slots: int | None = None,
    track: Track = untracked,
    dry_run: bool = False,
) -> Migrated:
    """Gives the source's table this prefix and number of slots; None keeps the present value. After the call, change
    the source's settings to the same values.

    `dry_run`: only returns the result that a migration would have. `NotFoundError`: there is no table. `UsageError`:
    the prefix is neither within nor around the table's prefix. `CorruptError`: the table is not whole. Requests: 2
    writes for each queue shard and each record of the topic, and about 10 more. A change of the number of slots costs 1
    DELETE for each object of the tables.
    """
    store = open_store(location.platform)
    record = location.known(store=store)
    known, _ = record.read()
    if known is None or known.identity is None:
        raise NotFoundError(f"source {location.name!r} has no table yet: nothing to migrate")
    if not known.rewriting:
        open_table(
            location.table(store=store), location.table_name, None
        )  # raises an error if the table is not whole
    # While the table is being rewritten, `identity` is already the new identity.
    was = known.identity
    now = replace(
        was,
        prefix=was.prefix if prefix is None else prefix,
        slots=was.slots if slots is None else check_slot_count(slots),
    )
    if not was.leads_to(now):
        raise UsageError(
            f"the table of source {location.name!r} is for prefix {was.prefix!r}, and {now.prefix!r} is neither within "
            f"nor around that prefix: {another_name(location.name)}"
        )
    if was == now and not known.rewriting:
        return Migrated(before=was, after=now)
    user = known.topic_user(was.slots)
    topics = location.queue(store).topics
    _check_topic(topics, location.name, user)
    other, another = replace(location, slots=now.slots), known.rewriting or was.slots != now.slots
    if dry_run:
        return Migrated(before=was, after=now, removed=len(_former(other, store)) if another else 0)
    removed = 0
    if another:
        _begin_another(record, now)
        removed = _remove_former(other, store, track)
    backlog = RescanBacklog(location.records(store))
    backlog.add(other.all_slots())
    waiting = backlog.read()
    backlog.settle({slot: serial for slot, serial in waiting.slots.items() if slot >= now.slots})
    backlog.note_failed({}, ended=[slot for slot in waiting.failed if slot >= now.slots])
    with suppress(NotFoundError):
        topics.renew(location.name, partial(replace, prefix=now.prefix, slots=now.slots))
    other.slot_signals(store).signal_slots([Slot(0)])
    now_ms = record.clock.wall_ms()

    def complete(known: Known | None) -> Known | None:
        done = known and replace(known, identity=now, rewriting=False)
        return done and done.with_confirmation(now_ms)

    record.change(complete)
    return Migrated(before=was, after=now, removed=removed)


def _begin_another(record: KnownRecord, identity: Identity) -> None:
    fresh = new_id(record.clock)

    def other(known: Known | None) -> Known | None:
        if known is None:
            return None
        follower = known if known.rewriting else known.follower(fresh)
        return replace(follower, identity=identity, endpoint=known.endpoint, rewriting=True)

    record.change(other)


def _former(location: Location, store: ObjectStore) -> list[str]:
    """Keys of the objects of the source's tables. Cost: 1 LIST for each 1000 objects."""
    own = location.platform_prefix
    return [meta.key for of in ("table/", "derived/") for meta in list_all(store, own + of)]


def _remove_former(location: Location, store: ObjectStore, track: Track) -> int:
    """Removes the former tables, and the signals of slots that no longer exist. Logs are removed first, so that a
    reader finds either a whole table or no table.
    """
    every = _former(location, store)
    derived = f"{location.platform_prefix}derived/"
    for asset in {key.removeprefix(derived).partition("/")[0] for key in every if key.startswith(derived)}:
        _begin_again(location.known(asset, store=store))
    logs = [key for key in every if "/_delta_log/" in key]
    rest = [key for key in every if "/_delta_log/" not in key]
    signals = [signal_key(location.keyspace_prefix, Slot(slot)) for slot in range(location.slots, SLOT_COUNT)]
    listed = {meta.key for meta in list_all(store, location.keyspace_prefix)}
    for leaving in (logs, [*rest, *(key for key in signals if key in listed)]):
        in_parallel(
            partial(delete_for_certain, store),
            leaving,
            REQUESTS_IN_FLIGHT,
            track=track,
            what="removing the former table's objects",
        )
    return len(every)


def _begin_again(record: KnownRecord) -> None:
    """Gives the table of a slot asset another id, so that the table begins again after the removal of its objects."""
    fresh = new_id(record.clock)
    record.change(lambda known: known.follower(fresh) if known and known.version >= 0 else known)


def _check_topic(topics: Topics, name: str, user: TopicUser) -> None:
    """Raises `UsageError` if the source's topic serves other tables."""
    with suppress(NotFoundError):
        if others := user.released(topics.get(name)).tables:
            raise UsageError(
                f"topic {name!r} also serves other tables, which would lose the topic: {', '.join(others)}. "
                f"Leave it to them: `s3notify topics update {name} --table {' --table '.join(others)}`, and "
                "give this source a queue_prefix of its own, like _s3notify/dev/queue/"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The task: see `migrate`."""

    location: Location
    prefix: str | None = None
    slots: int | None = None
    track: Track = untracked
    asks: ClassVar[str] = ""

    def plan(self) -> Report:
        """See `Task`."""
        return self._report(dry_run=True)

    def run(self) -> Report:
        """See `Task`."""
        return self._report(dry_run=False)

    def _report(self, *, dry_run: bool) -> Report:
        done = migrate(self.location, prefix=self.prefix, slots=self.slots, track=self.track, dry_run=dry_run)
        changes = done.before.differences(done.after)
        document = {"changes": list(changes), "removed": done.removed}
        if not changes and not done.removed:
            return Report(lines=("the table already has this prefix and number of slots",), document=document)
        removed = f"{done.removed} objects of the former table {'would be ' if dry_run else ''}removed"
        after = "" if dry_run else ". Change the source to match"
        return Report(lines=(f"{'; '.join(changes)}: {removed}{after}",), document=document)
