"""A driver that stays alive between runs: `python -m tests.support.programs.ingest BUCKET`. A test can kill the driver.

BUCKET is JSON: the bucket's configuration without credentials. The credentials are in the environment. Each line of
stdin is a run, `{"source": {…}, "batch": …, "listing": …}`. The answer is lines of progress, `{"progress": …}`, and
then a line `{"complete": …, "failed": …}` or `error`. If `endpoint_url` is given, the source is read from there. The
driver removes entries from the queue as the platform's own runs do.
"""

import json
import os
import sys
from dataclasses import replace

from s3notify_platform.engine.driver import Ingest
from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.source.source import Source
from s3notify_platform.spark.spark_jobs import spark_ingest
from s3notify_platform.stores.config import S3Config
from tests.support.sources import source_of
from tests.support.spark import start_spark
from tests.support.spark_options import named


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stdout is for the answers; other output goes to stderr
    bucket = named(S3Config(**json.loads(sys.argv[1])))
    # If the Python process of a task dies, the task is retried, as on a cluster.
    spark = start_spark(master="local[2,4]")
    spark.sparkContext.setLogLevel("OFF")
    print(json.dumps({"ready": os.getpid()}), file=answers, flush=True)
    for line in sys.stdin:
        given = json.loads(line)
        place = replace(bucket, endpoint_url=given.get("endpoint_url", bucket.endpoint_url))
        source = source_of(bucket=place, platform=bucket, commit="native", **given["source"])

        def progress(message: str) -> None:
            print(json.dumps({"progress": message}), file=answers, flush=True)

        ingest = spark_ingest(spark, source, progress=progress)
        try:
            answer = run(ingest, source, batch=given["batch"], listing=given["listing"])
        except S3NotifyError as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def run(ingest: Ingest, source: Source, *, batch: str, listing: bool) -> dict[str, object]:
    result = ingest.run(source.location.all_slots(), batch=batch, listing=listing)
    done = [slot for slot, found in result.slots.items() if found.ok and found.complete]
    source.location.queue().remove(entry for slot in done for entry in result.entries.get(slot, ()))
    return {
        "complete": all(found.complete for found in result.slots.values()),
        "failed": {
            slot: found.error or dict(found.failed_objects)
            for slot, found in result.slots.items()
            if not found.ok
        },
        "rows": sum(found.rows for found in result.slots.values()),
        "superseded": sum(found.superseded for found in result.slots.values()),
        "generations": sum(found.generation for found in result.slots.values()),
    }


if __name__ == "__main__":
    main()
