"""Makes sources with a test's settings and configurations, and copies of sources with a few other settings."""

from dataclasses import fields, replace
from typing import Any

from s3notify_platform.source.build import build
from s3notify_platform.source.source import Source
from s3notify_platform.stores.config import DynamoConfig, S3Config


def source_of(
    *,
    bucket: S3Config,
    platform: S3Config | None = None,
    records_table: DynamoConfig | None = None,
    lease_table: DynamoConfig | None = None,
    **settings: Any,
) -> Source:
    """A source as `build` makes it. The source's buckets and tables have these configurations."""
    tables = {"records_table": records_table, "lease_table": lease_table}
    named = {name: table.table for name, table in tables.items() if table is not None}
    made = build({"bucket": bucket.bucket} | named | settings)
    platform = platform or replace(bucket, bucket=made.location.platform.bucket)
    return replace(
        made,
        input=replace(made.input, bucket=bucket),
        location=replace(made.location, platform=platform, records_table=records_table),
        commit=replace(made.commit, lease_table=lease_table),
    )


def with_settings(source: Source, **changes: Any) -> Source:
    """The source with `changes`: settings of its location or of its input, or `latest`."""

    def of(value: Any) -> Any:
        return replace(value, **{f.name: changes.pop(f.name) for f in fields(value) if f.name in changes})

    own = {"latest": changes.pop("latest")} if "latest" in changes else {}
    changed = replace(source, location=of(source.location), input=of(source.input), **own)
    assert not changes, changes
    return changed
