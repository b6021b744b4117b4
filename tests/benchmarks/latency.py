"""(4) From publish to committed row, on the running platform, split into what it is spent on."""

import time
from pathlib import Path
from statistics import median

from dagster import DagsterInstance, RunsFilter

from s3notify_platform.protocols.keyspace import Put
from s3notify_platform.slots import slot_of
from tests.benchmarks.figures import Figure, short
from tests.support.platform import running


def run(folder: Path, *, small: bool) -> list[Figure]:
    samples: list[dict[str, float]] = []
    with running(folder) as platform, DagsterInstance.from_config(str(platform.dagster.home)) as instance:
        # The first batch enumerates the source; it is not what is measured.
        platform.publisher.publish([Put(key="raw/orders/first.jsonl", body=_body(0))])
        platform.until("first batch", lambda: bool(platform.grid("orders")["materializedPartitions"]))
        for number in range(1, 2 if small else 4):
            time.sleep(6)
            key = f"raw/orders/latency {number}.jsonl"
            published = time.time()
            platform.publisher.publish([Put(key=key, body=_body(number))])
            slot = slot_of(key)
            platform.until("commit", lambda s=slot, k=key: _has(platform, s, k))
            head = platform.table.head(slot)
            assert head is not None
            (record,) = instance.get_run_records(RunsFilter(tags={"s3notify/batch": head.batch}))
            platform.until(
                "run's end", lambda i=record.dagster_run.run_id: instance.get_run_by_id(i).is_finished
            )
            event = instance.fetch_materializations(_asset(), limit=1).records[0].asset_materialization
            took = event.metadata["batch_seconds"].value
            (record,) = instance.get_run_records(RunsFilter(tags={"s3notify/batch": head.batch}))
            committed = head.created_ms / 1000
            samples.append(
                {
                    "poll": record.create_timestamp.timestamp() - published,
                    "launch": record.start_time - record.create_timestamp.timestamp(),
                    "Spark start": took.pop("spark_start"),
                    "commit": took.pop("commit"),
                    "job": sum(took.values()),
                    "in all": committed - published,
                }
            )
    parts = {name: median(sample[name] for sample in samples) for name in samples[0]}
    whole = parts.pop("in all")
    return [
        Figure(
            what=f"publish to committed row, embedded Spark started for each run (median of {len(samples)})",
            ours=f"{short(whole)}: " + ", ".join(f"{name} {short(took)}" for name, took in parts.items()),
            instead="–",
            ratio="–",
        )
    ]


def _has(platform: object, slot: int, key: str) -> bool:
    head = platform.table.head(slot)
    return head is not None and key in platform.table.states(head)


def _asset() -> object:
    from dagster import AssetKey

    return AssetKey(["orders"])


def _body(number: int) -> bytes:
    return b'{"order_id": %d, "customer": "ada", "amount": "5.00", "at": "2026-01-01T00:00:00Z"}\n' % number
