"""The bucket-level assets of a source: a summary of its slots, and its quarantine. They follow by automation."""

import math
from collections.abc import Sequence
from typing import Any, Final

import dagster as dg

from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.orchestration.assets import SourceAssets
from s3notify_platform.orchestration.automation import follow_bucket
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.partitions import SOURCE_TAG
from s3notify_platform.table.commit import SlotCommit, SlotTable
from s3notify_platform.table.reader import read_slots

TOP: Final = 25
SHOWN_REJECTS: Final = 50
SHOWN_BYTES: Final = 80
BAR: Final = 40
AGES: Final = {
    "under a minute": 60.0,
    "under an hour": 3600.0,
    "under a day": 86_400.0,
    "under a week": 604_800.0,
    "older": math.inf,
}
"""Classes of age, in seconds since a slot's last commit."""


def build_summary(assets: SourceAssets) -> dg.AssetsDefinition:
    """`{source}_summary` and `{source}_quarantine`. Requests of `SlotTable.heads`, whatever the bucket holds."""
    common: dict[str, Any] = {
        "deps": [assets.name],
        "group_name": assets.group or assets.name,
        "owners": assets.owners,
        "tags": {SOURCE_TAG: assets.name},
        "automation_condition": follow_bucket(),
    }

    @dg.multi_asset(
        name=f"{assets.name}_bucket_level",
        specs=[
            dg.AssetSpec(
                f"{assets.name}_summary",
                description="Slots by rows and age of their last commit.",
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
        io: SlotIOManager = getattr(context.resources, assets.io_key)
        table = io.source.table()
        heads = [head for head in table.heads(io.source.location.all_slots()).values() if head is not None]
        summary: dg.MaterializeResult[None] = dg.MaterializeResult(
            asset_key=f"{assets.name}_summary", metadata=_summary(heads)
        )
        return summary, dg.MaterializeResult(
            asset_key=f"{assets.name}_quarantine", metadata=_quarantine(io, heads)
        )

    return bucket_level


def _summary(heads: Sequence[SlotCommit]) -> dict[str, Any]:
    now_ms = SYSTEM_CLOCK.wall_ms()
    records = [
        dg.TableRecord(
            {
                "slot": head.slot,
                "rows": head.rows,
                "files": len(head.files),
                "rejects": sum(file.rows for file in head.rejects),
                "generation": head.generation,
                "age_seconds": round((now_ms - head.created_ms) / 1000),
                "batch": head.batch,
            }
        )
        for head in sorted(heads, key=lambda head: -head.created_ms)[:TOP]
    ]
    metadata: dict[str, Any] = {
        "slots": len(heads),
        "dagster/row_count": sum(head.rows for head in heads),
        "files": sum(len(head.files) for head in heads),
        "rejects": sum(file.rows for head in heads for file in head.rejects),
        "bytes": sum(file.bytes for head in heads for file in head.files),
    }
    if heads:
        metadata["latest_slots"] = dg.MetadataValue.table(records)
        metadata["rows_by_age"] = dg.MetadataValue.table(_rows_by_age(heads, now_ms))
    return metadata


def _rows_by_age(heads: Sequence[SlotCommit], now_ms: int) -> list[dg.TableRecord]:
    """Slots and rows by the age of the slots' last commit; the bar is the share of the slots."""
    found = {name: [0, 0] for name in AGES}
    for head in heads:
        age_seconds = (now_ms - head.created_ms) / 1000
        of_age = found[next(name for name, limit in AGES.items() if age_seconds < limit)]
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
    shown: list[dg.TableRecord] = []
    for part in read_slots(table, [head.slot for head in holding], rejects=True):
        shown += [_reject(row) for row in part.table.to_pylist()[: SHOWN_REJECTS - len(shown)]]
        if len(shown) >= SHOWN_REJECTS:
            break
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
        keys = head.failing[: SHOWN_REJECTS - len(shown)]
        states = table.states(head, keys) if keys else {}
        shown += [
            dg.TableRecord({"key": key, "etag": states[key].etag, "reason": states[key].reason})
            for key in keys
            if key in states
        ]
    return shown


def _reject(row: dict[str, Any]) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "key": row["_key"],
            "offset": row["_offset"],
            "reason": row["reason"],
            "raw": (row["raw"] or b"")[:SHOWN_BYTES].decode("utf-8", "backslashreplace"),
            "etag": row["_etag"],
        }
    )
