"""Frames whose columns have any name that Spark can hold: dots, back-ticks, spaces, names that differ in case."""

from collections.abc import Callable

from pyspark.sql import DataFrame

from s3notify_platform.engine.values.row_schema import Batches


def map_in_arrow(frame: DataFrame, function: Callable[[Batches], Batches], schema: str) -> DataFrame:
    """`DataFrame.mapInArrow`, which by itself looks its own columns up by names that it does not quote."""
    names = frame.columns

    def run(batches: Batches) -> Batches:
        return function(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(run, schema)
