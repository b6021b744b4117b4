"""Builds a `Source` from settings by name, for YAML, flags, Spark's options and the IO manager's fields. Pure.

Each value is a text, like the value of an option, or has the type of its setting. Wrong names, wrong values and missing
values are refused with the same messages everywhere (`setting.values_in`).
"""

from collections.abc import Mapping
from typing import Any

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import given_of, values_in
from s3notify_platform.protocols.conditional_commit import LeaseSettings
from s3notify_platform.source.bucket_settings import Keys, bucket_of, platform_of, table_of, with_leases
from s3notify_platform.source.commit_settings import LeaseTimeSettings
from s3notify_platform.source.location import CommitMode, Location
from s3notify_platform.source.rules.row_predicate import RowPredicate
from s3notify_platform.source.settings import (
    LATEST,
    SETTINGS,
    InputSettings,
    LocationSettings,
)
from s3notify_platform.source.source import Input, Source
from s3notify_platform.table.clustered.cluster_order import Clustered
from s3notify_platform.table.latest.latest_definition import MODIFIED, Latest


def latest_of(values: Mapping[str, Any], slots: int) -> Latest | None:
    """Returns the definition of the newest-rows table; None if no setting asks for it.

    Raises `UsageError` if a setting for columns is missing.
    """
    given = {name: values.get(flat) or "" for name, flat in LATEST.items()}
    if not any(given.values()):
        return None
    columns = {name: _names(given[name]) for name in ("key", "order_by")}
    if missing := next((name for name, found in columns.items() if not found), None):
        raise UsageError(
            f"latest: {missing} is missing: name columns, like {{key: order_id, order_by: updated_at}}"
        )
    text = given["deleted_when"]
    try:
        deleted = RowPredicate.of(text) if text else None
    except UsageError as error:
        raise UsageError(f"latest: deleted_when {text!r} does not parse: {error}") from error
    return Latest(
        key=columns["key"], order_by=columns["order_by"], deleted_when=text, deleted=deleted, slots=slots
    )


def clustered_of(values: Mapping[str, Any]) -> Clustered | None:
    """Returns the definition of the clustered table; None if no setting asks for it."""
    columns = _names(values.get("cluster_by") or "")
    if not columns:
        return None
    size = {"file_bytes": values["cluster_file_bytes"]} if "cluster_file_bytes" in values else {}
    return Clustered(columns=columns, **size)


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


def build(given: Mapping[str, object], *, keys: Keys | None = None) -> Source:
    """Builds the source with these settings (`SETTINGS`); missing settings get their defaults. No request.

    If `keys` are given, they sign the requests to the buckets in place of the configured credentials. Raises
    `UsageError` with the setting, its wrong value and the values that are allowed.
    """
    values = values_in(given, SETTINGS)
    try:
        values = with_leases(values)
        times = {
            name.removeprefix("lease_"): time for name, time in given_of(values, LeaseTimeSettings).items()
        }
        bucket = bucket_of(values, keys)
        location = Location(
            platform=platform_of(values, bucket),
            records_table=table_of(values, "records_table"),
            **given_of(values, LocationSettings),
        )
        latest, read = latest_of(values, location.slots), given_of(values, InputSettings)
        if latest is not None and MODIFIED not in read.get("metadata_columns", ""):
            # The time of the object's last change breaks ties between rows.
            read["metadata_columns"] = ", ".join(filter(None, (read.get("metadata_columns"), MODIFIED)))
        return Source(
            location=location,
            input=Input(bucket=bucket, **read),
            latest=latest,
            clustered=clustered_of(values),
            commit=CommitMode(
                choice=values.get("commit", "auto"),
                lease_table=table_of(values, "lease_table"),
                leases=LeaseSettings(**times),
            ),
        )
    except UsageError as error:
        raise UsageError(f"source {values['name']!r}: {error}") from error
