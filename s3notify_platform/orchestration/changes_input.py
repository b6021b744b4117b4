"""An input of a user's asset that has only what changed since the asset was last materialized.

    @dg.asset
    def totals(orders: Changes) -> None:
        if orders.full:  # begin again
            ...
        for row in orders.rows.toLocalIterator():  # _change_type: insert, delete
            ...

Exactly once. The version up to which the asset was given changes is in the metadata of its materialization, as Dagster
commits it: a run that fails is given the same changes again, with what came since. Where the asset's effects are
elsewhere, `until` goes into their own commit: what has it already is not applied again.

All rows come at once, as insertions, the first time, in a backfill of Dagster, and in a run with the tag
`s3notify/changes: full`, which a launchpad can set.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg
from pyspark.sql import DataFrame, SparkSession

from s3notify_platform.kernel.errors import NotFoundError, UsageError
from s3notify_platform.orchestration.dagster_internals import AUTOMATION_CONDITION_TAG, BACKFILL_ID_TAG
from s3notify_platform.source.source import Source
from s3notify_platform.spark.load import columns_of, columns_of_changes, frame_of, newest
from s3notify_platform.spark.session import parallelism, ship_package
from s3notify_platform.table.row_changes import all_rows, row_changes
from s3notify_platform.table.versions import created_ms

CHANGES_TAG: Final = "s3notify/changes"
"""Tag of a run. `full`: its assets are given all rows."""

METADATA_KEY: Final = "s3notify/changes/{}"
"""Metadata of a materialization: the version of a source's table up to which its asset was given changes."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The changes of a source's table since an asset was last materialized, as its input is annotated.

    `rows` has the columns of the table and those of `row_changes.CHANGE_COLUMNS`: the rows that left (`delete`), and
    those that came (`insert`). To apply them to a copy: deletions first. They are read when `rows` is computed.
    `since`: None: they are all rows that are there. `until`: the version of the table `table` that they lead to.
    """

    rows: DataFrame
    table: str
    since: int | None
    until: int

    @property
    def full(self) -> bool:
        """Whether `rows` has all rows that are there, in place of what changed."""
        return self.since is None


def changes_for(context: dg.InputContext, source: Source, spark: SparkSession) -> Changes:
    """The changes for the asset of this step, and notes the version that it leads to with its materialization.

    `UsageError`: the changes are not kept any more, or the table was begun again: a full read is needed, and it says
    how to get one. Requests: those of `LogTable.newest` and `row_changes`; for all rows 1 GET.
    """
    step, key = context.step_context, METADATA_KEY.format(source.name)
    assets = step.assets_def
    if assets is None or assets.partitions_def is not None:
        raise UsageError(f"input {context.name!r}: changes are given to assets without partitions")
    keys = sorted(assets.keys)
    seen = None if is_full(step.run_tags) else _seen(context.instance, keys, key)
    ship_package(spark)
    found = newest(source)
    reader, tasks = source.location.table().reader, 2 * parallelism(spark)
    if seen is None:
        shares: Any = all_rows(found, at_ms=created_ms(reader, found.version), tasks=tasks)
    else:
        try:
            _check(seen, found.table, found.version)
            shares = row_changes(reader, seen["until"], found.version).shares(tasks=tasks)
        except (UsageError, NotFoundError) as error:
            raise UsageError(
                f"input {context.name!r}: {error}. To be given all rows instead: a backfill of the asset, or a run "
                f"with the tag {CHANGES_TAG}: full"
            ) from error
    columns = columns_of_changes(columns_of(source, found))
    given = Changes(
        rows=frame_of(spark, source, shares, columns),
        table=found.table,
        since=None if seen is None else seen["until"],
        until=found.version,
    )
    note = {"table": given.table, "since": given.since, "until": given.until}
    for each in keys:
        step.add_asset_metadata({key: dg.MetadataValue.json(note)}, asset_key=each)
    return given


def is_full(tags: Mapping[str, str]) -> bool:
    """Whether a run is to begin with all rows."""
    by_person = BACKFILL_ID_TAG in tags and AUTOMATION_CONDITION_TAG not in tags
    return by_person or tags.get(CHANGES_TAG) == "full"


def _seen(instance: dg.DagsterInstance, keys: list[dg.AssetKey], key: str) -> Mapping[str, Any] | None:
    """The version up to which the assets of a step were last given changes; None: one of them never was."""
    found: list[Mapping[str, Any]] = []
    for each in keys:
        event = instance.get_latest_materialization_event(each)
        materialization = event.asset_materialization if event is not None else None
        value = materialization.metadata.get(key) if materialization is not None else None
        if not isinstance(value, dg.JsonMetadataValue) or not isinstance(value.data, Mapping):
            return None
        found.append(value.data)
    if any((each["table"], each["until"]) != (found[0]["table"], found[0]["until"]) for each in found):
        versions = ", ".join(
            f"{name.to_user_string()} {each['until']}" for name, each in zip(keys, found, strict=True)
        )
        raise UsageError(
            f"the assets of this step were given changes up to different versions ({versions}): materialize them by a "
            f"backfill, or in a run with the tag {CHANGES_TAG}: full"
        )
    return found[0] if found else None


def _check(seen: Mapping[str, Any], table: str, version: int) -> None:
    if seen["table"] != table:
        raise UsageError(
            f"the asset was given changes of table {seen['table']}, in whose place there is {table}"
        )
    if seen["until"] > version:
        raise UsageError(
            f"the asset was given changes up to version {seen['until']}, and the newest is {version}"
        )
