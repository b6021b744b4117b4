"""(12) Peak memory of driver and workers, as the bucket grows from 10,000 to 1,000,000 objects.

A run over all slots lists the bucket, and compares it with the committed state. 10,000 objects in the bucket have
another ETag than their state. The run reads and commits these objects. Listing and objects are simulated
(`simulated_listing`), and the states were committed as if the objects had been read. The run is real, in a separate
process, with 2 concurrent tasks. `max_objects` limits the number of objects that a run reads, for a bucket of any size.
For a first run that reads 100,000 objects, see the benchmark `scale`.
"""

from dataclasses import dataclass

from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.source.source import Source
from s3notify_platform.spark.spark_jobs import spark_ingest
from tests.benchmarks.apart import Memory, apart
from tests.benchmarks.figures import Figure, Seconds, seconds, short
from tests.benchmarks.lake import embedded_spark
from tests.benchmarks.simulated_listing import simulated_listing
from tests.benchmarks.sweeping import known

READ = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    seconds: Seconds
    objects: int


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    read, totals = (100, (100, 1_000)) if small else (READ, (READ, 100_000, 1_000_000))
    figures: list[Figure] = []
    least: Memory | None = None
    for total in totals:
        with simulated_listing(total, 0) as listing:
            taken, memory = apart(ingested, known(server, listing, total, changed=read))
        assert taken.objects == read
        figures.append(
            Figure(
                what=f"{read:,} changed of {total:,} objects, simulated listing and objects: peak memory",
                ours=f"{memory}; {short(taken.seconds)}",
                instead=f"of {totals[0]:,}: {least}" if least else "–",
                ratio=f"{memory.total / least.total:.2f}×" if least else "–",
            )
        )
        least = least or memory
    return figures


def ingested(source: Source) -> Taken:
    with embedded_spark("local[2]") as spark, seconds() as took:
        result = spark_ingest(spark, source).run(source.location.all_slots(), batch="memory", only_found=True)
    assert all(slot.ok for slot in result.slots.values())
    return Taken(seconds=took(), objects=sum(slot.objects for slot in result.slots.values()))
