"""The Delta view on real S3 servers, read back row by row by delta-rs, Polars and DuckDB's own delta extension."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from s3notify_platform.slots import Slot
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.delta.view import CHECKPOINT_VERSIONS
from s3notify_platform.table.layout import TableLayout
from tests.support.faults import CrashedError, Fault, FaultyStore, at
from tests.support.servers import S3Server
from tests.support.viewed import ENGINES, Place, Viewed, by_delta_rs, by_duckdb, spark_schema

pytestmark = pytest.mark.server

SLOTS = [Slot(n) for n in range(12)]
LAYOUT = TableLayout(prefix="_s3notify/orders/table/")
PLAIN = {"id": "long", "amount": "decimal(12,2)", "at": "timestamp"}
GROWN = PLAIN | {"tags": {"type": "array", "elementType": "string", "containsNull": True}, "Größe": "double"}


@pytest.fixture(params=["ministack", pytest.param("seaweed", marks=pytest.mark.thorough)])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def site(server: S3Server) -> Iterator[tuple[Viewed, Place]]:
    """An empty table in a new bucket, and where others find its view."""
    config = server.config(server.make_bucket())
    with closing(S3ObjectStore(config)) as store:
        viewed = Viewed(store=store, layout=LAYOUT, parallelism=8)
        yield viewed, Place(uri=f"s3://{config.bucket}/{LAYOUT.view}", config=config)


def rows(*ids: int, **more: Any) -> pa.Table:
    count = len(ids)
    columns = {
        "id": pa.array(ids, pa.int64()),
        "amount": pa.array([None if n % 3 == 0 else Decimal(n) / 4 for n in ids], pa.decimal128(12, 2)),
        "at": pa.array([n * 1_000_001 for n in ids], pa.int64()).cast(pa.timestamp("us", "UTC")),
    }
    return pa.table(columns | {name: pa.array([value] * count) for name, value in more.items()})


def all_agree(viewed: Viewed, place: Place) -> None:
    wanted = viewed.rows(SLOTS)
    for name, engine in ENGINES.items():
        assert engine(place) == wanted, name


def test_every_engine_reads_what_is_committed(site: tuple[Viewed, Place]) -> None:
    """After each kind of change, across a checkpoint, and at an earlier version; the same rows as ours."""
    viewed, place = site
    viewed.pin(spark_schema(**PLAIN))
    for slot in range(10):
        viewed.append(slot, rows(slot, slot + 100))
    viewed.view.sync(SLOTS)
    all_agree(viewed, place)
    first = viewed.rows(SLOTS)

    viewed.append(1, rows(7))
    viewed.commit(2, [viewed.file(2, rows(8, 9))])
    viewed.commit(3, [])
    viewed.append(11, rows(10))
    viewed.view.sync(SLOTS)
    all_agree(viewed, place)

    viewed.pin(spark_schema(**GROWN))
    viewed.append(1, rows(12, tags=["a", None], Größe=0.1))
    viewed.view.sync([Slot(1)])
    all_agree(viewed, place)

    inner = [{"name": n, "type": "string", "nullable": True, "metadata": {}} for n in ("x", "y")]
    for fields in (inner[:1], inner):
        viewed.pin(spark_schema(**GROWN, place={"type": "struct", "fields": fields}))
        viewed.append(5, rows(14, place={field["name"]: "v" for field in fields}))
        viewed.view.sync([Slot(5)])
    for name, engine in ENGINES.items():
        found = [row["place"] for row in engine(place) if row["place"]]
        places = sorted(found, key=lambda value: value["y"] or "")
        assert places == [{"x": "v", "y": None}, {"x": "v", "y": "v"}], name
    viewed.commit(5, [])
    viewed.view.sync([Slot(5)])
    all_agree(viewed, place)

    for n in range(CHECKPOINT_VERSIONS):
        viewed.append(4, rows(n))
        viewed.view.sync([Slot(4)])
    assert any(name.endswith(".parquet") for name in viewed.log_objects())
    viewed.commit(4, [viewed.file(4, rows(13))])
    viewed.view.sync(SLOTS)
    all_agree(viewed, place)
    for name, engine in ENGINES.items():
        assert engine(place, version=0) == first, name


def test_a_sync_that_died_and_syncs_at_once(site: tuple[Viewed, Place]) -> None:
    """After the log's object was written; and four at a time, each of other slots and of some the same."""
    viewed, place = site
    viewed.pin(spark_schema(**PLAIN))
    viewed.append(1, rows(1))
    dying: Any = FaultyStore(viewed.store, at("put", Fault.CRASH_AFTER))
    with pytest.raises(CrashedError):
        Viewed(store=dying, layout=LAYOUT, pinned=viewed.pinned).view.sync(SLOTS)
    assert viewed.view.sync(SLOTS).versions == 0
    all_agree(viewed, place)

    for slot in SLOTS:
        viewed.append(slot, rows(slot))
    others = [Viewed(store=viewed.store, layout=LAYOUT, pinned=viewed.pinned) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        parts = [SLOTS[0:6], SLOTS[3:9], SLOTS[6:12], SLOTS]
        done = list(pool.map(lambda pair: pair[0].view.sync(pair[1]), zip(others, parts, strict=True)))
    assert sum(each.files_added for each in done) == len(SLOTS)
    all_agree(viewed, place)


def test_a_mapped_name_is_read_by_those_who_know_mapping(site: tuple[Viewed, Place]) -> None:
    """delta-rs and DuckDB do; Polars says that it does not, and reads it through delta-rs."""
    viewed, place = site
    viewed.pin(spark_schema(**PLAIN, **{"Order ID": "string"}))
    viewed.append(1, rows(1, **{"Order ID": "x"}))
    viewed.view.sync(SLOTS)
    wanted = viewed.rows(SLOTS)
    assert by_delta_rs(place) == wanted
    assert by_duckdb(place) == wanted
    with pytest.raises(Exception, match="column mapping"):
        pl.scan_delta(place.uri, storage_options=place.options).collect()
