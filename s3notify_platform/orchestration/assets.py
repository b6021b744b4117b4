"""The slot-partitioned assets of a source: one step that ingests, derives, commits and reports slot by slot.

The assets are one `multi_asset` because a batch's slots are scattered. If the assets were several steps, Dagster would
resolve the partitions of their inputs from the run's range, and a scattered batch has no range. In one step, the assets
also share one Spark session.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Final

import dagster as dg

from s3notify_platform.engine.batch.batches import BatchPayload
from s3notify_platform.engine.batch.heartbeats import heartbeat
from s3notify_platform.engine.driver import Ingest
from s3notify_platform.engine.loop import Results, Round, StagedTable
from s3notify_platform.engine.values.results import BatchResult, Progress
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import TagNotFound, UsageError
from s3notify_platform.kernel.parallel import readers
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.orchestration.acknowledgement import Acknowledgement
from s3notify_platform.orchestration.automation import follow_slots, made_tag
from s3notify_platform.orchestration.batch_report import BatchReport
from s3notify_platform.orchestration.batch_tags import BATCH_SECONDS, tag_objects
from s3notify_platform.orchestration.check_results import Event
from s3notify_platform.orchestration.dagster_internals import (
    ASSET_RESUME_RETRY_TAG,
    RESUME_RETRY_TAG,
    RETRY_NUMBER_TAG,
)
from s3notify_platform.orchestration.following_assets import advance
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.partitions import SlotBatch, slot_partitions
from s3notify_platform.orchestration.source_assets import SlotAsset, SourceAssets, step_failures
from s3notify_platform.orchestration.source_clients import SourceClients
from s3notify_platform.orchestration.source_summary import BatchNumbers
from s3notify_platform.protocols.ack_chain import Chain
from s3notify_platform.protocols.notification_queue.segments import Segment
from s3notify_platform.spark.derive import derived_tables
from s3notify_platform.spark.spark_jobs import spark_ingest
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.open_store import record_requests
from s3notify_platform.table.open_table import OpenTable
from s3notify_platform.table.quarantined import EVERYTHING, retry
from s3notify_platform.table.reread import backfill, stale_slots
from s3notify_platform.table.snapshot import Snapshot

PARENT_TAG: Final = "dagster/parent_run_id"
"""Dagster's tag of a run that executes another run again: the id of that other run."""

RETRY_TAGS: Final = frozenset({RETRY_NUMBER_TAG, RESUME_RETRY_TAG, ASSET_RESUME_RETRY_TAG})
"""Dagster's tags of a run that continues its failed parent. If a run repeats its parent and has none of these
tags, all of the parent's work is done again.
"""


def build_slot_assets(settings: SourceAssets) -> dg.AssetsDefinition:
    """The ingest asset of a source with its downstream slot assets, as one step."""
    io = settings.io
    wrong = [asset for asset in settings.slot_assets if asset.source != settings.name]
    if wrong:
        raise UsageError(
            f"slot asset {wrong[0].name!r} belongs to source {wrong[0].source!r}, not {settings.name!r}"
        )
    where = io.source.input.bucket.url(io.prefix)
    common = settings.spec | {"tags": settings.spec["tags"] | settings.warm_tags}
    specs = [
        dg.AssetSpec(
            settings.name,
            description=settings.description
            or f"A Delta table with a row for each record of the {_objects(io.format)} below `{where}`, partitioned "
            "into slots by a hash of the key. Each row names its origin: `_key`, `_etag` and `_offset`.",
            kinds={"s3", "pyspark", "deltalake"},
            metadata={
                "source": where,
                "format": io.format,
                "schema": io.row_schema or "inferred from the first batch, then fixed",
                **settings.place(),
            },
            skippable=True,
            code_version=settings.code_versions[settings.name] or None,
            **common,
        ),
        *(
            dg.AssetSpec(
                asset.name,
                deps=[settings.name],
                description=asset.function.__doc__,
                kinds={"pyspark", "deltalake"},
                metadata=settings.place(asset.name),
                skippable=True,
                automation_condition=follow_slots(asset.name),
                code_version=asset.code_version or None,
                **common | {"owners": asset.owners or settings.owners},
            )
            for asset in settings.slot_assets
        ),
    ]
    # The key selects the IO manager. If another asset has one of these assets as its input, the IO manager loads the
    # committed rows.
    specs = [spec.with_io_manager_key(settings.io_key) for spec in specs]

    @dg.multi_asset(
        name=settings.io_key,
        specs=specs,
        partitions_def=slot_partitions(io.slots),
        backfill_policy=dg.BackfillPolicy.single_run(),
        can_subset=True,
        **settings.step,
    )
    def slots_of_source(
        context: dg.AssetExecutionContext, config: SlotBatch
    ) -> Iterator[dg.MaterializeResult[None]]:
        _run(context, config, settings)
        yield from ()

    return slots_of_source


def _run(context: dg.AssetExecutionContext, config: SlotBatch, settings: SourceAssets) -> None:
    io = settings.io_of(context)
    platform = io.source.location.platform
    before, store = record_requests(platform), CountingStore(io.clients.store)
    with (
        step_failures(lambda reason: io.note_reason(context, reason)),
        heartbeat(io.clients.records, context.run.run_id, batch=config.batch) as doing,
    ):
        selected = {key.path[-1] for key in context.selected_asset_keys}
        selected &= set(config.only) or selected
        stale = _Stale(settings=settings, assets=selected)
        slots = config.targets(context, io.slots, io.source.table, stale.slots)
        made = [asset for asset in settings.slot_assets if asset.name in selected]
        context.instance.add_run_tags(context.run.run_id, {made_tag(asset.name): "true" for asset in made})
        with readers(2) as beside:
            chained = beside.submit(_chain, io.clients, config, is_retry=PARENT_TAG in context.run.tags)
            looked = beside.submit(_segments, io.clients, config, slots)
            io.settle_commit_mode()
            table = io.source.open_table(store=store)
            chain, segments = chained.result(), looked.result()
        for warning in table.warnings:
            context.log.warning(warning)
        opened = BatchPayload.loads(chain.payload if chain is not None else "")
        acknowledgement = Acknowledgement(
            clients=io.clients, batch=config, chain=chain, opened=opened, run_id=context.run.run_id
        )
        step = _Step(
            context=context,
            config=config,
            settings=settings,
            io=io,
            opened=opened,
            made=made,
            table=table,
            segments=segments,
            doing=doing,
            batch=config.batch or _asked_for(context),
            beside=lambda: store.counts + (record_requests(platform) - before),
        )
        if settings.name in selected:
            if step.forced and config.chooses_quarantine:
                step.request_quarantined(slots)
            elif step.forced:
                step.request(stale.of(settings.name) if config.chooses_stale else slots)
            rounds = step.ingested(slots)
        else:
            rounds = step.derived(slots)
        io.commit(context, rounds, acknowledgement, step)
        if step.ingest is not None:
            tag_objects(context.op_execution_context, io, seconds=BATCH_SECONDS)
        if step.behind:
            why = "; ".join(step.behind.values())
            raise dg.Failure(f"all slots are committed, and {why}", allow_retries=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stale:
    """Finds stale slots in `assets`: the slots that another version of the code made."""

    settings: SourceAssets
    assets: Collection[str]

    def slots(self) -> set[Slot]:
        """The stale slots of all these assets. Cost: the requests of `_Stale.of`, for each asset."""
        return set().union(*map(self.of, self.assets))

    def of(self, asset: str) -> list[Slot]:
        """The stale slots of one asset; empty if the asset's code version is unknown. Cost: the requests of
        `LogTable.newest`.
        """
        code, source = self.settings.code_versions[asset], self.settings.io.source
        return stale_slots(source.table(None if asset == source.name else asset), code)


@dataclass(slots=True, kw_only=True)
class _Step:
    """One run of the step: stages rounds of slots, through the ingest asset and the assets derived from it."""

    context: dg.AssetExecutionContext
    config: SlotBatch
    settings: SourceAssets
    io: SlotIOManager
    opened: BatchPayload
    made: Sequence[SlotAsset]
    table: OpenTable
    segments: Sequence[Segment] | None
    """The queue's segments of the slots, read when the run began."""
    doing: Progress
    """The progress that `s3notify status` shows."""
    batch: str
    """The sensor's batch. Without a sensor's batch, the id of the run that a person requested: this run, or the run
    that this run retries.
    """
    beside: Callable[[], Counter[str]]
    """Counts the requests of this run so far, by kind, without the engine's requests."""
    ingest: Ingest | None = None
    behind: dict[str, str] = field(default_factory=dict)
    """The reason for each derived table that is not up to date."""
    _again: int = 0
    """The number of objects that are read again although they have not changed."""
    _derived_objects: int = 0
    _started: float = field(default_factory=SYSTEM_CLOCK.monotonic)
    _began_ms: int = field(default_factory=SYSTEM_CLOCK.wall_ms)
    _spark_seconds: float = 0.0

    @property
    def forced(self) -> bool:
        """True if unchanged objects are read again on a person's request. The property is false for each batch of the
        sensor.
        """
        return self.config.force and not self.config.batch

    def _say(self, text: str) -> None:
        self.context.log.info(text)
        self.doing(text.partition("\n")[0])

    def request(self, slots: Sequence[Slot]) -> None:
        """Makes a request to read the committed objects of these slots again.

        The request is committed as a table version, so each object is read again only once, even if the request needs
        several runs.
        Cost: the requests of `backfill`.
        """
        found = backfill(self.io.source.table(), slots, None, batch=self.batch)
        self._again = found.objects
        if found.objects:
            self._say(f"{found.objects} objects of {len(found.slots)} slots are read again")

    def request_quarantined(self, slots: Sequence[Slot]) -> None:
        """Makes a request to read the quarantined objects of these slots again. Cost: the requests of `retry`."""
        found = retry(self.io.source.table(), slots, None, EVERYTHING)
        self._again = found.objects
        self._say(f"{found.objects} objects in quarantine of {len(found.slots)} slots are read again")

    def derived(self, slots: Sequence[Slot]) -> Iterator[Round]:
        """One round, derived from the committed rows of these slots."""
        snapshot = self._snapshot()
        self._derived_objects = sum(snapshot.manifest.slot(slot).objects for slot in slots)
        yield Round(tables=self._derived(snapshot, slots))

    def _snapshot(self) -> Snapshot:
        found = self.io.source.table().newest()
        assert isinstance(found, Snapshot), "the table was opened"
        return found

    def ingested(self, slots: Sequence[Slot]) -> Iterator[Round]:
        """The rounds of these slots. The caller must commit each round before it takes the next round."""
        self.doing("starting Spark")
        spark = self.io.spark.spark_session
        self._spark_seconds = SYSTEM_CLOCK.monotonic() - self._started
        self.ingest = spark_ingest(
            spark,
            self.io.source,
            transform=self.settings.transform,
            progress=self._say,
            opened=self.table,
            code_version=self.settings.fingerprint,
        )
        for each in self.ingest.rounds(
            slots,
            batch=self.batch,
            run=self.context.run.run_id,
            signals={Slot(int(slot)): etag for slot, etag in self.opened.signals.items()},
            listing=self.opened.listing,
            only_found=self.config.everything,
            last_attempt=map(Slot, self.opened.last_attempt),
            topic="" if self.opened.listing else self.opened.topic,
            segments=self.segments,
            seen_ms=self.opened.opened_ms,
        ):
            each.tables = chain(each.tables, self._derived_of(each))
            yield each

    def _derived_of(self, ingested: Round) -> Iterator[StagedTable]:
        # This generator is a function of its own, because its body must start only after the ingested table is
        # committed.
        results = ingested.results[self.settings.name]
        if self.made:
            yield from self._derived(self._snapshot(), [slot for slot, each in results.items() if each.ok])
        for asset in self.io.source.kinds:
            yield StagedTable(name=asset, commit=partial(self._advanced, asset, [*results][:1]))

    def _advanced(self, asset: str, slots: Sequence[Slot]) -> Results:
        """Updates a derived table. If the update fails, the slots count as done nevertheless, and the next batch tries
        the update again.

        `slots`: after a failure, the next batch is requested for these slots.
        """
        self.doing(f"updating {asset}")
        again = partial(self.io.clients.ask_again, slots, listing=self.opened.listing)
        advance(self.context, self.io, asset, batch=self.batch, again=again, behind=self.behind)
        return {}

    def _derived(self, snapshot: Snapshot, slots: Sequence[Slot]) -> Iterator[StagedTable]:
        for asset in self.made:
            self._say(f"deriving {asset.name} of {len(slots)} slots")
            yield from derived_tables(
                self.io.spark.spark_session,
                self.io.source,
                asset.name,
                asset.function,
                snapshot=snapshot,
                slots=slots,
                batch=self.batch,
                code_version=asset.code_version,
                force=self.config.force,
                progress=self._say,
            )

    def _waits(self) -> dict[str, float]:
        """The seconds before the step, as two numbers: from the first signal to the sensor's poll, and from the poll to
        the step. The values depend on the clocks of store, sensor and this machine, so they are only shown to people.
        """
        signalled, opened, began = self.opened.signalled_ms, self.opened.opened_ms, self._began_ms
        waits = {"poll": (signalled, opened), "launch": (opened, began)}
        return {name: max(0, to - since) / 1000 for name, (since, to) in waits.items() if since and to}

    def phases(self) -> dict[str, float]:
        """Seconds of the run's phases so far, in order."""
        done = self.ingest.result().seconds if self.ingest is not None else {}
        return {**self._waits(), "spark_start": self._spark_seconds, **done}

    def summary(self, reporting: float) -> str:
        """The run in one line: its results, and the time of each phase."""
        whole = f"{SYSTEM_CLOCK.monotonic() - self._started:.1f} s"
        if self.ingest is None:
            return (
                f"slot assets derived from the committed rows of {self._derived_objects} objects, in {whole}; "
                f"reporting {reporting:.1f} s"
            )
        done = self.ingest.result()
        slots = Counter(result.status for result in done.slots.values())
        counts = done.counts()
        read = ", ".join(f"{counts[name]} {name}" for name in ("objects", "bytes", "rows", "rejects"))
        if nothing := counts["objects_without_records"]:
            read += f" ({nothing} objects had no record)"
        took = ", ".join(
            f"{name} {seconds:.1f} s" for name, seconds in (self.phases() | {"report": reporting}).items()
        )
        ended = ", ".join(f"{n} slots {status}" for status, n in slots.items()) or "nothing to do"
        return f"{ended}: {read} in {whole} ({took})"

    def report(self, reporting: float, failed: Mapping[Slot, str]) -> Iterable[Event]:
        """The events to log for the run as a whole, at its end."""
        signalled_ms = self.opened.signalled_ms
        done = self.ingest.result() if self.ingest is not None else BatchResult()
        numbers = BatchNumbers(
            batch=self.batch,
            found_by="listing" if self.opened.listing else "queue",
            done=done,
            requests=done.requests + self.beside(),
            read_again=self._again,
            objects_derived=self._derived_objects,
            phases=self.phases() | {"report": reporting},
            seconds=SYSTEM_CLOCK.monotonic() - self._started,
            lag_seconds=(SYSTEM_CLOCK.wall_ms() - signalled_ms) / 1000 if signalled_ms else None,
        )
        return BatchReport(
            settings=self.settings,
            source=self.io.source,
            numbers=numbers,
            failed=dict(failed),
            ingested=self.ingest is not None,
            everything=self.config.everything,
            opened_ms=self.opened.opened_ms,
        ).events(self.context)


def _objects(kind: str) -> str:
    """The words for objects of this format, like "csv objects"."""
    return "objects" if kind == "auto" else f"{kind} objects"


def _chain(clients: SourceClients, config: SlotBatch, *, is_retry: bool) -> Chain | None:
    """The batch's ack chain. The chain also stores the signals that the sensor had seen when it opened the chain.

    A run without a chain lists the bucket. If the chain of a retried run has been removed, the retry lists the bucket,
    too. Cost: 1 GET.
    """
    if not config.batch:
        return None
    try:
        return clients.chains.chain(config.batch)
    except TagNotFound as error:
        if is_retry:
            return None
        raise UsageError(f"batch {config.batch!r} has no ack chain; start the run without a batch") from error


def _segments(clients: SourceClients, config: SlotBatch, slots: Sequence[Slot]) -> tuple[Segment, ...] | None:
    """The queue's segments of a batch's slots; None for a batch that compares everything. The segments are read before
    the run knows whether the batch needs a listing. Cost: 1 scan.
    """
    if not config.batch or config.everything:
        return None
    return clients.queue.segments(clients.source.name, slots)


def _asked_for(context: dg.AssetExecutionContext) -> str:
    """The run that a person requested: this run, or the run that this run retries. Cost: 1 read for each retry."""
    run = context.run
    while not RETRY_TAGS.isdisjoint(run.tags):
        if (parent := context.instance.get_run_by_id(run.tags.get(PARENT_TAG, ""))) is None:
            break
        run = parent
    return run.run_id
