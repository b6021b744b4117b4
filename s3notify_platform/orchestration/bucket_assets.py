"""The bucket-level assets of a source: the summary of its slots, its quarantine, tags of its objects. They follow by
automation.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import dagster as dg
from dagster import RunsFilter

from s3notify_platform.engine.batch.batches import EVERYTHING, Failing
from s3notify_platform.explain.phases import stacked
from s3notify_platform.explain.slot_map import AGES, SlotMap, age_class
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.tagging import tag_committed
from s3notify_platform.orchestration.automation import follow_bucket
from s3notify_platform.orchestration.io_manager import SECONDS_TAG, SlotIOManager
from s3notify_platform.orchestration.manual_jobs import sensor_state
from s3notify_platform.orchestration.partitions import BATCH_TAG, PART_TAG, SOURCE_TAG
from s3notify_platform.orchestration.source_assets import SourceAssets, step_failures
from s3notify_platform.table.arrow_schema import REJECT_SCHEMA
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import SlotFacts
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.snapshot import Snapshot
from s3notify_platform.table.versions import changed_at, note_of

TOP: Final = 25
BATCHES_SHOWN: Final = 20
RUNS_READ: Final = 60
SHOWN_REJECTS: Final = 50
SHOWN_BYTES: Final = 80
BAR: Final = 40


def build_summary(assets: SourceAssets) -> dg.AssetsDefinition:
    """`{source}_summary` and `{source}_quarantine`.

    Requests of `LogTable.newest` and 1 LIST for each 1000 versions of the table; 1 GET for each version that is named,
    at most `TOP`; those of `StateReader.failing` and of `read_slots` for what is shown of the quarantine.
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
        io = assets.io_of(context)
        table = io.source.table()
        found = table.newest()
        snapshot = found if isinstance(found, Snapshot) else None
        summary = _summary(table, snapshot, io.slots, _in_flight(io), _failing_slots(context.instance, io))
        return (
            dg.MaterializeResult(
                asset_key=f"{assets.name}_summary", metadata=summary | _batches(context.instance, io.name)
            ),
            dg.MaterializeResult(
                asset_key=f"{assets.name}_quarantine", metadata=_quarantine(io, table, snapshot)
            ),
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
    table: LogTable,
    snapshot: Snapshot | None,
    slots: int,
    in_flight: Collection[Slot],
    failing: Mapping[Slot, Failing],
) -> dict[str, Any]:
    now_ms = SYSTEM_CLOCK.wall_ms()
    changed = changed_at(table.reader, snapshot) if snapshot else {}
    facts = {slot: snapshot.manifest.slot(slot) for slot in changed} if snapshot else {}
    ages = {slot: max(0, now_ms - changed_ms) / 1000 for slot, changed_ms in changed.items()}
    packs = [*snapshot.packs.values(), *snapshot.manifest.rejects] if snapshot else []
    metadata: dict[str, Any] = {
        "slots": len(facts),
        "dagster/row_count": sum(each.rows for each in facts.values()),
        "files": len(packs),
        "rejects": sum(each.rejects for each in facts.values()),
        "bytes": sum(pack.size for pack in packs),
        "version": snapshot.version if snapshot else 0,
    }
    metadata |= {"slots_in_flight": len(in_flight), "slots_failing": len(failing)}
    if failing:
        metadata["failing_slots"] = dg.MetadataValue.table(
            [
                dg.TableRecord({"slot": slot, "attempts": one.attempts, "reason": one.reason})
                for slot, one in islice(failing.items(), TOP)
            ]
        )
    if facts or in_flight or failing:
        metadata["slot_map"] = dg.MetadataValue.md(
            SlotMap(
                slots=slots,
                ages=ages,
                rows={slot: each.rows for slot, each in facts.items()},
                in_flight=in_flight,
                failing=failing.keys() | {slot for slot, each in facts.items() if each.failing},
            ).markdown()
        )
    if facts:
        metadata["latest_slots"] = dg.MetadataValue.table(_latest(table, facts, changed, now_ms))
        metadata["rows_by_age"] = dg.MetadataValue.table(_rows_by_age(facts, ages))
    return metadata


def _latest(
    table: LogTable, facts: Mapping[Slot, SlotFacts], changed: Mapping[Slot, int], now_ms: int
) -> list[dg.TableRecord]:
    """The slots that were changed last, with the batches that did it, as far as their versions are kept."""
    latest = [slot for slot in sorted(facts, key=lambda slot: -facts[slot].generation) if changed[slot]][:TOP]
    versions = sorted({facts[slot].generation for slot in latest})
    bodies = dict(zip(versions, in_parallel(table.reader.version, versions, REQUESTS_IN_FLIGHT), strict=True))
    return [
        dg.TableRecord(
            {
                "slot": slot,
                "rows": facts[slot].rows,
                "rejects": facts[slot].rejects,
                "generation": facts[slot].generation,
                "age_seconds": round((now_ms - changed[slot]) / 1000),
                "batch": str(note_of(body, slot).get("batch", "")) if body is not None else "",
            }
        )
        for slot in latest
        for body in [bodies[facts[slot].generation]]
    ]


def _rows_by_age(facts: Mapping[Slot, SlotFacts], ages: Mapping[Slot, float]) -> list[dg.TableRecord]:
    """Slots and rows by the age of the slots' last commit; the bar is the share of the slots."""
    found = {name: [0, 0] for name in AGES}
    for slot, each in facts.items():
        of_age = found[age_class(ages[slot])]
        of_age[0] += 1
        of_age[1] += each.rows
    return [
        dg.TableRecord(
            {"age": name, "slots": slots, "rows": rows, "share": "█" * round(BAR * slots / len(facts))}
        )
        for name, (slots, rows) in found.items()
    ]


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
