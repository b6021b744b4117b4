"""A streaming query that writes a file for each micro-batch: `python -m … FOLDER CHECKPOINT OPTIONS`.

OPTIONS is JSON with the data source's options. If Spark repeats a micro-batch, its file is replaced. Therefore the
files are an idempotent sink. If the feed cannot continue because a column got new values, the program follows the
error's advice. As advised, the program removes its files and its checkpoint, and begins again after a restart.
Credentials are in the environment.
"""

import json
import shutil
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from s3notify_platform.spark.datasource.query import register
from tests.support.spark import start_spark


def main() -> None:
    folder, checkpoint, options = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    spark = start_spark(master="local[1]")
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    changes = spark.readStream.format("s3notify").options(**options, read="table").load()

    def note(rows: DataFrame, number: int) -> None:
        found = rows.select("_key", "_etag", "_offset").toArrow().to_pylist()
        place = folder / f"{number:06d}.json"
        place.with_suffix(".new").write_text(json.dumps([list(row.values()) for row in found]))
        place.with_suffix(".new").rename(place)

    query = changes.writeStream.foreachBatch(note).option("checkpointLocation", checkpoint)
    try:
        query.trigger(processingTime="2 seconds").start().awaitTermination()
    except StreamingQueryException as error:
        if "another type and other values" in (said := str(error)) and "begin again" in said.lower():
            for place in folder.glob("*.json"):
                place.unlink()
            shutil.rmtree(checkpoint)
        raise


if __name__ == "__main__":
    main()
