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
from tests.support.iam import needs, places_of, refused, unused
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


def test_writer_and_viewer_roles_allow_exactly_what_is_needed(
    ministack: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a needed permission, a run, a sweep or a reader on AWS would fail. With an unneeded permission, a
    viewer could read states and rejects, which are not part of the table.
    """
    now_ms, month_ms = vacuuming.store_now_ms, 30 * 86_400_000
    monkeypatch.setattr(vacuuming, "store_now_ms", lambda *given: now_ms(*given) + month_ms)
    place = Place(ministack, overwrites="vectors")
    bucket = place.store.config.bucket
    places = replace(places_of(bucket, tables=Tables()), bucket=bucket)

    def granted(role: Role, proxy: FaultProxy) -> bool:
        return refused(policy(role, places), needs(proxy.answered)) == set()

    with FaultProxy(ministack.endpoint_url) as proxy:
        place.source = through(place, proxy)
        for number in range(4):
            place.put("a", *range(number, number + 3))
            place.put(f"b{number}", number)
            place.run(str(number))
        derive(place.source, "daily", pa.table({"_slot": pa.array([1], pa.int32())}), {Slot(1): 1})
        table = place.source.table()
        table.committer.checkpoint(newest(place.source))
        assert granted("run", proxy)

        del proxy.answered[:]
        place.store.put(f"{table.layout.data}garbage.parquet", b"")
        compact(table)
        vacuuming.vacuum(
            table.committer, newest(place.source), retention_seconds=7 * 86_400, clock=SYSTEM_CLOCK
        )
        assert any(one.method == "DELETE" and "/data/" in one.path for one in proxy.answered)
        assert granted("sweep", proxy)

        del proxy.answered[:]
        wanted = rows_of(place.source)
        assert granted("reader", proxy)

        del proxy.answered[:]
        config = replace(place.store.config, endpoint_url=proxy.url)
        # delta-rs is not used: it blocks the interpreter, and so the proxy, while it reads.
        found = by_duckdb(At(uri=f"s3://{bucket}/{table.layout.prefix}", config=config))
        assert [row["a"] for row in found] == [row["a"] for row in sorted(wanted, key=order)]
        asked = needs(proxy.answered)
        assert refused(policy("viewer", places), asked) == set()
        own = f"arn:aws:s3:::{bucket}/_s3notify/orders/"
        assert unused(policy("viewer", places), asked) == {
            ("s3:GetObject", f"{own}derived/*"),
            ("s3:GetObject", f"{own}table/part-*"),
            ("s3:GetObject", f"{own}table/_s3notify/vector/*"),
            ("s3:GetObject", f"{own}table/_symlink_format_manifest/*"),
        }


def order(row: dict[str, object]) -> tuple[object, ...]:
    return row["_slot"], row["_key"], row["_offset"]
