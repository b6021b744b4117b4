"""An example of user code: a transform of the source, and an asset downstream of it."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own idiom

from s3notify_platform.orchestration import s3_slot_asset


def with_day(orders: DataFrame) -> DataFrame:
    """Adds the day of the order. Lineage columns stay, because the transform does not select columns away."""
    return orders.withColumn("day", F.to_date("at"))


@s3_slot_asset(source="orders")
def paid_orders(orders: DataFrame) -> DataFrame:
    """Orders with an amount above zero."""
    return orders.where("amount > 0")
