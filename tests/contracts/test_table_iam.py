"""The policies of the roles, compared with the requests that runs, upkeep and another engine send to a table in a
bucket.
"""

from dataclasses import replace

import pyarrow as pa
import pytest

from s3notify_platform.deploy import Role, Tables, policy
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance import vacuuming
from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.source.source import Source
from s3notify_platform.table.snapshot import Snapshot
from tests.contracts.fault_proxy import FaultProxy
from tests.support.engines import Place as At
from tests.support.engines import by_duckdb
from tests.support.iam import Need, needs, places_of, refused, unused
from tests.support.ingested import Place, derive, rows_of
from tests.support.servers import S3Server
from tests.support.sources import with_settings

pytestmark = pytest.mark.server


def through(place: Place, proxy: FaultProxy) -> Source:
    """The source with its bucket behind a proxy."""
    config = replace(place.store.config, endpoint_url=proxy.url)
    return with_settings(place.source, platform=config, bucket=config)


def newest(source: Source) -> Snapshot:
    found = source.table().reader.open()
    assert isinstance(found, Snapshot)
    return found


def test_run_sweep_reader_and_viewer_roles_allow_exactly_what_is_needed(
    ministack: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a needed permission, a run, a sweep or a reader on AWS would fail. With an unneeded permission,
    a viewer could read states and rejects, which are not part of the table. The permissions that remain are
    for the queue, the reconciler, the probe of the store, slot assets, and tables of other engines.
    """
    now_ms, month_ms = vacuuming.store_now_ms, 30 * 86_400_000
    monkeypatch.setattr(vacuuming, "store_now_ms", lambda *given: now_ms(*given) + month_ms)
    place = Place(ministack, overwrites="vectors")
    bucket = place.store.config.bucket
    places = replace(places_of(bucket, tables=Tables()), bucket=bucket)

    own = f"arn:aws:s3:::{bucket}/_s3notify/orders/"
    queue = f"arn:aws:s3:::{bucket}/_s3notify/queue/*"
    assets = f"arn:aws:s3:::{bucket}/_s3notify-known/orders.2e*"

    def remaining(role: Role, proxy: FaultProxy) -> set[Need]:
        asked = needs(proxy.answered)
        del proxy.answered[:]
        assert refused(policy(role, places), asked) == set()
        return unused(policy(role, places), asked)

    with FaultProxy(ministack.endpoint_url) as proxy:
        place.source = through(place, proxy)
        for number in range(4):
            place.put("a", *range(number, number + 3))
            place.put(f"b{number}", number)
            place.run(str(number))
        derive(place.source, "daily", pa.table({"_slot": pa.array([1], pa.int32())}), {Slot(1): 1})
        table = place.source.table()
        table.committer.checkpoint(newest(place.source))
        assert remaining("run", proxy) == {
            ("s3:AbortMultipartUpload", f"{own}*"),
            ("s3:AbortMultipartUpload", f"arn:aws:s3:::{bucket}/raw/*"),
            ("s3:DeleteObject", f"{own}*"),
            ("s3:DeleteObject", queue),
            ("s3:ListBucketMultipartUploads", f"arn:aws:s3:::{bucket}"),
            ("s3:ListMultipartUploadParts", f"arn:aws:s3:::{bucket}/raw/*"),
            ("s3:PutObject", queue),
        }

        place.store.put(f"{table.layout.data}garbage.parquet", b"")
        compact(table)
        vacuuming.vacuum(
            table.committer, newest(place.source), retention_seconds=7 * 86_400, clock=SYSTEM_CLOCK
        )
        assert any(one.method == "DELETE" and "/data/" in one.path for one in proxy.answered)
        assert remaining("sweep", proxy) == {
            ("s3:GetObject", queue),
            ("s3:GetObject", assets),
            ("s3:PutObject", assets),
        }

        wanted = rows_of(place.source)
        assert remaining("reader", proxy) == {("s3:GetObject", assets)}

        config = replace(place.store.config, endpoint_url=proxy.url)
        # delta-rs is not used: it blocks the interpreter, and so the proxy, while it reads.
        found = by_duckdb(At(uri=f"s3://{bucket}/{table.layout.prefix}", config=config))
        assert [row["a"] for row in found] == [row["a"] for row in sorted(wanted, key=order)]
        assert remaining("viewer", proxy) == {
            ("s3:GetObject", f"{own}derived/*"),
            ("s3:GetObject", f"{own}table/part-*"),
            ("s3:GetObject", f"{own}table/_s3notify/vector/*"),
            ("s3:GetObject", f"{own}table/_symlink_format_manifest/*"),
        }


def order(row: dict[str, object]) -> tuple[object, ...]:
    return row["_slot"], row["_key"], row["_offset"]
