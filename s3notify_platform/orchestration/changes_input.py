"""An input of a user's asset with only the changes since the asset was last materialized.

    @dg.asset
    def totals(orders: Changes) -> None:
        if orders.full:  # begin again
            ...
        for row in orders.rows.toLocalIterator():  # _change_type: insert, delete
            ...

Changes are given exactly once. The metadata of the asset's materialization has the table version at which the given
changes end. Dagster stores this version and the materialization in one step. The changes of a failed run are given
again, together with newer changes. While a run of the asset has not ended, other runs of the asset fail before they are
given changes: otherwise two runs would be given the same changes, and both could succeed. An asset with effects outside
Dagster should store `until` together with these effects, and skip changes up to the stored version.

All rows are given as insertions the first time, in a Dagster backfill, and in a run with the tag `s3notify/changes:
full`. A person can set the tag in the launchpad.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg
from dagster import RunsFilter
from pyspark.sql import DataFrame, SparkSession

from s3notify_platform.kernel.errors import NotFoundError, UsageError
from s3notify_platform.orchestration.dagster_internals import AUTOMATION_CONDITION_TAG, BACKFILL_ID_TAG
from s3notify_platform.source.source import Source
from s3notify_platform.spark.load import columns_of, columns_of_changes, frame_of, newest
from s3notify_platform.spark.session import parallelism, ship_package
from s3notify_platform.table.row_changes import all_rows, row_changes
from s3notify_platform.table.snapshot import Snapshot
from s3notify_platform.table.versions import created_ms

CHANGES_TAG: Final = "s3notify/changes"
"""Tag of a run. If the tag's value is `full`, the assets of the run get all rows."""

REPORTED_AT_ONCE: Final = 8
"""The number of materializations that one query of Dagster's storage returns."""

METADATA_KEY: Final = "s3notify/changes/{}"
"""Metadata of a materialization: the version of the source's table at which the given changes end."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The changes of a source's table since an asset was last materialized. Annotate the asset's input with this class.

    `rows` has the table's columns and `change_columns.CHANGE_COLUMNS`: removed rows (`delete`) and added rows
    (`insert`). To update a copy, apply deletions first. Spark reads the rows only when it computes `rows`. `since`: the
    version after which the changes begin; None if `rows` has all rows. `until`: the version at which the changes end.
    `table`: the id of the table that has these versions.
    """

    rows: DataFrame
    table: str
    since: int | None
    until: int

    @property
    def full(self) -> bool:
        """True if `rows` has all rows of the table instead of its changes."""
        return self.since is None


def changes_for(context: dg.InputContext, source: Source, spark: SparkSession) -> Changes:
    """The changes for the asset of this step. Adds the last version of these changes to the metadata of the asset's
    materialization.

    `UsageError` if the changes are no longer kept, or if the table was created again; the message says how to get all
    rows. `UsageError` is also raised while another run of the asset has not ended. Cost: the requests of
    `LogTable.newest` and `row_changes`, or 1 GET if all rows are given.
    """
    step, key = context.step_context, METADATA_KEY.format(source.name)
    assets = step.assets_def
    if assets is None or assets.partitions_def is not None:
        raise UsageError(f"input {context.name!r}: only assets without partitions can be given changes")
    keys = sorted(assets.keys)
    _refuse_overlap(context.instance, step.run_id, keys)
    seen = None if is_full(step.run_tags) else _seen(context.instance, keys, key)
    ship_package(spark)
    found = newest(source)
    if seen is None:
        given = changes_of(source, spark, found, since=None)
    else:
        try:
            _check(seen, found.table, found.version)
            given = changes_of(source, spark, found, since=seen["until"])
        except (UsageError, NotFoundError) as error:
            raise UsageError(
                f"input {context.name!r}: {error}. To get all rows instead, run a backfill of the asset, or a run "
                f"with the tag {CHANGES_TAG}: full"
            ) from error
    note = {"table": given.table, "since": given.since, "until": given.until}
    for each in keys:
        step.add_asset_metadata({key: dg.MetadataValue.json(note)}, asset_key=each)
    return given


def changes_of(source: Source, spark: SparkSession, found: Snapshot, *, since: int | None) -> Changes:
    """The changes after the table version `since`, up to the snapshot `found`. If `since` is None: all rows of the
    snapshot.

    The errors and the cost are the same as for `row_changes`. Without `since`, the cost is only 1 GET.
    """
    reader, tasks = source.location.table().reader, 2 * parallelism(spark)
    shares: Any = (
        all_rows(found, at_ms=created_ms(reader, found.version), tasks=tasks)
        if since is None
        else row_changes(reader, since, found.version).shares(tasks=tasks)
    )
    columns = columns_of_changes(columns_of(source, found))
    rows = frame_of(spark, source, shares, columns)
    return Changes(rows=rows, table=found.table, since=since, until=found.version)


def is_full(tags: Mapping[str, str]) -> bool:
    """True if the assets of a run with these tags get all rows."""
    by_person = BACKFILL_ID_TAG in tags and AUTOMATION_CONDITION_TAG not in tags
    return by_person or tags.get(CHANGES_TAG) == "full"


def _refuse_overlap(instance: dg.DagsterInstance, run_id: str, keys: list[dg.AssetKey]) -> None:
    """Raises `UsageError` if another run that has started materializes one of these assets.

    If two runs overlap, the run that checks later sees the other run. The order in which the runs started is not used,
    because this order depends on clocks.
    """
    others = instance.get_runs(
        RunsFilter(statuses=[dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING])
    )
    for other in (run for run in others if run.run_id != run_id):
        planned = instance.get_records_for_run(
            other.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
        )
        theirs = {record.asset_key for record in planned.records}
        if both := [key for key in keys if key in theirs]:
            raise UsageError(
                f"run {other.run_id} materializes {both[0].to_user_string()} and has not ended: start this run again "
                "after that run has ended; if the process of that run is gone, terminate that run in the UI"
            )


def _seen(instance: dg.DagsterInstance, keys: list[dg.AssetKey], key: str) -> Mapping[str, Any] | None:
    """The table version up to which the step's assets have got changes; None if one of them never got changes."""
    found: list[Mapping[str, Any]] = []
    for each in keys:
        materialization = _newest_of_a_run(instance, each)
        value = materialization.metadata.get(key) if materialization is not None else None
        if not isinstance(value, dg.JsonMetadataValue) or not isinstance(value.data, Mapping):
            return None
        found.append(value.data)
    if any((each["table"], each["until"]) != (found[0]["table"], found[0]["until"]) for each in found):
        versions = ", ".join(
            f"{name.to_user_string()} {each['until']}" for name, each in zip(keys, found, strict=True)
        )
        raise UsageError(
            f"the assets of this step were given changes up to different versions ({versions}): materialize them "
            f"by a backfill, or in a run with the tag {CHANGES_TAG}: full"
        )
    return found[0] if found else None


def _newest_of_a_run(instance: dg.DagsterInstance, key: dg.AssetKey) -> dg.AssetMaterialization | None:
    """The asset's newest materialization by a run. Materializations that a person reports in the UI do not count: they
    say nothing about the changes that the asset was given.
    """
    cursor, more = None, True
    while more:
        found = instance.fetch_materializations(key, limit=REPORTED_AT_ONCE, cursor=cursor)
        for record in found.records:
            if record.run_id:
                return record.asset_materialization
        cursor, more = found.cursor, found.has_more
    return None


def _check(seen: Mapping[str, Any], table: str, version: int) -> None:
    if seen["table"] != table:
        raise UsageError(
            f"the asset was given changes of table {seen['table']}, which has been replaced by table {table}"
        )
    if seen["until"] > version:
        raise UsageError(
            f"the asset was given changes up to version {seen['until']}, and the newest version is {version}"
        )
