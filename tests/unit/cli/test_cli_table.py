"""`s3notify table`, `history`, `rows`, `schema` and `vacuum` on a real server."""

import json
import re
from contextlib import closing
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result

from s3notify_platform.channels.inlets.poison import PoisonStore
from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.protocols.keyspace import Watcher
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.stores.s3.requests import S3Requests
from tests.support.ingested import Place, derive
from tests.support.sources import with_settings
from tests.unit.cli.conftest import SLOT, Run

pytestmark = pytest.mark.server


def of(answer: Result) -> Any:
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def test_history_lists_versions_newest_first(run: Run) -> None:
    """Otherwise `--limit` would show the oldest versions and hide the latest changes. Without `--slot`, a user who
    searches for a change of an object would have to read versions that changed only other slots.
    """
    found = of(run("history", "orders", "--json"))
    assert [one["version"] for one in found] == [2, 1, 0]
    assert [one["batch"] for one in found] == ["second", "first", ""]
    assert [(one["slots"], one["objects"], one["rows"]) for one in found] == [(1, 1, 2), (2, 2, 2), (0, 0, 0)]
    of_slot = of(run("history", "orders", "--slot", str(SLOT), "--json"))
    assert [(one["version"], one["objects"], one["rows"]) for one in of_slot] == [(2, 1, 2), (1, 1, 1)]
    assert len(of(run("history", "orders", "--limit", "1", "--json"))) == 1
    untouched = next(str(slot) for slot in range(4) if slot not in {SLOT, slot_of("raw/b", 4)})
    assert "no version in the history changed slot" in run("history", "orders", "--slot", untouched).output
    other = run("history", "ordres")
    assert (other.exit_code, "'ordres' has no table" in other.output) == (1, True)


def test_history_prints_each_version_in_one_line(
    place: Place, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a common terminal would split times and versions, and nobody could copy them. Slots and run are
    printed, too: a run id of Dagster by its first 8 characters, and a long name by its end.
    """
    monkeypatch.setenv("COLUMNS", "80")
    names = ("0b6a1c0e-8f0d-4b62-9d0c-3a5f5d1c7e21", "ingest-0123456789ab-1234")
    for number, name in enumerate(names):
        place.put("a", 20 + number)
        place.ingest().run(place.source.location.all_slots(), batch=name, run=name)
    makers = [f"…{names[1][-15:]}", "0b6a1c0e", "second", "first", "CREATE TABLE"]
    for more in ((), ("--slot", str(SLOT))):
        found = of(run("history", "orders", "--json", *more))
        head, *rows = [
            [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]
            for line in run("history", "orders", *more).stdout.splitlines()
            if line[0] in "│┃"
        ]
        slots = () if more else ("slots",)
        assert head == ["version", "created", *slots, "objects", "rows", "run or operation"]
        assert rows == [
            [
                str(one["version"]),
                one["created"].removesuffix("+00:00").replace("T", " "),
                *(str(one[name]) for name in head[2:-1]),
                maker,
            ]
            for one, maker in zip(found, makers, strict=False)
        ]
        assert len(rows) == len(found)


def test_history_tells_time_and_run(place: Place, run: Run) -> None:
    """Otherwise a user could not find the run that made bad rows, or the last version before a certain time. The time
    comes from the store's clock. If a version has no run, the name of its batch is shown as the run.
    """
    moment = place.moment()
    place.put("b", 3)
    place.ingest().run(place.source.location.all_slots(), batch="third", run="a-run")
    last, second, *_ = of(run("history", "orders", "--json"))
    assert (last["run"], second["run"]) == ("a-run", "second")
    earlier, later = (datetime.fromisoformat(one["created"]) for one in (second, last))
    assert moment - timedelta(seconds=1) <= earlier <= moment <= later
    (of_slot, *_) = of(run("history", "orders", "--slot", str(slot_of("raw/b", 4)), "--json"))
    assert (of_slot["run"], of_slot["created"]) == (last["run"], last["created"])


def values(answer: Result) -> list[int]:
    assert answer.exit_code == 0, answer.output
    return sorted(json.loads(line)["a"] for line in answer.stdout.splitlines())


def test_rows_prints_rows_of_a_table_or_of_a_slot(run: Run) -> None:
    """If `--slot`, `--version` or `--at` were ignored, a user who searches for a lost row would see the
    newest rows of the whole table. A version that is not kept must give an error, because an empty output
    means a version without rows.
    """
    assert values(run("rows", "orders")) == [2, 10, 11]
    assert values(run("rows", "orders", "--slot", str(SLOT))) == [10, 11]
    assert values(run("rows", "orders", "--version", "1")) == [1, 2]
    assert values(run("rows", "orders", "--version", "0")) == []
    assert values(run("rows", "orders", "--at", "2100-01-01")) == [2, 10, 11]
    assert len(values(run("rows", "orders", "--limit", "1"))) == 1
    (line,) = run("rows", "orders", "--version", "1", "--slot", str(SLOT)).stdout.splitlines()
    assert json.loads(line).items() >= {"_slot": SLOT, "_key": "raw/a", "_offset": 0, "a": 1}.items()
    assert run("rows", "orders", "--version", "1", "--at", "2100-01-01").exit_code == 2
    for missing in (("--version", "99"), ("--at", "2000-01-01")):
        gone = run("rows", "orders", *missing)
        assert (gone.exit_code, "kept" in gone.output) == (1, True)


def test_rows_at_a_moment_between_two_versions(place: Place, run: Run) -> None:
    """If the later of the two versions were chosen, a rollback to a moment before a bad batch would keep the rows of
    this batch.
    """
    moment = f"{place.moment():%Y-%m-%dT%H:%M:%S}"
    place.put("a", 12)
    place.run("third")
    assert values(run("rows", "orders")) == [2, 12]
    assert values(run("rows", "orders", "--at", moment)) == [2, 10, 11]
    assert of(run("table", "show", "orders", "--at", moment, "--json"))["version"] == 2
    assert of(run("table", "rollback", "orders", "--at", moment, "--dry-run", "--json"))["version"] == 2
    done = run("table", "rollback", "orders", "--at", moment)
    assert done.exit_code == 0, done.output
    assert values(run("rows", "orders")) == [2, 10, 11]


def test_show_prints_counts_settings_and_url(place: Place, run: Run) -> None:
    """Without the URL, a user could not open the table in another engine. Without the settings, a user could not see
    why a source with other settings is refused. The command also shows an earlier version, or a slot asset.
    """
    shown = of(run("table", "show", "orders", "--json"))
    wanted: dict[str, Any] = {
        "url": f"s3://{place.store.config.bucket}/_s3notify/orders/table/", "version": 2, "rows": 3, "objects": 2,
        "slots": 2, "id": place.source.open_table().id, "held_by": "",
        "made_from": asdict(place.source.identity),
    }  # fmt: skip
    assert shown.items() >= wanted.items()
    assert of(run("table", "show", "orders", "--version", "1", "--json"))["rows"] == 2
    derive(place.source, "daily", pa.table({"_slot": pa.array([1], pa.int32())}), {Slot(1): 1})
    assert of(run("table", "show", "orders", "--asset", "daily", "--json"))["rows"] == 1
    assert "has no table" in run("table", "show", "orders", "--asset", "weekly").output
    assert "_s3notify/orders/table/" in run("table", "show", "orders").output


def test_schema_show_and_rollback(place: Place, run: Run) -> None:
    """Without the history of the schema, a user would not know which version to give to `--to`. A rollback of
    the schema removes columns. If the rollback also removed rows, the user would lose data.
    """
    found = of(run("schema", "show", "orders", "--json"))["history"]
    assert [(one["version"], one["columns"]) for one in found] == [(1, 1)]
    assert [column["name"] for column in found[0]["rows"]["fields"]] == ["a"]
    before = place.objects()
    said = run("schema", "rollback", "orders", "--to", "1", "--dry-run")
    assert (said.exit_code, "version 1 lacks 0 columns of the present schema" in said.output) == (0, True), (
        said.output
    )
    assert place.objects() == before
    assert "version 3 has the earlier schema" in run("schema", "rollback", "orders", "--to", "1").output
    assert place.values() == {10: 1, 11: 1, 2: 1}


def test_check_finds_a_lost_pack(place: Place, run: Run) -> None:
    """`s3notify doctor --deep` must find the lost pack, too."""
    good = run("table", "check", "orders")
    assert (good.exit_code, "0 problems" in good.output) == (0, True), good.output
    assert of(run("table", "check", "orders", "--json"))["ok"]
    deep = run("doctor", "orders", "--deep")
    assert (deep.exit_code, "the table is correct" in deep.output) == (0, True), deep.output
    pack = next(iter(place.snapshot().packs))
    place.store.delete(place.source.location.layout.file(pack))
    for command in (
        ("table", "check", "orders"),
        ("table", "check", "orders", "--json"),
        ("doctor", "orders", "--deep"),
    ):
        bad = run(*command)
        assert bad.exit_code == 1
        assert pack in bad.output


def test_compact_merges_what_its_plan_names(place: Place, run: Run) -> None:
    """The rows of the table must stay the same."""
    for number in range(3):
        place.put(f"c{number}", number)
        place.run(str(number))
    planned = of(run("table", "compact", "orders", "--dry-run", "--json"))
    would = planned["tables"]["orders"]
    before = place.snapshot()
    assert (would["packs"], planned["dry_run"]) == (len(before.packs), True)
    assert len(before.packs) > 1
    did = of(run("table", "compact", "orders", "--json"))["tables"]["orders"]
    assert did["packs"] == would["packs"]
    assert len(place.snapshot().packs) == 1
    assert len(place.rows()) == 6
    assert place.snapshot().version == before.version + did["versions"]
    assert "orders: merged 0 packs" in run("table", "compact", "orders").output


def test_compact_merges_the_tables_that_are_made_from_the_source(place: Place, run: Run) -> None:
    """Otherwise slot assets would keep many small files, and each reader would need a request for each file. With
    `--asset`, only the table of this asset may change.
    """
    for number in range(3):
        rows = pa.table({"_slot": pa.array([number], pa.int32()), "a": [number]})
        derive(place.source, "daily", rows, {Slot(number): 1})
    before = place.snapshot().version
    only = of(run("table", "compact", "orders", "--asset", "daily", "--dry-run", "--json"))["tables"]
    assert {name: each["packs"] for name, each in only.items()} == {"daily": 3}
    assert (
        of(run("table", "compact", "orders", "--asset", "daily", "--json"))["tables"]["daily"]["packs"] == 3
    )
    assert place.snapshot().version == before
    assert {*of(run("table", "compact", "orders", "--json"))["tables"]} == {"orders", "daily"}


def test_compact_goes_on_after_a_table_that_it_cannot_compact(place: Place, run: Run) -> None:
    """Otherwise one damaged slot asset would prevent the compaction of all later tables, and the exit code would not
    report the damage to a cron job. A folder without a version is no failure.
    """
    for asset in ("daily", "totals"):
        for number in range(3):
            rows = pa.table({"_slot": pa.array([number], pa.int32()), "a": [number]})
            derive(place.source, asset, rows, {Slot(number): 1})
    begun = place.source.location.table_layout("begun")
    place.store.put(f"{begun.data}1.parquet", b"of a run that was killed")
    lost = place.source.location.table_layout("daily")
    for meta in list_all(place.store, lost.log):
        place.store.delete(meta.key)
    for more in (["--dry-run"], []):
        text = run("table", "compact", "orders", *more)
        assert text.exit_code == 1
        assert "daily: not compacted: " in text.stdout
        assert "--asset daily" in text.stdout
        assert "begun: " in text.stdout
        assert re.search("^totals: (would merge|merged) 3 packs", text.stdout, re.MULTILINE), text.stdout
    found = run("table", "compact", "orders", "--json")
    document = json.loads(found.stdout)
    assert (found.exit_code, {*document["tables"]}, {*document["failed"]}) == (
        1, {"orders", "begun", "totals"}, {"daily"},
    )  # fmt: skip
    only = run("table", "compact", "orders", "--asset", "totals", "--json")
    assert (only.exit_code, json.loads(only.stdout)["failed"]) == (0, {}), only.output


def test_rollback_to_a_version_or_a_time(place: Place, run: Run) -> None:
    """If the command accepted `--to` together with `--at`, or neither option, the table could return to a version that
    the user did not mean. Without the plan, the user would not see which objects the next batch reads again.
    """
    before = place.objects()
    said = run("table", "rollback", "orders", "--to", "1", "--dry-run")
    assert said.exit_code == 0, said.output
    assert "1 slots change; 2 rows, now 3; 2 objects, now 2" in said.output
    assert (
        "1 objects have changed since, and are read again if they are in the bucket: 'raw/a'" in said.output
    )
    assert place.objects() == before
    planned = of(run("table", "rollback", "orders", "--to", "1", "--dry-run", "--json"))
    assert (planned["version"], planned["newest"], planned["again"], planned["became"]) == (1, 2, 1, None)
    done = run("table", "rollback", "orders", "--to", "1")
    assert (done.exit_code, "rolled back to version 1, as version 3" in done.output) == (0, True), done.output
    assert place.values() == {1: 1, 2: 1}
    assert "already has the state of version 1" in run("table", "rollback", "orders", "--to", "1").output
    assert "already" in run("table", "rollback", "orders", "--at", "2100-01-01").output
    assert run("table", "rollback", "orders").exit_code == 2
    assert run("table", "rollback", "orders", "--to", "1", "--at", "2100-01-01").exit_code == 2
    gone = run("table", "rollback", "orders", "--to", "99")
    assert (gone.exit_code, "version 99" in gone.output) == (1, True)


def test_put_back_does_nothing_if_no_version_was_replaced(run: Run) -> None:
    answer = run("table", "put-back", "orders")
    assert (answer.exit_code, answer.output) == (0, "no version was replaced\n")


def test_forget_continues_after_a_loss(place: Place, run: Run) -> None:
    """Otherwise the loss of one version, or of the whole table, would stop the source for ever. If the slots were not
    compared with the bucket afterwards, the rows of the lost versions would be missing.
    """
    layout, location = place.source.location.layout, place.source.location
    assert "nothing is missing" in run("table", "forget", "orders").output
    watcher = Watcher(place.store, prefix=location.keyspace_prefix)
    watcher.poll()
    was = place.source.open_table().id
    place.store.delete(layout.version(2))
    with pytest.raises(CorruptError, match="table forget orders"):
        place.source.open_table()
    before = place.objects()
    assert "would continue from version 1" in run("table", "forget", "orders", "--dry-run").output
    assert place.objects() == before
    answer = run("table", "forget", "orders")
    assert (answer.exit_code, "continues from version 1 with the id" in answer.output) == (0, True), (
        answer.output
    )
    assert [*watcher.poll().changed] == [0], "the next poll begins a batch"
    assert set(RescanBacklog(location.records()).read().slots) == set(range(4))
    assert "nothing is missing" in run("table", "forget", "orders").output
    assert [*watcher.poll().changed] == [0], "the earlier call may have been killed before its signal"
    assert place.source.open_table(expected=was).id != was
    assert place.values() == {1: 1, 2: 1}
    place.run("third")
    assert place.values() == {10: 1, 11: 1, 2: 1}
    place.empty(location.platform_prefix)
    assert "would be forgotten" in run("table", "forget", "orders", "--dry-run").output
    assert not [key for key in place.objects() if key.startswith(location.platform_prefix)]
    lost = run("table", "forget", "orders")
    assert (lost.exit_code, "forgot the table; the next run builds a table" in lost.output) == (0, True), (
        lost.output
    )
    place.run("fourth")
    assert place.values() == {10: 1, 11: 1, 2: 1}
    assert "end it with '/'" in run("table", "forget", "orders", "--platform-prefix", "p").output
    other = run("table", "forget", "ordres")
    assert (other.exit_code, "'ordres' has no table" in other.output) == (1, True)


def test_forget_repairs_a_single_slot_asset(place: Place, run: Run) -> None:
    """Otherwise a damaged slot asset would stay unusable, or its repair would also change the source's table. The error
    of the slot asset names the command for the repair.
    """
    derive(place.source, "daily", pa.table({"_slot": pa.array([1], pa.int32())}), {Slot(1): 1})
    place.store.delete(place.source.location.table_layout("daily").version(1))
    with pytest.raises(CorruptError, match="--asset daily"):
        place.source.table("daily").newest()
    answer = run("table", "forget", "orders", "--asset", "daily")
    assert (answer.exit_code, "continues from version 0" in answer.output) == (0, True), answer.output
    assert of(run("table", "show", "orders", "--asset", "daily", "--json"))["rows"] == 0
    assert place.values() == {10: 1, 11: 1, 2: 1}


def test_vacuum_refuses_a_damaged_table(place: Place, run: Run) -> None:
    """Otherwise vacuum would delete files that a repair needs."""
    assert run("vacuum", "orders").exit_code == 0
    place.store.delete(place.source.location.layout.version(2))
    left = place.objects()
    answer = run("vacuum", "orders")
    assert answer.exit_code == 1
    assert "s3notify table forget" in answer.output
    assert place.objects() == left


def test_migrate_and_confirm_print_the_change(place: Place, run: Run) -> None:
    """Otherwise a user would not know which settings of the source to change after the migration. If an unrelated
    prefix were accepted, the next listing would show none of the table's objects, and their rows could leave the table.
    """
    assert "confirmed for version 2" in run("table", "confirm", "orders").output
    assert place.source.open_table().known.confirmed == 2
    assert run("table", "migrate", "orders").exit_code == 2
    assert "already has this prefix" in run("table", "migrate", "orders", "--to-prefix", "raw/").output
    elsewhere = run("table", "migrate", "orders", "--to-prefix", "other/")
    assert (elsewhere.exit_code, "neither within nor around" in elsewhere.output) == (1, True)
    answer = run("table", "migrate", "orders", "--to-prefix", "raw/a/", "--to-slots", "8")
    assert answer.exit_code == 0, answer.output
    assert "prefix is 'raw/a/', but 'raw/' in the table; slots is 8, but 4 in the table" in answer.output
    other = with_settings(place.source, prefix="raw/a/", slots=8)
    assert other.open_table().snapshot is not None
    with pytest.raises(UsageError, match="slots is 4, but 8 in the table"):
        place.source.open_table()


def test_erase_deletes_poison_messages_too(place: Place, run: Run) -> None:
    """Otherwise the erased object would still be named in a poison message. If messages about other objects were
    deleted, a person could no longer inspect them.
    """
    place.store.put("raw/a b", b"1")
    poison = PoisonStore(place.source.location.queue())
    poison.keep(b'{"key": "raw/a+b"}', origin="sqs", reason="r")
    poison.keep(b"another", origin="sqs", reason="r")
    given = ("erase", "raw/a b", "--name", "orders", "--prefix", "raw/")
    for asked in ((), ("--yes",)):
        there = run(*given, *asked)
        assert (there.exit_code, "delete the object first" in there.output) == (1, True)
        assert "Aborted" not in there.output
    place.store.delete("raw/a b")
    assert "Aborted" in run(*given).output
    answer = run(*given, "--yes")
    assert (answer.exit_code, "0 entries and 1 messages removed" in answer.output) == (0, True), answer.output
    assert [message.body for message in poison.all()] == [b"another"]


def test_tag_needs_tags_and_versioning(place: Place, run: Run) -> None:
    """S3 has no conditional tagging. Without versioning, an object version that no batch has read could get the tag,
    and a lifecycle rule could delete its data. Each error names the setting that is missing or wrong.
    """
    given = ("tag", "orders", "--prefix", "raw/")
    tags = (*given, "--committed-tags", "archive=yes")
    without = run(*given)
    assert (without.exit_code, "no committed_tags" in without.output) == (1, True)
    wrong = run(*given, "--committed-tags", "archive")
    assert (wrong.exit_code, "write name=value" in wrong.output) == (1, True)
    plain = run(*tags)
    assert (plain.exit_code, "enable its versioning" in plain.output) == (1, True)
    bucket = place.source.location.platform
    with closing(S3Requests(bucket)) as s3:
        versioning = {"Status": "Enabled"}
        s3.client.put_bucket_versioning(Bucket=bucket.bucket, VersioningConfiguration=versioning)
    done = run(*tags, "--again")
    assert (done.exit_code, "2 slots with new commits" in done.output) == (0, True), done.output
