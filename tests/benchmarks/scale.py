"""(6) The time from bucket to committed table, for many small objects and for few big objects.

The alternatives, which are in `ways`, are Spark's own reader over s3a, and programs that show how fast a reader can be.
If the jars of s3a are not available, Spark reads a copy on the local disk instead, without S3. No alternative remembers
earlier reads. Each alternative runs in a separate process. For ways with Spark, a job of four objects is the warm-up.
The alternatives read only a part of the objects. So the comparison uses rates, and CPU seconds for the same number of
objects (or bytes).
"""

import subprocess
import tempfile
import time
from pathlib import Path

from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.source.source import Source
from s3notify_platform.spark.spark_jobs import spark_ingest
from s3notify_platform.stores.config import S3Config
from tests.benchmarks.apart import Memory, apart
from tests.benchmarks.figures import Figure, seconds, short
from tests.benchmarks.lake import (
    BIG_PART,
    big_objects,
    embedded_spark,
    many_of,
    prefix_of,
    small_objects,
    source_of,
)
from tests.benchmarks.profiled import shares
from tests.benchmarks.ways import (
    IN_FLIGHT,
    WARM,
    Took,
    alone,
    copied,
    over_files,
    over_s3a,
    thrown_away,
    warm_objects,
)


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    total = 100 if small else 100_000
    many = small_objects(server, total)
    figures = _compared(many_of(many, total), prefix_of(10_000), big=False)
    few = big_objects(server, 4, 2 << 20) if small else big_objects(server, 20, 256 << 20)
    return figures + _compared(source_of(few, "big", "in/"), BIG_PART, big=True)


def _compared(source: Source, part: str, *, big: bool) -> list[Figure]:
    """The platform ingests the whole `source`. The alternatives read only the objects below the prefix `part`."""
    config = source.input.bucket
    (planning, staging), _ = apart(shares, source)
    ours, memory = apart(ingested, source)
    others: list[tuple[str, Took, Memory]] = [_by_spark(config, part)]
    for how, function in (
        ("one process, obstore + pyarrow, no Spark", alone),
        (f"GET only, {IN_FLIGHT} in flight, bytes thrown away", thrown_away),
    ):
        others.append((how, *apart(function, config, part)))
    size = f"{ours.bytes / ours.objects / 1e6:,.0f} MB" if big else "2 KB"
    what = f"{ours.objects:,} objects of {size}, bucket to committed table"
    figures = []
    text = f"{short(ours.seconds)}: {ours.rate()} ({ours.notes})"
    for how, took, _ in others:
        if took.rows:
            assert took.rows * ours.objects == ours.rows * took.objects, (how, took.rows, ours.rows)
        of = f" for {took.objects:,} of them" if took.objects < ours.objects else ""
        ratio = f"{ours.speed(big=big) / took.speed(big=big):.2f}×"
        if ours.seconds.cpu and took.seconds.cpu:
            ratio += f", CPU {took.cpu_each(big=big) / ours.cpu_each(big=big):.2f}×"
        instead = f"{how}, no states: {short(took.seconds)}{of}: {took.rate()}"
        figures.append(Figure(what=what, ours=text, instead=instead, ratio=ratio))
        what, text = "the same", ours.rate()
    how, took, theirs = others[0]
    figures.append(
        Figure(
            what="the same: first byte read to last commit",
            ours=short(ours.reading),
            instead=f"{how} {short(took.reading)}{f' for {took.objects:,}' if took.objects < ours.objects else ''}",
            ratio=f"{took.reading / took.objects * ours.objects / ours.reading:.2f}×",
        )
    )
    figures.append(
        Figure(
            what="the same: peak memory",
            ours=f"{memory}",
            instead=f"{how}: {theirs}; without Spark: {others[1][2]}",
            ratio="–",
        )
    )
    for work, profile in (("plan", planning), ("a task that reads and stages", staging)):
        figures.append(
            Figure(what=f"the same: where the time goes, {work}", ours=profile, instead="–", ratio="–")
        )
    return figures


# The platform


def ingested(source: Source) -> Took:
    reading: list[float] = []

    def progress(message: str) -> None:
        if message.startswith("reading"):
            reading.append(time.perf_counter())

    with embedded_spark() as spark:
        warm_objects(source.input.bucket)
        warm = source_of(source.input.bucket, "warm", WARM)
        spark_ingest(spark, warm).run(warm.location.all_slots(), batch="warm")
        with seconds() as took:
            result = spark_ingest(spark, source, progress=progress).run(
                source.location.all_slots(), batch="bench", only_found=True
            )
        ended = time.perf_counter()
    slots = result.slots.values()
    assert all(slot.ok and not slot.rejects for slot in slots)
    phases = ", ".join(f"{phase} {short(of)}" for phase, of in result.seconds.items())
    requests = ", ".join(f"{n} {kind}" for kind, n in sorted(result.requests.items()))
    return Took(
        seconds=took(),
        reading=ended - reading[0],
        # `objects` is not used here: it counts an object twice if two rounds read it.
        objects=sum(slot.live_objects for slot in slots),
        bytes=sum(slot.bytes for slot in slots),
        rows=sum(slot.rows for slot in slots),
        notes=f"{phases}; {requests}",
    )


def _by_spark(config: S3Config, prefix: str) -> tuple[str, Took, Memory]:
    try:
        return "`spark.read.json` over s3a to Parquet", *apart(over_s3a, config, prefix)
    except subprocess.CalledProcessError:
        with tempfile.TemporaryDirectory(prefix="s3notify-copy-") as folder:
            copied(config, prefix, Path(folder))
            how = "`spark.read.json` over a copy on the local disk (no s3a here) to Parquet"
            return how, *apart(over_files, folder)
