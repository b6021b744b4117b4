"""What a sync and another engine really send is granted to the roles of a run and of a viewer."""

from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest

from s3notify_platform.deploy import Tables, policy
from s3notify_platform.slots import Slot
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.delta import view as delta
from s3notify_platform.table.layout import TableLayout
from tests.contracts.fault_proxy import FaultProxy
from tests.support.iam import needs, places_of, refused, unused
from tests.support.viewed import Place, Viewed, by_duckdb, spark_schema

LAYOUT = TableLayout(prefix="_s3notify/orders/table/")


@pytest.mark.server
def test_who_may_sync_and_who_may_read(ministack, monkeypatch):
    """Checkpoints and repairs too; a viewer needs nothing of commits, states and rejects."""
    monkeypatch.setattr(delta, "CHECKPOINT_VERSIONS", 2)
    bucket = ministack.make_bucket()
    places = places_of(bucket, tables=Tables())
    with (
        FaultProxy(ministack.endpoint_url) as proxy,
        closing(S3ObjectStore(replace(ministack.config(bucket), endpoint_url=proxy.url))) as store,
        closing(S3ObjectStore(ministack.config(bucket))) as straight,
    ):
        writer = Viewed(store=straight, layout=LAYOUT)
        writer.pin(spark_schema(id="long"))
        syncing = Viewed(store=store, layout=LAYOUT, pinned=writer.pinned)
        for n in range(4):
            writer.append(1, pa.table({"id": [n]}))
            syncing.view.sync([Slot(1)], repair=n == 3)
        assert refused(policy("run", places), needs(proxy.answered)) == set()
        sent = len(proxy.answered)
        config = replace(ministack.config(bucket), endpoint_url=proxy.url)
        # Not delta-rs: it keeps the interpreter, and so the proxy, waiting while it reads.
        found = by_duckdb(Place(uri=f"s3://{bucket}/{LAYOUT.view}", config=config))
        wanted = needs(proxy.answered[sent:])
    assert found == writer.rows([1])
    granted = policy("viewer", places)
    assert refused(granted, wanted) == set()
    derived = f"arn:aws:s3:::{bucket}/_s3notify/orders/derived/*"
    assert unused(granted, wanted) == {("s3:GetObject", derived)}
