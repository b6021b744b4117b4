"""A table is migrated to another prefix, or to other slots: no row is lost or duplicated, even after a kill."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.migration import migrate
from s3notify_platform.maintenance.removal import remove_table
from s3notify_platform.protocols.keyspace import Watcher
from s3notify_platform.protocols.notification_queue import Event, TopicSettings
from s3notify_platform.protocols.source_enumerator import Failed, RescanBacklog
from s3notify_platform.source.source import Source
from s3notify_platform.table.clustered.cluster_order import Clustered
from s3notify_platform.table.known import Identity
from s3notify_platform.table.latest.latest_definition import Latest
from tests.support.faults import WRITES, Call, CrashedError, DoubtfulStore, Fault, FaultyStore
from tests.support.ingested import Place, derive, rows_at
from tests.support.servers import S3Server
from tests.support.sources import with_settings

pytestmark = pytest.mark.server


def test_migration_to_another_prefix_keeps_the_table(ministack: S3Server) -> None:
    """Otherwise readers would miss all rows until the next run has ingested all objects again. The next runs then
    withdraw or add rows, as the new prefix requires.
    """
    place = Place(ministack)
    for number in range(150):
        place.put(f"{'a' if number < 10 else 'b'}/{number}", number)
    place.run("1")
    was = place.source.open_table().id
    migrate(place.source.location, prefix="raw/a/")
    assert place.values() == Counter(range(150)), "complete until then"
    with pytest.raises(UsageError, match="prefix is 'raw/', but 'raw/a/' in the table"):
        place.run("2")
    assert RescanBacklog(place.source.location.records()).read().slots.keys() == {0, 1, 2, 3}
    place.run("3", prefix="raw/a/")
    assert place.values() == Counter(range(10))
    migrate(place.source.location, prefix="raw/")
    place.run("4")
    assert place.values() == Counter(range(150))
    assert place.source.open_table(expected=was).id == was
    with pytest.raises(
        UsageError, match=r"neither within nor around .*`s3notify topics delete \w+ --served`"
    ):
        migrate(place.source.location, prefix="other/")


@pytest.mark.parametrize("slots", [8, 2])
@pytest.mark.parametrize("dies_at", [None, 0, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 3))])
def test_migration_to_other_slots_ingests_each_object_once(
    ministack: S3Server, slots: int, dies_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the new table would lack the rows of some objects, or would have these rows twice. After a kill, runs
    refuse the table until the migration is repeated.
    """
    place = Place(ministack)
    for number in range(16):
        place.put(f"{number}", number)
    place.run("1")
    location = place.source.location
    location.slot_signals(place.store).signal_slots(location.all_slots())
    location.queue(place.store).topics.create(
        "orders", TopicSettings(bucket="b", prefix="raw/", slots=4, shards=4)
    )
    was = place.source.open_table().id
    RescanBacklog(location.records()).note_failed(
        {Slot(3): Failed(attempts=1, not_before_ms=0, reason="broken")}
    )
    if dies_at is not None:
        store = FaultyStore(place.store, Deletes(dies_at))
        with monkeypatch.context() as patched:
            patched.setattr("s3notify_platform.maintenance.migration.open_store", lambda _: store)
            with pytest.raises(CrashedError):
                migrate(location, slots=slots)
        for given in ({}, {"slots": slots}):
            with pytest.raises(UsageError, match="is being rewritten"):
                place.run("2", **given)
    done = migrate(location, slots=slots)
    assert done.after == replace(place.source.identity, slots=slots)
    place.source = with_settings(place.source, slots=slots)
    opened = place.source.open_table(expected=was)
    assert (opened.id == was, opened.known.version) == (False, 0)
    location = place.source.location
    assert location.queue(place.store).topics.get("orders").settings.slots == slots
    watcher = Watcher(place.store, prefix=location.keyspace_prefix, slots=slots)
    assert watcher.poll().signals.keys() >= {0}
    place.run("3")
    assert place.values() == Counter(range(16))
    assert {row["_slot"] for row in place.rows()} <= set(range(slots))
    rescans = RescanBacklog(location.records()).read()
    assert rescans.slots.keys() == set(range(slots))
    assert not {slot for slot in rescans.failed if slot >= slots}, "no batch would ever end this failure"


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_migration_that_is_killed_at_any_write_keeps_the_topic(
    ministack: S3Server, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the repetition would succeed without the topic, and the topic's endpoint and capacity would be lost."""
    place = Place(ministack)
    place.put("a/1", 1)
    place.run("1")
    location = place.source.location
    queue, settled = location.queue(place.store), RescanBacklog(location.records())
    settings = TopicSettings(bucket="b", prefix="raw/", slots=4, shards=2, capacity=777, endpoint="{}")
    queue.topics.create("orders", settings)
    killed = 0
    for killed in range(30):
        to = "raw/" if killed % 2 else "raw/a/"
        queue.push("orders", Event(key="raw/a/1", bucket="b"))
        settled.settle(settled.read().slots)
        settled.add([Slot(3)])
        watcher = Watcher(place.store, prefix=location.keyspace_prefix, slots=4)
        watcher.poll()
        store = FaultyStore(place.store, NthWrite(killed, fault))
        try:
            with monkeypatch.context() as patched:
                patched.setattr(
                    "s3notify_platform.maintenance.migration.open_store", lambda _, dying=store: dying
                )
                migrate(location, prefix=to)
            break
        except CrashedError:
            assert settled.read().slots.keys() >= {3}, "slots that waited for a listing wait still"
            migrate(location, prefix=to)
        assert queue.topics.get("orders").settings == replace(settings, prefix=to)
        assert location.identity() == replace(place.source.identity, prefix=to)
        assert settled.read().slots.keys() == {0, 1, 2, 3}
        assert watcher.poll().signals.keys() >= {0}
    assert 8 <= killed < 29


@pytest.mark.parametrize("part", ["/_delta_log/0", "/data/"])
def test_migration_fails_if_an_object_of_the_former_table_may_still_exist(
    ministack: S3Server, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Otherwise the new table would begin although remains of the former table exist."""
    place = Place(ministack)
    place.put("a", 1)
    place.run("1")
    location = place.source.location
    with monkeypatch.context() as patched:
        store = DoubtfulStore(place.store, part)
        patched.setattr("s3notify_platform.maintenance.migration.open_store", lambda _: store)
        with pytest.raises(UnavailableError, match=r"may still exist.*repeat the command"):
            migrate(location, slots=8)
    with pytest.raises(UsageError, match="is being rewritten"):
        place.run("2", slots=8)
    migrate(location, slots=8)
    assert not [*list_all(place.store, location.layout.prefix)]
    place.source = with_settings(place.source, slots=8)
    place.run("3")
    assert place.values() == Counter([1])


@pytest.mark.parametrize("to", [{"slots": 8}, {"prefix": "raw/a/"}], ids=str)
def test_migration_is_refused_if_the_topic_serves_other_tables(
    ministack: S3Server, to: dict[str, Any]
) -> None:
    """Otherwise the other tables would lose their topic. The remedy in the error (a separate queue for this source)
    works.
    """
    place = Place(ministack)
    place.put("a/1", 1)
    place.run("1")
    location = place.source.location
    topics = location.queue(place.store).topics
    own = place.source.open_table().id
    topics.create("orders", TopicSettings(prefix="raw/", slots=4), tables=(own, "another"))
    before = place.objects()
    with pytest.raises(
        UsageError,
        match=r"also serves other tables.*: another\..*--table another`, and give this source a queue_prefix",
    ):
        migrate(location, **to)
    assert place.objects() == before
    topics.update("orders", topics.get("orders").settings, tables=("another",))
    with pytest.raises(UsageError, match=r"serves table another, not table .* of this source"):
        migrate(location, **to)
    migrate(replace(location, queue_prefix="_s3notify/dev/queue/"), **to)
    assert topics.get("orders").tables == ("another",)
    known, _ = place.source.location.known().read()
    assert known.identity == replace(place.source.identity, **to)


@pytest.mark.parametrize("to", [{"slots": 8}, {"prefix": "raw/a/"}], ids=str)
def test_tables_made_from_a_migrated_table_continue(ministack: S3Server, to: dict[str, Any]) -> None:
    """Otherwise each later batch would refuse the derived tables, even a table whose objects `erase` had removed before
    the migration.
    """
    place = Place(ministack, metadata_columns="_modified")
    for number in range(8):
        place.put(f"{'a' if number < 4 else 'b'}/{number}", number)
    place.run("1")
    build_derived(place.source)
    remove_table(place.source.location, "orders_clustered", place.store)
    done = migrate(place.source.location, **to)
    place.source = with_settings(place.source, **to)
    place.run("2")
    build_derived(place.source)
    left = Counter(range(4) if "prefix" in to else range(8))
    for asset, identity in made_from(place.source).items():
        assert identity == done.after, asset
    for asset in ("orders_latest", "orders_clustered"):
        assert values_of(place.source, asset) == place.values() == left, asset
    assert migrate(place.source.location, **to).before == done.after


DERIVED = ("own", "orders_latest", "orders_clustered")


def build_derived(source: Source) -> None:
    """Builds a slot asset, and the tables with the newest rows and with rows in another order."""
    latest = Latest(key=("a",), order_by=("a",))
    both = replace(source, latest=latest, clustered=Clustered(columns=("a",)))
    for asset in both.kinds:
        both.following(asset).follow()
    slot, newest = Slot(source.location.slots - 1), source.table().newest()
    rows = pa.table({"_slot": pa.array([slot], pa.int32()), "t": ["x"]})
    derive(source, "own", rows, {slot: newest.version})


def values_of(source: Source, asset: str) -> Counter[int]:
    """The values of column `a` in a derived table."""
    table = source.table(asset)
    return Counter(row["a"] for row in rows_at(table, table.newest()))


def made_from(source: Source) -> dict[str, Identity | None]:
    """The identity in the record of each derived table."""
    found = {asset: source.location.known(asset).read()[0] for asset in DERIVED}
    return {asset: known.identity for asset, known in found.items() if known is not None}


class NthWrite:
    """The fault at the write with this number, counted from 0."""

    def __init__(self, number: int, fault: Fault) -> None:
        self._left, self._fault = number, fault

    def __call__(self, call: Call) -> Fault:
        if call.method not in WRITES:
            return Fault.NONE
        self._left -= 1
        return self._fault if self._left == -1 else Fault.NONE


class Deletes:
    """Crashes at the delete with this number, counted from 0, and at each later delete."""

    def __init__(self, dies_at: int) -> None:
        self.left = dies_at

    def __call__(self, call: Call) -> Fault:
        if call.method != "delete":
            return Fault.NONE
        self.left -= 1
        return Fault.CRASH_BEFORE if self.left < 0 else Fault.NONE
