"""s3notify_platform: what changed in a bucket of millions of objects, for two requests, as committed tables.

Reading order. `slots` and `ports` are the words everything else is written in. `protocols/` holds one package
for each of the five seed protocols, over ports alone. `stores/` are the adapters of the ports. `table/` makes
rows visible, one commit object at a time. `spark/` turns changed objects into rows and files.
`orchestration/` is Dagster: partitions, sensor, IO manager, assets, checks, component. `local/` is the
embedded S3 server and the demo.

The flow: a publisher writes an object and moves the signal of its slot; the sensor's poll sees by one HEAD and
at most one LIST which slots moved; one run ingests exactly these; each slot is committed conditionally and
stamps the batch's ack chain; asset checks compare bucket and state.
"""

from importlib import import_module
from typing import Any

__all__ = ["S3NotifyComponent", "SlotIOManager", "s3_slot_asset"]


def __getattr__(name: str) -> Any:
    # Lazy: a Spark executor imports this package for its readers and has no use for Dagster.
    if name in __all__:
        try:
            orchestration = import_module("s3notify_platform.orchestration")
        except AttributeError as error:  # would be taken for a missing name
            raise ImportError(f"s3notify_platform.orchestration cannot be imported: {error}") from error
        return getattr(orchestration, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
