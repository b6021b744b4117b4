"""The IO manager of a source: commits slots conditionally, records what a run did, loads slots back.

Dagster stores nothing of ours by value. What an asset hands over is committed slot by slot in the table; what
an asset asks for is loaded from exactly the committed files, as one DataFrame.

An ingest run reports slot by slot itself (`record`), in this order: materialization events, then the stamp on
the batch's ack chain. A crash in between leaves the chain open, so the slots are asked for again, found
unchanged, and reported; the other way round a committed slot could stay unreported for good.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent
from dagster_aws.s3 import S3Resource
from pydantic import Field
from pyspark.sql import DataFrame

from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.errors import UsageError
from s3notify_platform.orchestration.partitions import SlotBatch
from s3notify_platform.orchestration.resources import SlotSpark
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.keyspace import Watcher, WatcherState, root_key, signal_body, signal_key
from s3notify_platform.slots import SLOT_COUNT, Slot, partition_keys, slot_from_partition_key
from s3notify_platform.spark.derive import replace_slots
from s3notify_platform.spark.ingest import SlotResult
from s3notify_platform.spark.load import load_slots
from s3notify_platform.spark.source import MAX_OBJECTS, Source
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.layout import Generation, TableLayout

FAILURE_TAG = "s3notify/failure"


class SlotIOManager(dg.ConfigurableIOManager):
    """Everything Dagster needs of one source. `DataFrame`s in and out, by slot."""

    s3: dg.ResourceDependency[S3Resource]
    spark: dg.ResourceDependency[SlotSpark]
    source_name: str = Field(description="Name of the source and of its ingest asset")
    bucket: str = Field(description="Bucket that is watched")
    prefix: str = Field(default="", description="Only keys that begin with it")
    format: str = Field(default="auto", description="jsonl, csv, parquet, text, binary, or auto (by suffix)")
    row_schema: str | None = Field(default=None, description="Columns as Spark DDL; inferred and pinned if missing")
    platform_bucket: str | None = Field(default=None, description="Bucket of the platform's own objects")
    platform_prefix: str = Field(default="", description="Prefix of the platform's own objects, ending in /")
    keyspace_prefix: str = Field(default="", description="Prefix of the signals; shared by all who write here")
    slots: int = Field(default=SLOT_COUNT, description="Slots of the keyspace, the same for all its parties")
    max_objects: int = Field(default=MAX_OBJECTS, description="Objects taken in at once")

    @property
    def source(self) -> Source:
        """The source as a value, with the credentials that the S3 resource names, if it names any."""
        return Source(
            name=self.source_name,
            bucket=self._config(self.bucket),
            prefix=self.prefix,
            format=self.format,
            schema=self.row_schema,
            platform=self._config(self.platform_bucket or self.bucket),
            platform_prefix=self.platform_prefix,
            keyspace_prefix=self.keyspace_prefix,
            slots=self.slots,
            max_objects=self.max_objects,
        )

    def _config(self, bucket: str) -> S3Config:
        return S3Config(
            bucket=bucket,
            region=self.s3.region_name or "us-east-1",
            endpoint_url=self.s3.endpoint_url,
            access_key_id=self.s3.aws_access_key_id,
            secret_access_key=self.s3.aws_secret_access_key,
            session_token=self.s3.aws_session_token,
        )

    @property
    def chains(self) -> AckChains:
        """The ack chains of this source's batches."""
        return AckChains(self.source.records(), clock=SYSTEM_CLOCK)

    def watcher(self, state: WatcherState | None = None) -> Watcher:
        """A watcher of this source's keyspace."""
        source = self.source
        return Watcher(
            S3ObjectStore(source.platform), prefix=source.keyspace_prefix, slots=source.slots, state=state
        )

    # Loading

    def load(
        self, slots: Iterable[Slot], *, asset: str | None = None, generations: Mapping[Slot, Generation] | None = None
    ) -> DataFrame:
        """Committed rows of `slots` of the source's table, or of the slot asset `asset`, as one DataFrame."""
        return load_slots(
            self.spark.spark_session, self.source, slots, layout=self._layout(asset), generations=generations
        )

    def _layout(self, asset: str | None) -> TableLayout | None:
        return None if asset in (None, self.source_name) else self.source.derived_layout(str(asset))

    def load_input(self, context: dg.InputContext) -> DataFrame:
        """The upstream slots of the run's partitions; all slots for an asset without partitions."""
        if context.has_asset_partitions:
            slots = tuple(slot_from_partition_key(key, self.slots) for key in context.asset_partition_keys)
        else:
            slots = self.source.all_slots()
        return self.load(slots, asset=context.asset_key.path[-1])

    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        """Commit a slot-partitioned asset's DataFrame: each of the run's slots is replaced by its rows in it."""
        if not context.has_asset_partitions:
            raise UsageError(f"{context.asset_key.to_user_string()}: this IO manager stores slot-partitioned assets only")
        slots = {slot_from_partition_key(key, self.slots): Generation(0) for key in context.asset_partition_keys}
        if "_slot" not in obj.columns:
            raise UsageError(f"{context.asset_key.to_user_string()}: drops _slot, which says where a row belongs; keep it")
        results = replace_slots(
            self.spark.spark_session, self.source, context.asset_key.path[-1], obj, slots, batch=context.run_id
        )
        if failed := [result for result in results.values() if not result.ok]:
            raise dg.Failure(f"{len(failed)} slots were not committed; slot {failed[0].slot}: {failed[0].error}")
        context.add_output_metadata({"rows": sum(r.rows for r in results.values()), "slots": len(results)})

    # Recording

    def record(
        self,
        context: dg.AssetExecutionContext,
        batch: SlotBatch,
        results: Mapping[str, Mapping[Slot, SlotResult]],
        batch_metadata: Mapping[str, Any],
    ) -> None:
        """Report and acknowledge the slots that are committed in all assets of the run; then fail for the others.

        `results` is by asset, the first one leading. Requests: 1 GET and 1 PUT for the chain, however many slots.
        """
        slots = sorted(set().union(*results.values()))
        good = [slot for slot in slots if all(by_slot[slot].ok for by_slot in results.values() if slot in by_slot)]
        bad = sorted(set(slots) - set(good))
        for asset, by_slot in results.items():
            for slot in good:
                if slot in by_slot:
                    extra = batch_metadata if slot == good[-1] else {}
                    context.log_event(self._materialization(asset, by_slot[slot], extra))
        if batch.batch:
            self._acknowledge(context, batch, good, bad)
        if bad:
            self._fail(context, results, bad)

    def _materialization(
        self, asset: str, result: SlotResult, batch_metadata: Mapping[str, Any]
    ) -> dg.AssetMaterialization:
        layout = self._layout(asset) or self.source.layout
        metadata: dict[str, Any] = {
            "generation": result.generation,
            "status": result.status,
            "objects": result.objects,
            "rows": result.rows,
            "rejects": result.rejects,
            "objects_gone": result.gone,
            "bytes": result.bytes,
            "place": dg.MetadataValue.url(self.place(f"{layout.prefix}data/slot={result.slot}/")),
        }
        if result.status == "committed":
            metadata |= {
                "files": result.live_files,
                "live_rejects": result.live_rejects,
                "dagster/partition_row_count": result.live_rows,
            }
        return dg.AssetMaterialization(
            asset_key=asset,
            partition=str(result.slot),
            metadata=metadata | dict(batch_metadata),
            tags={"dagster/data_version": str(result.generation)},
        )

    def place(self, prefix: str) -> str:
        """Where a person looks at objects below `prefix`: the AWS console, or the endpoint's own listing."""
        bucket = self.platform_bucket or self.bucket
        if self.s3.endpoint_url:
            return f"{self.s3.endpoint_url}/{bucket}?list-type=2&prefix={prefix}"
        return f"https://s3.console.aws.amazon.com/s3/buckets/{bucket}?prefix={prefix}"

    def _acknowledge(
        self, context: dg.AssetExecutionContext, batch: SlotBatch, good: list[Slot], bad: list[Slot]
    ) -> None:
        done: Iterable[int] = set(batch.slots).intersection(good)
        if batch.everything:
            # The enumeration is done; what failed in it is asked for again like any change, with backoff.
            self.ask_again(bad)
            done = batch.children
        if names := [str(slot) for slot in sorted(done)]:
            self.chains.stamp_children(batch.batch, names, operation_id=context.run_id)

    def ask_again(self, slots: Iterable[Slot]) -> None:
        """Signal slots, so that the next poll sees them as changed. 1 PUT each, and one for the root."""
        source = self.source
        store = S3ObjectStore(source.platform)
        names = [signal_key(source.keyspace_prefix, slot) for slot in slots]
        for name in [*names, root_key(source.keyspace_prefix)] if names else []:
            store.put(name, signal_body(SYSTEM_CLOCK))

    def _fail(
        self, context: dg.AssetExecutionContext, results: Mapping[str, Mapping[Slot, SlotResult]], bad: list[Slot]
    ) -> None:
        reasons: dict[str, str] = {}
        for asset, by_slot in results.items():
            for slot in bad:
                if slot not in by_slot:
                    continue
                result = by_slot[slot]
                if not result.ok:
                    reasons[str(slot)] = result.error or json.dumps(dict(result.failed_objects))
                if not context.has_partition_key_range:
                    # So that the partition grid shows exactly these as failed, as soon as the run has failed.
                    planned = AssetMaterializationPlannedData(dg.AssetKey([asset]), partition=str(slot))
                    event = DagsterEvent.build_asset_materialization_planned_event(
                        context.job_name, context.op_execution_context.get_step_execution_context().step.key, planned
                    )
                    context.instance.report_dagster_event(event, run_id=context.run_id)
        first = next(iter(reasons.values()))
        context.instance.add_run_tags(context.run_id, {FAILURE_TAG: first[:200]})
        raise dg.Failure(
            description=f"{len(bad)} of the run's slots failed ({', '.join(partition_keys(bad)[:20])}); the others are committed. First: {first}",
            metadata={"failed_slots": dg.MetadataValue.json(reasons)},
            allow_retries=False,
        )
