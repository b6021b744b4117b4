"""A command that deletes something prints its plan, or refuses, before it asks or writes anything."""

import json
from collections.abc import Callable, Iterator, Mapping
from inspect import getsource, unwrap

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from s3notify_platform.cli.main import main
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.maintenance import vacuuming
from tests.support.ingested import Place, derive
from tests.support.servers import S3Server

pytestmark = pytest.mark.server

Run = Callable[..., Result]


@pytest.fixture
def place(ministack: S3Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A source with one object, which was ingested twice."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    made = Place(ministack)
    for batch in ("1", "2"):
        made.put("a", int(batch))
        made.run(batch)
    return made


@pytest.fixture
def run(place: Place) -> Run:
    config = place.store.config
    options = ["--bucket", config.bucket, "--endpoint-url", str(config.endpoint_url), "--slot-count", "4"]
    return lambda *given, text=None: CliRunner().invoke(main, [*given, *options], input=text)


def pass_a_month(monkeypatch: pytest.MonkeyPatch) -> None:
    month_ms = 30 * 86_400_000
    monkeypatch.setattr(vacuuming, "store_now_ms", lambda *_: SYSTEM_CLOCK.wall_ms() + month_ms)


def with_garbage(place: Place, *assets: str) -> dict[str, str]:
    """Makes these slot assets, and adds an unused file to each table of the source. Returns the file's key by table."""
    for asset in assets:
        derive(place.source, asset, pa.table({"_slot": pa.array([1], pa.int32())}), {Slot(1): 1})
    layouts = {asset or "orders": place.source.location.table_layout(asset) for asset in (None, *assets)}
    garbage = {name: f"{layout.data}garbage.parquet" for name, layout in layouts.items()}
    for key in garbage.values():
        place.store.put(key, b"of a run that was killed")
    return garbage


def test_vacuum_prints_its_plan(place: Place, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a user would allow a vacuum to delete objects that the dry run did not show, and nobody can undo the
    deletion.
    """
    pass_a_month(monkeypatch)
    table = place.source.table()
    table.committer.checkpoint(place.snapshot())
    assert run("vacuum", "orders").exit_code == 0, "the first pass records the checkpoint"
    place.store.put(f"{table.layout.data}garbage.parquet", b"of a run that was killed")
    before = place.objects()
    shown = run("vacuum", "orders", "--dry-run")
    assert shown.exit_code == 0, shown.output
    planned = json.loads(run("vacuum", "orders", "--dry-run", "--json").stdout)
    assert place.objects() == before
    assert planned["dry_run"]
    found = planned["tables"]["orders"]
    names = found["names"]
    assert found["versions_removed"] > 0
    assert f"{table.layout.data}garbage.parquet" in names
    *lines, last = shown.stdout.splitlines()
    assert lines == names
    assert (
        f"orders: would remove {found['versions_removed']} versions and {found['files_removed']} other objects"
        in last
    )
    assert f"{found['bytes_removed']} bytes" in last
    done = run("vacuum", "orders")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"orders: removed {found['versions_removed']} versions")
    assert before.keys() - place.objects().keys() == {*names}
    assert place.values() == {2: 1}


def test_vacuum_removes_files_of_all_tables_of_the_source(
    place: Place, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise old versions of derived tables would stay forever, because only the daily vacuum removes versions. With
    --asset, only the table of this asset may change.
    """
    pass_a_month(monkeypatch)
    garbage = with_garbage(place, "daily")
    planned = json.loads(run("vacuum", "orders", "--dry-run", "--json").stdout)
    assert {name: each["files_removed"] for name, each in planned["tables"].items()} == {
        "orders": 1,
        "daily": 1,
    }
    only = run("vacuum", "orders", "--asset", "daily")
    assert (only.exit_code, garbage.keys() - kept(place, garbage)) == (0, {"daily"}), only.output
    garbage = with_garbage(place, "daily")
    done = run("vacuum", "orders")
    assert (done.exit_code, kept(place, garbage)) == (0, set()), done.output
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["orders", "daily"]


def test_vacuum_goes_on_after_a_table_that_it_cannot_vacuum(
    place: Place, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one damaged slot asset would stop the vacuum of all tables, and the exit code would not report the
    damage to a cron job.
    """
    pass_a_month(monkeypatch)
    garbage = with_garbage(place, "daily", "totals")
    place.store.delete(place.source.location.table_layout("daily").version(1))
    for more in (["--dry-run"], []):
        text = run("vacuum", "orders", *more)
        assert text.exit_code == 1
        assert "daily: not vacuumed: " in text.stdout
        assert "--asset daily" in text.stdout
    assert kept(place, garbage) == {"daily"}
    found = run("vacuum", "orders", "--json")
    document = json.loads(found.stdout)
    assert (found.exit_code, {*document["tables"]}, {*document["failed"]}) == (
        1,
        {"orders", "totals"},
        {"daily"},
    )


def kept(place: Place, garbage: Mapping[str, str]) -> set[str]:
    """The tables whose unused file still exists."""
    there = place.objects()
    return {name for name, key in garbage.items() if key in there}


TASKS: Mapping[str, tuple[str, ...]] = {
    "vacuum": ("orders",),
    "tag": ("orders", "--prefix", "raw/", "--committed-tags", "a=b"),
    "remove": ("orders",),
    "erase": ("raw/gone", "--name", "orders", "--prefix", "raw/"),
    "table compact": ("orders",),
    "table rollback": ("orders", "--to", "1"),
    "table put-back": ("orders",),
    "table forget": ("orders",),
    "table confirm": ("orders",),
    "table migrate": ("orders", "--to-slots", "8"),
    "schema rollback": ("orders", "--to", "1"),
    "quarantine retry": ("--all", "--name", "orders"),
    "backfill": ("orders", "--all"),
    "schema set": ("orders", "a decimal(20,0)"),
}
"""The commands of maintenance tasks, with arguments."""


def task_commands(group: click.Group, at: str = "") -> Iterator[str]:
    """The commands that run a maintenance task: the functions of these commands call `carry_out`."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from task_commands(command, f"{at}{name} ")
        elif command.callback is not None and "carry_out(" in getsource(unwrap(command.callback)):
            yield f"{at}{name}"


def test_the_dry_run_of_every_task_is_tested() -> None:
    """A new maintenance task must be added to `TASKS`."""
    assert {*task_commands(main)} == TASKS.keys()


@pytest.mark.parametrize("command", TASKS)
def test_a_dry_run_changes_nothing(place: Place, run: Run, command: str) -> None:
    """Otherwise a user who asks only for the plan would change or lose data. The plan must come without a question,
    because scripts read it as JSON.
    """
    before, given = place.objects(), (*command.split(), *TASKS[command])
    said = run(*given, "--dry-run")
    assert said.exit_code == 0, said.output
    assert said.stdout.strip()
    assert json.loads(run(*given, "--dry-run", "--json").stdout)["dry_run"]
    assert place.objects() == before


def test_erase_refuses_before_it_asks(place: Place, run: Run) -> None:
    """Otherwise a user would confirm an erasure that the command then refuses. If the command erased an
    object that is still in the bucket, the next batch would ingest the object again.
    """
    for key, said in (("raw/a", "delete the object first"), ("other/a", "reads keys below 'raw/'")):
        refused = run("erase", key, "--name", "orders", "--prefix", "raw/", text="y\n")
        assert refused.exit_code == 1
        assert said in refused.stderr
        assert "Permanently remove everything" not in refused.output
    place.store.delete("raw/a")
    before = place.objects()
    planned = run("erase", "raw/a", "--name", "orders", "--prefix", "raw/", "--dry-run")
    assert (planned.exit_code, place.objects() == before) == (0, True), planned.output
    assert "versions 0 to 2 are readable now" in planned.output
    asked = run("erase", "raw/a", "--name", "orders", "--prefix", "raw/", text="n\n")
    assert (asked.exit_code, "Permanently remove everything" in asked.output) == (1, True)
    assert "versions 0 to 2 are readable now" in asked.output
    assert place.values() == {2: 1}
    done = run("erase", "raw/a", "--name", "orders", "--prefix", "raw/", text="y\n")
    assert "1 rows and 0 rejects of the newest version" in done.output, done.output
    assert "history now begins with version 3" in done.output
    assert "repeat the command once after" in done.output
    assert not place.values()


def test_erase_says_how_the_slot_of_a_slot_asset_is_built_again(place: Place, run: Run) -> None:
    """Otherwise a person would wait for a batch, although no batch builds an asset of the person's own project."""
    slot = slot_of("raw/a", 4)
    derive(place.source, "totals", pa.table({"_slot": pa.array([slot], pa.int32())}), {slot: 1})
    place.store.delete("raw/a")
    done = run("erase", "raw/a", "--name", "orders", "--prefix", "raw/", "--yes")
    said = " ".join(done.output.split())
    assert (
        f"'totals': slot {slot} is empty until it is built again, by the next batch if the asset is in the "
        in said
    )
    assert f"otherwise materialize partition {slot} of the asset in Dagster" in said


def test_erase_says_when_to_repeat(place: Place, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is 1 while the command must be repeated later, and while the object is in files of a run that may
    still be at work. Otherwise a script would consider the erasure complete. The erasure is complete when the command,
    repeated after the printed time, finds nothing.
    """
    place.store.delete("raw/a")
    given = ("erase", "raw/a", "--name", "orders", "--prefix", "raw/", "--yes")
    first = run(*given)
    assert (first.exit_code, "files still hold the object" in first.output) == (1, True), first.output
    monkeypatch.setattr(
        "s3notify_platform.maintenance.table_erasure.CLOCKS_DIFFER_MS", -60_000
    )  # as if some time had passed
    second = run(*given)
    assert (second.exit_code, "repeat the command once after" in second.output) == (1, True), second.output
    assert "files still hold the object" not in second.output
    last = run(*given)
    assert (last.exit_code, "repeat" in last.output) == (0, False), last.output
