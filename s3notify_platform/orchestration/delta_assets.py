"""The Delta views of a source's table and of its slot assets, as assets that follow by automation.

Off unless `delta: true`, since a view costs a run after each batch.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG

from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.orchestration.assets import SourceAssets
from s3notify_platform.orchestration.automation import follow_bucket
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.partitions import SOURCE_TAG
from s3notify_platform.orchestration.steps import step_failures
from s3notify_platform.slots import Slot
from s3notify_platform.table.delta.view import Synced


class ViewConfig(dg.Config):
    """`repair`: compare all files of the view with the table, even if its log is up to date."""

    repair: bool = False


def build_delta(assets: SourceAssets) -> list[dg.AssetsDefinition]:
    """`{source}_delta`, and one for each slot asset."""
    return [_view_asset(assets, name) for name in (assets.name, *(a.name for a in assets.slot_assets))]


def _view_asset(assets: SourceAssets, table: str) -> dg.AssetsDefinition:
    @dg.asset(
        name=f"{table}_delta",
        deps=[table],
        description=f"`{table}` as a Delta Lake table, for DuckDB, Polars, Spark and others: a log over the same "
        "Parquet files. One version shows whole slots.",
        kinds={"deltalake", "parquet"},
        group_name=assets.group or assets.name,
        owners=assets.owners,
        tags={SOURCE_TAG: assets.name},
        automation_condition=follow_bucket(),
        required_resource_keys={assets.io_key},
    )
    def view(context: dg.AssetExecutionContext, config: ViewConfig) -> dg.MaterializeResult[None]:
        io: SlotIOManager = getattr(context.resources, assets.io_key)
        started = SYSTEM_CLOCK.monotonic()
        with step_failures():
            metadata = _sync(io, table, _reported(context.instance, table), repair=config.repair)
        metadata["seconds"] = round(SYSTEM_CLOCK.monotonic() - started, 3)
        return dg.MaterializeResult(metadata=metadata)

    return view


def _sync(io: SlotIOManager, table: str, reported: Mapping[Slot, int], *, repair: bool) -> dict[str, Any]:
    """Update the slots that were reported since the last time; all slots if there are none, since then a person
    launched the run.

    Dagster's events name the committed slots, for 1 query instead of a request for each slot.
    """
    io.settle_commit_mode()
    source = io.source
    asset = None if table == source.name else table
    view = source.view(asset)
    shown = view.generations()
    # Also if older than shown: the sync then reports that a person has to repair this slot.
    behind = [slot for slot, generation in reported.items() if generation != shown.get(slot, 0)]
    synced = view.sync(source.location.all_slots() if repair or not behind else behind, repair=repair)
    return _metadata(
        synced, f"s3://{source.location.platform.bucket}/{source.location.table_layout(asset).view}"
    )


def _reported(instance: dg.DagsterInstance, table: str) -> dict[Slot, int]:
    """The generation of each slot, as reported to Dagster."""
    tags = instance.event_log_storage.get_latest_tags_by_partition(
        dg.AssetKey(table), dg.DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION_TAG]
    )
    versions = {slot: found.get(DATA_VERSION_TAG, "") for slot, found in tags.items() if slot}
    return {Slot(int(slot)): int(version) for slot, version in versions.items() if version.isdecimal()}


def _metadata(synced: Synced, uri: str) -> dict[str, Any]:
    if synced.version is None:
        return {"uri": uri, "note": "nothing has been committed yet: there is no Delta table"}
    how = (
        f"```sql\n-- DuckDB\nSELECT * FROM delta_scan('{uri}');\n```\n"
        f'```python\npolars.scan_delta("{uri}")\ndeltalake.DeltaTable("{uri}")\n'
        f'spark.read.format("delta").load("s3a{uri[2:]}")\n```'
    )
    return {
        "version": synced.version,
        "slots": synced.slots,
        "files_added": synced.files_added,
        "files_removed": synced.files_removed,
        "dagster/row_count": synced.rows,
        "dagster/uri": uri,
        "how_to_read": dg.MetadataValue.md(how),
    }
