"""Sessions that serve one run after another, in a Java process that is kept."""

import pyarrow as pa
from pyspark.sql import SparkSession

from s3notify_platform.engine.values.row_schema import Batches
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.spark.session import is_remote, parallelism, ship_package


def fresh_session(spark: SparkSession) -> SparkSession:
    """A session without what others have set, named, cached or registered, over the same Java process.

    Of Spark Connect, the same one. `SparkSession.builder.getOrCreate()` gives this one from now on.
    """
    if is_remote(spark):
        return spark  # one for all: clients of PySpark before 4.3 make no other
    spark.catalog.clearCache()  # which sessions share: what a run has cached may be of older files
    SparkSession._instantiatedSession = None  # noqa: SLF001 - else the new one is not made the one that is found
    return spark.newSession()


def is_replaced(spark: SparkSession) -> bool:
    """Whether a fresh session is found in its place."""
    return not is_remote(spark) and SparkSession._instantiatedSession is not spark  # noqa: SLF001 - as above


def interrupt_jobs(spark: SparkSession) -> None:
    """Cancel what runs in this session's Spark."""
    if is_remote(spark):
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()


def warm_up(spark: SparkSession) -> None:
    """A job like those of a batch, over no data: the JVM has loaded its classes then, and Python workers are there.

    Spark ends Python workers that had nothing to do for a minute.
    """
    ship_package(spark)
    width = 1 if is_remote(spark) else parallelism(spark)
    rows = pa.table({"task": pa.array(range(width), pa.int32())})
    frame = spark.createDataFrame(rows).repartitionById(width, "task")
    read = frame.mapInArrow(_imported, "task int")
    if not is_remote(spark):
        read = read.localCheckpoint()
    both = read.where("task >= 0").unionByName(read.where("task < 0"))
    both.repartition(width, "task").sortWithinPartitions("task").mapInArrow(_imported, "task int").toArrow()


def _imported(batches: Batches) -> Batches:
    """Import what tasks need."""
    from s3notify_platform.engine.stage import staging  # noqa: F401
    from s3notify_platform.spark import load, memory_limit  # noqa: F401

    SYSTEM_CLOCK.sleep(0.05)  # so that all of the job's tasks run at once, and each has a worker of its own
    yield from batches
