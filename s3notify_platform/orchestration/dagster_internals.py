"""What we use of Dagster that is not part of its public API. Only this file imports it, and the linter sees to that.

So one file shows what an upgrade of Dagster can break, which is why `pyproject.toml` allows one minor version.
"""

from dagster._core.code_pointer import CodePointer
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.definitions.target import ExecutableDefinition
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.events import AssetMaterializationPlannedData, EngineEventData
from dagster._core.launcher import LaunchRunContext
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher
from dagster._core.origin import RepositoryPythonOrigin
from dagster._core.remote_representation.code_location import GrpcServerCodeLocation
from dagster._core.scheduler.instigation import SensorInstigatorData
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.dagster_run import ACTIVE_RUN_STATUSES, FINISHED_STATUSES
from dagster._core.storage.tags import PARTITION_NAME_TAG
from dagster._grpc.impl import core_execute_run
from dagster._record import copy
from dagster._serdes import ConfigurableClassData
from dagster._utils.interrupts import capture_interrupts
from dagster._utils.tags import TagConcurrencyLimitsCounter
from dagster._utils.warnings import disable_dagster_warnings

__all__ = [
    "ACTIVE_RUN_STATUSES",
    "DATA_VERSION_TAG",
    "FINISHED_STATUSES",
    "PARTITION_NAME_TAG",
    "AssetCheckExecutionRecordStatus",
    "AssetMaterializationPlannedData",
    "CheckRunHealthResult",
    "CodePointer",
    "ConfigurableClassData",
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
    "TagConcurrencyLimitsCounter",
    "UnresolvedAssetJobDefinition",
    "WorkerStatus",
    "capture_interrupts",
    "copy",
    "core_execute_run",
    "disable_dagster_warnings",
]
