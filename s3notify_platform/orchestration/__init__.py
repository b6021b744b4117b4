"""Dagster: slots as partitions, a sensor that polls, an IO manager that commits, and what people see of it.

`partitions` says which slots a run is for; `batches` decides what a tick asks for, without Dagster; `sensors`
is its Dagster side. `assets` is the step that ingests; `io_manager` commits, reports and loads; `summary` and
`checks` are the bucket's view, `delta` the one of other engines; `component` puts one source together from YAML.
"""

from s3notify_platform.orchestration.assets import SlotAsset, s3_slot_asset
from s3notify_platform.orchestration.component import S3NotifyComponent
from s3notify_platform.orchestration.io_manager import SlotIOManager

__all__ = ["S3NotifyComponent", "SlotAsset", "SlotIOManager", "s3_slot_asset"]
