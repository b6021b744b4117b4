"""The removal of a source, on a real server, removes everything that was made for the source. The source's objects and
other sources stay.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.kernel.errors import CorruptError, UnavailableError, UsageError
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.removal import held, remove, remove_table
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.notification_queue import Event, TopicSettings
from tests.support.faults import Call, CrashedError, DoubtfulStore, Fault, FaultyStore
from tests.support.ingested import Place, derive
from tests.support.servers import S3Server
from tests.support.tables import create_record_table

pytestmark = pytest.mark.server


def prepared(server: S3Server, **settings: Any) -> tuple[Place, dict[str, str]]:
    """A source with every kind of data, and the objects that must stay."""
    place = Place(server, **settings)
    for number, key in enumerate("abc"):
        place.put(key, number)
    place.store.put("_s3notify/orders/notes.txt", b"a person's")
    place.store.put("_s3notify/orders2/table/data/x", b"a neighbour's")
    queue = place.source.location.queue()
    queue.topics.create("hooks", TopicSettings())
    queue.push("hooks", Event(key="raw/a"))
    stay = place.objects()
    place.run("1")
    place.source.location.slot_signals().signal_slots([Slot(1)])
    location = place.source.location
    location.settle_commit_mode(place.source.commit, place.store)
    derive(place.source, "daily", pa.table({"_slot": pa.array([1], pa.int32())}), {Slot(1): 1})
    place.store.put(f"{location.layout.prefix}part-0-x.snappy.parquet", b"another engine's")
    queue.topics.create("orders", TopicSettings(prefix="raw/", slots=4))
    queue.push("orders", Event(key="raw/a"))
    AckChains(location.records()).open_batch("b", ["0"])
    return place, stay


def objects(place: Place) -> dict[str, str]:
    """Returns all objects except the remains of a killed probe of the store. Before that, scans the topics, because
    this scan deletes tombstones.
    """
    place.source.location.queue().topics.all()
    return {key: etag for key, etag in place.objects().items() if ".probe-" not in key}


@pytest.mark.parametrize("in_table", [False, True], ids=["bucket", "table"])
def test_remove_deletes_everything_of_a_source(
    ministack: S3Server, monkeypatch: pytest.MonkeyPatch, in_table: bool
) -> None:
    """Otherwise a later source with the same name would begin with old rows, signals or queue entries. Without a plan
    and a confirmation, an operator could delete the wrong source by mistake. While a batch is open, the command is
    refused, because a run of the batch could still write.
    """
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    records = ministack.table_config() if in_table else None
    if records is not None:
        create_record_table(records)
    place, stay = prepared(ministack, records_table=records)
    endpoint = str(place.store.config.endpoint_url)
    given = ["remove", "orders", "--bucket", place.store.config.bucket, "--endpoint-url", endpoint]
    if records is not None:
        given += ["--records-table", records.table, "--dynamodb-endpoint-url", endpoint]

    def run(*more: str, answer: str = "") -> Any:
        return CliRunner(env={"COLUMNS": "80"}).invoke(main, [*given, *more], input=answer)

    before = place.objects()
    refused = run("--yes")
    assert (refused.exit_code, "batch b is open" in refused.output) == (1, True), refused.output
    shown = run("--force", answer="n\n")
    assert shown.exit_code == 1
    for what in (
        "log",
        "manifests",
        "records of tables",
        "signals",
        "daily: data files",
        "entries",
        "dead letters",
        "stays",
    ):
        assert what in shown.output, shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    assert place.objects() == before
    done = run("--force", answer="y\n")
    assert done.exit_code == 0, done.output
    assert objects(place) == stay
    location = place.source.location
    assert [topic.name for topic in location.queue().topics.all()] == ["hooks"]
    assert [one.what for one in held(location)] == ["not the platform's, stays"]
    assert remove(location) == 0
    place.run("2")
    assert place.values() == {0: 1, 1: 1, 2: 1}
    assert set(place.generations().values()) == {1}


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_removal_that_is_killed_at_any_delete_is_completed_by_a_repetition(
    ministack: S3Server, first: int
) -> None:
    """Otherwise the rest of a removed source would stay in the bucket. If runs did not refuse the table after the kill,
    a run could commit to an incomplete table.
    """
    place, stay = prepared(ministack)
    versions = list_versions(place)
    for number in range(first, 200, 2):
        try:
            remove(place.source.location, platform=FaultyStore(place.store, dies_at(number)))
        except CrashedError:
            if place.source.location.known().read()[0] is not None and list_versions(place) != versions:
                with pytest.raises(CorruptError):
                    place.run("2")
        else:
            break
    assert objects(place) == stay


@pytest.mark.parametrize("part", ["table/_delta_log/0", "table/data/", "daily/data/"])
def test_removal_fails_if_an_object_may_still_exist(ministack: S3Server, part: str) -> None:
    """Otherwise the removal would be reported as complete although objects stay. A second removal deletes these
    objects.
    """
    place, stay = prepared(ministack)
    with pytest.raises(UnavailableError, match=r"may still exist.*repeat the command"):
        remove(place.source.location, platform=DoubtfulStore(place.store, part))
    assert place.source.location.known().read()[0] is not None, "the unfinished removal is recognised"
    remove(place.source.location)
    assert objects(place) == stay


@pytest.mark.parametrize("part", ["/_delta_log/0", "/data/"])
def test_removal_of_an_assets_table_fails_if_an_object_may_still_exist(
    ministack: S3Server, part: str
) -> None:
    """Otherwise `erase` would report an object as removed although the object's rows are still stored."""
    place, _ = prepared(ministack)
    location = place.source.location
    with pytest.raises(UnavailableError, match=r"may still exist.*repeat the command"):
        remove_table(location, "daily", DoubtfulStore(place.store, part))
    remove_table(location, "daily", place.store)
    assert not [*list_all(place.store, location.table_layout("daily").prefix)]


def list_versions(place: Place) -> set[str]:
    layout = place.source.location.layout
    return {meta.key for meta in list_all(place.store, layout.log) if layout.version_of(meta.key) is not None}


def dies_at(number: int) -> Callable[[Call], Fault]:
    left = number

    def schedule(call: Call) -> Fault:
        nonlocal left
        left -= call.method in ("put", "delete")
        return Fault.CRASH_AFTER if left < 0 else Fault.NONE

    return schedule


def test_removal_is_refused_if_the_source_is_below_the_platform_prefix(ministack: S3Server) -> None:
    """Otherwise the removal would delete the user's own objects."""
    place, _ = prepared(ministack)
    identity = replace(place.source.identity, prefix="_s3notify/orders/table/")
    place.source.location.known().change(lambda known: known and replace(known, identity=identity))
    before = place.objects()
    with pytest.raises(UsageError, match="where the platform's own objects are"):
        remove(place.source.location)
    assert place.objects() == before


def test_removal_of_a_whole_bucket_source_keeps_the_users_objects(ministack: S3Server) -> None:
    """The source reads the whole bucket, which also has the platform's own objects. If the removal did not distinguish
    these objects from the user's objects, the user would lose data.
    """
    place = Place(ministack, prefix="")
    place.put("a", 1)
    before = place.objects()
    place.run("1")
    assert remove(place.source.location) > 0
    assert place.objects() == before


def test_topic_that_serves_another_table_stays(ministack: S3Server) -> None:
    """The topic belongs to another deployment of the same source, with the same bucket and queue. If the topic were
    removed, the other deployment would lose its entries.
    """
    prod = Place(ministack)
    queue = prod.source.location.queue()
    queue.topics.create("orders", TopicSettings(prefix="raw/", slots=4))
    prod.put("a", 1)
    prod.run("1")
    queue.push("orders", Event(key="raw/a"))
    (table,) = queue.topics.get("orders").tables
    with pytest.raises(UsageError, match=rf"serves table {table}.*queue_prefix"):
        prod.run("1", platform_prefix="dev/orders/", keyspace_prefix="dev/orders/keyspace/")
    dev = replace(prod.source.location, platform_prefix="dev/orders/", keyspace_prefix="dev/orders/keyspace/")
    assert f"topic 'orders': serves table {table}, stays: entries" in {one.what for one in held(dev)}
    remove(dev)
    assert len(queue.entries("orders", range(4))) == 1
    assert prod.values() == {1: 1}
    remove(prod.source.location)
    assert queue.topics.find("orders") is None


def test_topic_that_serves_two_tables_stays_for_the_other_table(ministack: S3Server) -> None:
    """Otherwise the other table would lose the notifications of its changed objects. If the topic's record still named
    the removed table, the topic would stay even after the removal of the other source.
    """
    prod = Place(ministack)
    prod.put("a", 1)
    prod.run("1")
    queue = prod.source.location.queue()
    known, _ = prod.source.location.known().read()
    assert known is not None
    queue.topics.create("orders", TopicSettings(slots=4), tables=("another", known.table))
    remove(prod.source.location)
    assert queue.topics.get("orders").tables == ("another",)


def test_records_of_sources_whose_names_begin_with_the_removed_name_stay(ministack: S3Server) -> None:
    """Otherwise the removal of `orders` would delete the record of `orders2`, and every run of that source would be
    refused because the record is missing.
    """
    place, _ = prepared(ministack)
    others = ["_s3notify-known/orders2", "_s3notify-known/orders2.2edaily"]
    for key in others:
        place.store.put(key, b"a neighbour's")
    assert {meta.key for meta in list_all(place.store, "_s3notify-known/")} == {
        "_s3notify-known/orders", "_s3notify-known/orders.2edaily", *others
    }  # fmt: skip
    remove(place.source.location)
    assert [meta.key for meta in list_all(place.store, "_s3notify-known/")] == others
