"""The parts of Dagster outside its public API that this package uses. The linter checks that only this file imports
these parts.

So one file lists the parts that an upgrade of Dagster can break. Because of these parts, `pyproject.toml` allows only
one minor version. Dagster has no public way for these needs:

- A warm worker executes a run: CodePointer, ReconstructableRepository, RepositoryPythonOrigin, core_execute_run,
  capture_interrupts, EngineEventData.
- Events that are logged as one batch: context._events.
- An instance that stays open for several ticks: context._instance.
- Spark's configuration in the form of Dagster's own Spark resource: flatten_dict, which `resources` imports.
- Automation requests fewer runs than its condition asks for: copy.
- A launcher decides who executes: LaunchRunContext, CheckRunHealthResult, WorkerStatus, GrpcServerCodeLocation,
  ConfigurableClassData, BACKFILL_ID_TAG.
- The reason of a run: BACKFILL_ID_TAG, AUTOMATION_CONDITION_TAG.
- A coordinator checks limits on concurrent runs: TagConcurrencyLimitsCounter, RunQueueConfig.
- A run's process is alive or dead: DagsterGrpcClient, CanCancelExecutionRequest, CanCancelExecutionResult,
  GRPC_INFO_TAG, DagsterUserCodeUnreachableError.
- Retries of a run: ASSET_RESUME_RETRY_TAG, RESUME_RETRY_TAG, RETRY_NUMBER_TAG.
- A sensor's cursor and its switch: InstigatorState, InstigatorStatus, InstigatorType, SensorInstigatorData.
- A sensor of a subclass: SensorExecutionData, PARTITION_NAME_TAG.
- The type of an asset job: UnresolvedAssetJobDefinition.
- Planned slots and evaluated checks: AssetMaterializationPlannedData, AssetCheckExecutionRecord,
  AssetCheckExecutionRecordStatus.
- The due time of the sweep, and its job: get_latest_completed_cron_tick, ANONYMOUS_ASSET_JOB_PREFIX.
- A batch of events at once: SqliteEventLogStorage, DagsterEventBatchMetadata.
- Data and code versions of slots: DATA_VERSION_TAG, CODE_VERSION_TAG, get_input_data_version_tag,
  get_input_event_pointer_tag, NULL_EVENT_POINTER.
"""

from collections.abc import Sequence

from dagster import (
    AssetMaterialization,
    DagsterEvent,
    DagsterInstance,
    OpExecutionContext,
    SensorEvaluationContext,
)
from dagster._core.code_pointer import CodePointer
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    NULL_EVENT_POINTER,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.definitions.target import ANONYMOUS_ASSET_JOB_PREFIX
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.events import (
    AssetMaterializationPlannedData,
    DagsterEventBatchMetadata,
    EngineEventData,
)
from dagster._core.launcher import LaunchRunContext
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._core.origin import RepositoryPythonOrigin
from dagster._core.remote_representation.code_location import GrpcServerCodeLocation
from dagster._core.run_coordinator.queued_run_coordinator import RunQueueConfig
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, SensorInstigatorData
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.tags import (
    ASSET_RESUME_RETRY_TAG,
    AUTOMATION_CONDITION_TAG,
    BACKFILL_ID_TAG,
    GRPC_INFO_TAG,
    PARTITION_NAME_TAG,
    RESUME_RETRY_TAG,
    RETRY_NUMBER_TAG,
)
from dagster._grpc.client import DagsterGrpcClient
from dagster._grpc.impl import core_execute_run
from dagster._grpc.types import CanCancelExecutionRequest, CanCancelExecutionResult
from dagster._record import copy
from dagster._serdes import ConfigurableClassData
from dagster._utils.interrupts import capture_interrupts
from dagster._utils.schedules import get_latest_completed_cron_tick
from dagster._utils.tags import TagConcurrencyLimitsCounter

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, unique_name

__all__ = [
    "ANONYMOUS_ASSET_JOB_PREFIX",
    "ASSET_RESUME_RETRY_TAG",
    "AUTOMATION_CONDITION_TAG",
    "BACKFILL_ID_TAG",
    "CODE_VERSION_TAG",
    "DATA_VERSION_TAG",
    "GRPC_INFO_TAG",
    "NULL_EVENT_POINTER",
    "PARTITION_NAME_TAG",
    "RESUME_RETRY_TAG",
    "RETRY_NUMBER_TAG",
    "AssetCheckExecutionRecord",
    "AssetCheckExecutionRecordStatus",
    "AssetMaterializationPlannedData",
    "CanCancelExecutionRequest",
    "CanCancelExecutionResult",
    "CheckRunHealthResult",
    "CodePointer",
    "ConfigurableClassData",
    "DagsterGrpcClient",
    "DagsterUserCodeUnreachableError",
    "EngineEventData",
    "GrpcServerCodeLocation",
    "InstigatorState",
    "InstigatorStatus",
    "InstigatorType",
    "LaunchRunContext",
    "ReconstructableRepository",
    "RepositoryPythonOrigin",
    "RunQueueConfig",
    "SensorExecutionData",
    "SensorInstigatorData",
    "SqliteEventLogStorage",
    "TagConcurrencyLimitsCounter",
    "UnresolvedAssetJobDefinition",
    "WorkerStatus",
    "capture_interrupts",
    "copy",
    "core_execute_run",
    "get_input_data_version_tag",
    "get_input_event_pointer_tag",
    "get_latest_completed_cron_tick",
    "lend_instance",
    "log_events",
]


def log_events(context: OpExecutionContext, events: Sequence[AssetMaterialization]) -> None:
    """Stores events, up to `DAGSTER_EVENT_BATCH_SIZE` at once if that variable is set. When the function returns, all
    events are stored.
    """
    step, batch = context.get_step_execution_context(), unique_name(SYSTEM_CLOCK)
    for number, event in enumerate(events, 1):
        place = DagsterEventBatchMetadata(batch, is_end=number == len(events))
        logged = DagsterEvent.asset_materialization(step, event, place)
        context._events.append(logged)  # noqa: SLF001 - like `log_event`, which cannot write batches


def lend_instance(context: SensorEvaluationContext, instance: DagsterInstance) -> None:
    """Makes a tick and its log use an instance that stays open. Otherwise Dagster opens and closes an instance for each
    tick.
    """
    context._instance = instance  # noqa: SLF001 - an argument of its constructor, which Dagster calls
