"""The IO manager of a source: commits rounds of slots, reports them, acknowledges the batch, loads slots.

Dagster stores no data of this package. `SlotIOManager.commit` takes the rounds that a run has staged. `commit` follows
the steps of `engine.loop`, and adds the Dagster events. The order of these steps makes commits exactly-once. A
DataFrame that a user's asset returns is committed as one round in the same way (`handle_output`). An asset's input is
loaded from the packs of one snapshot, as one DataFrame.

The ingest step calls `commit` and yields no Output. Dagster stores the events of `handle_output` only at the end of
`handle_output`. If the step yielded an Output, Dagster would mark all partitions of the run as materialized, including
failed partitions.
"""

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

import dagster as dg
from dagster import DagsterEvent
from dagster_aws.s3 import S3Resource
from dagster_pyspark import PySparkResource
from pydantic import Field, PrivateAttr, create_model
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from s3notify_platform.engine.batch.traces import trace_batch
from s3notify_platform.engine.loop import Results, Round, close, commit_round, commit_rounds
from s3notify_platform.engine.values.results import SlotResult
from s3notify_platform.engine.values.withdrawal_guard import is_refusal
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_REASON
from s3notify_platform.kernel.setting import settings_of
from s3notify_platform.kernel.slots import Slot, partition_keys, slot_from_partition_key
from s3notify_platform.orchestration.acknowledgement import Acknowledgement
from s3notify_platform.orchestration.before_inputs import note_tables, noted_table
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
from s3notify_platform.source.build import build
from s3notify_platform.source.settings import SOURCE, DynamoSettings, TopicSizeSettings, topic_of, ungrouped
from s3notify_platform.source.source import Source
from s3notify_platform.spark.derive import staged_frame
from s3notify_platform.spark.load import LINEAGE, load_slots
from s3notify_platform.table.column_descriptions import comment_of
from s3notify_platform.table.pinned_schema import schema_of
from s3notify_platform.table.snapshot import Absent

FAILURE_TAG: Final = "s3notify/failure"
SECONDS_TAG: Final = "s3notify/seconds"
"""Tag of a run that has ended: the seconds of its phases, as JSON."""
TRACEBACKS: Final = "tracebacks"
"""Metadata of a run's failure: tracebacks, each with the slots that failed with this traceback."""
TRACES_SHOWN: Final = 8

_ABOUT_VALUES: Final = {
    "values_that_do_not_fit": "mismatches",
    "values_without_a_column": "unnamed",
    "rows_that_break_a_rule": "broken",
}

_Settings = create_model(
    "_Settings",
    __base__=(Checked, dg.ConfigurableIOManager),
    # The setting `commit` has another name here, because the IO manager has a method `commit`.
    **fields_of(settings_of(*SOURCE, TopicSizeSettings), renamed={"commit": "commit_mode"}),
)
"""A model with one field for each setting of a source."""


class RunFacts(Protocol):
    """Facts that a run reports about itself."""

    @property
    def batch(self) -> str:
        """The run's batch."""
        ...

    def phases(self) -> Mapping[str, float]:
        """Seconds of the run's phases so far, in order."""
        ...

    def summary(self, reporting: float) -> str:
        """The run in one line, at its end. `reporting`: seconds that reporting took."""
        ...

    def report(self, reporting: float, failed: Mapping[Slot, str]) -> Iterable[Event]:
        """The events to log at the run's end. `failed`: slots that were not committed, with the reason."""
        ...


class SlotIOManager(_Settings):  # type: ignore[misc,valid-type]
    """Reads and writes the `DataFrame`s of one source by slot, and has the source's settings.

    `s3`: a `NamedS3`, or an `S3Resource` without access keys, because keys cannot be sent to Spark (`reach_of`).
    `spark`: a `SlotSpark` or another resource with a `spark_session`. Sensors create the Spark resource too,
    but need no session, so the session should start on first use.
    """

    s3: dg.ResourceDependency[S3Resource]
    spark: dg.ResourceDependency[PySparkResource]
    dynamodb: dg.ResourceDependency[DynamoTables] = Field(default_factory=DynamoTables)
    _settled: Source | None = PrivateAttr(default=None)

    @property
    def source(self) -> Source:
        """The source as a value, with the credentials that the resources name, if any."""
        return self._settled or self._declared

    @property
    def _declared(self) -> Source:
        s3, keys = reach_of(self.s3)
        groups = {"s3": s3, "dynamodb": values_of(self.dynamodb, DynamoSettings)}
        return build(ungrouped(values_of(self, *SOURCE) | groups), keys=keys)

    @property
    def clients(self) -> SourceClients:
        """Clients for the source's keyspace, queue and ack chains."""
        return SourceClients(source=self.source, topic=topic_of(values_of(self, *SOURCE, TopicSizeSettings)))

    def settle_commit_mode(self) -> Source:
        """The source, after its commit mode is settled. Refuses a store that supports no commit mode.

        Cost: the requests of `Location.settle_commit_mode`.
        """
        # A commit mode that was settled before is not reused: the store may have changed since an earlier run of this
        # process.
        self._settled = self._declared.settle_commit_mode(self.clients.store)
        return self._settled

    # Loading

    def load(self, slots: Iterable[Slot], *, asset: str | None = None) -> DataFrame:
        """The committed rows in `slots`, from the source's table or from the slot asset `asset`, as one DataFrame."""
        return load_slots(self.spark.spark_session, self.source, slots, asset=self._derived(asset))

    def _derived(self, asset: str | None) -> str | None:
        """The slot asset of this name; None for the source's own table."""
        return None if asset == self.name else asset

    def load_input(self, context: dg.InputContext) -> Any:
        """The upstream rows in the slots of the run's partitions. An asset without partitions gets the rows of all
        slots.

        The input's annotation chooses the type. The default is a Spark DataFrame. A `pyarrow.Table`, a pandas or a
        Polars DataFrame is completely in this process's memory. `Changes` are the changes of the source's table since
        the asset's last materialization.
        """
        note_tables(context, self.source)
        if context.dagster_type.typing_type is Changes:
            if self._derived(asset := context.asset_key.path[-1]) is not None:
                raise UsageError(
                    f"input {context.name!r}: changes are kept only for sources, and {asset} is not a source"
                )
            return changes_for(context, self.source, self.spark.spark_session)
        if context.has_asset_partitions:
            slots = tuple(slot_from_partition_key(key, self.slots) for key in context.asset_partition_keys)
        else:
            slots = self.source.location.all_slots()
        return _as_annotated(self.load(slots, asset=context.asset_key.path[-1]), context)

    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        """Commits a slot-partitioned asset's DataFrame: its rows replace the rows of each slot of the run.

        A slot has a conflict if another run has committed the slot after this step loaded its first input from this
        source.
        """
        name, asset = context.asset_key.to_user_string(), context.asset_key.path[-1]
        if not context.has_asset_partitions:
            raise UsageError(f"{name}: this IO manager stores slot-partitioned assets only")
        if "_slot" not in obj.columns:
            raise UsageError(
                f"{name}: the returned DataFrame lacks _slot, which assigns rows to slots; keep that column"
            )
        slots = [slot_from_partition_key(key, self.slots) for key in context.asset_partition_keys]
        source = self.settle_commit_mode()
        # The call refuses a source table that is incomplete or was made with other settings.
        source.open_table(store=self.clients.store)
        before = noted_table(context, source, asset)
        staged = staged_frame(
            self.spark.spark_session, source, asset, obj, slots, batch=context.run_id, before=before
        )
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
        """Commits, reports and acknowledges the slots of a run, round by round. Fails at the end if slots failed.

        `run`: the facts about the run as a whole, to be reported. The order of steps is the same as in `commit_rounds`.
        A slot that fails only in a derived table counts as done for the source. So a failure of a derived table does
        not delay the slot's next change. Dagster's automation makes the derived slot again.

        Requests of a round: as for `commit_rounds`, and 1 GET and 1 PUT for the chain, for any number of slots. Slots
        that were not read completely also cost the requests of `SourceClients.ask_again`.
        """
        clients, reporting = self.clients, 0.0
        everything, whole = acknowledgement.batch.everything, Round(tables=iter(()))

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
                steps=acknowledgement,
                report=report,
                closes=not everything,
            ):
                whole.add(each)
        if everything:  # one stamp acknowledges all rounds
            close(whole, acknowledgement)
        failed = whole.failed()
        context.log.info(run.summary(reporting))
        took = {name: round(seconds, 3) for name, seconds in {**run.phases(), "report": reporting}.items()}
        context.instance.add_run_tags(
            context.run.run_id, {SECONDS_TAG: json.dumps(took), SOURCE_TAG: self.name}
        )
        batch, bad = acknowledgement.batch.batch or context.run.run_id, sum(map(len, failed.values()))
        trace_batch(self.name, batch, took, {"run": context.run.run_id, "slots_failed": bad})
        own = failed.get(self.name, {})
        reasons = {slot: result.reason for slot, result in own.items() if not result.ok}
        for event in run.report(reporting, reasons):
            context.op_execution_context.log_event(event)  # type: ignore[arg-type]
        if any(failed.values()):
            self._fail(context, failed)

    def _report(self, context: dg.AssetExecutionContext, done: Round, batch: str) -> None:
        """Logs the materializations of the committed slots, for each asset of the run."""
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
        # The events are logged slot by slot, because Dagster's automation may read them at any moment. So automation
        # seldom sees a slot that is made in only some assets of the run.
        log_events(context.op_execution_context, [event for slot in sorted(events) for event in events[slot]])

    def _provenance(self, asset: str, result: SlotResult) -> dict[str, str]:
        """The tags by which Dagster finds stale slots; empty if the code version is unknown.

        For the input of a derived slot, the tags have the source's data version, but not the id of the source's event,
        because an event has an id only after Dagster has stored the event.
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
        """Metadata of a slot: first the batch's results, then the slot's present content.

        The metadata names no keys, because `erase` cannot remove keys from Dagster's log.
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
            "rejected_records_in_quarantine": result.live_rejects,
            "failing_objects_in_quarantine": result.live_failing,
            **(
                {"quarantine": dg.MetadataValue.asset(dg.AssetKey(f"{self.name}_summary"))}
                if quarantined
                else {}
            ),
        }

    def _columns(self, asset: str) -> dg.TableSchema:
        """The columns of a table, from the snapshot that this process saw or committed last. No request."""
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
        """Stores the reason of a failure as a tag of the run, for the sensor and for people."""
        context.instance.add_run_tags(context.run.run_id, {FAILURE_TAG: reason[:MAX_REASON]})

    def _fail(self, context: dg.AssetExecutionContext, failed: Mapping[str, Results]) -> None:
        bad = sorted(set().union(*failed.values()))
        reasons: dict[str, str] = {}
        traces: dict[str, list[int]] = {}
        for asset, by_slot in failed.items():
            for slot, result in by_slot.items():
                if not result.ok:
                    reasons.setdefault(str(slot), result.reason)
                    if trace := result.first_trace:
                        traces.setdefault(trace, []).append(slot)
                if not has_partitions(context):
                    # Because of these events, the partition grid shows exactly these slots as failed, as soon as the
                    # run has failed.
                    planned = AssetMaterializationPlannedData(dg.AssetKey([asset]), partition=str(slot))
                    step = context.op_execution_context.get_step_execution_context().step.key
                    event = DagsterEvent.build_asset_materialization_planned_event(
                        context.job_name, step, planned
                    )
                    context.instance.report_dagster_event(event, run_id=context.run.run_id)
        first = next((one for one in reasons.values() if is_refusal(one)), next(iter(reasons.values())))
        self.note_reason(context, first)
        raise dg.Failure(
            f"{len(bad)} of the run's slots failed ({', '.join(partition_keys(bad)[:20])}); the others are "
            f"committed. First: {first}",
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


def with_resources(io: SlotIOManager, keys: Mapping[str, str]) -> dg.IOManagerDefinition:
    """A copy of `io`. In the copy, `spark`, `s3` or `dynamodb` is the project's own resource with the given key."""

    @dg.io_manager(required_resource_keys={*keys.values()})
    def given(context: dg.InitResourceContext) -> SlotIOManager:
        own = {"spark": io.spark, "s3": io.s3, "dynamodb": io.dynamodb}
        # The attributes of `context.resources` are not used: as an attribute, an `S3Resource` is already a boto3
        # client.
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
        f"input {context.name!r} is annotated as {kind}: use a DataFrame of pyspark, pandas or polars, or "
        "a pyarrow.Table"
    )
