"""Time travel by generation, over a store in memory and from the command line."""

import json
from contextlib import closing
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from click.testing import CliRunner

from s3notify_platform.cli import main
from s3notify_platform.errors import CorruptError, NotFoundError
from s3notify_platform.slots import Slot
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.history import generations_at, history
from s3notify_platform.table.layout import Generation, TableLayout
from s3notify_platform.table.vacuum import vacuum
from tests.support.clocks import EPOCH_MS
from tests.support.viewed import Place, Viewed, by_delta_rs, spark_schema

SLOTS = [Slot(1), Slot(2), Slot(3)]
DAY = 86_400.0


def numbers(*values):
    return pa.table({"id": pa.array(values, pa.int64())})


@pytest.fixture
def viewed(clock):
    """Slot 1 has a generation at 10, 20 and 30 s, slot 2 one at 25 s, slot 3 none."""
    made = Viewed(store=MemoryObjectStore(clock=clock), clock=clock)
    made.pin(spark_schema(id="long"))
    for seconds, slot in ((10, 1), (20, 1), (25, 2), (30, 1)):
        clock.now = seconds
        made.commit(slot, [made.file(slot, numbers(seconds))])
    clock.now = 100.0
    return made


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (9.9, {1: 0, 2: 0, 3: 0}),
        (10, {1: 1, 2: 0, 3: 0}),
        (24, {1: 2, 2: 0, 3: 0}),
        (29, {1: 2, 2: 1, 3: 0}),
        (500, {1: 3, 2: 1, 3: 0}),
    ],
)
def test_the_whole_table_at_a_moment(viewed, seconds, expected):
    """Of each slot what was visible then; read_slots and the view of that time give the same rows."""
    at_ms = EPOCH_MS + int(seconds * 1000)
    found = generations_at(viewed.table, SLOTS, at_ms)
    assert found == expected
    assert found == generations_at(viewed.table, SLOTS, at_ms, parallelism=1)
    rows = viewed.rows(SLOTS, generations=found)
    moments = {1: [10, 20, 30], 2: [25]}
    assert [r["id"] for r in rows] == [moments[s][g - 1] for s, g in expected.items() if g]


def test_delta_versions_lead_to_the_same_rows(viewed, tmp_path):
    """Who synced at a moment finds at that version what generations_at finds for it."""
    viewed.view.sync(SLOTS)
    then = EPOCH_MS + 100_000
    viewed.clock.now = 200.0
    viewed.commit(2, [viewed.file(2, numbers(200))])
    viewed.view.sync(SLOTS)
    place = Place(uri=viewed.copied_to(tmp_path))
    when = generations_at(viewed.table, SLOTS, then)
    assert by_delta_rs(place, version=0) == viewed.rows(SLOTS, generations=when)


def test_what_it_costs(viewed):
    """One LIST a slot."""
    store = CountingStore(viewed.store)
    generations_at(Viewed(store=store).table, SLOTS, EPOCH_MS + 20_000)
    assert store.counts == {"LIST": 3}


def test_what_vacuum_took_is_said(viewed, clock):
    """A slot whose state at that moment is gone is no empty slot."""
    clock.now = 3 * DAY
    viewed.commit(2, [viewed.file(2, numbers(9))])
    vacuum(viewed.table, retention_seconds=DAY, clock=clock)
    assert generations_at(viewed.table, SLOTS, EPOCH_MS + 30_000)[Slot(1)] == 3
    with pytest.raises(NotFoundError, match=r"slot 1 at .*vacuum has removed it"):
        generations_at(viewed.table, SLOTS, EPOCH_MS + 20_000)
    with pytest.raises(CorruptError, match="generation 2 of slot 1 is missing"):
        viewed.rows(SLOTS, generations={Slot(1): Generation(2)})


def test_history_is_newest_first(viewed):
    """With what each generation held, and since when."""
    found = [(seen.commit.generation, seen.since_ms - EPOCH_MS) for seen in history(viewed.table, Slot(1))]
    assert found == [(3, 30_000), (2, 20_000), (1, 10_000)]
    assert list(history(viewed.table, Slot(3))) == []


@pytest.fixture
def run(ministack, monkeypatch):
    """A command on a table of three generations of slot 7; `run.viewed` is the table."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    config = ministack.config(ministack.make_bucket())
    layout = TableLayout(prefix="_s3notify/orders/table/")
    with closing(S3ObjectStore(config)) as store:
        viewed = Viewed(store=store, layout=layout)
        viewed.pin(spark_schema(id="long", raw="binary"))
        for n in range(3):
            columns = pa.table({"id": [n, n + 10], "raw": [b"\xff", None]})
            viewed.commit(7, [viewed.file(7, columns)])

        def invoke(command, *options):
            where = ["--bucket", config.bucket, "--endpoint-url", ministack.endpoint_url]
            return CliRunner().invoke(main, [command, "orders", *where, *options])

        invoke.viewed, invoke.bucket, invoke.config = viewed, config.bucket, config
        yield invoke


@pytest.mark.server
def test_history_command(run):
    """A table for people, JSON for machines, and the limit."""
    found = json.loads(run("history", "--slot", "7", "--json").stdout)
    assert [line["generation"] for line in found] == [3, 2, 1]
    assert {line["rows"] for line in found} == {2}
    assert datetime.fromisoformat(found[0]["visible_since"]).tzinfo is not None
    assert len(json.loads(run("history", "--slot", "7", "--json", "--limit", "1").stdout)) == 1
    assert "generation" in run("history", "--slot", "7").stdout
    assert run("history", "--slot", "8").stdout == "slot 8 has no commit\n"


@pytest.mark.server
def test_rows_command(run):
    """As it is, as it was, at a moment; one JSON object a line."""

    def ids(*options):
        result = run("rows", "--slot", "7", *options)
        assert result.exit_code == 0, result.output
        return [json.loads(line)["id"] for line in result.stdout.splitlines()]

    assert ids() == [2, 12]
    assert ids("--generation", "1") == [0, 10]
    assert ids("--limit", "1") == [2]
    assert ids("--at", "2020-01-01") == []
    assert ids("--at", datetime.now(UTC).replace(year=2100).strftime("%Y-%m-%dT%H:%M:%S")) == [2, 12]
    (line, _) = run("rows", "--slot", "7").stdout.splitlines()
    assert json.loads(line)["raw"] == "\\xff"
    assert "not both" in run("rows", "--slot", "7", "--generation", "1", "--at", "2020-01-01").output
    missing = run("rows", "--slot", "7", "--generation", "9")
    assert missing.exit_code == 1
    assert "generation 9 of slot 7 is missing" in missing.output


@pytest.mark.thorough
@pytest.mark.server
def test_delta_command(run):
    """Syncs without Dagster, and says where the view is."""
    result = run("delta")
    assert result.exit_code == 0, result.output
    uri = f"s3://{run.bucket}/_s3notify/orders/table/data"
    assert result.stdout == f"{uri}: version 0, 2 rows; 1 slots updated, 1 files added, 0 removed\n"
    assert by_delta_rs(Place(uri=uri, config=run.config)) == run.viewed.rows([7])
    assert "version 0, 2 rows; 0 slots updated" in run("delta", "--repair").stdout
    empty = run("delta", "--asset", "paid_orders")
    assert empty.exit_code == 1
    assert "nothing has been committed yet" in empty.output
