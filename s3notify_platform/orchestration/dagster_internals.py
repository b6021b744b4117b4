"""What we use of Dagster that is not part of its public API. Only this file imports it, and the linter sees to that.

So one file shows what an upgrade of Dagster can break, which is why `pyproject.toml` allows one minor version.
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
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.definitions.target import ExecutableDefinition
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.events import (
    AssetMaterializationPlannedData,
    DagsterEventBatchMetadata,
    EngineEventData,
)
from dagster._core.launcher import LaunchRunContext
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher
from dagster._core.origin import RepositoryPythonOrigin
from dagster._core.remote_representation.code_location import GrpcServerCodeLocation
from dagster._core.scheduler.instigation import SensorInstigatorData
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.dagster_run import ACTIVE_RUN_STATUSES, FINISHED_STATUSES
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.tags import (
    ASSET_RESUME_RETRY_TAG,
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
from dagster._serdes import ConfigurableClassData, deserialize_value
from dagster._utils.interrupts import capture_interrupts
from dagster._utils.tags import TagConcurrencyLimitsCounter
from dagster._utils.warnings import disable_dagster_warnings

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, unique_name

__all__ = [
    "ACTIVE_RUN_STATUSES",
    "ASSET_RESUME_RETRY_TAG",
    "BACKFILL_ID_TAG",
    "DATA_VERSION_TAG",
    "FINISHED_STATUSES",
    "GRPC_INFO_TAG",
    "PARTITION_NAME_TAG",
    "RESUME_RETRY_TAG",
    "RETRY_NUMBER_TAG",
    "AssetCheckExecutionRecordStatus",
    "AssetMaterializationPlannedData",
    "CanCancelExecutionRequest",
    "CanCancelExecutionResult",
    "CheckRunHealthResult",
    "CodePointer",
    "ConfigurableClassData",
    "DagsterGrpcClient",
    "DagsterUserCodeUnreachableError",
    "DefaultRunLauncher",
    "EngineEventData",
    "ExecutableDefinition",
    "GrpcServerCodeLocation",
    "InstigatorType",
    "LaunchRunContext",
    "ReconstructableRepository",
    "RepositoryPythonOrigin",
    "SensorExecutionData",
    "SensorInstigatorData",
    "SqliteEventLogStorage",
    "TagConcurrencyLimitsCounter",
    "UnresolvedAssetJobDefinition",
    "WorkerStatus",
    "capture_interrupts",
    "copy",
    "core_execute_run",
    "deserialize_value",
    "disable_dagster_warnings",
    "lend_instance",
    "log_events",
]


def log_events(context: OpExecutionContext, events: Sequence[AssetMaterialization]) -> None:
    """Store events; up to `DAGSTER_EVENT_BATCH_SIZE` at once, if that is set. All are there when this returns."""
    step, batch = context.get_step_execution_context(), unique_name(SYSTEM_CLOCK)
    for number, event in enumerate(events, 1):
        place = DagsterEventBatchMetadata(batch, is_end=number == len(events))
        logged = DagsterEvent.asset_materialization(step, event, place)
        context._events.append(logged)  # noqa: SLF001 - as `log_event` does, which knows no batches


def lend_instance(context: SensorEvaluationContext, instance: DagsterInstance) -> None:
    """Have a tick, and its log, use an instance that stays open, where it would open and close one of its own."""
    context._instance = instance  # noqa: SLF001 - an argument of its constructor, which Dagster calls
