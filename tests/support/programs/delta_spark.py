"""Reads versions of a Delta table by delta-spark. Prints the number of rows of each slot as JSON.

`python -m tests.support.programs.delta_spark PACKAGE FOLDER VERSION ...`; PACKAGE is the Maven name.
"""

import json
import sys

from tests.support.spark import start_spark

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def main() -> None:
    package, folder, *versions = sys.argv[1:]
    spark = start_spark(master="local[2]", **DELTA, **{"spark.jars.packages": package})
    found = {}
    for version in versions:
        rows = spark.read.format("delta").option("versionAsOf", version).load(folder)
        found[version] = {str(row["_slot"]): row["count"] for row in rows.groupBy("_slot").count().collect()}
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
