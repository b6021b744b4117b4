"""s3notify_platform: what changed in a bucket of millions of objects, for two requests, as committed tables.

Reading order, from below; imports point down only:

    slots, ports, clock, errors   the words everything else is written in
    protocols/      one package for each of the five seed protocols, over ports alone: keyspace, ack chain, conditional
                    commit, source enumerator, notification queue
    stores/         memory, S3 and DynamoDB adapters, records on a bucket, leases, xor-ack's own table, the capability
                    probe, what `init` makes
    table/          commit objects, object states, schemas, quarantine, reader, history, vacuum, the Delta view
    spark/          plan, read, parse, seal, load: the only place that knows PySpark
    channels/       the publisher that queues, reconciler, inlets (SQS, HTTP), outlet (HTTP push)
    explain/        where one object stands, read from all of the above
    orchestration/  Dagster: batches, sensor, IO manager, assets, checks, component
    local/, defs/   the embedded S3 server, `dagster dev`, the demo and its source
    cli/            `s3notify …`

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
