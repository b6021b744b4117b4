"""`s3notify explain`: exit codes, text and JSON, on a real server."""

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
    """The command, on a bucket with an object that is in the queue; `ask.source` is the source."""
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
def test_exit_codes_and_text(ask):
    """1 while it is on its way, 0 when the table holds the object as it is; the verdict is the first line."""
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
def test_json(ask):
    """One document, with the verdict and the facts."""
    result = ask(KEY, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (document["verdict"], document["slot"]) == ("waiting", slot_of(KEY))
    assert document["topics"][0]["notices"][0]["state"] == "committed"


@pytest.mark.server
def test_unknown_and_wrong_keys(ask):
    """An answer for a key that nobody knows, an error for one of another source; neither is 0."""
    result = ask("raw/nobody")
    assert result.exit_code == 1
    assert result.stdout.startswith("unknown: no object")
    result = ask("elsewhere")
    assert result.exit_code == 1
    assert "does not belong to source 'orders'" in result.stderr


@pytest.mark.server
def test_not_chosen(ask):
    """Nothing is wrong with an object that the source does not read; unless rows of it are in the table."""
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
def test_records_in_dynamodb(ministack, monkeypatch):
    """Queue, rescan backlog and ack chains in a table; objects, signals and commits on the bucket."""
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


def test_it_loads_no_spark():
    """Nor Dagster, unless there is an instance to ask."""
    program = (
        "import sys, s3notify_platform.cli.explain, s3notify_platform.explain\n"
        "assert not {'pyspark', 'dagster'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
