"""The bucket-level assets of a source: the summary of its slots, its quarantine, tags of its objects. They follow by
automation.
"""

import json
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import dagster as dg
from dagster import RunsFilter

from s3notify_platform.explain.phases import stacked
from s3notify_platform.explain.source_status import SourceLook, SourceStatus
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.tagging import tag_committed
from s3notify_platform.orchestration.automation import follow_bucket
from s3notify_platform.orchestration.io_manager import SECONDS_TAG, SlotIOManager
from s3notify_platform.orchestration.manual_jobs import sensor_state
from s3notify_platform.orchestration.partitions import BATCH_TAG, PART_TAG, SOURCE_TAG
from s3notify_platform.orchestration.source_assets import SourceAssets, step_failures
from s3notify_platform.table.arrow_schema import REJECT_SCHEMA
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.snapshot import Snapshot

TOP: Final = 25
BATCHES_SHOWN: Final = 20
RUNS_READ: Final = 60
SHOWN_REJECTS: Final = 50
SHOWN_BYTES: Final = 80
BAR: Final = 40


def build_summary(assets: SourceAssets) -> dg.AssetsDefinition:
    """`{source}_summary` and `{source}_quarantine`.

    Requests of `SourceLook.look` and of `LogTable.newest`; those of `StateReader.failing` and of `read_slots` for what
    is shown of the quarantine.
    """
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
        io, instance = assets.io_of(context), context.instance
        codes = {name: code for name, code in assets.code_versions.items() if code}
        look = SourceLook(io.source, lambda: sensor_state(instance, io.name), queue=False, codes=codes)
        table = io.source.table()
        found = table.newest()
        snapshot = found if isinstance(found, Snapshot) else None
        return (
            dg.MaterializeResult(
                asset_key=f"{assets.name}_summary",
                metadata=_summary(look.read()) | _batches(context.instance, io.name),
            ),
            dg.MaterializeResult(
                asset_key=f"{assets.name}_quarantine", metadata=_quarantine(io, table, snapshot)
            ),
        )

    return bucket_level


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


def _summary(status: SourceStatus) -> dict[str, Any]:
    """The same facts as `s3notify status` shows."""
    failures, slots = status.failures or (), status.map
    assert slots is not None, "an error is raised"
    metadata: dict[str, Any] = {
        "slots": status.committed_slots,
        "dagster/row_count": status.rows,
        "files": status.files,
        "rejects": status.rejects,
        "bytes": status.bytes,
        "version": max(0, status.version),
        "slots_in_flight": len(slots.in_flight),
        "slots_failing": len(failures),
        **{f"slots_stale_{table}": count for table, count in status.stale.items()},
    }
    if failures:
        metadata["failing_slots"] = dg.MetadataValue.table(
            [
                dg.TableRecord({"slot": one.slot, "attempts": one.attempts, "reason": one.reason})
                for one in failures[:TOP]
            ]
        )
    if slots.ages or slots.in_flight or slots.failing:
        metadata["slot_map"] = dg.MetadataValue.md(slots.markdown())
    if slots.ages:
        metadata["rows_by_age"] = dg.MetadataValue.table(
            [
                dg.TableRecord(
                    {"age": name, "slots": n, "rows": rows, "share": "█" * round(BAR * n / len(slots.ages))}
                )
                for name, (n, rows) in slots.by_age().items()
            ]
        )
    return metadata


def _quarantine(io: SlotIOManager, table: LogTable, snapshot: Snapshot | None) -> dict[str, Any]:
    facts = snapshot.manifest.slots if snapshot else {}
    holding = [slot for slot, each in facts.items() if each.rejects]
    failing = [slot for slot, each in facts.items() if each.failing]
    metadata: dict[str, Any] = {
        "dagster/row_count": sum(facts[slot].rejects for slot in holding),
        "slots": len({*holding, *failing}),
        "failing_objects": sum(facts[slot].failing for slot in failing),
        "retry_command": dg.MetadataValue.md(
            f"`s3notify quarantine retry {io.name} --all`, or the job `{io.name}_retry`"
        ),
    }
    if snapshot and holding:
        store = table.reader.store
        found = read_slots(store, table.layout, snapshot.manifest.rejects, holding, REJECT_SCHEMA)
        rejects = islice((row for batch in found for row in batch.to_pylist()), SHOWN_REJECTS)
        metadata["rejects"] = dg.MetadataValue.table([_reject(row) for row in rejects])
    if snapshot and failing:
        metadata["failing"] = dg.MetadataValue.table(_failing(table, snapshot, failing))
    return metadata


def _failing(table: LogTable, snapshot: Snapshot, slots: Sequence[Slot]) -> list[dg.TableRecord]:
    """The first of the objects that could not be read."""
    enough, count = 0, 0
    while enough < len(slots) and count < SHOWN_REJECTS:
        count += snapshot.manifest.slot(slots[enough]).failing
        enough += 1
    found = table.states.failing(snapshot.manifest.states, slots[:enough])
    states = (state for _, of_slot in sorted(found.items()) for state in of_slot.values())
    return [
        dg.TableRecord({"key": state.key, "etag": state.etag, "reason": state.reason})
        for state in islice(states, SHOWN_REJECTS)
    ]


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
