"""Dagster: slots as partitions, a sensor that polls, an IO manager that commits, and the assets that people see.

`partitions` defines the slots of a run. `sensor` requests the batches that `engine.batch.scheduler` chooses. `assets`
is the step that ingests. `io_manager` commits and reports slots, and loads inputs. `changes_input` loads only the
changes of an input. `batch_report` reports, at a run's end, the data of `source_summary` and the results of `checks`.
`upkeep` watches the queue and freshness, requests the sweep, and keeps the runs of inlets and delivery alive
(`managed_services`). `component` builds one source from YAML, and `source_assets` has the values from which all parts
of a source are built. `warm` has the run launcher that hands runs over to workers that are already started.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import dagster

from s3notify_platform.local.dagster_versions import check_minor

if TYPE_CHECKING:
    from s3notify_platform.orchestration.changes_input import Changes
    from s3notify_platform.orchestration.component import S3NotifyComponent
    from s3notify_platform.orchestration.io_manager import SlotIOManager
    from s3notify_platform.orchestration.source_assets import SlotAsset, s3_slot_asset

# The check comes before the lazy imports, which need names that only this minor version of Dagster has.
check_minor(dagster.__version__)

__all__ = ["Changes", "S3NotifyComponent", "SlotAsset", "SlotIOManager", "s3_slot_asset"]

_MODULES: Final = {
    "Changes": "changes_input",
    "S3NotifyComponent": "component",
    "SlotAsset": "source_assets",
    "SlotIOManager": "io_manager",
    "s3_slot_asset": "source_assets",
}


def __getattr__(name: str) -> Any:
    # Lazy: daemon and webserver import the run launcher from here, and do not need Spark.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
