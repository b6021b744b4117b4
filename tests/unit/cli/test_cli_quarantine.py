"""`s3notify quarantine` on a real server: output, exit codes and writes."""

import base64
import json
import subprocess
import sys
from contextlib import closing
from itertools import count, islice

import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import signal_key
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.commit import Committed
from tests.support.slot_rounds import SLOT, Body, SlotRounds, source_in

pytestmark = pytest.mark.server

KEYS = list(islice((key for n in count() if slot_of(key := f"raw/{n}\x1b[31m") == SLOT), 2))
BAD, REJECTED = KEYS


@pytest.fixture
def quarantine(ministack, monkeypatch):
    """The command, on a table with a failing object and an object with rejected records, both in one slot.

    `quarantine.writer` is the writer of the slot.
    """
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    config = ministack.config(ministack.make_bucket())
    with closing(S3ObjectStore(config)) as store:
        writer = SlotRounds(store=store, source=source_in(config))
        bucket = {BAD: Body(etag="1", rows=2), REJECTED: Body(etag="1", rows=1, rejects=3)}
        writer.run(bucket, unreadable={BAD: 0}, last_attempt=True)

        def run(command, *arguments):
            options = ["--bucket", config.bucket, "--endpoint-url", ministack.endpoint_url]
            options += ["--platform-prefix", "t/"]
            if command == "list" and "--slot" not in arguments:
                options += ["--slot", str(SLOT)]
            source = ["orders"] if command == "list" else ["--name", "orders"]
            return CliRunner().invoke(main, ["quarantine", command, *source, *arguments, *options])

        run.writer, run.bucket, run.store = writer, bucket, store
        yield run


def test_the_list_has_counts_by_slot_and_reason(quarantine):
    """The output must have the sums, and must not say "1 objects"."""
    result = quarantine("list")
    assert result.exit_code == 0, result.output
    assert "1 failing object, 3 rejected records, in 1 slot" in result.stdout
    assert "cannot be read" in " ".join(result.stdout.split())
    document = json.loads(quarantine("list", "--json").stdout)
    assert (document["failing_objects"], document["rejected_records"], document["slots"]) == (1, 3, 1)
    assert [(r["kind"], r["objects"], r["records"]) for r in document["reasons"]] == [
        ("rejected", 1, 3),
        ("failing", 1, 0),
    ]
    cut = quarantine("list", "--limit", "1")
    assert "; 1 more line: raise --limit" in cut.stdout


def test_the_list_names_the_option_that_prints_keys(quarantine):
    """Otherwise a count of rejects would not lead to an object. Control characters in keys are escaped."""
    named = "`s3notify quarantine list orders --objects` prints the keys"
    assert quarantine("list").stdout.splitlines()[-1] == named
    assert named not in quarantine("list", "--slot", "8").stdout
    rejected, bad = (key.replace("\x1b", "\\u001b") for key in (REJECTED, BAD))
    listed = [
        f"{rejected}: slot 7, 3 rejected records: bad",
        f"{bad}: slot 7, cannot be read: row 0 of 1 cannot be read",
    ]
    lines = quarantine("list", "--objects").stdout.splitlines()
    assert lines == [
        *listed,
        "1 failing object, 3 rejected records, in 1 slot",
        "`s3notify quarantine show KEY --name orders` prints the reasons and the records of an object",
    ]
    assert quarantine("retry", REJECTED).exit_code == 0
    lines = quarantine("list", "--objects", "--limit", "1").stdout.splitlines()
    assert lines[0] == listed[0].replace(": bad", ", requested again: bad")
    assert lines[1].endswith("; 1 more line: raise --limit")
    document = json.loads(quarantine("list", "--objects", "--json").stdout)
    assert (document["failing_objects"], document["rejected_records"], document["slots"]) == (1, 3, 1)
    assert [(one["key"], one["kind"], one["records"], one["waiting"]) for one in document["objects"]] == [
        (REJECTED, "rejected", 3, 1),
        (BAD, "failing", 0, 0),
    ]


def test_list_of_other_slots_is_empty_or_refused(quarantine):
    result = quarantine("list", "--slot", "8")
    assert "0 failing objects, 0 rejected records" in result.stdout
    result = quarantine("list", "--slot", "1000")
    assert result.exit_code == 2
    assert "'--slot': 1000 is not in the range" in result.stderr


def test_show_prints_reasons_offsets_and_bytes(quarantine):
    """Otherwise a user could not find the rejected record in its object. Control characters are escaped, because a
    record with such characters could change the terminal.
    """
    result = quarantine("show", REJECTED, "--limit", "2")
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout
    assert "\\u001b[31m: slot 7, ETag 1" in result.stdout
    assert "at 0: bad\n    raw\nat 1: bad\n    raw\n1 more rejected record: raise --limit" in result.stdout
    result = quarantine("show", BAD)
    assert "fails: row 0 of 1 cannot be read" in result.stdout
    document = json.loads(quarantine("show", REJECTED, "--json").stdout)
    assert (document["slot"], document["failing"], document["rejects"]) == (SLOT, None, 3)
    assert base64.b64decode(document["records"][0]["raw_base64"]) == b"raw"
    result = quarantine("show", "raw/nobody")
    assert result.exit_code == 1
    assert "nothing of this object is in quarantine" in result.stderr


def test_retry_requests_the_objects(quarantine):
    """A retry first writes the keys into a new version of the table, and then moves the signals of the slots.
    Otherwise the objects would stay in quarantine. A dry run must write nothing, because the user has not yet
    decided to retry.
    """
    before = quarantine.writer.snapshot.version
    result = quarantine("retry", "--slot", str(SLOT), "--dry-run")
    counts = "1 failing object, 3 rejected records of 1 object, in 1 slot"
    assert result.output == f"in quarantine: {counts}\n"
    assert quarantine.writer.snapshot.version == before
    signal = signal_key("t/keyspace/", SLOT)
    assert quarantine.store.head(signal) is None
    result = quarantine("retry", "--slot", str(SLOT))
    assert result.exit_code == 0, result.output
    assert result.output == f"requested: {counts}; the next batch reads these objects\n"
    assert quarantine.writer.pending == sorted(KEYS)
    assert quarantine.store.head(signal) is not None
    assert "2 of them requested before" in quarantine("retry", "--slot", str(SLOT)).stdout
    assert "requested again" in quarantine("show", BAD).stdout
    assert isinstance(quarantine.writer.run(quarantine.bucket), Committed)
    assert quarantine.writer.failing == []


def test_retry_selects_objects_by_key_and_by_reason(quarantine):
    """Otherwise a retry would also read objects that the user did not choose, or would seem to succeed for a mistyped
    key. The output names the keys that are not in quarantine. If no key is in quarantine, the exit code is 1.
    """
    result = quarantine("retry", BAD, "raw/nobody", "--json")
    document = json.loads(result.stdout)
    assert (document["failing"], document["rejected"], document["missing"]) == (1, 0, ["raw/nobody"])
    assert quarantine.writer.pending == [BAD]
    result = quarantine("retry", "raw/nobody")
    assert result.exit_code == 1
    assert "not in quarantine: 'raw/nobody'" in result.stdout
    result = quarantine("retry", "--slot", str(SLOT), "--reason", "bad")
    assert "0 failing objects, 3 rejected records" in result.stdout
    assert quarantine.writer.pending == sorted(KEYS)


@pytest.mark.parametrize("what", [[], ["--all", "--slot", "7"], ["a", "--all"], ["--reason", "x"]])
def test_retry_needs_exactly_one_selection(quarantine, what):
    """Otherwise a mistyped command would read everything again."""
    result = quarantine("retry", *what)
    assert result.exit_code == 2
    assert "KEY, --slot and --all" in result.stderr


def test_the_command_loads_neither_spark_nor_dagster():
    program = (
        "import sys, s3notify_platform.cli.quarantine, s3notify_platform.table.quarantined, "
        "s3notify_platform.source.source\n"
        "assert not {'pyspark', 'dagster'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
