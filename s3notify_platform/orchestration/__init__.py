"""Dagster: slots as partitions, a sensor that polls, an IO manager that commits, and the assets that people see.

`partitions` defines the slots of a run. `sensor` requests batches, as `ingest.scheduler` decides. `assets` is the step
that ingests; `io_manager` commits, reports and loads. `bucket_assets` and `checks` show the whole bucket; `component`
builds one source from YAML, and `source_assets` is what all parts of it are given.
"""

from s3notify_platform.orchestration.component import S3NotifyComponent
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.source_assets import SlotAsset, s3_slot_asset

__all__ = ["S3NotifyComponent", "SlotAsset", "SlotIOManager", "s3_slot_asset"]
