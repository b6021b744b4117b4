"""The bucket-level assets of a source: the summary of its slots, its quarantine, Delta views, tags of its objects. They
follow by automation. Views are off unless `delta: true`, since each costs a run after each batch.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import dagster as dg
from dagster import RunsFilter

from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.explain.phases import stacked
from s3notify_platform.explain.slot_map import AGES, SlotMap, age_class
from s3notify_platform.ingest.batches import EVERYTHING, Failing
from s3notify_platform.ingest.tagging import tag_committed
from s3notify_platform.orchestration.automation import follow_bucket
from s3notify_platform.orchestration.dagster_internals import DATA_VERSION_TAG
from s3notify_platform.orchestration.io_manager import SECONDS_TAG, SlotIOManager
from s3notify_platform.orchestration.manual_jobs import sensor_state
from s3notify_platform.orchestration.partitions import BATCH_TAG, PART_TAG, SOURCE_TAG
from s3notify_platform.orchestration.source_assets import SourceAssets, step_failures
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotCommit, SlotTable
from s3notify_platform.table.reader import read_slots

TOP: Final = 25
BATCHES_SHOWN: Final = 20
RUNS_READ: Final = 60
SHOWN_REJECTS: Final = 50
SHOWN_BYTES: Final = 80
BAR: Final = 40


def build_summary(assets: SourceAssets) -> dg.AssetsDefinition:
    """`{source}_summary` and `{source}_quarantine`. Requests of `SlotTable.heads`, whatever the bucket holds."""
    common = {"deps": [assets.name], "automation_condition": follow_bucket(), **assets.spec}

    @dg.multi_asset(
        name=f"{assets.name}_bucket_level",
        specs=[
            dg.AssetSpec(
                f"{assets.name}_summary",
                description="Slots by rows and age of their last commit, those in flight and failing, and where the "
                "time of the last batches went.",
                kinds={"table"},
                **common,
            ),
            dg.AssetSpec(
                f"{assets.name}_quarantine",
                description="Records that could not be taken in, with key, offset and reason, and objects that "
                "could not be read. They block nothing; "
                f"`s3notify quarantine retry {assets.name}` or the job `{assets.name}_retry` has them read again.",
                kinds={"parquet"},
                **common,
            ),
        ],
        required_resource_keys={assets.io_key},
    )
    def bucket_level(
        context: dg.AssetExecutionContext,
    ) -> tuple[dg.MaterializeResult[None], dg.MaterializeResult[None]]:
        io = assets.io_of(context)
        table = io.source.table()
        heads = [head for head in table.heads(io.source.location.all_slots()).values() if head is not None]
        summary = _summary(heads, io.slots, _in_flight(io), _failing_slots(context.instance, io))
        return (
            dg.MaterializeResult(
                asset_key=f"{assets.name}_summary", metadata=summary | _batches(context.instance, io.name)
            ),
            dg.MaterializeResult(asset_key=f"{assets.name}_quarantine", metadata=_quarantine(io, heads)),
        )

    return bucket_level


def _in_flight(io: SlotIOManager) -> set[Slot]:
    """The slots that open batches have not acknowledged."""
    found = {int(child) for chain in io.clients.chains.open_states() for child in chain.missing}
    return set(io.source.location.all_slots()) if EVERYTHING in found else {Slot(slot) for slot in found}


def _failing_slots(instance: dg.DagsterInstance, io: SlotIOManager) -> dict[Slot, Failing]:
    """The slots whose last batch did not commit them, as the sensor knows them."""
    state = sensor_state(instance, io.name)
    found = state.failing if state is not None else {}
    return {Slot(slot): one for slot, one in sorted(found.items()) if 0 <= slot < io.slots}


def _batches(instance: dg.DagsterInstance, source: str) -> dict[str, Any]:
    """The phases of the last batches, newest first, as a picture and as numbers."""
    found: dict[str, dict[str, float]] = {}
    for run in instance.get_runs(filters=RunsFilter(tags={SOURCE_TAG: source}), limit=RUNS_READ):
        if (seconds := run.tags.get(SECONDS_TAG)) and len(found) < BATCHES_SHOWN:
            part, batch = run.tags.get(PART_TAG, "1/1"), run.tags.get(BATCH_TAG, run.run_id[:8])
            found[batch if part == "1/1" else f"{batch} {part}"] = json.loads(seconds)
    if not found:
        return {}
    phases = dict.fromkeys(phase for seconds in found.values() for phase in seconds)
    rows = [
        dg.TableRecord({"batch": batch, **{phase: seconds.get(phase, 0.0) for phase in phases}})
        for batch, seconds in found.items()
    ]
    return {"batches": dg.MetadataValue.md(stacked(found)), "batch_seconds": dg.MetadataValue.table(rows)}


def _summary(
    heads: Sequence[SlotCommit], slots: int, in_flight: Collection[Slot], failing: Mapping[Slot, Failing]
) -> dict[str, Any]:
    now_ms = SYSTEM_CLOCK.wall_ms()
    latest: list[dict[str, Any]] = [
        {
            "slot": head.slot,
            "rows": head.rows,
            "files": len(head.files),
            "rejects": sum(file.rows for file in head.rejects),
            "generation": head.generation,
            "age_seconds": round((now_ms - head.created_ms) / 1000),
            "batch": head.batch,
        }
        for head in sorted(heads, key=lambda head: -head.created_ms)[:TOP]
    ]
    metadata: dict[str, Any] = {
        "slots": len(heads),
        "dagster/row_count": sum(head.rows for head in heads),
        "files": sum(len(head.files) for head in heads),
        "rejects": sum(file.rows for head in heads for file in head.rejects),
        "bytes": sum(file.bytes for head in heads for file in head.files),
    }
    metadata |= {"slots_in_flight": len(in_flight), "slots_failing": len(failing)}
    if failing:
        metadata["failing_slots"] = dg.MetadataValue.table(
            [
                dg.TableRecord({"slot": slot, "attempts": one.attempts, "reason": one.reason})
                for slot, one in islice(failing.items(), TOP)
            ]
        )
    if heads or in_flight or failing:
        metadata["slot_map"] = dg.MetadataValue.md(
            SlotMap(
                slots=slots,
                ages={head.slot: max(0, now_ms - head.created_ms) / 1000 for head in heads},
                rows={head.slot: head.rows for head in heads},
                in_flight=in_flight,
                failing=failing.keys() | {head.slot for head in heads if head.failing},
            ).markdown()
        )
    if heads:
        metadata["latest_slots"] = dg.MetadataValue.table([dg.TableRecord(each) for each in latest])
        metadata["rows_by_age"] = dg.MetadataValue.table(_rows_by_age(heads, now_ms))
    return metadata


def _rows_by_age(heads: Sequence[SlotCommit], now_ms: int) -> list[dg.TableRecord]:
    """Slots and rows by the age of the slots' last commit; the bar is the share of the slots."""
    found = {name: [0, 0] for name in AGES}
    for head in heads:
        age_seconds = (now_ms - head.created_ms) / 1000
        of_age = found[age_class(age_seconds)]
        of_age[0] += 1
        of_age[1] += head.rows
    return [
        dg.TableRecord(
            {"age": name, "slots": slots, "rows": rows, "share": "█" * round(BAR * slots / len(heads))}
        )
        for name, (slots, rows) in found.items()
    ]


def _quarantine(io: SlotIOManager, heads: Sequence[SlotCommit]) -> dict[str, Any]:
    table = io.source.table()
    holding = [head for head in heads if head.rejects]
    failing = [head for head in heads if head.failing]
    parts = read_slots(table, [head.slot for head in holding], rejects=True)
    rejects = islice((row for part in parts for row in part.table.to_pylist()), SHOWN_REJECTS)
    shown = [_reject(row) for row in rejects]
    metadata: dict[str, Any] = {
        "dagster/row_count": sum(file.rows for head in holding for file in head.rejects),
        "slots": len({head.slot for head in [*holding, *failing]}),
        "failing_objects": sum(len(head.failing) for head in failing),
        "retry_command": dg.MetadataValue.md(
            f"`s3notify quarantine retry {io.name} --all`, or the job `{io.name}_retry`"
        ),
    }
    if shown:
        metadata["rejects"] = dg.MetadataValue.table(shown)
    if failing:
        metadata["failing"] = dg.MetadataValue.table(_failing(table, failing))
    return metadata


def _failing(table: SlotTable, heads: Sequence[SlotCommit]) -> list[dg.TableRecord]:
    """The first of the objects that could not be read."""
    shown: list[dg.TableRecord] = []
    for head in heads:
        states = table.states(head, head.failing[: SHOWN_REJECTS - len(shown)])
        shown += [
            dg.TableRecord({"key": state.key, "etag": state.etag, "reason": state.reason})
            for state in states.values()
        ]
    return shown


def _reject(row: dict[str, Any]) -> dg.TableRecord:
    raw = (row["raw"] or b"")[:SHOWN_BYTES].decode("utf-8", "backslashreplace")
    shown = {"key": row["_key"], "offset": row["_offset"], "reason": row["reason"], "raw": raw}
    return dg.TableRecord(shown | {"etag": row["_etag"]})


def build_tags(assets: SourceAssets) -> list[dg.AssetsDefinition]:
    """`{source}_tags`, if committed objects are to be tagged."""
    if not assets.io.committed_tags:
        return []

    @dg.asset(
        name=f"{assets.name}_tags",
        deps=[assets.name],
        description=f"Tags of the objects of {assets.name!r} that are committed: {assets.io.committed_tags}. What is "
        "in quarantine has none.",
        kinds={"s3"},
        automation_condition=follow_bucket(),
        required_resource_keys={assets.io_key},
        group_name=assets.group or assets.name,
        owners=assets.owners,
        tags={SOURCE_TAG: assets.name},
    )
    def tags(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        with step_failures():
            done = tag_committed(assets.io_of(context).source, progress=context.log.info)
        if done.refused:
            context.log.warning("the store refused tags, like: %s", done.refused)
        return dg.MaterializeResult(metadata={"slots": done.slots, **done.counts})

    return [tags]


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
        automation_condition=follow_bucket(),
        required_resource_keys={assets.io_key},
        group_name=assets.group or assets.name,
        owners=assets.owners,
        tags={SOURCE_TAG: assets.name},
    )
    def view(context: dg.AssetExecutionContext, config: ViewConfig) -> dg.MaterializeResult[None]:
        io = assets.io_of(context)
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
    source = io.settle_commit_mode()
    location, asset = source.location, None if table == source.name else table
    view = source.view(asset)
    shown = view.generations()
    # Also if older than shown: the sync then reports that a person has to repair this slot.
    behind = [slot for slot, generation in reported.items() if generation != shown.get(slot, 0)]
    synced = view.sync(location.all_slots() if repair or not behind else behind, repair=repair)
    uri = f"s3://{location.platform.bucket}/{location.table_layout(asset).view}"
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


def _reported(instance: dg.DagsterInstance, table: str) -> dict[Slot, int]:
    """The generation of each slot, as reported to Dagster."""
    tags = instance.event_log_storage.get_latest_tags_by_partition(
        dg.AssetKey(table), dg.DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION_TAG]
    )
    versions = {slot: found.get(DATA_VERSION_TAG, "") for slot, found in tags.items() if slot}
    return {Slot(int(slot)): int(version) for slot, version in versions.items() if version.isdecimal()}
