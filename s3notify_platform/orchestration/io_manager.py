"""The IO manager of a source: commits rounds of slots, reports them, acknowledges the batch, loads slots back.

Dagster stores nothing of ours by value. `SlotIOManager.commit` takes the rounds that a run has staged, and adds what
only Dagster knows to the order that makes it exactly-once (`engine.loop`). A DataFrame that an asset of a user
returns is one round of the same (`handle_output`). The input of an asset is loaded from the packs of one snapshot, as
one DataFrame.

The ingest step calls `commit` and yields no Output. Dagster stores what `handle_output` yields only when it has ended,
and an Output would mark all partitions of its run as made, also those that failed.
"""

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol

import dagster as dg
from dagster import DagsterEvent
from dagster_aws.s3 import S3Resource
from dagster_pyspark import PySparkResource
from pydantic import Field, PrivateAttr, create_model
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from s3notify_platform.engine.batch.traces import trace_batch
from s3notify_platform.engine.loop import Results, Round, commit_round, commit_rounds
from s3notify_platform.engine.values.results import SlotResult, without_key
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_REASON
from s3notify_platform.kernel.setting import settings_of
from s3notify_platform.kernel.slots import Slot, partition_keys, slot_from_partition_key
from s3notify_platform.orchestration.acknowledgement import Acknowledgement
from s3notify_platform.orchestration.changes_input import Changes, changes_for
from s3notify_platform.orchestration.check_results import Event
from s3notify_platform.orchestration.dagster_internals import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    NULL_EVENT_POINTER,
    AssetMaterializationPlannedData,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
    log_events,
)
from s3notify_platform.orchestration.partitions import SOURCE_TAG, has_partitions
from s3notify_platform.orchestration.resources import DynamoTables, reach_of
from s3notify_platform.orchestration.setting_fields import Checked, fields_of, values_of
from s3notify_platform.orchestration.source_clients import SourceClients
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.source.build import build
from s3notify_platform.source.settings import QUEUE, SOURCE, DynamoSettings, TopicSizeSettings, ungrouped
from s3notify_platform.source.source import Source
from s3notify_platform.spark.derive import staged_frame
from s3notify_platform.spark.load import LINEAGE, load_slots
from s3notify_platform.table.column_descriptions import comment_of
from s3notify_platform.table.pinned_schema import schema_of
from s3notify_platform.table.snapshot import Absent

FAILURE_TAG: Final = "s3notify/failure"
SECONDS_TAG: Final = "s3notify/seconds"
"""Of a run that has ended: the seconds of its phases, as JSON."""
TRACEBACKS: Final = "tracebacks"
"""Of a run's failure: the tracebacks of its slots, each with the slots that failed with it."""
TRACES_SHOWN: Final = 8

_ABOUT_VALUES: Final = {
    "values_that_do_not_fit": "mismatches",
    "values_without_a_column": "unnamed",
    "rows_that_break_a_rule": "broken",
}

_Settings = create_model(
    "_Settings",
    __base__=(Checked, dg.ConfigurableIOManager),
    # `SlotIOManager.commit` is what commits.
    **fields_of(settings_of(*SOURCE, TopicSizeSettings), renamed={"commit": "commit_mode"}),
)
"""The settings of a source, a field for each."""


class RunFacts(Protocol):
    """What a run says of itself."""

    @property
    def batch(self) -> str:
        """The batch that it is of."""
        ...

    def phases(self) -> Mapping[str, float]:
        """The seconds of its phases so far, one after the other."""
        ...

    def summary(self, reporting: float) -> str:
        """In one line, at its end. `reporting`: seconds that reporting took."""
        ...

    def report(self, reporting: float, failed: Mapping[Slot, str]) -> Iterable[Event]:
        """What is to be logged at its end. `failed`: slots that were not committed, with the reason."""
        ...


class SlotIOManager(_Settings):  # type: ignore[misc,valid-type]
    """Everything Dagster needs of one source. `DataFrame`s in and out, by slot.

    `s3`: a `NamedS3`, or an `S3Resource` without keys: those given by value are refused when Spark has to use them.
    `spark`: a `SlotSpark`, or another that has a `spark_session`; sensors make it too, so it should start on first use.
    """

    s3: dg.ResourceDependency[S3Resource]
    spark: dg.ResourceDependency[PySparkResource]
    dynamodb: dg.ResourceDependency[DynamoTables] = Field(default_factory=DynamoTables)
    _settled: Source | None = PrivateAttr(default=None)

    @property
    def source(self) -> Source:
        """The source as a value, with the credentials that the resources name, if they name any."""
        return self._settled or self._declared

    @property
    def _declared(self) -> Source:
        s3, keys = reach_of(self.s3)
        groups = {"s3": s3, "dynamodb": values_of(self.dynamodb, DynamoSettings)}
        return build(ungrouped(values_of(self, *SOURCE) | groups), keys=keys)

    @property
    def clients(self) -> SourceClients:
        """What the other parts of the source talk to: keyspace, queue, ack chains."""
        topic = TopicSettings(
            **{name: getattr(self, f"queue_{name}") for name in QUEUE},
            slots=self.slots,
            signals=self.signals,
            bucket=self.bucket,
            prefix=self.prefix,
        )
        return SourceClients(source=self.source, topic=topic)

    def settle_commit_mode(self) -> Source:
        """The source, with how this process commits settled. Refuses a store that cannot do it.

        Requests as `Location.settle_commit_mode` has: 1 GET, the first time about 50.
        """
        # Not of what an earlier run of this process has settled: in the meantime the store may be another.
        self._settled = self._declared.settle_commit_mode(self.clients.store)
        return self._settled

    # Loading

    def load(self, slots: Iterable[Slot], *, asset: str | None = None) -> DataFrame:
        """Committed rows of `slots` of the source's table, or of the slot asset `asset`, as one DataFrame."""
        return load_slots(self.spark.spark_session, self.source, slots, asset=self._derived(asset))

    def _derived(self, asset: str | None) -> str | None:
        """The slot asset of this name; None for the source's own table."""
        return None if asset == self.name else asset

    def load_input(self, context: dg.InputContext) -> Any:
        """The upstream slots of the run's partitions; all slots for an asset without partitions.

        As the input is annotated: a Spark DataFrame (also without annotation); a `pyarrow.Table`, a pandas or a Polars
        DataFrame, which are whole in this process's memory; `Changes` of the source's table since the asset's last
        materialization.
        """
        if context.dagster_type.typing_type is Changes:
            if self._derived(asset := context.asset_key.path[-1]) is not None:
                raise UsageError(f"input {context.name!r}: {asset} is no source, whose changes are kept")
            return changes_for(context, self.source, self.spark.spark_session)
        if context.has_asset_partitions:
            slots = tuple(slot_from_partition_key(key, self.slots) for key in context.asset_partition_keys)
        else:
            slots = self.source.location.all_slots()
        return _as_annotated(self.load(slots, asset=context.asset_key.path[-1]), context)

    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        """Commit a slot-partitioned asset's DataFrame: each of the run's slots is replaced by its rows in it."""
        name, asset = context.asset_key.to_user_string(), context.asset_key.path[-1]
        if not context.has_asset_partitions:
            raise UsageError(f"{name}: this IO manager stores slot-partitioned assets only")
        if "_slot" not in obj.columns:
            raise UsageError(f"{name}: drops _slot, which says where a row belongs; keep it")
        slots = {slot_from_partition_key(key, self.slots): 0 for key in context.asset_partition_keys}
        source = self.settle_commit_mode()
        # Refused, if the source's table is not whole or of other settings.
        source.open_table(store=self.clients.store)
        staged = staged_frame(self.spark.spark_session, source, asset, obj, slots, batch=context.run_id)
        round_ = Round(tables=iter([staged]))
        commit_round(round_)
        results = round_.results[asset]
        if failed := [results[slot] for slot in round_.bad()]:
            raise dg.Failure(
                f"{len(failed)} slots were not committed; slot {failed[0].slot}: {failed[0].error}"
            )
        context.add_output_metadata({"rows": sum(r.rows for r in results.values()), "slots": len(results)})

    # Committing

    def commit(
        self,
        context: dg.AssetExecutionContext,
        rounds: Iterable[Round],
        acknowledgement: Acknowledgement,
        run: RunFacts,
    ) -> None:
        """Commit, report and acknowledge the slots of a run, round by round; at the end, fail for those at fault.

        `run`: what is reported of it as a whole. The order is that of `commit_rounds`. A slot that fails in a derived
        table alone is done with, as far as the source is concerned: its next change is not delayed, and automation
        makes the derived slot again.

        Requests of a round: those of `commit_rounds`; 1 GET and 1 PUT for the chain, however many
        slots; `SourceClients.ask_again` for slots that were not ingested whole.
        """
        clients, reporting = self.clients, 0.0
        failed: dict[str, Results] = {}

        def report(done: Round) -> None:
            nonlocal reporting
            began = SYSTEM_CLOCK.monotonic()
            self._report(context, done, run.batch)
            reporting += SYSTEM_CLOCK.monotonic() - began

        with ThreadPoolExecutor(1, "room") as beside:
            for each in commit_rounds(
                rounds,
                queue=clients.queue,
                beside=beside,
                report=report,
                ask_again=partial(clients.ask_again, listing=acknowledgement.opened.listing),
                settle=acknowledgement.stamp,
            ):
                for name, results in each.failed().items():
                    failed.setdefault(name, {}).update(results)
        acknowledgement.finish()
        context.log.info(run.summary(reporting))
        took = {name: round(seconds, 3) for name, seconds in {**run.phases(), "report": reporting}.items()}
        context.instance.add_run_tags(
            context.run.run_id, {SECONDS_TAG: json.dumps(took), SOURCE_TAG: self.name}
        )
        batch, bad = acknowledgement.batch.batch or context.run.run_id, sum(map(len, failed.values()))
        trace_batch(self.name, batch, took, {"run": context.run.run_id, "slots_failed": bad})
        own = failed.get(self.name, {})
        reasons = {slot: _reason(result) for slot, result in own.items() if not result.ok}
        for event in run.report(reporting, reasons):
            context.op_execution_context.log_event(event)  # type: ignore[arg-type]
        if any(failed.values()):
            self._fail(context, failed)

    def _report(self, context: dg.AssetExecutionContext, done: Round, batch: str) -> None:
        """Log the materializations of the slots that are committed, in each asset of the run."""
        events: dict[Slot, list[dg.AssetMaterialization]] = {}
        for asset, results in done.results.items():
            reported = [result for _, result in sorted(results.items()) if result.ok]
            for result in reported:
                metadata = self._metadata(result) | {"batch": batch}
                if result is reported[-1]:
                    metadata["dagster/column_schema"] = self._columns(asset)
                event = dg.AssetMaterialization(
                    asset_key=asset,
                    partition=str(result.slot),
                    metadata=metadata,
                    tags={DATA_VERSION_TAG: str(result.generation), **self._provenance(asset, result)},
                )
                events.setdefault(result.slot, []).append(event)
        # Slot by slot: automation, which looks at any moment, finds a slot made in all assets or in none.
        log_events(context.op_execution_context, [event for slot in sorted(events) for event in events[slot]])

    def _provenance(self, asset: str, result: SlotResult) -> dict[str, str]:
        """The tags by which Dagster finds slots that other code has made; none if the code is not known.

        What a derived slot was made from is named by its version alone: its event has no id before it is stored.
        """
        if not result.made_by:
            return {}
        tags = {CODE_VERSION_TAG: result.made_by}
        if self._derived(asset) is not None:
            source = dg.AssetKey(self.name)
            tags[get_input_data_version_tag(source)] = str(result.source)
            tags[get_input_event_pointer_tag(source)] = NULL_EVENT_POINTER
        return tags

    def _metadata(self, result: SlotResult) -> dict[str, Any]:
        """Of a slot: what the batch did to it, then what it holds now. It names no keys, which `erase` could not take
        back.
        """
        quarantined = result.live_rejects or result.live_failing
        return {
            "outcome": result.status,
            "table_version": result.generation,
            "objects_read": result.objects,
            "bytes_read": result.bytes,
            "records_read": result.rows,
            "records_rejected": result.rejects,
            "objects_quarantined": len(result.quarantined),
            "objects_removed": result.gone,
            "objects_without_records": result.without_records,
            **{name: n for name, of in _ABOUT_VALUES.items() if (n := sum(getattr(result, of).values()))},
            "read_to_the_end": result.complete,
            "dagster/partition_row_count": result.live_rows,
            "records_in_quarantine": result.live_rejects,
            "objects_in_quarantine": result.live_failing,
            **(
                {"quarantine": dg.MetadataValue.asset(dg.AssetKey(f"{self.name}_summary"))}
                if quarantined
                else {}
            ),
        }

    def _columns(self, asset: str) -> dg.TableSchema:
        """The columns of a table, as this process has just seen or committed them. No request."""
        derived = self._derived(asset)
        table = self.source.table(derived)
        found = table.memory.kept() or table.newest()
        by_slot = self.source.location.is_derived(derived)
        pinned = None if isinstance(found, Absent) else schema_of(found.metadata, derived=by_slot)
        rows = StructType.fromJson(json.loads(pinned.rows)) if pinned else StructType()
        lineage = LINEAGE.fields[: 1 if by_slot else None]
        return dg.TableSchema(
            [
                dg.TableColumn(field.name, field.dataType.simpleString(), comment_of(field.jsonValue()))
                for field in (*lineage, *rows.fields)
            ]
        )

    def note_reason(self, context: dg.AssetExecutionContext, reason: str) -> None:
        """Put the reason of a failure where the sensor, and a person who looks at the run, finds it."""
        context.instance.add_run_tags(context.run.run_id, {FAILURE_TAG: reason[:MAX_REASON]})

    def _fail(self, context: dg.AssetExecutionContext, failed: Mapping[str, Results]) -> None:
        bad = sorted(set().union(*failed.values()))
        reasons: dict[str, str] = {}
        traces: dict[str, list[int]] = {}
        for asset, by_slot in failed.items():
            for slot, result in by_slot.items():
                if not result.ok:
                    reasons.setdefault(str(slot), _reason(result))
                    if found := [without_key(trace, key) for key, trace in result.every_trace.items()][:1]:
                        traces.setdefault(found[0], []).append(slot)
                if not has_partitions(context):
                    # So that the partition grid shows exactly these as failed, as soon as the run has failed.
                    planned = AssetMaterializationPlannedData(dg.AssetKey([asset]), partition=str(slot))
                    step = context.op_execution_context.get_step_execution_context().step.key
                    event = DagsterEvent.build_asset_materialization_planned_event(
                        context.job_name, step, planned
                    )
                    context.instance.report_dagster_event(event, run_id=context.run.run_id)
        first = next(iter(reasons.values()))
        self.note_reason(context, first)
        raise dg.Failure(
            f"{len(bad)} of the run's slots failed ({', '.join(partition_keys(bad)[:20])}); "
            f"the others are committed. First: {first}",
            metadata={
                "failed_slots": dg.MetadataValue.json(reasons),
                TRACEBACKS: dg.MetadataValue.json(
                    [
                        {"slots": slots, "traceback": trace}
                        for trace, slots in [*traces.items()][:TRACES_SHOWN]
                    ]
                ),
            },
            allow_retries=False,
        )


def _reason(result: SlotResult) -> str:
    """Why a slot was not committed, without keys."""
    if result.error or not result.unread:
        return result.error or result.status
    first, *more = dict.fromkeys(without_key(reason, key) for key, reason in result.unread.items())
    others = f"; and for {len(more)} other reasons" if more else ""
    return f"{len(result.unread)} of its objects could not be read: {first}{others}"


def with_resources(io: SlotIOManager, keys: Mapping[str, str]) -> dg.IOManagerDefinition:
    """`io` with the project's own resources of these keys as its `spark`, `s3` or `dynamodb`."""

    @dg.io_manager(required_resource_keys={*keys.values()})
    def given(context: dg.InitResourceContext) -> SlotIOManager:
        own = {"spark": io.spark, "s3": io.s3, "dynamodb": io.dynamodb}
        # Not the attributes of `resources`: an `S3Resource` is a client of boto3 there.
        found = {part: context.resources.original_resource_dict[key] for part, key in keys.items()}
        return SlotIOManager(**values_of(io, *SOURCE, TopicSizeSettings), **own | found)

    return given


def _as_annotated(found: DataFrame, context: dg.InputContext) -> Any:
    kind = context.dagster_type.typing_type
    module, name = (getattr(kind, "__module__", "").partition(".")[0], getattr(kind, "__name__", ""))
    match module, name:
        case "pyarrow", "Table":
            return found.toArrow()
        case "pandas", "DataFrame":
            return found.toPandas()
        case "polars", "DataFrame":
            import polars as pl

            return pl.from_arrow(found.toArrow())
        case ("pyspark", "DataFrame") | ("typing", "Any"):
            return found
    raise UsageError(
        f"input {context.name!r} is annotated as {kind}: rows are given as a DataFrame of pyspark, pandas or "
        "polars, or as a pyarrow.Table"
    )
