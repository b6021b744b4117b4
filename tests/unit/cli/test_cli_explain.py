"""`s3notify explain` on a real server: exit codes, text and JSON."""

import json
import subprocess
import sys
from contextlib import closing

import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.keyspace import Publisher, Put
from s3notify_platform.protocols.notification_queue import EntryCommitted, Event, TopicSettings
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.slot_rounds import Body, SlotRounds
from tests.support.sources import source_of
from tests.support.tables import create_record_table

KEY = "raw/a b+c.jsonl"


@pytest.fixture
def ask(ministack, monkeypatch):
    """The command, on a bucket with an object whose entry is in the queue. `ask.source` is the source."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    config, platform = ministack.config(ministack.make_bucket()), ministack.config(ministack.make_bucket())
    source = source_of(
        name="orders", bucket=config, prefix="raw/", format="auto", platform=platform, commit="native"
    )
    with closing(S3ObjectStore(config)) as objects, closing(S3ObjectStore(platform)) as signals:
        publisher = Publisher(objects, signals, prefix=source.location.keyspace_prefix, queued=True)
        publisher.write([Put(key=KEY, body=b"{}\n")])
        queue = source.location.queue()
        queue.topics.create("orders", TopicSettings(bucket=config.bucket, prefix="raw/"))
        assert isinstance(queue.push("orders", Event(key=KEY, bucket=config.bucket)), EntryCommitted)
        publisher.signal([KEY])

        def run(key=KEY, *options):
            command = ["explain", key, "--bucket", config.bucket, "--platform-bucket", platform.bucket]
            command += ["--name", "orders", "--prefix", "raw/", "--endpoint-url", ministack.endpoint_url]
            return CliRunner().invoke(main, [*command, *options])

        run.source, run.objects, run.platform = source, objects, signals
        yield run


def commit(source, store, key, etag):
    writer = SlotRounds(store=store, source=source, slot=slot_of(key))
    writer.run({key: Body(etag=etag, rows=1)})


@pytest.mark.server
def test_the_exit_code_is_0_after_the_commit(ask):
    """Otherwise a script that waits for an object would continue before the table has the object's rows, or
    would wait for ever. The first line of the command's output is the verdict.
    """
    result = ask()
    assert result.exit_code == 1
    assert result.stdout.startswith("waiting in the queue for ")
    assert f"key: {KEY}\n" in result.stdout
    meta = ask.objects.head(KEY)
    commit(ask.source, ask.platform, KEY, meta.etag)
    result = ask()
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("committed in version 1, ")


@pytest.mark.server
def test_json_has_verdict_and_facts(ask):
    """The output must be one JSON document."""
    result = ask(KEY, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (document["verdict"], document["slot"]) == ("waiting", slot_of(KEY))
    assert document["topics"][0]["notices"][0]["state"] == "committed"


@pytest.mark.server
def test_an_unknown_key_is_no_success(ask):
    """Otherwise a script that waits for an object would accept a mistyped key, or a key of another source, as
    committed.
    """
    result = ask("raw/nobody")
    assert result.exit_code == 1
    assert result.stdout.startswith("unknown: no object")
    result = ask("elsewhere")
    assert result.exit_code == 1
    assert "does not belong to source 'orders'" in result.stderr


@pytest.mark.server
def test_an_object_that_the_source_skips_is_settled(ask):
    """Otherwise a script that waits for a skipped object would wait for ever. While the table still has rows of the
    object, the exit code is 1.
    """
    key = next(key for n in range(9999) if slot_of(key := f"raw/_tmp/{n}") == slot_of(KEY))
    ask.objects.put(key, b"{}\n")
    reason = "not read by source 'orders': hidden_files is skip, and '_tmp' is hidden"
    result = ask(key)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{reason}\n")
    document = json.loads(ask(key, "--json").stdout)
    assert (document["verdict"], document["slot"], document["key"]) == ("not_chosen", slot_of(KEY), key)
    meta = ask.objects.head(key)
    commit(ask.source, ask.platform, key, meta.etag)
    result = ask(key)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{reason}; its 1 rows leave when a batch lists the source\n")


@pytest.mark.server
def test_explain_reads_records_in_dynamodb(ministack, monkeypatch):
    """Otherwise `explain` would not see that an object is queued, or is in an open batch. Queue, rescan backlog and ack
    chains are in a DynamoDB table. Objects, signals and commits are on the bucket.
    """
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    config, table = ministack.config(ministack.make_bucket()), ministack.table_config()
    create_record_table(table)
    source = source_of(
        name="orders", bucket=config, prefix="raw/", format="auto", platform=config, records_table=table
    )
    queue = source.location.queue()
    queue.topics.create("orders", TopicSettings(bucket=config.bucket, prefix="raw/"))
    assert isinstance(queue.push("orders", Event(key=KEY, bucket=config.bucket)), EntryCommitted)
    AckChains(source.location.records()).open_batch(
        "orders-e-1", [str(slot_of(KEY))], payload='{"listing": false}'
    )
    command = ["explain", KEY, "--bucket", config.bucket, "--name", "orders", "--prefix", "raw/"]
    command += ["--endpoint-url", ministack.endpoint_url, "--records-table", table.table]
    command += ["--dynamodb-endpoint-url", ministack.endpoint_url]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert result.stdout.startswith("in batch orders-e-1, open for"), result.output
    assert "topic 'orders' (pulled): put queued" in result.stdout


def test_the_command_loads_neither_spark_nor_dagster():
    """Otherwise each call would wait for the import of Spark and Dagster, and would fail where Dagster is not
    installed. The command imports Dagster only if a Dagster instance exists.
    """
    program = (
        "import sys, s3notify_platform.cli.explain, s3notify_platform.explain\n"
        "assert not {'pyspark', 'dagster'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
