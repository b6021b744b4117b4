"""`s3notify status`: waiting changes, batches in flight, the last commit, and failures."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from s3notify_platform.cli.main import main
from s3notify_platform.engine.batch.batches import BatchPayload, Failing, SensorState
from s3notify_platform.engine.batch.heartbeats import HEARTBEATS, Beat
from s3notify_platform.explain import rewrites, version_times
from s3notify_platform.explain import source_status as status
from s3notify_platform.explain.source_status import BatchStatus, LastCommit, SourceLook, SourceStatus
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.limits import MAX_COLUMNS
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.local.fingerprint import fingerprint
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.keyspace import signal_key
from s3notify_platform.protocols.notification_queue import EntryCommitted, Event, TopicSettings
from s3notify_platform.protocols.source_enumerator import Failed, RescanBacklog
from s3notify_platform.source import location
from s3notify_platform.source.source import Source
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.open_table import claim
from s3notify_platform.table.pinned_schema import TableSchema, described
from s3notify_platform.table.round import RoundChange, SlotRound
from tests.support.ingested import derive
from tests.support.servers import S3Server
from tests.support.slot_rounds import Body, SlotRounds
from tests.support.sources import source_of

KEY = "raw/1.jsonl"
SLOT = slot_of(KEY, 16)


@pytest.fixture
def source(ministack: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A source with a table, defined by YAML in the folder in which the command runs."""
    config = ministack.config(ministack.make_bucket())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    for name in ("DAGSTER_HOME", "S3NOTIFY_DEFS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "defs" / "orders").mkdir(parents=True)
    (tmp_path / "defs" / "orders" / "defs.yaml").write_text(
        f"attributes:\n  name: orders\n  bucket: {config.bucket}\n  prefix: raw/\n  slots: 16\n"
        f"  s3: {{endpoint_url: '{config.endpoint_url}'}}\n"
    )
    source = source_of(bucket=config, name="orders", prefix="raw/", slots=16, commit="native")
    source.open_table()
    return source


def commit(source: Source, rows: int, etag: str = "1", code: str = "") -> None:
    """Commits one more table version that changes the slot, with the slot's present signal."""
    store = S3ObjectStore(source.location.platform)
    signal = store.head(signal_key(source.location.keyspace_prefix, SLOT))
    writer = SlotRounds(store=store, source=source, slot=SLOT, name=f"b{etag}", code_version=code)
    bucket = {KEY: Body(etag=etag, rows=rows, rejects=3 if rows else 0)}
    made = writer.stage(writer.plan(bucket), bucket)
    assert made is not None
    made.slots = {SLOT: replace(made.slots[SLOT], signal=signal.etag if signal else None)}
    made.table.commit(made, made.base)


def run(*arguments: str, columns: int = 120) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(main, ["status", *arguments])


@pytest.mark.server
def test_status_shows_the_queue_and_the_batches_and_the_last_commit(source: Source) -> None:
    """At first, the status must show that the source is empty. Later the status must show a queue, a batch in flight
    and a rescan, and at the end a commit with its latency.
    """
    (nothing,) = json.loads(run("--json").stdout)
    assert (nothing["committed_slots"], nothing["queue"], nothing["last"]) == (0, None, None)
    queue = source.location.queue()
    queue.topics.create("orders", TopicSettings(bucket=source.input.bucket.bucket, prefix="raw/"))
    assert isinstance(queue.push("orders", Event(key=KEY, bucket=source.input.bucket.bucket)), EntryCommitted)
    source.location.slot_signals().signal([KEY])
    RescanBacklog(source.location.records()).add([Slot(3), Slot(4)])
    AckChains(source.location.records()).open_batch(
        "batch-1", ["0", "1"], payload=BatchPayload(slots=(SLOT,), listing=False).dumps()
    )
    beat = Beat(number=1, at_ms=SYSTEM_CLOCK.wall_ms(), batch="batch-1", doing="reading 3 objects")
    source.location.records().create(HEARTBEATS, "run", beat.dumps())
    commit(source, rows=5)
    (now,) = json.loads(run("orders", "--json").stdout)
    assert now["queue"]["depth"] == 1
    assert now["rescan"] == 2
    assert [(batch["id"], batch["slots"], batch["found_by"]) for batch in now["batches"]] == [
        ("batch-1", 1, "queue")
    ]
    assert (now["committed_slots"], now["rows"], now["rejects"]) == (1, 5, 3)
    assert (now["last"]["slot"], now["last"]["batch"]) == (SLOT, "b1")
    assert now["last"]["latency_seconds"] < 60
    shown = run().stdout
    for text in (
        "1 of 16",
        "orders, waiting: 1 change, the oldest for ",
        "; 2 slots to list",
        "orders, in flight: 1 slot, 0 of 2 done, for ",
        "orders, now: reading 3 objects",
        "> in flight",
    ):
        assert text in shown, shown
    source.location.slot_signals().signal([KEY])
    assert json.loads(run("--json").stdout)[0]["last"]["latency_seconds"] is None
    queue.topics.create("hooks", TopicSettings(shards=1, endpoint='{"url": "https://hooks.example.com/"}'))
    assert "paused" not in run().stdout
    queue.topics.pause("hooks")
    assert "hooks 0 waiting, 0 dead letters, paused" in run().stdout
    assert json.loads(run("--json").stdout)[0]["topics"][0]["paused"]


@pytest.mark.server
def test_the_table_of_several_sources_fits_a_terminal_of_80_columns(
    source: Source, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise cells would be broken over several lines, and nobody could see which line belongs to which source."""
    made = (tmp_path / "defs" / "orders" / "defs.yaml").read_text()
    for name in ("shop_of_orders", "unreadable"):
        (tmp_path / "defs" / name).mkdir()
        (tmp_path / "defs" / name / "defs.yaml").write_text(made.replace("name: orders", f"name: {name}"))
    queue = source.location.queue()
    queue.topics.create("orders", TopicSettings(bucket=source.input.bucket.bucket, prefix="raw/"))
    idle = SourceStatus(name="orders", place="s3://b/raw/", slots=1000, rows=5)
    busy = replace(
        idle,
        rows=1_234_567,
        rejects=1_234,
        queue=replace(queue.stats("orders"), depth=10_000, oldest_age_seconds=54),
        batches=(BatchStatus(id="b", age_seconds=53, slots=1, acked=0, children=1, found_by="queue"),),
        last=LastCommit(slot=0, batch="b", age_seconds=250, latency_seconds=11.7),
        sensor="e",
    )
    found = {"orders": idle, "shop_of_orders": busy, "unreadable": replace(idle, error="no bucket")}
    monkeypatch.setattr(
        SourceLook, "look", lambda look: replace(found[look.source.name], name=look.source.name)
    )
    lines = [line.rstrip() for line in run(columns=80).stdout.splitlines()]
    assert [line.split() for line in lines[3:6]] == [
        ["orders", "5", "-", "-", "never", "-", "-", "-"],
        ["shop_of_orders", "1,234,567", "10,000", "1", "4", "min", "ago", "11.7", "s", "1,234", "unknown"],
        ["unreadable", "-", "-", "-", "-", "-", "-", "error"],
    ], lines
    assert lines[6:9] == [
        "shop_of_orders, waiting: 10,000 changes, the oldest for 54 s",
        "shop_of_orders, in flight: 1 slot, 0 of 1 done, for 53 s",
        "unreadable cannot be read: no bucket",
    ]


@pytest.mark.server
def test_the_map_has_a_legend_that_needs_no_colours(source: Source) -> None:
    """In a pipe or a log, where the map has no colours, the legend must not list colours. In a terminal, the colours
    show the ages, so the legend must list them.
    """
    commit(source, rows=50)
    plain = run("orders").stdout.splitlines()
    assert plain[-1].strip() == "· no rows, ▃ up to 100 rows"
    assert len(plain[-2].strip()) == 16
    assert "under a minute" not in "".join(plain)
    coloured = CliRunner(env={"COLUMNS": "120", "FORCE_COLOR": "1", "TERM": "xterm-256color"})
    for text in ("▃ up to 100 rows", "■ under a minute", "■ no commit"):
        assert text in coloured.invoke(main, ["status", "orders"], color=True).stdout


@pytest.mark.server
def test_a_second_look_shows_new_commits_and_failures(source: Source) -> None:
    """The slots that fail in the sensor must be shown, each with its reason."""
    failing = Failing(attempts=3, not_before_ms=0, reason="AccessDenied: no", group=SLOT)
    look = SourceLook(source, lambda: SensorState(epoch="e", failing={int(SLOT): failing}))
    commit(source, rows=5)
    first = look.look()
    commit(source, rows=7, etag="2")
    second = look.look()
    assert (first.rows, second.rows) == (5, 7)
    assert second.failures is not None
    assert [(one.slot, one.attempts, one.reason) for one in second.failures] == [
        (SLOT, 3, "AccessDenied: no")
    ]
    assert second.map is not None
    assert second.map.states()[SLOT] == "failing"


@pytest.mark.server
@pytest.mark.parametrize("home", ["unset", "of another sensor"])
def test_the_state_of_a_sensor_is_unknown_without_its_dagster_instance(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    """Otherwise a cron job without DAGSTER_HOME would report a source as healthy while its sensor is off, or while all
    of its slots fail. A source of `s3notify ingest` has no sensor, so its status has no unknown part.
    """
    if home != "unset":
        (tmp_path / "dagster.yaml").touch()
        monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    (found,) = json.loads(run("--json").stdout)
    assert (found["sensor"], found["paused"]) == ("", None)
    assert "unknown" not in run().stdout
    claim(source.table().reader, source.open_table(), "epoch-1")
    (found,) = json.loads(run("--json").stdout)
    assert (found["sensor"], found["paused"], found["failures"]) == ("epoch-1", None, None)
    shown = run(columns=200).stdout
    (row,) = (line for line in shown.splitlines() if line.startswith("orders ") and "never" in line)
    assert "unknown" in row
    assert shown.count("set DAGSTER_HOME to the folder of the Dagster instance") == 1
    RescanBacklog(source.location.records()).note_failed(
        {SLOT: Failed(attempts=1, not_before_ms=0, reason="no")}
    )
    shown = run(columns=200).stdout
    assert "1 slot\n" in "".join(f"{line.rstrip()}\n" for line in shown.splitlines())
    assert "unknown" in shown, "the sensor may have further failing slots"


@pytest.mark.server
def test_an_acked_slot_is_not_in_flight(source: Source) -> None:
    """If one slot of a batch is acked, the other slots of the batch must still be shown as in flight."""
    chains = AckChains(source.location.records())
    chain = chains.open_batch("b", ["3", "5"], payload=BatchPayload(slots=(3, 5)).dumps())
    chains.stamp_children(chain, ["3"])
    found = SourceLook(source).look().map
    assert found is not None
    assert {*found.in_flight} == {5}


@pytest.mark.server
def test_requests_do_not_grow_with_the_number_of_slots(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts are in the manifest, and ages come from a sample of versions. If each slot cost a request, a look at a
    source with many slots would be slow and expensive.
    """
    store = CountingStore(S3ObjectStore(source.location.platform))
    monkeypatch.setattr(status, "open_store", lambda _: store)
    monkeypatch.setattr(location, "open_store", lambda _: store)
    monkeypatch.setattr(version_times, "VERSIONS_TIMED", 4)
    for number in range(16):
        writer = SlotRounds(store=store, source=source, slot=Slot(number))
        writer.run({f"raw/{number}": Body(etag="1", rows=1)})
    look = SourceLook(source)
    first = look.look()
    assert (first.committed_slots, first.rows) == (16, 16)
    assert first.map is not None
    assert {*first.map.states()} == {"under a minute"}
    store.counts.clear()
    assert look.look().committed_slots == 16
    assert store.counts["GET"] + store.counts["HEAD"] <= 8


def pin(source: Source, schema: str, *, inferred: bool) -> None:
    """Commits one more table version, which gives the table this schema."""
    table = source.table()
    base = source.open_table().snapshot
    assert base is not None
    metadata, protocol = described(
        TableSchema(source=schema, rows=schema, inferred=inferred), created_ms=1, table=base.table
    )
    change = RoundChange(
        base=base,
        slots={SLOT: SlotRound()},
        table=table,
        clock=SYSTEM_CLOCK,
        metadata=metadata,
        protocol=protocol,
    )
    table.commit(change, base)


@pytest.mark.server
@pytest.mark.parametrize(
    ("columns", "name", "warned"),
    [
        (int(MAX_COLUMNS * 0.8), "c", "1,600 of at most 2,000 columns"),
        (int(MAX_COLUMNS * 0.8) - 1, "c", ""),
        (400, "c" * 1000, "of at most 524,288 bytes"),
    ],
)
def test_a_nearly_full_inferred_schema_is_warned_about(
    source: Source, columns: int, name: str, warned: str
) -> None:
    """The warning must name the remedy, and must come before records are rejected. A declared schema causes no warning,
    because it does not grow.
    """
    fields = [
        {"name": f"{name}{n}", "type": "long", "nullable": True, "metadata": {}} for n in range(columns)
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    assert json.loads(run("--json").stdout)[0]["schema"] is None
    pin(source, schema, inferred=True)
    (found,) = json.loads(run("--json").stdout)
    assert (found["schema"]["columns"], found["schema"]["bytes"]) == (columns, len(schema))
    assert warned in found["schema"]["warning"]
    assert bool(warned) == bool(found["schema"]["warning"])
    lines = " ".join(run("orders").stdout.split())
    assert ("orders: the inferred schema has" in lines) == bool(warned)
    assert ("declare `schema`" in lines) == bool(warned)
    pin(source, schema, inferred=False)
    assert json.loads(run("--json").stdout)[0]["schema"]["warning"] == ""


@pytest.mark.server
def test_a_table_that_writes_much_more_than_it_changes_is_warned_about(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the warning and its remedy, a user would pay for rewrites that a setting avoids. If a second look read
    old versions again, a process that watches the source would repeat all requests of the first look.
    """
    monkeypatch.setattr(rewrites, "REWRITE_WARN_BYTES", 1000)
    assert json.loads(run("--json").stdout)[0]["rewrites"] is None
    store = CountingStore(S3ObjectStore(source.location.platform))
    writer = SlotRounds(store=store, source=source, slot=SLOT)
    bucket = {f"raw/{n}": Body(etag="1", rows=200) for n in range(20)}
    writer.run(bucket)
    (found,) = json.loads(run("--json").stdout)
    assert found["rewrites"]["bytes"] == 0
    assert found["rewrites"]["warning"] == ""
    for n in range(3):
        writer.run(bucket := {**bucket, "raw/7": Body(etag=f"new{n}", rows=1)})
    (found,) = json.loads(run("--json").stdout)
    assert found["rewrites"]["versions"] == 4
    assert found["rewrites"]["bytes"] > 3000
    monkeypatch.setattr(rewrites, "REWRITE_WARN_TIMES", 0.1)
    shown = " ".join(run("orders").stdout.split())
    assert "orders: the newest 4 versions wrote" in shown
    assert "set overwrites: vectors, or raise interval_seconds" in shown
    monkeypatch.setattr(location, "open_store", lambda _: store)
    look = SourceLook(source_of_vectors(source))
    assert look.look().rewrites is not None
    store.counts.clear()
    again = look.look().rewrites
    assert again is not None
    assert "overwrites" not in again.warning, "the source has vectors already"
    assert store.counts["GET"] <= 4


def source_of_vectors(source: Source) -> Source:
    return replace(source, input=replace(source.input, overwrites="vectors"))


JOBS = """
from s3notify_platform import s3_slot_asset

def clean(df):
    return df

@s3_slot_asset(source="orders", name="paid", code_version="v1")
def of_this_name(df):
    return df

@s3_slot_asset(source="orders")
def daily(df):
    return df
"""


@pytest.mark.server
def test_stale_slots_are_counted_by_table(
    source: Source, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The user must see how many slots another code version made, and the command that reads them again."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    commit(source, rows=5)
    assert json.loads(run("--json").stdout)[0]["stale"] == {"orders": 1}, "there is no transform"
    with (tmp_path / "defs" / "orders" / "defs.yaml").open("a") as file:
        names = "stale_defs.of_this_name, stale_defs.daily, stale_defs.gone"
        file.write(f"  transform: stale_defs.clean\n  slot_assets: [{names}]\n")
    assert json.loads(run("--json").stdout)[0]["stale"] == {}, "the code is not found from here"
    (tmp_path / "stale_defs.py").write_text(JOBS)
    rows = pa.table({"_slot": pa.array([SLOT], pa.int32()), "value": ["x"]})
    derive(source, "paid", rows, {SLOT: 1, Slot(9): 1}, code="v0")
    now = {"orders": 1, "paid": 2, "daily": 0}
    assert json.loads(run("--json").stdout)[0]["stale"] == now
    shown = " ".join(run(columns=200).stdout.split())
    assert "1 slot of orders is stale, made by other code: s3notify backfill orders --stale" in shown
    assert "2 slots of paid are stale, made by other code: job orders_ingest, choose: stale" in shown
    behind = {"paid": 0, "daily": 1}
    assert json.loads(run("--json").stdout)[0]["behind"] == behind
    assert "1 slot of daily lacks the newest rows: the sensor orders_slot_automation requests" in shown
    assert "of paid lack" not in shown
    derive(source, "paid", rows, {SLOT: 2}, code="v1")
    commit(source, rows=7, etag="2", code=fingerprint("stale_defs.clean"))
    assert json.loads(run("--json").stdout)[0]["stale"] == now | {"orders": 0, "paid": 1}
    assert json.loads(run("--json").stdout)[0]["behind"] == behind | {"paid": 0}, "made from version 2"


@pytest.mark.server
def test_objects_without_records_are_counted(source: Source) -> None:
    commit(source, rows=5)
    assert "gave neither rows nor rejected records" not in run().stdout
    commit(source, rows=0, etag="2")
    assert json.loads(run("--json").stdout)[0]["without_records"] == 1
    assert "orders: 1 object gave neither rows nor rejected records: see s3notify explain KEY" in run().stdout


@pytest.mark.server
def test_an_unreadable_source_does_not_hide_the_others(
    source: Source, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The exit code must show the error, and an unknown name must be refused."""
    (tmp_path / "defs" / "gone").mkdir()
    (tmp_path / "defs" / "gone" / "defs.yaml").write_text(
        f"attributes: {{name: gone, bucket: no-such-bucket, prefix: raw/, "
        f"s3: {{endpoint_url: '{source.input.bucket.endpoint_url}'}}}}"
    )
    ran = run()
    assert ran.exit_code == 1
    assert "cannot be read" in ran.stdout
    assert "no-such-bucket" in ran.stdout
    assert "never" in ran.stdout
    elsewhere = json.loads(run("orders", "--endpoint-url", "http://127.0.0.1:9", "--json").stdout)
    assert "127.0.0.1:9 is unavailable" in elsewhere[0]["error"], "a flag overrides the file"
    ran = run("order")
    assert ran.exit_code == 1
    assert "no source 'order'; the YAML has: gone, orders" in ran.stderr
