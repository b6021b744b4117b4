"""Code that users might write: transforms and slot assets, some correct and some wrong."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own idiom

from s3notify_platform import s3_slot_asset

UNLUCKY = 13


def doubled(orders: DataFrame) -> DataFrame:
    """A correct transform."""
    return orders.withColumn("twice", F.col("amount") * 2)


def unlucky(orders: DataFrame) -> DataFrame:
    """Fails on the rows of one slot, at the time when a task reads them."""
    broken = F.raise_error(F.lit("13 is unlucky")).cast("double")
    return orders.withColumn("amount", F.when(F.col("id") == UNLUCKY, broken).otherwise(F.col("amount")))


def unlucky_in_python(orders: DataFrame) -> DataFrame:
    """Fails on the rows of one slot, in Python code."""

    def run(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            if UNLUCKY in batch["id"].to_pylist():
                raise KeyError("13 is unlucky")
            yield batch

    return orders.mapInArrow(run, orders.schema)


def naming_in_python(orders: DataFrame) -> DataFrame:
    """Fails on the rows of one slot, in Python code, with an object's key in the error's text."""

    def run(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            if UNLUCKY in batch["id"].to_pylist():
                raise KeyError(f"{batch['_key'][0].as_py()} is unlucky")
            yield batch

    return orders.mapInArrow(run, orders.schema)


def naming(orders: DataFrame) -> DataFrame:
    """Fails on the rows of one slot, in SQL, with an object's key in the error's text."""
    broken = F.raise_error(F.concat("_key", F.lit(" is unlucky"))).cast("double")
    return orders.withColumn("amount", F.when(F.col("id") == UNLUCKY, broken).otherwise(F.col("amount")))


def raising(orders: DataFrame) -> DataFrame:
    raise KeyError("no such thing")


def renaming(orders: DataFrame) -> DataFrame:
    """A wrong transform: it changes the key of each row."""
    return orders.withColumn("_key", F.concat("_key", F.lit("x")))


def forgetful(orders: DataFrame) -> DataFrame:
    """A wrong transform: it drops the lineage columns."""
    return orders.select("id")


def wrong_column(orders: DataFrame) -> DataFrame:
    return orders.withColumn("x", F.col("nonexistent"))


@s3_slot_asset(source="orders", owners=["team:sales"])
def paid_orders(orders: DataFrame) -> DataFrame:
    """Orders with an amount above zero."""
    return orders.where("amount > 0")


@s3_slot_asset(source="orders")
def lucky_orders(orders: DataFrame) -> DataFrame:
    """Fails on the rows of one slot."""
    return unlucky(orders)


@s3_slot_asset(source="orders")
def naming_orders(orders: DataFrame) -> DataFrame:
    """Fails on the rows of one slot, with an object's key in the error's text."""
    return naming(orders)


@s3_slot_asset(source="orders")
def slotless_orders(orders: DataFrame) -> DataFrame:
    """A wrong slot asset: it drops the column of the slot."""
    return orders.select("id")


@s3_slot_asset(source="somebody_else")
def foreign(orders: DataFrame) -> DataFrame:
    """A slot asset of another source."""
    return orders
