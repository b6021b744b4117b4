"""`s3notify schema set` on a real server: its cost, its effect, and the batches after it."""

import json
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from s3notify_platform.cli.main import main
from s3notify_platform.engine.driver import Ingest
from s3notify_platform.engine.values.results import BatchResult
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.maintenance.set_types import SetTypes
from s3notify_platform.protocols.keyspace import Publisher, Watcher
from s3notify_platform.table.clustered.cluster_order import Clustered
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.retype import retyped
from s3notify_platform.table.round import RoundChange, SlotRound
from s3notify_platform.table.snapshot import Snapshot
from tests.support.faults import CrashedError
from tests.support.ingested import Place, derive
from tests.support.local_jobs import LocalJobs
from tests.support.retype_site import wanted
from tests.support.servers import S3Server
from tests.support.sources import with_settings

pytestmark = pytest.mark.server

Run = Callable[..., Result]
T = TypeVar("T")


@pytest.fixture
def place(ministack: S3Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A source whose column `a` was inferred as integer. In later objects, the column has texts and decimals."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    made = Place(ministack)
    made.put("a", 1, 2)
    made.put("big", 10**17)
    made.store.put("raw/text", b'{"a":"x"}\n{"a":3}\n')
    made.store.put("raw/price", b'{"a":1.25}\n')
    batch(made, pa.int64())
    return made


@pytest.fixture
def run(place: Place) -> Run:
    config = place.store.config
    options = ["--bucket", config.bucket, "--endpoint-url", str(config.endpoint_url), "--slot-count", "4"]
    return lambda *given, text=None: CliRunner().invoke(main, [*given, *options], input=text)


def batch(place: Place, kind: pa.DataType) -> BatchResult:
    """Runs a batch over all slots. The batch reads the column with this type."""
    source = place.source
    jobs = LocalJobs(source=source, kind=kind, inferred=True)
    return Ingest(jobs=jobs, source=source).run(source.location.all_slots(), batch="b")


def of(answer: Result) -> Any:
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def values(place: Place) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in place.rows():
        found.setdefault(row["_key"].removeprefix("raw/"), []).append(row["a"])
    return found


def reasons(place: Place) -> set[str]:
    return {row["reason"] for row in place.rows(rejects=True)}


def test_a_reject_names_the_command_that_accepts_it(place: Place, run: Run) -> None:
    """The command that a reject names must accept the rejected records, as the command's plan says. A dry run changes
    nothing.
    """
    decimals = ", or decimal(p,s) in place of double"
    assert reasons(place) == {
        "a: 'x' does not fit bigint; to accept such values: `s3notify schema set orders 'a string'`",
        "a: '1.25' does not fit bigint; to accept such values: `s3notify schema set orders 'a double'`"
        + decimals,
    }
    before = place.objects()
    said = run("schema", "set", "orders", "a string", "--dry-run")
    assert said.exit_code == 0, said.output
    assert "a bigint → string" in said.output
    assert "reads 2 objects again: 2 of their records are in quarantine for these columns" in said.output
    assert "use --read-again to get the texts of the objects" in said.output
    assert place.objects() == before
    done = of(run("schema", "set", "orders", "a string", "--yes", "--json"))
    assert (done["became"], done["retried"], done["objects"]) == (2, 2, 0)
    assert values(place) == {"a": ["1", "2"], "big": ["1" + "0" * 17], "text": ["3"]}
    assert of(run("table", "check", "orders", "--json"))["ok"]
    batch(place, pa.string())
    assert (values(place)["text"], values(place)["price"]) == (["x", "3"], ["1.25"])
    assert reasons(place) == set()
    assert of(run("table", "check", "orders", "--json"))["ok"]
    earlier = run("rows", "orders", "--version", "1").stdout.splitlines()
    assert {json.loads(line)["a"] for line in earlier} == {1, 2, 3, 10**17}


def test_only_objects_that_do_not_fit_are_read_again(place: Place, run: Run) -> None:
    """Otherwise a change of one type would read the whole bucket again, or would start batches for slots that need
    none. Quarantined objects are retried, because their values may fit the new type.
    """
    watcher = Watcher(place.store, prefix=place.source.location.keyspace_prefix, slots=4)
    watcher.poll()
    planned = of(run("schema", "set", "orders", "a decimal(18,2)", "--dry-run", "--json"))
    size = len(b'{"a":%d}\n' % 10**17)
    assert (planned["objects"], planned["bytes"], planned["rows"], planned["slots"]) == (1, size, 1, 1)
    assert planned["columns"] == {"a": {"from": "bigint", "to": "decimal(18,2)", "how": "checked"}}
    assert not watcher.poll().changed
    done = of(run("schema", "set", "orders", "a decimal(18,2)", "--yes", "--json"))
    assert {name: done[name] for name in ("objects", "retried", "slots")} == {
        name: planned[name] for name in ("objects", "retried", "slots")
    }
    keys = ("raw/big", "raw/text", "raw/price")
    assert watcher.poll().changed.keys() == {slot_of(key, 4) for key in keys}
    assert values(place) == {"a": [1, 2], "big": [None], "text": [3]}
    result = batch(place, pa.decimal128(18, 2))
    assert sum(each.objects for each in result.slots.values()) == 3
    assert values(place) == {"a": [1, 2], "text": [3], "price": [Decimal("1.25")]}
    assert "a: '100000000000000000' does not fit decimal(18,2)" in " ".join(reasons(place))
    assert of(run("table", "check", "orders", "--json"))["ok"]
    again = of(run("schema", "set", "orders", "a decimal(18,2)", "--yes", "--json"))
    assert (again["became"], again["columns"]) == (None, {})


def test_an_object_that_failed_after_its_first_part_is_read_again(place: Place, run: Run) -> None:
    """Otherwise the values of the object's first part would stay null, although the command announces a new read."""
    place.put("long", 10**17, 4)
    usual, slot = place.source, slot_of("raw/long", 4)
    place.source = with_settings(usual, max_bytes=25, split_bytes=25, max_seconds=0)
    batch(place, pa.int64())
    place.source, base, table = usual, place.snapshot(), usual.table()
    part = table.states.lookup(base.manifest.states, {slot: ["raw/long"]})
    assert (part["raw/long"].offset, values(place)["long"]) == (25, [10**17])
    failing = {key: replace(state, reason="AccessDenied") for key, state in part.items()}
    rounds = {slot: SlotRound(changes=failing, before=part)}
    table.commit(RoundChange(base=base, slots=rounds, table=table, clock=SYSTEM_CLOCK), base)
    done = of(run("schema", "set", "orders", "a decimal(18,2)", "--yes", "--json"))
    assert (done["objects"], values(place)["long"]) == (2, [None])
    batch(place, pa.decimal128(18, 2))
    assert values(place)["long"] == [4]
    assert place.snapshot().manifest.slot(slot).failing == 0


def test_schema_set_asks_first(place: Place, run: Run) -> None:
    before = place.snapshot().version
    refused = run("schema", "set", "orders", "a string", text="n\n")
    assert (refused.exit_code, "Change these columns?" in refused.output) == (1, True)
    assert "packs of the table" in refused.output
    assert place.snapshot().version == before
    assert run("schema", "set", "orders", "a string", text="y\n").exit_code == 0
    assert (
        "the columns already have these types" in run("schema", "set", "orders", "a string", "--yes").output
    )


def test_a_killed_command_is_completed_by_a_repetition(place: Place, run: Run) -> None:
    """The killed command has already changed the types. If its repetition therefore did nothing, no signal would start
    the next batch, and values that fit the new types would stay in quarantine.
    """
    table = place.source.table()
    base = table.newest()
    assert isinstance(base, Snapshot)
    done, _ = retyped(table, base, wanted(a=pa.decimal128(18, 2)))
    assert isinstance(done, Committed)
    watcher = Watcher(place.store, prefix=place.source.location.keyspace_prefix, slots=4)
    watcher.poll()
    again = of(run("schema", "set", "orders", "a decimal(18,2)", "--yes", "--json"))
    assert (again["became"], again["retried"]) == (None, 2)
    keys = ("raw/big", "raw/text", "raw/price")
    assert watcher.poll().changed.keys() == {slot_of(key, 4) for key in keys}
    batch(place, pa.decimal128(18, 2))
    assert values(place) == {"a": [1, 2], "text": [3], "price": [Decimal("1.25")]}


@pytest.mark.parametrize("asset", ["", "daily"], ids=["source", "asset"])
def test_a_command_that_is_killed_before_its_signals_is_completed_by_a_repetition(
    place: Place, run: Run, monkeypatch: pytest.MonkeyPatch, asset: str
) -> None:
    """Otherwise the slots of a slot asset would keep earlier values, or null, until objects of these slots change."""
    rows = pa.table({"_slot": pa.array([1, 2], pa.int32()), "a": [10**17, 1]})
    derive(place.source, "daily", rows, {Slot(1): 1, Slot(2): 1})
    watcher = Watcher(place.store, prefix=place.source.location.keyspace_prefix, slots=4)
    watcher.poll()
    columns = "a decimal(18,2)" if asset else "a string"
    command = ("schema", "set", "orders", columns, "--yes", *(("--asset", asset) if asset else ()))
    with monkeypatch.context() as killed:
        killed.setattr(Publisher, "signal_slots", Mock(side_effect=CrashedError))
        with pytest.raises(CrashedError):
            run(*command)
    assert not watcher.poll().changed
    assert "the columns already have these types" in run(*command).output
    owed = {Slot(1)} if asset else {slot_of(key, 4) for key in ("raw/a", "raw/big", "raw/text")}
    assert watcher.poll().changed.keys() >= owed


def test_a_command_with_wait_ends_after_the_batch(place: Place, run: Run) -> None:
    """Otherwise a script that reads the table after the command would not find the values that are read again."""
    watcher = Watcher(place.store, prefix=place.source.location.keyspace_prefix, slots=4)
    watcher.poll()
    big = slot_of("raw/price", 4)

    def read_again() -> None:
        while big not in watcher.poll().changed:
            pass
        batch(place, pa.decimal128(18, 2))

    with ThreadPoolExecutor(1) as beside:
        reading = beside.submit(read_again)
        done = run("schema", "set", "orders", "a decimal(18,2)", "--yes", "--wait")
        assert done.exit_code == 0, done.output
        found = place.source.table().newest()
        assert isinstance(found, Snapshot)
        assert not any(facts.pending for facts in found.manifest.slots.values())
        reading.result()


def test_a_wait_shows_how_many_objects_are_read_again(place: Place) -> None:
    """Otherwise a person could not know how long a command with `--wait` still takes."""
    shown: list[tuple[int, int]] = []

    def track(items: Iterable[T], total: int, what: str) -> Iterable[T]:
        if what != "reading again":
            return items
        batch(place, pa.decimal128(18, 2))
        read = [*items]
        shown.append((total, len(read)))
        return read

    location, commit = place.source.location, place.source.commit
    SetTypes(location=location, commit=commit, columns="a decimal(18,2)", wait=True, track=track).run()
    assert shown == [(3, 3)]


def test_schema_show_lists_the_change(run: Run) -> None:
    of(run("schema", "set", "orders", "a string", "--yes", "--json"))
    newest, first = of(run("schema", "show", "orders", "--json"))["history"]
    assert (newest["changed"], newest["added"]) == ({"a": "bigint → string"}, {})
    assert first["changed"] == {}


def test_schema_show_prints_the_columns_as_schema_set_takes_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise nobody could see a column's type before it is changed. No word is broken on a narrow terminal."""
    of(run("schema", "set", "orders", "a string", "--yes", "--json"))
    monkeypatch.setenv("COLUMNS", "40")
    lines = run("schema", "show", "orders").stdout.splitlines()
    assert lines[:2] == ["1 column, inferred", "    a string"]
    assert all(len(line) <= 40 for line in lines)
    said = " ".join(" ".join(lines).split())
    change = (
        "version 2, [0-9-]+ [0-9:]+ UTC, batch schema set: 1 column, inferred, changed 'a' bigint → string"
    )
    assert re.search(rf"{change} version 1, [0-9-]+ [0-9:]+ UTC, batch b: 1 column, inferred$", said), said
    document = of(run("schema", "show", "orders", "--json"))
    assert (document["columns"], document["inferred"]) == ({"a": "string"}, True)
    planned = run("schema", "set", "orders", lines[1].strip(), "--dry-run")
    assert "the columns already have these types" in planned.output


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ("a", "does not parse"), ("a varchar(3)", "no column can have the type varchar(3)"),
        ("nope bigint", "no column 'nope'"), ("_key binary", "is the platform's"), ("a int, A int", "is there twice"),
    ],
)  # fmt: skip
def test_wrong_columns_are_refused(run: Run, columns: str, error: str) -> None:
    refused = run("schema", "set", "orders", columns, "--yes")
    assert (refused.exit_code, error in refused.output) == (1, True), refused.output


def test_the_types_of_a_slot_asset_can_change(place: Place, run: Run) -> None:
    """Slots must be computed again if they have values that do not fit, or if their batches failed until now. So the
    command signals the source's slots that have the numbers of these slots.
    """
    committed = sorted(place.generations())
    lossy, made, *failed = committed
    rows = pa.table({"_slot": pa.array([lossy, made], pa.int32()), "a": [10**17, 1]})
    derive(place.source, "daily", rows, {lossy: 1, made: 1})
    watcher = Watcher(place.store, prefix=place.source.location.keyspace_prefix, slots=4)
    watcher.poll()
    done = of(run("schema", "set", "orders", "a decimal(18,2)", "--asset", "daily", "--yes", "--json"))
    assert (done["slots"], done["objects"]) == (1, 0)
    assert of(run("table", "check", "orders", "--asset", "daily", "--json"))["ok"]
    facts = place.source.table("daily").newest().manifest.slots
    assert [facts[slot].source for slot in (lossy, made)] == [0, 1]
    assert failed
    assert sorted(watcher.poll().changed) == [lossy, *failed]


def test_slot_assets_that_need_the_same_change_are_named(place: Place, run: Run) -> None:
    """Otherwise the slot asset's batches would fail, and the user would not know beforehand."""
    rows = pa.table({"_slot": pa.array([1], pa.int32()), "a": [1]})
    derive(place.source, "daily", rows, {Slot(1): 1})
    derive(place.source, "other", rows.rename_columns(["_slot", "count"]), {Slot(1): 1})
    command = "`s3notify schema set orders 'a string' --asset daily`"
    for how in ("--dry-run", "--yes"):
        said = " ".join(run("schema", "set", "orders", "a string", how).output.split())
        assert f"from the source, its batches fail until you run {command}" in said
        assert "slot asset daily has such a column, too" in said
        assert "slot asset other" not in said
    assert of(run("schema", "set", "orders", "a string", "--yes", "--json"))["slot_assets"] == ["daily"]
    of(run("schema", "set", "orders", "a string", "--asset", "daily", "--yes", "--json"))
    assert of(run("schema", "set", "orders", "a string", "--yes", "--json"))["slot_assets"] == []


@pytest.mark.parametrize("asset", ["orders_latest", "orders_clustered"])
def test_tables_that_follow_the_source_keep_its_types(place: Place, run: Run, asset: str) -> None:
    """Otherwise the next batch would silently rebuild the table with the source's type."""
    before = place.objects()
    for how in ("--dry-run", "--yes"):
        refused = run("schema", "set", "orders", "a string", "--asset", asset, how)
        assert refused.exit_code == 1
        said = f"{asset} gets its types from the table of source 'orders': leave out --asset"
        assert said in " ".join(refused.output.split())
    assert place.objects() == before
    assert asset.replace("orders", "NAME") in " ".join(run("schema", "set", "--help").output.split())


def test_the_schema_of_a_clustered_table_has_the_columns_of_its_source(place: Place, run: Run) -> None:
    """Otherwise the platform's own columns would be shown, too."""
    source = replace(place.source, clustered=Clustered(columns=("a",)))
    source.following("orders_clustered").follow()
    shown = of(run("schema", "show", "orders", "--asset", "orders_clustered", "--json"))
    assert shown["columns"] == {"a": "bigint"}


def test_changed_types_need_a_rollback_of_the_table(place: Place, run: Run) -> None:
    """A rollback of the schema alone is refused, because the old types would not fit the files."""
    of(run("schema", "set", "orders", "a string", "--yes", "--json"))
    refused = run("schema", "rollback", "orders", "--to", "1")
    assert (refused.exit_code, "older than the present type" in refused.output) == (1, True)
    assert run("table", "rollback", "orders", "--to", "1").exit_code == 0
    assert values(place) == {"a": [1, 2], "big": [10**17], "text": [3]}
    assert of(run("table", "check", "orders", "--json"))["ok"]


def test_doctor_refuses_other_types_in_the_yaml(place: Place, tmp_path: Path) -> None:
    """Otherwise a user would learn only from a failing run that the table has other types than the YAML. The error
    names the command that changes the table.
    """
    config = place.store.config
    folder = tmp_path / "defs" / "orders"
    folder.mkdir(parents=True)
    for schema, code in (("a bigint", 0), ("a string", 1)):
        (folder / "defs.yaml").write_text(
            "type: s3notify_platform.S3NotifyComponent\nattributes:\n  name: orders\n  slots: 4\n"
            f"  bucket: {config.bucket}\n  prefix: raw/\n  schema: {schema}\n  commit: native\n"
            f"  s3:\n    endpoint_url: {config.endpoint_url}\n"
        )
        answer = CliRunner().invoke(main, ["doctor", "orders", "--defs", str(tmp_path / "defs")])
        assert answer.exit_code == code, answer.output
        said = " ".join(answer.output.split())
        named = "`s3notify schema set orders 'a string'` changes the table's type" in said
        assert named == bool(code), answer.output
