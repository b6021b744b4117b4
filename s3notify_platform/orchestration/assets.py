"""The slot-partitioned assets of a source: one step that ingests, derives, commits and reports slot by slot.

They are one `multi_asset` because a batch's slots are scattered: Dagster resolves the partitions of a step's
inputs from the run's range, and a scattered batch has none. Sharing the step also shares the Spark session.
The step yields no output; it reports each committed slot itself, so that in a run over a range of partitions
the failed ones are not reported with the others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import dagster as dg
from pyspark.sql import SparkSession

from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.errors import S3NotifyError, TagNotFound, UsageError
from s3notify_platform.formats.rescue import added
from s3notify_platform.ingest.batches import BatchPayload
from s3notify_platform.ingest.follow import note_writers
from s3notify_platform.ingest.results import BatchResult, SlotResult
from s3notify_platform.ingest.source import Source
from s3notify_platform.orchestration.automation import follow_slots, made_tag
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.partitions import SOURCE_TAG, SlotBatch, slot_partitions
from s3notify_platform.orchestration.resources import heartbeat
from s3notify_platform.protocols.notification_queue import Entry
from s3notify_platform.slots import Slot
from s3notify_platform.spark.batch_schema import Transform
from s3notify_platform.spark.derive import derive
from s3notify_platform.spark.ingest import Ingest
from s3notify_platform.spark.staging_jobs import MAX_FAILED_JOBS, MAX_SPLIT_JOBS
from s3notify_platform.table.layout import Generation

MISMATCHES: Final = "batch_mismatches"
"""Metadata of a batch: values that do not fit their columns, by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAsset:
    """A function of the committed rows of a source's slots, as an asset of its own. Made by `s3_slot_asset`."""

    name: str
    source: str
    function: Transform
    description: str | None
    owners: Sequence[str]


def s3_slot_asset(
    *, source: str, name: str | None = None, owners: Sequence[str] = ()
) -> Callable[[Transform], SlotAsset]:
    """A slot-partitioned asset downstream of `source`: `(DataFrame of committed rows) -> DataFrame`.

    The function must keep the `_slot` column. It is called with the slots that a batch committed, and what it
    returns replaces these slots of its own table. Name it under `slot_assets` of the source's component.
    """

    def decorate(function: Transform) -> SlotAsset:
        return SlotAsset(
            name=name or function.__name__,
            source=source,
            function=function,
            description=function.__doc__,
            owners=tuple(owners),
        )

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAssets:
    """What the assets of one source are built from."""

    io: SlotIOManager
    transform: Transform | None = None
    slot_assets: Sequence[SlotAsset] = ()
    description: str | None = None
    owners: Sequence[str] = ()
    group: str | None = None

    @property
    def name(self) -> str:
        """The source's name, which is also its ingest asset's."""
        return self.io.source.name

    @property
    def io_key(self) -> str:
        """Resource key of the source's IO manager."""
        return f"{self.name}_slots"

    @property
    def op_name(self) -> str:
        """Name of the step that ingests."""
        return f"{self.name}_slots"


def build_slot_assets(settings: SourceAssets) -> dg.AssetsDefinition:
    """The ingest asset of a source with its downstream slot assets, as one step."""
    io = settings.io
    wrong = [asset for asset in settings.slot_assets if asset.source != settings.name]
    if wrong:
        raise UsageError(
            f"slot asset {wrong[0].name!r} is of source {wrong[0].source!r}, not {settings.name!r}"
        )
    tags = {SOURCE_TAG: settings.name}
    group = settings.group or settings.name
    where = f"s3://{io.bucket}/{io.prefix}"
    specs = [
        dg.AssetSpec(
            settings.name,
            description=settings.description
            or f"Rows of every {io.format} object below `{where}`, by slot of the key. One commit a slot and batch; "
            "rows carry `_key`, `_etag` and `_offset`.",
            kinds={"s3", "pyspark", "parquet"},
            owners=settings.owners,
            group_name=group,
            tags=tags,
            metadata={
                "source": where,
                "format": io.format,
                "schema": io.row_schema or "inferred, then pinned",
            },
            skippable=True,
            code_version=io.code_version,
        ),
        *(
            dg.AssetSpec(
                asset.name,
                deps=[settings.name],
                description=asset.description,
                kinds={"pyspark", "parquet"},
                owners=asset.owners or settings.owners,
                group_name=group,
                tags=tags,
                skippable=True,
                automation_condition=follow_slots(asset.name),
            )
            for asset in settings.slot_assets
        ),
    ]

    @dg.multi_asset(
        name=settings.op_name,
        specs=specs,
        partitions_def=slot_partitions(io.slots),
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
        required_resource_keys={settings.io_key},
    )
    def slots_of_source(
        context: dg.AssetExecutionContext, config: SlotBatch
    ) -> Iterator[dg.MaterializeResult[None]]:
        _run(context, config, settings)
        yield from ()

    return slots_of_source


def _run(context: dg.AssetExecutionContext, config: SlotBatch, settings: SourceAssets) -> None:
    io: SlotIOManager = getattr(context.resources, settings.io_key)
    try:
        slots = config.targets(context, io.slots)
        io.check_store()
        made = [asset.name for asset in settings.slot_assets if asset.name in _selected(context, config)]
        context.instance.add_run_tags(context.run.run_id, {made_tag(name): "true" for name in made})
        opened = _opened(io, config)
        with heartbeat(io.records, context.run.run_id):
            done = _ingested(context, config, settings, slots, opened)
            io.record(
                context,
                config,
                opened,
                done.results,
                done.metadata,
                entries=done.entries,
                unqueued=done.unqueued,
            )
    except S3NotifyError as error:
        io.tell_reason(context, str(error))
        raise dg.Failure(str(error), allow_retries=not isinstance(error, UsageError)) from error


def _selected(context: dg.AssetExecutionContext, config: SlotBatch) -> set[str]:
    selected = {key.path[-1] for key in context.selected_asset_keys}
    return selected & set(config.only) if config.only else selected


@dataclass(slots=True)
class _Done:
    """What a run did. `plain`: slots that wait for a listing."""

    results: dict[str, Mapping[Slot, SlotResult]] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    entries: Mapping[Slot, Sequence[Entry]] = field(default_factory=dict)
    unqueued: Iterable[Slot] = ()


def _ingested(
    context: dg.AssetExecutionContext,
    config: SlotBatch,
    settings: SourceAssets,
    slots: Sequence[Slot],
    opened: BatchPayload,
) -> _Done:
    """What became of the slots, by asset."""
    io: SlotIOManager = getattr(context.resources, settings.io_key)
    source = io.source
    selected = _selected(context, config)
    batch = config.batch or context.run.run_id
    done = _Done()
    started = SYSTEM_CLOCK.monotonic()
    spark = io.spark.spark_session
    ready = SYSTEM_CLOCK.monotonic()
    if settings.name in selected:
        ingest = Ingest(spark, source, transform=settings.transform, progress=context.log.info)
        ended = ingest.run(
            slots,
            batch=batch,
            run=context.run.run_id,
            signals={Slot(int(slot)): etag for slot, etag in opened.signals.items()},
            listing=opened.listing,
            only_found=config.everything,
            give_up=map(Slot, opened.last_attempt),
        )
        if config.batch:
            note_writers(io.backlog, opened.decision, unqueued=ended.unqueued, unannounced=ended.unannounced)
        done.entries, done.unqueued = ended.entries, ended.unqueued
        done.results[settings.name] = ended.slots
        generations = {slot: result.generation for slot, result in ended.slots.items() if result.ok}
        seconds = {"spark_start": ready - started, **ended.seconds}
        done.metadata = {
            "batch": batch,
            "batch_slots": len(ended.slots),
            "batch_found_by": "listing" if opened.listing else "queue",
            "batch_entries": sum(len(entries) for entries in ended.entries.values()),
            "batch_unannounced": ended.unannounced,
            "batch_tasks": ended.tasks,
            "batch_requests": dg.MetadataValue.json(dict(ended.requests)),
            "batch_seconds": dg.MetadataValue.json(
                {phase: round(took, 3) for phase, took in seconds.items()}
            ),
        } | _about_schema(ended)
    else:
        heads = source.table().heads(slots)
        generations = {slot: head.generation if head else Generation(0) for slot, head in heads.items()}
    for asset in settings.slot_assets:
        if asset.name in selected:
            context.log.info("deriving %s of %d slots", asset.name, len(generations))
            done.results[asset.name] = _derived(
                context, asset, generations, spark=spark, source=source, batch=batch, force=config.force
            )
    done.metadata["seconds"] = round(SYSTEM_CLOCK.monotonic() - started, 3)
    return done


def _about_schema(ended: BatchResult) -> dict[str, Any]:
    """What the batch brought that its schema did not have: fields added, values left out, values that do not fit."""
    told = {
        "schema_added": ended.schema_added,
        MISMATCHES: added(result.mismatches for result in ended.slots.values()),
        "batch_unnamed": added(result.unnamed for result in ended.slots.values()),
    }
    return {name: dg.MetadataValue.json(dict(values)) for name, values in told.items() if values}


def _derived(
    context: dg.AssetExecutionContext,
    asset: SlotAsset,
    generations: Mapping[Slot, Generation],
    *,
    spark: SparkSession,
    source: Source,
    batch: str,
    force: bool,
) -> dict[Slot, SlotResult]:
    """As `derive`; one that fails is tried again in halves, so that a slot at fault fails alone.

    `force` for runs that a person asked for: the function may have become another one.
    """
    todo = [generations]
    results: dict[Slot, SlotResult] = {}
    jobs = failed = 0
    while todo:
        part = todo.pop()
        jobs += 1
        try:
            results |= derive(spark, source, asset.name, asset.function, part, batch=batch, force=force)
        except S3NotifyError as error:
            failed += 1
            hopeless = failed == jobs >= MAX_FAILED_JOBS or jobs >= MAX_SPLIT_JOBS
            if len(part) > 1 and not hopeless:
                context.log.info("%s of %d slots failed, trying halves: %s", asset.name, len(part), error)
                both = list(part.items())
                todo += [dict(both[len(both) // 2 :]), dict(both[: len(both) // 2])]
                continue
            results |= {
                slot: SlotResult(slot=slot, status="failed", error=f"{asset.name}: {error}") for slot in part
            }
    return results


def _opened(io: SlotIOManager, config: SlotBatch) -> BatchPayload:
    """What the sensor saw when it opened the batch, by its chain. 1 GET. A run that nobody opened lists."""
    if not config.batch:
        return BatchPayload()
    try:
        return BatchPayload.loads(io.chains.state(config.batch).payload)
    except TagNotFound as error:
        raise UsageError(f"batch {config.batch!r} has no ack chain; start the run without a batch") from error
