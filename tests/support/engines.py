"""Three other engines, which read any version of a Delta table in a bucket, by default the newest."""

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import duckdb_extension_delta
import duckdb_extension_httpfs
import polars as pl
import pyarrow as pa

from s3notify_platform.stores.config import S3Config

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a table is, and the configuration of its bucket."""

    uri: str
    config: S3Config

    @property
    def options(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": str(self.config.endpoint_url),
            "AWS_ACCESS_KEY_ID": str(self.config.access_key_id),
            "AWS_SECRET_ACCESS_KEY": str(self.config.secret_access_key),
            "AWS_REGION": self.config.region,
            "AWS_ALLOW_HTTP": "true",
        }


def normal(rows: Iterable[Row]) -> list[Row]:
    """Rows in a fixed order, with values in Python's types, so that the results of engines can be compared."""

    def value(found: Any) -> Any:
        if isinstance(found, dt.datetime) and found.tzinfo is not None:
            return found.astimezone(dt.UTC)
        if isinstance(found, list) and found and all(isinstance(item, tuple) for item in found):
            return dict(found)
        return found

    cleaned = [{name: value(row[name]) for name in sorted(row)} for row in rows]
    return sorted(cleaned, key=lambda row: (row["_slot"], row.get("_key", ""), row.get("_offset", 0)))


def by_delta_rs(place: Place, version: int | None = None) -> list[Row]:
    table = deltalake.DeltaTable(place.uri, version=version, storage_options=place.options)
    query = deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t")
    return normal(pa.table(query.read_all()).to_pylist())


def by_polars(place: Place, version: int | None = None) -> list[Row]:
    found = pl.scan_delta(place.uri, version=version, storage_options=place.options)
    return normal(found.collect().rows(named=True))


def by_duckdb(place: Place, version: int | None = None) -> list[Row]:
    """The rows as DuckDB reads them, with extensions from PyPI; DuckDB checks their signatures."""
    with duckdb.connect() as connection:
        for module in (duckdb_extension_httpfs, duckdb_extension_delta):
            path = next(Path(module.__file__).parent.rglob("*.duckdb_extension"))
            connection.execute(f"LOAD '{path}'")
        host = str(place.config.endpoint_url).removeprefix("http://")
        connection.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{place.config.access_key_id}', ENDPOINT '{host}', "
            f"SECRET '{place.config.secret_access_key}', USE_SSL false, URL_STYLE 'path', "
            f"REGION '{place.config.region}')"
        )
        connection.execute("SET TimeZone = 'UTC'")
        at = "" if version is None else f", version => {version}"
        found = connection.execute(f"SELECT * FROM delta_scan('{place.uri}'{at})").to_arrow_table()
    return normal(found.to_pylist())


ENGINES: dict[str, Callable[..., list[Row]]] = {
    "delta-rs": by_delta_rs,
    "polars": by_polars,
    "duckdb": by_duckdb,
}
