"""Checks of a source that need no request to the store. A batch's run and the upkeep's sensor report the results.

Dagster ignores a check's result that is older than the asset's last materialization. An exception is a result from the
same run as the materialization. So each batch reports all checks.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import dagster as dg

from s3notify_platform.engine.batch.batches import SensorState
from s3notify_platform.engine.values.results import BatchResult
from s3notify_platform.explain.table_facts import TableFacts
from s3notify_platform.formats.rescue import EXTRA, MISSING, added
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.limits import OVERDUE_SECONDS
from s3notify_platform.kernel.texts import counted
from s3notify_platform.orchestration.dagster_internals import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)
from s3notify_platform.table.snapshot import Snapshot

Event = dg.AssetMaterialization | dg.AssetCheckEvaluation

COMPLETE: Final = "complete"
SETTLED: Final = "chains_settled"
QUARANTINE: Final = "quarantine"
SCHEMA: Final = "schema_changes"

VERSION: Final = "table_version"
"""Metadata of `schema_changes`: the table version for which the check was evaluated."""
SWEPT: Final = "swept"
"""Metadata of `complete`: the start time of the sweep that had the reported result."""
REPAIRED: Final = "repaired"
"""Metadata of `complete`: true if the sweep found only missed changes, which the next batch reads."""
EVALUATED: Final = frozenset(
    (AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED)
)
LOOKED_BACK: Final = 5
"""Maximum number of evaluations of `complete` that are read to find the last sweep's result. The newest
evaluation may have an older result, if a batch reported that result during the last sweep.
"""


def schema_evaluation(
    name: str, done: BatchResult, *, batch: str, rescued: bool, warning: Collection[str]
) -> dg.AssetCheckEvaluation:
    """The result of `schema_changes`: the fields that a batch added to the schema. The check fails if values did not
    fit their columns, or if rows break a rule of `expect_warn`. `rescued`: the source keeps such values in `_rescued`.
    `warning`: the names of the rules of `expect_warn`.
    """
    mismatches = added(each.mismatches for each in done.slots.values())
    every = added(each.broken for each in done.slots.values())
    broken = {rule: count for rule, count in every.items() if rule in warning}
    kept = (
        "The column `_rescued` keeps these values"
        if rescued
        else f"To see their records: `s3notify quarantine list {name}`"
    )
    found = []
    if broken:
        found.append(f"Rows that break a rule of `expect_warn`: {_counts(broken)}")
    if mismatches:
        columns = _counts(mismatches)
        found.append(f"Values that do not fit their columns: {columns}. {kept}{_retyping(name, mismatches)}")
    return dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey(name),
        check_name=SCHEMA,
        passed=not found,
        severity=dg.AssetCheckSeverity.WARN,
        description=". ".join(found) or None,
        metadata={
            VERSION: max((each.generation for each in done.slots.values()), default=0),
            "batch": batch,
            "added": dg.MetadataValue.json(dict(done.schema_added)),
            "mismatches": dg.MetadataValue.json(dict(mismatches)),
            "broken": dg.MetadataValue.json(broken),
        },
    )


def _counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in numbers.items())


def _retyping(name: str, paths: Collection[str]) -> str:
    """The sentence with the command that changes a type; "" if the only problem is that lines of CSV have too many or
    too few values.
    """
    typed = [path for path in paths if path not in {EXTRA, MISSING}]
    column = next((path for path in typed if re.fullmatch(r"\w+", path)), "COLUMN")
    return f". To change a type: `s3notify schema set {name} '{column} TYPE'`" if typed else ""


def quarantine_facts(name: str, snapshot: Snapshot | None) -> dict[str, Any]:
    """Arguments for the result of the check `quarantine`. The check fails while a record or an object of the snapshot
    is in quarantine. The result names no keys, because `erase` cannot remove keys from Dagster's log. Pure.
    """
    facts = TableFacts.of(snapshot)
    counts = {
        "failing object": facts.total(lambda slot: slot.failing),
        "rejected record": facts.total(lambda slot: slot.rejects),
    }
    shown = ", ".join(counted(n, what) for what, n in counts.items() if n)
    return {
        "asset_key": dg.AssetKey(name),
        "check_name": QUARANTINE,
        "passed": not shown,
        "severity": dg.AssetCheckSeverity.WARN,
        "description": f"In quarantine: {shown}; `s3notify quarantine list {name}` shows where and why"
        if shown
        else None,
        "metadata": {
            "failing_objects": counts["failing object"],
            "rejected_records": counts["rejected record"],
            "slots": sum(bool(slot.failing or slot.rejects) for slot in facts.slots.values()),
        },
    }


def overdue(state: SensorState, *, besides: str = "") -> list[str]:
    """The batches that have been open for more than `OVERDUE_SECONDS`, without the batch `besides`, which is ending
    now.
    """
    since_ms = SYSTEM_CLOCK.wall_ms() - OVERDUE_SECONDS * 1000
    return [batch.id for batch in state.open if batch.id != besides and batch.opened_ms < since_ms]


def chains_as_seen(name: str, state: SensorState, *, besides: str = "") -> dg.AssetCheckEvaluation:
    """The result of `chains_settled` from the sensor's last state. The check fails if a batch has been open for too
    long.
    """
    late = overdue(state, besides=besides)
    return dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey(name),
        check_name=SETTLED,
        passed=not late,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "open": sum(batch.id != besides for batch in state.open),
            "overdue": len(late),
            "overdue_batches": dg.MetadataValue.json(late[:20]),
        },
    )


def swept_whole(name: str, done: BatchResult, *, at_ms: int) -> dg.AssetCheckEvaluation:
    """The result of `complete` after a batch that compared the whole bucket and committed all changes."""
    return dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey(name),
        check_name=COMPLETE,
        passed=True,
        severity=dg.AssetCheckSeverity.WARN,
        description="A batch has compared the whole source, and committed all changes that it found.",
        metadata={
            SWEPT: dg.MetadataValue.timestamp((at_ms or SYSTEM_CLOCK.wall_ms()) / 1000),
            "objects_read": sum(each.objects for each in done.slots.values()),
        },
    )


def as_swept(instance: dg.DagsterInstance, name: str) -> dg.AssetCheckEvaluation | None:
    """The last sweep's result, to be reported again; None if there was no sweep, or if a sweep is running. Cost: 1 read
    of the check's history.

    A sweep announces the missed changes that it finds. Such changes alone let the sweep's own evaluation fail, but
    the result that is reported again passes.
    """
    key = dg.AssetCheckKey(dg.AssetKey(name), COMPLETE)
    history = instance.event_log_storage.get_asset_check_execution_history(key, limit=LOOKED_BACK)
    if history and history[0].status not in EVALUATED:
        run = instance.get_run_by_id(history[0].run_id)
        if run is not None and not run.is_finished:
            return None
    found = max(_evaluations(history), key=_swept_at, default=None)
    if found is None:
        return None
    repaired = bool(REPAIRED in found.metadata and found.metadata[REPAIRED].value)
    return dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey(name),
        check_name=COMPLETE,
        passed=found.passed or repaired,
        severity=found.severity,
        description=found.description,
        metadata=found.metadata,
    )


def _evaluations(history: Sequence[AssetCheckExecutionRecord]) -> list[Any]:
    every = (record.evaluation for record in history if record.status in EVALUATED)
    return [found for found in every if found is not None and SWEPT in found.metadata]


def _swept_at(found: dg.AssetCheckEvaluation) -> float:
    value = found.metadata[SWEPT].value
    return value if isinstance(value, float) else 0.0
