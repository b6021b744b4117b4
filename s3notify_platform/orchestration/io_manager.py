"""The IO manager of a source: commits slots conditionally, records what a run did, loads slots back.

Dagster stores nothing of ours by value. What an asset hands over is committed slot by slot in the table; what
an asset asks for is loaded from exactly the committed files, as one DataFrame.

An ingest run reports slot by slot itself (`record`), in this order: materialization events, removal of the queue's
entries, then the stamp on the batch's ack chain. A crash in between leaves the chain open, so the slots are asked
for again, found unchanged, and reported; the other way round a committed slot could stay unreported for good.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent
from dagster_aws.s3 import S3Resource
from pydantic import Field, PrivateAttr, create_model
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from s3notify_platform.errors import NotFoundError, UsageError
from s3notify_platform.ingest.batches import REASON_MAX, BatchPayload
from s3notify_platform.ingest.follow import ask_again
from s3notify_platform.ingest.results import SlotResult
from s3notify_platform.ingest.settings import SOURCE, TopicSizeSettings
from s3notify_platform.ingest.source import Source
from s3notify_platform.orchestration.partitions import SlotBatch, has_partitions
from s3notify_platform.orchestration.resources import DynamoTables, SlotSpark
from s3notify_platform.orchestration.settings import settings_fields, values_of
from s3notify_platform.ports import RecordStore
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.keyspace import Watcher, WatcherState
from s3notify_platform.protocols.notification_queue import Entry, NotificationQueue, TopicSettings
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.slots import Slot, partition_keys, slot_from_partition_key
from s3notify_platform.spark.derive import replace_slots
from s3notify_platform.spark.load import LINEAGE, load_slots
from s3notify_platform.stores.config import S3Config, default_region
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.layout import Generation, TableLayout

FAILURE_TAG: Final = "s3notify/failure"
READS_IN_FLIGHT: Final = 16


@lru_cache(maxsize=32)
def _store_of(config: S3Config) -> S3ObjectStore:
    return S3ObjectStore(config)


_Settings = create_model(
    "_Settings", __base__=dg.ConfigurableIOManager, **settings_fields(*SOURCE, TopicSizeSettings)
)
"""The settings of a source, a field for each."""


class SlotIOManager(_Settings):  # type: ignore[misc,valid-type]
    """Everything Dagster needs of one source. `DataFrame`s in and out, by slot."""

    s3: dg.ResourceDependency[S3Resource]
    spark: dg.ResourceDependency[SlotSpark]
    dynamodb: dg.ResourceDependency[DynamoTables] = Field(
        default_factory=DynamoTables  # type: ignore[arg-type] # a dependency with a default
    )
    _settled: Source | None = PrivateAttr(default=None)

    @property
    def source(self) -> Source:
        """The source as a value, with the credentials that the resources name, if they name any."""
        return self._settled or Source.of(
            **values_of(self, *SOURCE)
            | {
                "bucket": self._config(self.bucket),
                "lease_table": self.dynamodb.config(self.dynamodb.lease_table),
                "records_table": self.dynamodb.config(self.dynamodb.records_table),
            }
        )

    def _config(self, bucket: str) -> S3Config:
        return S3Config(
            bucket=bucket,
            region=self.s3.region_name or default_region(),
            endpoint_url=self.s3.endpoint_url,
            access_key_id=self.s3.aws_access_key_id,
            secret_access_key=self.s3.aws_secret_access_key,
            session_token=self.s3.aws_session_token,
        )

    @property
    def store(self) -> S3ObjectStore:
        """The bucket of the platform's own objects; one client a process, since making one costs 0.1 s."""
        return _store_of(self.source.location.platform)

    @property
    def records(self) -> RecordStore:
        """Ack chains and heartbeats of this source."""
        return self.source.location.records(self.store)

    @property
    def chains(self) -> AckChains:
        """The ack chains of this source's batches."""
        return AckChains(self.records)

    @property
    def backlog(self) -> RescanBacklog:
        """Which slots of this source have to be compared by a listing."""
        return RescanBacklog(self.records)

    @property
    def queue(self) -> NotificationQueue:
        """The notification queue that this source shares with the others of its bucket."""
        return self.source.location.queue()

    def topic_epoch(self) -> str:
        """Which life of the source's topic this is; it is made if there is none. 1 request, or 2."""
        topics = self.queue.topics
        try:
            return topics.get(self.name).epoch
        except NotFoundError:
            settings = TopicSettings(
                capacity=self.queue_capacity,
                shards=min(self.queue_shards, self.slots),
                slots=self.slots,
                bucket=self.bucket,
                prefix=self.prefix,
            )
            return topics.create(self.name, settings).epoch

    def watcher(self, state: WatcherState | None = None) -> Watcher:
        """A watcher of this source's keyspace."""
        source = self.source
        return Watcher(
            self.store, prefix=source.location.keyspace_prefix, slots=source.location.slots, state=state
        )

    def check_store(self) -> None:
        """Settle how this run commits, or refuse a store that cannot do it. See `Location.settle_commit_mode`."""
        self._settled = self.source.settle_commit_mode(self.store)

    # Loading

    def load(
        self,
        slots: Iterable[Slot],
        *,
        asset: str | None = None,
        generations: Mapping[Slot, Generation] | None = None,
    ) -> DataFrame:
        """Committed rows of `slots` of the source's table, or of the slot asset `asset`, as one DataFrame."""
        return load_slots(
            self.spark.spark_session, self.source, slots, layout=self._layout(asset), generations=generations
        )

    def _layout(self, asset: str | None) -> TableLayout | None:
        return None if asset in (None, self.name) else self.source.location.derived_layout(str(asset))

    def load_input(self, context: dg.InputContext) -> DataFrame:
        """The upstream slots of the run's partitions; all slots for an asset without partitions."""
        if context.has_asset_partitions:
            slots = tuple(slot_from_partition_key(key, self.slots) for key in context.asset_partition_keys)
        else:
            slots = self.source.location.all_slots()
        return self.load(slots, asset=context.asset_key.path[-1])

    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        """Commit a slot-partitioned asset's DataFrame: each of the run's slots is replaced by its rows in it."""
        if not context.has_asset_partitions:
            raise UsageError(
                f"{context.asset_key.to_user_string()}: this IO manager stores slot-partitioned assets only"
            )
        slots = {
            slot_from_partition_key(key, self.slots): Generation(0) for key in context.asset_partition_keys
        }
        if "_slot" not in obj.columns:
            raise UsageError(
                f"{context.asset_key.to_user_string()}: drops _slot, which says where a row belongs; keep it"
            )
        self.check_store()
        results = replace_slots(
            self.spark.spark_session,
            self.source,
            context.asset_key.path[-1],
            obj,
            slots,
            batch=context.run_id,
        )
        if failed := [result for result in results.values() if not result.ok]:
            raise dg.Failure(
                f"{len(failed)} slots were not committed; slot {failed[0].slot}: {failed[0].error}"
            )
        context.add_output_metadata({"rows": sum(r.rows for r in results.values()), "slots": len(results)})

    # Recording

    def record(
        self,
        context: dg.AssetExecutionContext,
        batch: SlotBatch,
        opened: BatchPayload,
        results: Mapping[str, Mapping[Slot, SlotResult]],
        batch_metadata: Mapping[str, Any],
        *,
        entries: Mapping[Slot, Sequence[Entry]],
        unqueued: Iterable[Slot],
    ) -> None:
        """Report and acknowledge the slots that are committed in all assets of the run; fail for the others.

        `results` is by asset, the first one leading. `entries` of slots that did not fail leave the queue, but for
        slots that were not taken in whole, which are asked for again. `plain` slots wait for a listing. Requests: 1
        GET and 1 PUT for the chain, however many slots, 1 LIST and 1 GET for each asset's schema, 1 GET for each slot
        that is unchanged, `NotificationQueue.remove` for the entries, `ask_again` for what is left.
        """
        slots = sorted(set().union(*results.values()))
        bad = [s for s in slots if not all(by_slot[s].ok for by_slot in results.values() if s in by_slot)]
        good = sorted(set(slots) - set(bad))
        events: dict[Slot, list[dg.AssetMaterialization]] = {slot: [] for slot in good}
        for asset, by_slot in results.items():
            reported = [by_slot[slot] for slot in good if slot in by_slot]
            for metadata, result in zip(self._metadata(asset, reported), reported, strict=True):
                metadata["seconds"] = batch_metadata["seconds"]
                if result is reported[-1]:
                    metadata |= {**batch_metadata, "dagster/column_schema": self._columns(asset)}
                event = dg.AssetMaterialization(
                    asset_key=asset,
                    partition=str(result.slot),
                    metadata=metadata,
                    tags={DATA_VERSION_TAG: str(result.generation)},
                )
                events[result.slot].append(event)
        # Slot by slot: automation, which looks at any moment, finds a slot made in all assets or in none.
        for event in (event for of_slot in events.values() for event in of_slot):
            context.log_event(event)
        # Before the stamp: what a crash leaves here is asked for again.
        # Of slots that are not reported too: nothing is there, and nothing was, or all is as it was.
        unfinished = {
            s for s in good for by_slot in results.values() if s in by_slot and not by_slot[s].complete
        }
        done = {slot: of_slot for slot, of_slot in entries.items() if slot not in {*bad, *unfinished}}
        self.queue.remove(entry for of_slot in done.values() for entry in of_slot)
        self.ask_again(unfinished, listing=opened.listing)
        if batch.batch:
            acked = {*good, *unqueued}.difference(bad)
            self.acknowledge(batch, opened, sorted(acked), bad, operation_id=context.run.run_id)
        if bad:
            self._fail(context, results, bad)

    def _metadata(self, asset: str, results: Sequence[SlotResult]) -> list[dict[str, Any]]:
        layout = self._layout(asset) or self.source.location.layout
        table = self.source.table(layout)

        def of(result: SlotResult) -> dict[str, Any]:
            rows, files, rejects = result.live_rows, result.live_files, result.live_rejects
            failing = result.live_failing
            if result.status == "unchanged" and result.generation:
                head = table.read(result.slot, result.generation)
                rows, files, rejects = head.rows, len(head.files), sum(f.rows for f in head.rejects)
                failing = len(head.failing)
            return {
                "generation": result.generation,
                "status": result.status,
                "objects": result.objects,
                "rows": result.rows,
                "rejects": result.rejects,
                "quarantined": len(result.quarantined),
                "objects_gone": result.gone,
                "bytes": result.bytes,
                **{
                    name: n
                    for name in ("mismatches", "unnamed")
                    if (n := sum(getattr(result, name).values()))
                },
                "files": files,
                "live_rejects": rejects,
                "complete": result.complete,
                "live_failing": failing,
                "dagster/partition_row_count": rows,
                "place": dg.MetadataValue.url(self.place(f"{layout.prefix}data/slot={result.slot}/")),
            }

        with ThreadPoolExecutor(READS_IN_FLIGHT) as pool:
            return list(pool.map(of, results))

    def _columns(self, asset: str) -> dg.TableSchema:
        pinned = self.source.schemas(self._layout(asset)).head()
        rows = StructType.fromJson(json.loads(pinned.rows)) if pinned else StructType()
        fields = [*LINEAGE.fields, *rows.fields]
        columns = [dg.TableColumn(field.name, field.dataType.simpleString()) for field in fields]
        return dg.TableSchema(columns)

    def place(self, prefix: str) -> str:
        """Where a person looks at objects below `prefix`: the AWS console, or the endpoint's own listing."""
        bucket = self.platform_bucket or self.bucket
        quoted = quote(prefix, safe="/")
        if self.s3.endpoint_url:
            return f"{self.s3.endpoint_url}/{bucket}?list-type=2&prefix={quoted}"
        return f"https://s3.console.aws.amazon.com/s3/buckets/{bucket}?prefix={quoted}"

    def acknowledge(
        self,
        batch: SlotBatch,
        opened: BatchPayload,
        good: Sequence[Slot],
        bad: Sequence[Slot],
        *,
        operation_id: str,
    ) -> None:
        """Stamp what is committed on the batch's chain; what its listing has settled is owed no longer.

        In this order: what a crash leaves open is asked for again, and owed or not, it is found unchanged. A batch of
        everything ends and begins the slots that failed in it with one stamp: these are asked for again.
        """
        done: Iterable[int] = batch.children if batch.everything else set(batch.slots).intersection(good)
        begun = bad if batch.everything else ()
        listed = set(self.source.location.all_slots()) - set(bad) if batch.everything else set(good)
        self.backlog.settle({Slot(int(s)): n for s, n in opened.rescans.items() if Slot(int(s)) in listed})
        if names := [str(slot) for slot in sorted(done)]:
            self.chains.stamp_children(
                batch.batch, names, operation_id=operation_id, starts=[str(slot) for slot in begun]
            )

    def ask_again(self, slots: Iterable[Slot], *, listing: bool = True) -> None:
        """Have slots taken up by the next batch, and compared by a listing; else by what is known of them.

        Requests as `follow.ask_again`.
        """
        ask_again(self.source.location, slots, listing=listing, store=self.store)

    def tell_reason(self, context: dg.AssetExecutionContext, reason: str) -> None:
        """Put the reason of a failure where the sensor, and a person who looks at the run, finds it."""
        context.instance.add_run_tags(context.run.run_id, {FAILURE_TAG: reason[:REASON_MAX]})

    def _fail(
        self,
        context: dg.AssetExecutionContext,
        results: Mapping[str, Mapping[Slot, SlotResult]],
        bad: Sequence[Slot],
    ) -> None:
        reasons: dict[str, str] = {}
        for asset, by_slot in results.items():
            for slot in bad:
                if slot not in by_slot:
                    continue
                result = by_slot[slot]
                if not result.ok:
                    reasons.setdefault(str(slot), result.error or json.dumps(dict(result.failed_objects)))
                if not has_partitions(context):
                    # So that the partition grid shows exactly these as failed, as soon as the run has failed.
                    planned = AssetMaterializationPlannedData(dg.AssetKey([asset]), partition=str(slot))
                    step = context.op_execution_context.get_step_execution_context().step.key
                    event = DagsterEvent.build_asset_materialization_planned_event(
                        context.job_name, step, planned
                    )
                    context.instance.report_dagster_event(event, run_id=context.run.run_id)
        first = next(iter(reasons.values()))
        self.tell_reason(context, first)
        raise dg.Failure(
            f"{len(bad)} of the run's slots failed ({', '.join(partition_keys(bad)[:20])}); "
            f"the others are committed. First: {first}",
            metadata={"failed_slots": dg.MetadataValue.json(reasons)},
            allow_retries=False,
        )
