"""`s3notify table forget`: accepting a loss, on a real server."""

import pytest
from click.testing import CliRunner

from s3notify_platform.cli import main
from s3notify_platform.ingest.source import Source
from s3notify_platform.protocols.source_enumerator import CommittedSlots
from s3notify_platform.slots import Slot
from tests.support.tables import create_record_table


@pytest.mark.server
@pytest.mark.parametrize("with_table", [False, True])
def test_forget(ministack, monkeypatch, with_table):
    """The named slots, if they are lost; on a bucket alone and with a records table."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    config = ministack.config(ministack.make_bucket())
    records_table = ministack.table_config() if with_table else None
    if records_table is not None:
        create_record_table(records_table)
    source = Source.of(
        name="orders",
        bucket=config,
        prefix="raw/",
        format="text",
        platform=config,
        records_table=records_table,
    )
    committed = CommittedSlots(source.location.records())
    committed.add(map(Slot, (3, 7, 20, 21, 30)))

    def forget(slots, *place):
        options = ["table", "forget", "--bucket", config.bucket, "--endpoint-url", config.endpoint_url]
        if records_table is not None:
            options += [
                "--records-table",
                records_table.table,
                "--dynamodb-endpoint-url",
                config.endpoint_url,
            ]
        return CliRunner().invoke(main, [*options, "--slots", slots, "--name", "orders", *place])

    answer = forget("3,20-22")
    assert answer.exit_code == 0, answer.output
    assert "forgot 3 slots: 3,20,21" in answer.output
    assert committed.read() == {7, 30}
    assert "nothing to forget" in forget("3").output
    assert "forgot 2 slots: 7,30" in forget("all", "--platform-prefix", "_s3notify/orders/").output
    assert committed.read() == frozenset()
    for wrong in ("x", "1-", "1000", "", "20-3"):
        assert forget(wrong).exit_code == 2
    assert "end it with '/'" in forget("1", "--platform-prefix", "p").output
