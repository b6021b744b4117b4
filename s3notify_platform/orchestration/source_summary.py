"""The asset `{source}_summary`: for each batch, the batch's numbers, which Dagster plots, and the state of the slots
after the batch.

The asset has no run of its own. A batch's run reports the summary at the run's end. The upkeep's sensor reports the
summary if slots begin to fail or become stale without a batch. The summary names slots, but no keys, because Dagster's
log cannot be erased.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Final

import dagster as dg

from s3notify_platform.engine.batch.batches import EVERYTHING, SensorState
from s3notify_platform.engine.values.results import BatchResult
from s3notify_platform.explain.prices import dollars
from s3notify_platform.explain.slot_map import LEGEND, SlotMap
from s3notify_platform.explain.table_facts import TableFacts
from s3notify_platform.explain.version_times import VersionTimes
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.orchestration.source_assets import SourceAssets
from s3notify_platform.source.source import Source
from s3notify_platform.table.snapshot import Snapshot

TOP: Final = 25
"""Maximum number of rows in the tables of failing and of quarantined slots."""


def summary_spec(assets: SourceAssets) -> dg.AssetSpec:
    """The asset. Dagster never starts a run only for the summary, because such a run has nothing to report."""
    return dg.AssetSpec(
        f"{assets.name}_summary",
        deps=[assets.name],
        description="Plots for each batch: rows, objects, lag, seconds by phase, requests, and dollars for these "
        "requests at AWS's list prices. Counted: the requests that open, plan, read, stage and commit the source's "
        "own table, and the requests for queue, ack chain, heartbeats and backlog on the bucket. Not counted: "
        "the sensors' requests, other tables (slot assets, latest, clustered), tags, signals, and records in DynamoDB. "
        "After the last batch: the map of all slots, failing slots, and the quarantine, which blocks nothing. To list "
        "quarantined keys and reasons: `s3notify quarantine "
        f"list {assets.name} --objects`. To read them again: the job `{assets.name}_ingest` with `choose: "
        f"quarantine`, or `s3notify quarantine retry --all --name {assets.name}`.",
        kinds={"table"},
        **assets.spec,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumbers:
    """The numbers of one run of a batch. `lag_seconds`: the time from the first signal to the end of the run; None if
    nobody signalled.

    `requests`: the number of requests by kind. `summary_spec` says which requests are counted. `objects_derived`: the
    number of objects of the run's slots, if the run only makes slot assets from committed rows; 0 otherwise.
    """

    batch: str
    found_by: str
    done: BatchResult
    requests: Counter[str]
    read_again: int
    objects_derived: int
    phases: Mapping[str, float]
    seconds: float
    lag_seconds: float | None

    def metadata(self) -> dict[str, Any]:
        """Metadata of the summary. Dagster plots the numbers, batch by batch."""
        if self.objects_derived:
            return {"batch": self.batch, "batch_objects_derived": self.objects_derived}
        done, counts = self.done, self.done.counts()
        about_schema: dict[str, dict[str, Any]] = {}
        if done.schema_added:
            about_schema["batch_schema_added"] = dict(done.schema_added)
        for name in ("mismatches", "unnamed", "broken"):
            found: dict[str, int] = {}
            for each in done.slots.values():
                for path, count in getattr(each, name).items():
                    found[path] = found.get(path, 0) + count
            if found:
                about_schema[f"batch_{name}"] = found
        lag = {"batch_lag_seconds": round(self.lag_seconds, 3)} if self.lag_seconds is not None else {}
        return {
            "batch": self.batch,
            "batch_found_by": self.found_by,
            "batch_slots": len(done.slots),
            **{
                f"batch_{name}": counts[name]
                for name in ("objects", "bytes", "rows", "rejects", "objects_without_records")
            },
            "batch_objects_removed": counts["gone"],
            "batch_objects_read_again": self.read_again,
            "batch_queue_entries": sum(len(entries) for entries in done.entries.values()),
            "batch_unannounced": done.unannounced,
            "batch_spark_tasks": done.tasks,
            **lag,
            "batch_seconds": round(self.seconds, 3),
            **{f"batch_seconds_{phase}": round(took, 3) for phase, took in self.phases.items()},
            "batch_requests": self.requests.total(),
            **{f"batch_requests_{kind}": number for kind, number in sorted(self.requests.items())},
            "batch_dollars": dollars(self.requests),
            **{name: dg.MetadataValue.json(value) for name, value in about_schema.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNow:
    """The state of a source in one snapshot of its table. If the source has a sensor, the sensor's last tick is known,
    too.

    `batch`: the batch that has ended since the sensor's last tick; "" if no batch has ended since then. The slots of
    `batch` are in `done` or, with the reason, in `failed`. `created`: the versions that the batch created.
    """

    source: Source
    snapshot: Snapshot
    state: SensorState | None
    codes: Mapping[str, str] = field(default_factory=dict)
    batch: str = ""
    done: Collection[Slot] = ()
    failed: Mapping[Slot, str] = field(default_factory=dict)
    created: Collection[int] = ()

    @property
    def failing(self) -> Mapping[int, str]:
        """The failing slots, with the reason."""
        known = self.state.failing if self.state is not None else {}
        waiting = {slot: item.reason for slot, item in known.items() if slot not in self.done}
        return {**waiting, **{int(slot): reason for slot, reason in self.failed.items()}}

    def metadata(self) -> dict[str, Any]:
        """Metadata of the summary.

        Cost: at most `VERSIONS_TIMED` HEADs: 1 HEAD for each version that last changed a slot, unless this process
        already knows the version's time. Each slot asset also costs the requests of `LogTable.newest`.
        """
        facts = TableFacts.of(self.snapshot)
        failing, slots = self.failing, self._map(facts)
        quarantine = {
            slot: each for slot, each in sorted(facts.slots.items()) if each.rejects or each.failing
        }
        metadata: dict[str, Any] = {
            "dagster/row_count": facts.total(lambda slot: slot.rows),
            "table_version": facts.version,
            "table_files": facts.files,
            "table_bytes": facts.bytes,
            "slots_committed": len(facts.slots),
            "slots_in_flight": len(slots.in_flight),
            "slots_failing": len(slots.failing),
            **{
                f"slots_{what}_{table}": count
                for table, each in facts.outdated(self.source, self.codes).items()
                for what, count in asdict(each).items()
                if what == "stale" or table != self.source.name
            },
            "quarantine_rejected_records": facts.total(lambda slot: slot.rejects),
            "quarantine_failing_objects": facts.total(lambda slot: slot.failing),
        }
        if failing:
            rows = [
                dg.TableRecord({"slot": str(slot) if slot != EVERYTHING else "all", "reason": reason})
                for slot, reason in sorted(failing.items())[:TOP]
            ]
            metadata["failing_slots"] = dg.MetadataValue.table(rows)
        if quarantine:
            rows = [
                dg.TableRecord(
                    {"slot": slot, "failing_objects": each.failing, "rejected_records": each.rejects}
                )
                for slot, each in [*quarantine.items()][:TOP]
            ]
            metadata["quarantine"] = dg.MetadataValue.table(rows)
        # The map is last, because it is taller than all numbers together.
        legend = [dg.TableRecord({"sign": sign, "slot": meaning}) for sign, meaning in LEGEND.items()]
        metadata["slot_map_legend"] = dg.MetadataValue.table(legend)
        metadata["slot_map"] = dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in slots.table()])
        return metadata

    def _map(self, facts: TableFacts) -> SlotMap:
        now_ms, times = SYSTEM_CLOCK.wall_ms(), _times(self.snapshot.table)
        times.note(self.created, now_ms)
        opened = self.state.open if self.state is not None else ()
        asked = {slot for batch in opened if batch.id != self.batch for slot in batch.slots}
        every = self.source.location.all_slots()
        return facts.map(
            self.source.location.slots,
            times.of(self.source.table().reader, facts.generations),
            now_ms,
            in_flight=every if EVERYTHING in asked else {slot for slot in every if slot in asked},
            failing=self.failing,
        )


@lru_cache(maxsize=64)
def _times(table: str) -> VersionTimes:  # noqa: ARG001 - one object for each table
    return VersionTimes()
