"""The slot-partitioned assets of a source: one step that ingests, derives, commits and reports slot by slot.

They are one `multi_asset` because a batch's slots are scattered: Dagster resolves the partitions of a step's
inputs from the run's range, and a scattered batch has none. Sharing the step also shares the Spark session.
The step yields no output; it reports each committed slot itself, so that in a run over a range of partitions
the failed ones are not reported with the others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import dagster as dg

from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.errors import S3NotifyError, TagNotFound, UsageError
from s3notify_platform.formats.rescue import added
from s3notify_platform.ingest.batches import BatchPayload
from s3notify_platform.ingest.engine import Ingest
from s3notify_platform.ingest.results import BatchResult
from s3notify_platform.ingest.rounds import Round, StagedTable
from s3notify_platform.orchestration.acknowledgement import SlotRun
from s3notify_platform.orchestration.automation import follow_slots, made_tag
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.partitions import SOURCE_TAG, SlotBatch, slot_partitions
from s3notify_platform.orchestration.resources import heartbeat
from s3notify_platform.orchestration.source_clients import SourceClients
from s3notify_platform.slots import Slot
from s3notify_platform.spark.batch_schema import Transform
from s3notify_platform.spark.derive import derived_tables
from s3notify_platform.spark.jobs import spark_ingest
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
        io.settle_commit_mode()
        made = [asset.name for asset in settings.slot_assets if asset.name in _selected(context, config)]
        context.instance.add_run_tags(context.run.run_id, {made_tag(name): "true" for name in made})
        opened = _opened(io.clients, config)
        with heartbeat(io.clients.records, context.run.run_id):
            step = _Step(context=context, config=config, settings=settings, io=io, opened=opened)
            run = SlotRun(batch=config, opened=opened, metadata=step.metadata)
            io.commit(context, step.rounds(slots), run)
    except S3NotifyError as error:
        io.note_reason(context, str(error))
        raise dg.Failure(str(error), allow_retries=not isinstance(error, UsageError)) from error


def _selected(context: dg.AssetExecutionContext, config: SlotBatch) -> set[str]:
    selected = {key.path[-1] for key in context.selected_asset_keys}
    return selected & set(config.only) if config.only else selected


@dataclass(slots=True, kw_only=True)
class _Step:
    """One run of the step: stages rounds of slots, through the ingest asset and those derived from it."""

    context: dg.AssetExecutionContext
    config: SlotBatch
    settings: SourceAssets
    io: SlotIOManager
    opened: BatchPayload
    ingest: Ingest | None = None
    _started: float = field(default_factory=SYSTEM_CLOCK.monotonic)
    _spark_seconds: float = 0.0

    @property
    def _batch(self) -> str:
        return self.config.batch or self.context.run.run_id

    def rounds(self, slots: Sequence[Slot]) -> Iterator[Round]:
        """The rounds of these slots. Take one after the other is committed."""
        spark, source, name = self.io.spark.spark_session, self.io.source, self.settings.name
        self._spark_seconds = SYSTEM_CLOCK.monotonic() - self._started
        if name not in _selected(self.context, self.config):
            heads = source.table().heads(slots)
            generations = {slot: head.generation if head else Generation(0) for slot, head in heads.items()}
            yield Round(tables=self._derived(generations))
            return
        self.ingest = spark_ingest(
            spark, source, transform=self.settings.transform, progress=self.context.log.info
        )
        for each in self.ingest.rounds(
            slots,
            batch=self._batch,
            run=self.context.run.run_id,
            signals={Slot(int(slot)): etag for slot, etag in self.opened.signals.items()},
            listing=self.opened.listing,
            only_found=self.config.everything,
            last_attempt=map(Slot, self.opened.last_attempt),
        ):
            each.tables = chain(each.tables, self._derived_of(each))
            yield each

    def _derived_of(self, ingested: Round) -> Iterator[StagedTable]:
        """What is derived from what the round has committed by now."""
        results = ingested.results[self.settings.name]
        yield from self._derived({slot: each.generation for slot, each in results.items() if each.ok})

    def _derived(self, generations: Mapping[Slot, Generation]) -> Iterator[StagedTable]:
        for asset in self.settings.slot_assets:
            if asset.name in _selected(self.context, self.config):
                self.context.log.info("deriving %s of %d slots", asset.name, len(generations))
                yield from derived_tables(
                    self.io.spark.spark_session,
                    self.io.source,
                    asset.name,
                    asset.function,
                    generations,
                    batch=self._batch,
                    force=self.config.force,
                    progress=self.context.log.info,
                )

    def metadata(self) -> dict[str, Any]:
        """What is to be reported of the run as far as it has got."""
        seconds = round(SYSTEM_CLOCK.monotonic() - self._started, 3)
        if self.ingest is None:
            return {"seconds": seconds}
        done = self.ingest.result()
        phases = {"spark_start": self._spark_seconds, **done.seconds}
        return {
            "batch": self._batch,
            "batch_slots": len(done.slots),
            "batch_found_by": "listing" if self.opened.listing else "queue",
            "batch_entries": sum(len(entries) for entries in done.entries.values()),
            "batch_unannounced": done.unannounced,
            "batch_tasks": done.tasks,
            "batch_requests": dg.MetadataValue.json(dict(done.requests)),
            "batch_seconds": dg.MetadataValue.json({phase: round(took, 3) for phase, took in phases.items()}),
            **_about_schema(done),
            "seconds": seconds,
        }


def _about_schema(done: BatchResult) -> dict[str, Any]:
    """What the batch brought that its schema did not have: fields added, values left out, values that do not fit."""
    found = {
        "schema_added": done.schema_added,
        MISMATCHES: added(result.mismatches for result in done.slots.values()),
        "batch_unnamed": added(result.unnamed for result in done.slots.values()),
    }
    return {name: dg.MetadataValue.json(dict(values)) for name, values in found.items() if values}


def _opened(clients: SourceClients, config: SlotBatch) -> BatchPayload:
    """What the sensor saw when it opened the batch, by its chain. 1 GET. A run that nobody opened lists."""
    if not config.batch:
        return BatchPayload()
    try:
        return BatchPayload.loads(clients.chains.state(config.batch).payload)
    except TagNotFound as error:
        raise UsageError(f"batch {config.batch!r} has no ack chain; start the run without a batch") from error
