"""`s3notify table` and `vacuum`: accepting a loss, and what is left alone until then; on a real server."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner

from s3notify_platform.channels.inlets.poison import PoisonStore
from s3notify_platform.cli import main
from s3notify_platform.errors import CorruptError, UsageError
from s3notify_platform.ingest.source import Source
from s3notify_platform.ports import list_all
from s3notify_platform.protocols.keyspace import Watcher
from s3notify_platform.slots import Slot
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.requests import S3Requests
from s3notify_platform.table.layout import Generation
from tests.support.sources import with_settings
from tests.support.tables import create_record_table

pytestmark = pytest.mark.server


@pytest.fixture(params=[False, True], ids=["bucket", "table"])
def place(ministack, monkeypatch, request) -> tuple[Source, Callable[..., Any]]:
    """A source with some commits, on a bucket alone and with a records table; and its command line."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    config = ministack.config(ministack.make_bucket())
    records_table = ministack.table_config() if request.param else None
    options = ["--bucket", config.bucket, "--endpoint-url", config.endpoint_url]
    if records_table is not None:
        create_record_table(records_table)
        options += ["--records-table", records_table.table, "--dynamodb-endpoint-url", config.endpoint_url]
    source = Source.of(
        name="orders",
        bucket=config,
        prefix="raw/",
        format="text",
        platform=config,
        records_table=records_table,
    )
    source.open_table().merge(dict.fromkeys(map(Slot, (3, 7, 20, 21, 30)), Generation(1)))

    def run(*arguments: str, table: bool = True) -> Any:
        given = [*(["table"] if table else []), *arguments, *options]
        return CliRunner().invoke(main, given)

    return source, run


def test_forget(place) -> None:
    """The named slots, if commits of them are missing; with all of them the table, of which nothing is left."""
    source, run = place
    S3ObjectStore(source.location.platform).put(source.location.layout.commit(Slot(30), 1), b"{}")

    def forget(slots, *more):
        return run("forget", "orders", "--slots", slots, *more)

    store = S3ObjectStore(source.location.platform)
    watcher = Watcher(store, prefix=source.location.keyspace_prefix)
    watcher.poll()
    answer = forget("3,20-22")
    assert answer.exit_code == 0, answer.output
    assert [*watcher.poll().changed] == [3], "so that whoever polls begins a batch"
    assert "forgot 3 slots: 3,20,21" in answer.output
    assert source.open_table().heads.keys() == {7, 30}
    assert "nothing to forget" in forget("3").output
    assert not watcher.poll().changed
    assert "forgot 1 slots: 7" in forget("all", "--platform-prefix", "_s3notify/orders/").output
    assert source.open_table().heads.keys() == {30}
    was = source.open_table().id
    S3ObjectStore(source.location.platform).delete(source.location.layout.commit(Slot(30), 1))
    assert "forgot the table; the next run makes another" in forget("all").output
    assert watcher.poll().changed
    now = source.open_table(expected=was)
    assert (now.id == was, now.heads) == (False, {})
    for wrong in ("x", "1-", "1000", "", "20-3"):
        assert forget(wrong).exit_code == 2
    assert "end it with '/'" in forget("1", "--platform-prefix", "p").output
    other = run("forget", "ordres", "--slots", "all")
    assert (other.exit_code, "'ordres' has no table" in other.output) == (1, True)


def test_vacuum_refuses_a_table_with_a_side_missing(place) -> None:
    """It would take what is left."""
    source, run = place
    store = S3ObjectStore(source.location.platform)
    assert run("vacuum", "orders", table=False).exit_code == 0
    store.delete(source.location.layout.id)
    left = {meta.key for meta in list_all(store, "")}
    answer = run("vacuum", "orders", table=False)
    assert answer.exit_code == 1
    assert "s3notify table forget" in answer.output
    assert {meta.key for meta in list_all(store, "")} == left
    with pytest.raises(CorruptError):
        source.open_table()


def test_migrate_and_confirm(place) -> None:
    """What changes is printed, what is like that already is said; a prefix elsewhere is refused."""
    source, run = place
    assert "confirmed for 5 slots" in run("confirm", "orders").output
    assert source.open_table().known.confirmed == source.open_table().heads
    assert run("migrate", "orders").exit_code == 2
    assert "like that already" in run("migrate", "orders", "--to-prefix", "raw/").output
    elsewhere = run("migrate", "orders", "--to-prefix", "other/")
    assert (elsewhere.exit_code, "neither within nor around" in elsewhere.output) == (1, True)
    answer = run("migrate", "orders", "--to-prefix", "raw/a/", "--to-slots", "8")
    assert answer.exit_code == 0, answer.output
    assert "prefix is 'raw/a/' and was 'raw/'; slots is 8 and was 1000" in answer.output
    other = with_settings(source, prefix="raw/a/", slots=8)
    assert other.open_table().heads == {}
    with pytest.raises(UsageError, match="slots is 1000 and was 8"):
        source.open_table()


def test_erase(place) -> None:
    """Refused while the object is there, before it asks; messages that name it leave the poison."""
    source, run = place
    store = S3ObjectStore(source.location.platform)
    store.put("raw/a b", b"1")
    poison = PoisonStore(source.location.queue())
    poison.keep(b'{"key": "raw/a+b"}', origin="sqs", reason="r")
    poison.keep(b"another", origin="sqs", reason="r")
    given = ("erase", "raw/a b", "--name", "orders", "--prefix", "raw/")
    for asked in ((), ("--yes",)):
        there = run(*given, *asked, table=False)
        assert (there.exit_code, "delete the object first" in there.output) == (1, True)
        assert "Aborted" not in there.output
    store.delete("raw/a b")
    assert "Aborted" in run(*given, table=False).output
    answer = run(*given, "--yes", table=False)
    assert (answer.exit_code, "0 entries and 1 messages removed" in answer.output) == (0, True), answer.output
    assert [message.body for message in poison.all()] == [b"another"]


def test_tag(place) -> None:
    """Says what there was to do, and without tags or versions, or for tags that cannot be, what to set."""
    source, run = place
    given = ("tag", "orders", "--prefix", "raw/")
    tags = (*given, "--committed-tags", "archive=yes")
    without = run(*given, table=False)
    assert (without.exit_code, "no committed_tags" in without.output) == (1, True)
    wrong = run(*given, "--committed-tags", "archive", table=False)
    assert (wrong.exit_code, "write name=value" in wrong.output) == (1, True)
    plain = run(*tags, table=False)
    assert (plain.exit_code, "enable its versioning" in plain.output) == (1, True)
    bucket = source.location.platform
    with closing(S3Requests(bucket)) as s3:
        versioning = {"Status": "Enabled"}
        s3.client.put_bucket_versioning(Bucket=bucket.bucket, VersioningConfiguration=versioning)
    done = run(*tags, "--again", table=False)
    assert (done.exit_code, "5 slots with new commits" in done.output) == (0, True), done.output
    assert '"slots": 5' in run(*tags, "--json", table=False).output
