"""`s3notify backfill` on a real server: its output as text and JSON, and its writes."""

import json
import sys
from contextlib import closing

import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.local.fingerprint import fingerprint
from s3notify_platform.protocols.keyspace import signal_key
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.slot_rounds import SLOT, Body, SlotRounds, content_of, source_in

pytestmark = pytest.mark.server


@pytest.fixture
def backfill(ministack, monkeypatch):
    """The command, on a table with two objects in one slot. `backfill.writer` is the writer of the slot."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    config = ministack.config(ministack.make_bucket())
    with closing(S3ObjectStore(config)) as store:
        writer = SlotRounds(store=store, source=source_in(config))
        bucket = {"raw/a": Body(etag="1", rows=2), "raw/b": Body(etag="1", rows=1)}
        writer.run(bucket)

        def run(*arguments):
            options = ["--bucket", config.bucket, "--endpoint-url", ministack.endpoint_url]
            return CliRunner().invoke(
                main, ["backfill", "orders", *arguments, *options, "--platform-prefix", "t/"]
            )

        run.writer, run.bucket, run.store = writer, bucket, store
        yield run


def test_a_dry_run_writes_nothing_and_a_backfill_gives_new_rows(backfill):
    """If a backfill wrote no new version, or moved no signal, no batch would read the objects again, and the
    old rows would stay. If a dry run wrote a version, the objects would be read again before the user has
    decided.
    """
    before = backfill.writer.snapshot.version
    result = backfill("--all", "--dry-run")
    assert result.output == "2 objects with 3 rows, in 1 slots, would be read again\n"
    assert backfill.writer.snapshot.version == before
    result = backfill("--slots", "3,5-9", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"slots": [SLOT], "objects": 2, "rows": 3, "dry_run": False}
    assert backfill.store.head(signal_key("t/keyspace/", SLOT)) is not None
    assert backfill.writer.planned(backfill.bucket) == list(backfill.bucket)
    backfill.writer.run(backfill.bucket)
    assert backfill.writer.content() == content_of(backfill.bucket)


def test_backfill_with_stale_selects_slots_that_another_transform_made(backfill, tmp_path, monkeypatch):
    """The command must find the transform in a module beside the YAML."""
    (tmp_path / "defs" / "orders").mkdir(parents=True)
    file = tmp_path / "defs" / "orders" / "defs.yaml"
    file.write_text("attributes: {name: orders, bucket: b, transform: stale_jobs.clean}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    refused = backfill("--stale", "--dry-run")
    assert refused.exit_code == 1
    assert "the code of source 'orders' is not known here" in refused.stderr
    (tmp_path / "stale_jobs.py").write_text("def clean(df): return df")
    found = json.loads(backfill("--stale", "--json").stdout)
    assert (found["slots"], found["objects"]) == ([SLOT], 2)
    backfill.writer.code_version = fingerprint("stale_jobs.clean")
    backfill.writer.run(backfill.bucket)
    assert json.loads(backfill("--stale", "--json").stdout)["slots"] == []
    file.write_text("attributes: {name: orders, bucket: b}")
    assert json.loads(backfill("--stale", "--json", "--dry-run").stdout)["slots"] == [SLOT]


@pytest.mark.parametrize(
    "what", [[], ["--all", "--stale"], ["--all", "--slots", "7"], ["--slots", "9-7"], ["--slots", "a"]]
)
def test_slots_must_be_selected_in_exactly_one_way(backfill, what):
    """Otherwise a mistyped command would read the whole bucket again."""
    result = backfill(*what)
    assert result.exit_code == 2
    assert "--slots" in result.stderr


def test_a_slot_beyond_the_source_is_refused(backfill):
    result = backfill("--slots", "7", "--slot-count", "5")
    assert result.exit_code == 1
    assert "unknown slot" in result.stderr
