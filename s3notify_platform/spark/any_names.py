"""Operations on DataFrames whose column names contain dots, back-ticks or spaces, or differ only in case."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from s3notify_platform.engine.values.row_schema import Batches


def map_in_arrow(
    frame: DataFrame, function: Callable[[Batches], Batches], schema: str | StructType
) -> DataFrame:
    """Calls `DataFrame.mapInArrow` with safe column names.

    Spark's own method fails for some names, because it looks up columns by unquoted names.
    """
    names = frame.columns

    def run(batches: Batches) -> Batches:
        return function(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(run, schema)
