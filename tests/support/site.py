"""For tests: one source with its Dagster definitions, its bucket on a real server, and a Dagster instance."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import dagster as dg
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.storage.partition_status_cache import (
    AssetStatusCacheValue,
    get_and_update_asset_status_cache_value,
)

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.engine.batch.batches import SensorState
from s3notify_platform.engine.batch.short_cursor import ShortCursor
from s3notify_platform.kernel.ports import Written
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.orchestration import S3NotifyComponent, SlotIOManager
from s3notify_platform.orchestration.partitions import slot_partitions
from s3notify_platform.protocols.keyspace import Change, Delete, Publisher, Put
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.open_table import forget
from s3notify_platform.table.snapshot import Snapshot
from tests.support.checked import whole
from tests.support.servers import S3Server


@dataclass(kw_only=True)
class Site:
    """The component, its definitions and its bucket."""

    component: S3NotifyComponent
    instance: dg.DagsterInstance
    store: S3ObjectStore
    cursor: str | None = None
    automation_cursor: str | None = None
    upkeep_cursor: str | None = None
    run_keys: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, server: S3Server, instance: dg.DagsterInstance, **attributes: Any) -> "Site":
        bucket = attributes.pop("bucket", None) or server.make_bucket()
        fields = {
            "name": "orders",
            "bucket": bucket,
            "prefix": "raw/",
            "format": "jsonl",
            "schema": "id bigint, amount double",
            "slots": 16,
            "backoff_seconds": 0.0,
            "list_seconds": 0.0,
            "s3": {
                "endpoint_url": server.endpoint_url,
                "access_key_id_env": "S3NOTIFY_TEST_KEY",
                "secret_access_key_env": "S3NOTIFY_TEST_SECRET",
            },
        } | attributes
        component = S3NotifyComponent(**fields)
        return cls(component=component, instance=instance, store=S3ObjectStore(server.config(bucket)))

    @property
    def name(self) -> str:
        return self.component.name

    @cached_property
    def defs(self) -> dg.Definitions:
        return self.component.definitions()

    @cached_property
    def io(self) -> SlotIOManager:
        """The IO manager as a run gets it: environment variables are replaced by their values."""
        with dg.build_resources({"io": self.component.assets().io}, instance=self.instance) as resources:
            found = resources.io
        assert isinstance(found, SlotIOManager)
        return found

    # The bucket

    def key(self, slot: int, number: int = 0) -> str:
        """A key in this slot. Each number gives another key."""
        found = -1
        for n in range(100_000):
            if slot_of(key := f"{self.component.prefix}{n}.jsonl", self.component.slots) == slot:
                found += 1
                if found == number:
                    return key
        raise AssertionError(slot)

    def write(self, *slots: int, body: bytes | None = None, number: int = 0) -> None:
        """Publishes one object with one row in each of these slots: queues the changes, then signals them."""
        self.publish([Put(key=self.key(slot, number), body=body or self.line(slot)) for slot in slots])

    def write_unqueued(self, *slots: int, body: bytes | None = None, number: int = 0) -> None:
        """Writes objects like a writer that signals and does not queue."""
        source = self.io.source
        Publisher(self.store, prefix=source.location.keyspace_prefix, slots=source.location.slots).publish(
            [Put(key=self.key(slot, number), body=body or self.line(slot)) for slot in slots]
        )

    def publish(self, changes: Iterable[Change]) -> None:
        source = self.io.source
        publisher = QueuedPublisher(
            Publisher(self.store, prefix=source.location.keyspace_prefix, slots=source.location.slots),
            self.io.clients.queue,
            bucket=source.input.bucket.bucket,
            topic=source.name,
        )
        assert all(isinstance(outcome, Written) for outcome in publisher.publish(changes))

    def write_silently(self, *slots: int, body: bytes | None = None, number: int = 0) -> None:
        """Writes objects without a signal."""
        for slot in slots:
            self.store.put(self.key(slot, number), body or self.line(slot))

    def delete(self, *slots: int) -> None:
        self.publish([Delete(key=self.key(slot)) for slot in slots])

    @staticmethod
    def line(slot: int, amount: float = 1.5) -> bytes:
        return json.dumps({"id": slot, "amount": amount}).encode() + b"\n"

    def checked(self, asset: str | None = None) -> Snapshot | None:
        """The newest version of a table, after a check; None if there is no table."""
        return whole(self.io.source.location.table(asset))

    def rows(self, asset: str | None = None, slots: Iterable[int] | None = None) -> dict[int, list[int]]:
        """The committed ids by slot. The table is checked, too."""
        self.checked(asset)
        wanted = self.io.source.location.all_slots() if slots is None else [Slot(n) for n in slots]
        found: dict[int, list[int]] = {}
        for row in self.io.load(wanted, asset=asset).select("_slot", "id").toArrow().to_pylist():
            found.setdefault(row["_slot"], []).append(row["id"])
        return found

    def forget(self) -> str:
        """Accepts a loss of versions of the table, as `s3notify table forget` does. Returns the table's new id."""
        source = self.io.source
        mode = source.location.settle_commit_mode(source.commit, self.io.clients.store, lost=True)
        every = source.location.all_slots()
        committer = source.location.table(commit=mode).committer
        done = forget(committer, lambda: self.io.clients.backlog.add(every))
        source.location.slot_signals().signal_slots(every[:1])
        return done.table

    # Dagster

    def run(
        self,
        slots: Iterable[int] = (),
        *,
        batch: str = "",
        everything: bool = False,
        tags: dict[str, str] | None = None,
        asset_selection: list[str] | None = None,
        partition_key: str | None = None,
        run_config: dict[str, Any] | None = None,
        force: bool = True,
    ) -> dg.ExecuteInProcessResult:
        """Runs the ingest job.

        A run with slots, tags or a partition is a person's run. A run with `batch` is a run of the sensor.
        """
        config = {"batch": batch, "everything": everything, "slots": list(slots), "force": force}
        if run_config is None:
            run_config = {"ops": {f"{self.name}_slots": {"config": config}}}
        return self.defs.resolve_job_def(f"{self.name}_ingest").execute_in_process(
            run_config=run_config,
            instance=self.instance,
            raise_on_error=False,
            tags=tags,
            partition_key=partition_key,
            asset_selection=[dg.AssetKey(name) for name in asset_selection] if asset_selection else None,
        )

    def sweep(self, *only: str) -> dict[str, dg.AssetCheckEvaluation]:
        """Runs all asset checks, or only these, as a person does. Returns their results by name."""
        asked = (dg.AssetCheckKey(dg.AssetKey(self.name), name) for name in only)
        every = dg.AssetSelection.checks_for_assets(self.name)
        job = dg.define_asset_job("checks", selection=dg.AssetSelection.checks(*asked) if only else every)
        defs = dg.Definitions.merge(self.defs, dg.Definitions(jobs=[job]))
        done = defs.resolve_job_def("checks").execute_in_process(instance=self.instance, raise_on_error=False)
        return {found.check_name: found for found in done.get_asset_check_evaluations()}

    def upkeep(self, *, later: bool = True) -> SensorExecutionData:
        """Does a tick of the upkeep sensor. With `later`, the tick comes a minute after the last tick, and not
        immediately after it.
        """
        sensor = self.defs.resolve_sensor_def(f"{self.name}_upkeep")
        cursor = json.dumps(json.loads(self.upkeep_cursor or "{}") | ({"observed_ms": 0} if later else {}))
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=cursor,
            definitions=self.defs,
            resources={f"{self.name}_slots": self.component.assets().io},
            sensor_name=sensor.name,
        ) as context:
            result = sensor.evaluate_tick(context)
        self.upkeep_cursor = result.cursor
        return result

    def newest(self, asset: str) -> dict[str, Any]:
        """The metadata of the newest materialization of an asset without partitions."""
        found = self.instance.get_latest_materialization_event(dg.AssetKey(asset))
        assert found is not None
        assert found.asset_materialization is not None
        return {name: value.value for name, value in found.asset_materialization.metadata.items()}

    def batch(self) -> dict[str, Any]:
        """The summary that the last batch's run reported."""
        return self.newest(f"{self.name}_summary")

    def grid(self, asset: str | None = None) -> dict[str, set[int]]:
        """The slots in the partition grid of the UI, by status."""
        partitions = slot_partitions(self.component.slots)
        value = get_and_update_asset_status_cache_value(
            self.instance, dg.AssetKey(asset or self.name), partitions
        ) or AssetStatusCacheValue(latest_storage_id=0, partitions_def_id=None)
        found = {
            "materialized": value.deserialize_materialized_partition_subsets(partitions),
            "failed": value.deserialize_failed_partition_subsets(partitions),
            "running": value.deserialize_in_progress_partition_subsets(partitions),
        }
        return {status: {int(key) for key in subset.get_partition_keys()} for status, subset in found.items()}

    def metadata(self, slot: int, asset: str | None = None) -> dict[str, Any]:
        """The metadata of a slot's latest materialization."""
        records = self.instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset or self.name), asset_partitions=[str(slot)]),
            limit=1,
        ).records
        materialization = records[0].asset_materialization
        assert materialization is not None
        return {name: value.value for name, value in materialization.metadata.items()}

    def failure(self, result: dg.ExecuteInProcessResult) -> str:
        """The reason that this failed run reports."""
        (event,) = [event for event in result.all_events if event.is_step_failure]
        data = event.step_failure_data
        described = data.user_failure_data.description if data.user_failure_data else None
        return described or str(data.error)

    # The sensor

    def evaluate(self) -> SensorExecutionData:
        """Evaluates a tick as the daemon does, but does not store the cursor."""
        sensor = self.defs.resolve_sensor_def(f"{self.name}_sensor")
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            resources={f"{self.name}_slots": self.component.assets().io},
            sensor_name=sensor.name,
        ) as context:
            return sensor.evaluate_tick(context)

    def tick(self) -> list[dg.RunRequest]:
        """Does a tick that ends successfully: its cursor is stored.

        Returns the batches; each run key is returned only once.
        """
        result = self.evaluate()
        self.cursor = result.cursor
        requests = [r for r in result.run_requests or [] if r.run_key not in self.run_keys]
        self.run_keys |= {str(request.run_key) for request in requests}
        return requests

    def follow(self) -> list[dg.RunRequest]:
        """Does a tick of the slot assets' automation, as the daemon evaluates it."""
        sensor = self.defs.resolve_sensor_def(f"{self.name}_slot_automation")
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=self.automation_cursor,
            definitions=self.defs,
            resources={f"{self.name}_slots": self.component.assets().io},
            sensor_name=sensor.name,
        ) as context:
            result = sensor.evaluate_tick(context)
        self.automation_cursor = result.cursor
        return list(result.run_requests or [])

    @property
    def state(self) -> SensorState:
        return ShortCursor(records=self.io.clients.records).loads(self.cursor or "")

    def launch(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        """Starts a requested run at once, as the daemon does."""
        return self.run(
            run_config=dict(request.run_config),
            tags=dict(request.tags),
            asset_selection=[key.to_user_string() for key in request.asset_selection or []],
        )

    def settle(self) -> None:
        """Does ticks and runs until nothing is left to do."""
        for _ in range(20):
            for request in (requests := self.tick()):
                self.launch(request)
            if not requests and self.cursor and not self.state.open and self.state.enumerated:
                return
        raise AssertionError("ticks and runs do not end")

    @staticmethod
    def slots_of(request: dg.RunRequest) -> list[int]:
        (op,) = request.run_config["ops"].values()
        return list(op["config"]["slots"])
