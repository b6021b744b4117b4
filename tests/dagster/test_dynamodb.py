"""A source whose store ignores every condition of a write. DynamoDB has the source's leases and records."""

import io as streams
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.deploy import Places, Role, Tables, policy
from s3notify_platform.engine.batch.heartbeats import HEARTBEATS, Beat
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.ports import Conflict, IfMatch, Version, Written, list_all
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.quarantine_retry import RetryQuarantined
from s3notify_platform.maintenance.vacuuming import vacuum
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.stores.conditional import leased_store
from s3notify_platform.stores.dynamodb.dynamo_table import DynamoTable
from s3notify_platform.stores.dynamodb.lease_table import DynamoLeases
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.quarantined import reasons_of
from s3notify_platform.table.snapshot import Snapshot
from tests.contracts.fault_proxy import FaultProxy
from tests.support.iam import ACCOUNT, needs, refused, unused
from tests.support.servers import S3Server
from tests.support.site import Site
from tests.support.tables import create_lease_table, create_record_table


@pytest.fixture
def proxy(ministack: S3Server) -> Iterator[FaultProxy]:
    """A proxy to S3 without conditional writes, and to DynamoDB, at one port."""
    with FaultProxy(ministack.endpoint_url, drops_conditions=True) as proxy:
        yield proxy


@pytest.fixture
def server(ministack: S3Server, proxy: FaultProxy) -> S3Server:
    return replace(
        ministack,
        endpoint_url=proxy.url,
        config=lambda bucket: replace(ministack.config(bucket), endpoint_url=proxy.url),
    )


@pytest.fixture
def site_with(spark: SparkSession, server: S3Server, instance: dg.DagsterInstance) -> Callable[..., Site]:
    """A source on this server, with the named tables."""

    def make(*tables: str, **attributes: object) -> Site:
        records, leases = server.table_config(), server.table_config()
        create_record_table(records)
        create_lease_table(leases)
        named = {"records_table": records.table, "lease_table": leases.table}
        return Site.of(
            server,
            instance,
            dynamodb={
                "endpoint_url": server.endpoint_url,
                "access_key_id_env": "S3NOTIFY_TEST_KEY",
                "secret_access_key_env": "S3NOTIFY_TEST_SECRET",
            }
            | {name: named[name] for name in tables},
            **attributes,
        )

    return make


@pytest.mark.thorough
def test_batches_are_exact_on_a_store_without_conditions(site_with: Callable[..., Site]) -> None:
    """After overwrites and deletes, rows must be exact and chains acked. The bucket must have no record, and each lease
    must have ended.
    """
    site = site_with("records_table", "lease_table", slot_assets=["tests.support.transforms.paid_orders"])
    site.write(3, 7)
    site.settle()
    assert site.rows() == {3: [3], 7: [7]}
    site.write(3, body=site.line(100))
    site.delete(7)
    site.write(9)
    site.settle()
    assert site.rows() == site.rows("paid_orders") == {3: [100], 9: [9]}
    assert site.grid()["failed"] == set()
    assert (site.state.open, site.state.failing) == ((), {})

    stored = json.loads(site.store.get("_s3notify/orders/store.json").body)
    assert (stored["mode"], stored["commit"]) == ("external", "dynamodb")
    chains = [site.io.clients.chains.state(tag) for tag in site.io.clients.chains.tags()]
    assert len(chains) == 2
    assert {chain.status for chain in chains} == {"acked"}
    assert list(list_all(site.store, "_s3notify/orders/records/")) == []
    assert list(site.io.clients.records.scan(HEARTBEATS)) == []

    leases = DynamoTable(site.io.source.commit.lease_table)
    items = leases.client.scan(TableName=leases.config.table)["Items"]
    leases.close()
    layout = site.io.source.location.layout
    versions = {m.key for m in list_all(site.store, layout.log) if layout.version_of(m.key) is not None}
    assert versions <= {item["path"]["S"] for item in items}
    assert {item["timeout"]["N"] for item in items} == {"0"}


@pytest.mark.parametrize(
    ("tables", "attributes", "reason"),
    [
        ((), {}, "lacks create-if-absent.*lease_table.*and a records_table"),
        (("lease_table",), {}, "name a DynamoDB records_table"),
        (("records_table", "lease_table"), {"commit": "native"}, "native commits need"),
    ],
)
def test_a_run_is_refused_where_commits_would_not_be_safe(
    site_with: Callable[..., Site], tables: tuple[str, ...], attributes: dict[str, str], reason: str
) -> None:
    """The message must say which DynamoDB table is missing in the settings. Nothing may be written."""
    site = site_with(*tables, **attributes)
    site.write(3)
    result = site.run([3])
    assert not result.success
    assert re.search(reason, site.failure(result))
    assert list(list_all(site.store, site.io.source.location.layout.prefix)) == []


def test_leases_enforce_the_conditions_of_publishers(site_with: Callable[..., Site]) -> None:
    """The store ignores conditions. Without leases, a second writer would replace or delete the first writer's object,
    and no error would show the loss. If a refused writer signalled, the source would start a batch although nothing
    changed.
    """
    site = site_with("lease_table")
    source = site.io.source
    store = leased_store(source.input.bucket, source.commit.lease_table)
    publisher = Publisher(store, prefix=source.location.keyspace_prefix, slots=source.location.slots)
    first = publisher.put_if_absent("raw/a", b"1")
    assert isinstance(first, Written)
    signals = list(list_all(site.store, source.location.keyspace_prefix))
    assert publisher.put_if_absent("raw/a", b"2") == Conflict()
    assert list(list_all(site.store, source.location.keyspace_prefix)) == signals
    second = publisher.put_if_match("raw/a", b"3", first.etag)
    assert isinstance(second, Written)
    assert publisher.put_if_match("raw/a", b"4", first.etag) == Conflict()
    assert publisher.delete("raw/a", precondition=IfMatch(etag=first.etag)) == Conflict()
    assert site.store.get("raw/a").body == b"3"
    assert publisher.delete("raw/a", precondition=IfMatch(etag=second.etag)) == Written(etag=None)
    assert isinstance(publisher.put_if_absent("raw/a", b"5"), Written)


def _upload(publisher: Publisher | QueuedPublisher, key: str) -> None:
    """Uploads an object and deletes it; aborts a second upload."""

    class Dying(streams.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise ConnectionResetError
            return super().read(size)

    assert isinstance(publisher.put_stream(key, streams.BytesIO(bytes(9 << 20))), Written)
    publisher.delete(key)
    with pytest.raises(ConnectionResetError):
        publisher.put_stream(key, Dying(bytes(9 << 20)))


CHANGES = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")


@pytest.mark.thorough
def test_roles_need_exactly_what_their_policies_grant(
    site_with: Callable[..., Site], proxy: FaultProxy, server: S3Server
) -> None:
    """Each role's policy must allow every request of the role, including requests of Spark's tasks, and nothing else.

    Writers must not be allowed to change the platform's own objects, even if their prefix covers these objects.
    """
    platform = server.make_bucket()
    site = site_with("records_table", "lease_table", platform_bucket=platform)
    io, source = site.io, site.io.source
    assert source.commit.lease_table is not None
    assert source.location.records_table is not None
    places = Places(
        bucket=site.component.bucket,
        prefix=source.input.prefix,
        platform_bucket=platform,
        platform_prefix=source.location.platform_prefix,
        keyspace_prefix=source.location.keyspace_prefix,
        tables=Tables(records=source.location.records_table.table, leases=source.commit.lease_table.table),
        account=ACCOUNT,
    )

    def check(role: Role) -> None:
        wanted = needs(proxy.answered)
        proxy.answered.clear()
        assert refused(policy(role, places), wanted) == set()
        assert unused(policy(role, places), wanted) == set()
        if role in ("run", "sweep"):
            of_ours = {need for need in wanted if need[0] in CHANGES and f":::{platform}/" in need[1]}
            of_ours = {need for need in of_ours if f"/{places.keyspace_prefix}" not in need[1]}
            assert of_ours
            for writer in ("writer", "publisher"):
                whole = replace(places, bucket=platform, prefix="")
                assert refused(policy(writer, whole), of_ours) == of_ours

    proxy.answered.clear()
    # Each bucket has its own lease table; here one table serves both buckets.
    store = leased_store(source.input.bucket, source.commit.lease_table)
    publisher = Publisher(
        store, S3ObjectStore(source.location.platform), prefix=source.location.keyspace_prefix, slots=16
    )
    written = publisher.put_if_absent(site.key(3), site.line(3))
    assert isinstance(written, Written)
    publisher.put_if_match(site.key(3), site.line(3), written.etag)
    publisher.put(site.key(5), site.line(5))
    publisher.delete(site.key(5))
    _upload(publisher, site.key(5))
    DynamoLeases(source.commit.lease_table).read("what a waiting writer reads", "*")
    check("writer")

    site.settle()
    by_runs = [*proxy.answered]
    proxy.answered.clear()
    queued = QueuedPublisher(publisher, io.clients.queue, bucket=source.input.bucket.bucket)
    written = queued.put_if_absent(site.key(6), site.line(6))
    assert isinstance(written, Written)
    queued.put_if_match(site.key(6), site.line(6), written.etag)
    queued.delete(site.key(6))
    _upload(queued, site.key(6))
    queued.put(site.key(3), site.line(4))
    queued.put(site.key(8), site.line(8) + b"{broken\n")
    assert queued.put_if_absent(site.key(3), site.line(5)) == Conflict()
    DynamoLeases(source.commit.lease_table).read("what a waiting writer reads", "*")
    io.clients.queue.topics.get(
        source.name
    )  # a publisher reads its topic after another worker has changed a segment, or if a shard is full
    check("publisher")

    proxy.answered[:] = by_runs
    site.settle()
    bucket = S3ObjectStore(source.input.bucket)
    left = bucket.begin_upload(site.key(6))
    proxy.answered[:] = [
        one for one in proxy.answered if "?uploads" not in one.path
    ]  # the request that began the upload is left out: a killed writer sends it
    for upload in bucket.empty_uploads(site.key(6)):
        bucket.abort_upload(site.key(6), upload)
    assert bucket.empty_uploads(site.key(6)) == (), left
    io.clients.ask_again([Slot(3)])
    commit = io.settle_commit_mode().commit
    asked = RetryQuarantined(location=source.location, commit=commit, everything=True).run()
    assert asked.document["records"] == 1
    io.clients.records.remove(HEARTBEATS, "a long run's at its end", expected=Version("none"))
    DynamoLeases(source.commit.lease_table).read("what a waiting run reads", "*")
    check("run")

    assert isinstance(source.location.table().newest(), Snapshot)
    assert site.rows() == {3: [4], 8: [8]}
    assert reasons_of(source.table(), source.location.all_slots())
    io.clients.watcher().poll()
    check("reader")

    io.clients.records.create(HEARTBEATS, "a-run-that-was-killed", Beat(number=5).dumps())
    site.write_silently(9)
    proxy.answered.clear()
    assert not site.sweep()["complete"].passed
    table = io.settle_commit_mode().table()
    newest = table.newest()
    assert isinstance(newest, Snapshot)
    committer = replace(
        table.committer, max_run_seconds=0
    )  # with this value, no file is too young to be removed
    young = replace(newest, asked_at=newest.asked_at + 3600)
    vacuum(committer, young, retention_seconds=0, clock=SYSTEM_CLOCK)
    io.clients.records.remove(HEARTBEATS, "in doubt", expected=Version("none"))
    io.clients.records.read(HEARTBEATS, "a look after a removal in doubt")
    committer.reader.known.hold("compact")  # a merge of files notes its version in the record
    committer.reader.known.release("compact")
    DynamoLeases(source.commit.lease_table).read("what a waiting sweep reads", "*")
    check("sweep")
