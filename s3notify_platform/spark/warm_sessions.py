"""Spark sessions in a Java process that continues between runs, and is used by one run after another."""

import pyarrow as pa
from pyspark.sql import SparkSession

from s3notify_platform.engine.values.row_schema import Batches
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.spark.session import is_remote, parallelism, ship_package


def fresh_session(spark: SparkSession) -> SparkSession:
    """Returns a session without settings, names, caches or registrations of other runs, in the same Java process.

    With Spark Connect, returns `spark` itself. Afterwards `SparkSession.builder.getOrCreate()` returns the new session.
    """
    if is_remote(spark):
        return spark  # all runs share this session: clients of PySpark before 4.3 cannot make another session
    spark.catalog.clearCache()  # all sessions share the cache, which may have data of older files
    SparkSession._instantiatedSession = None  # noqa: SLF001 - otherwise `getOrCreate` keeps the old one
    return spark.newSession()


def is_replaced(spark: SparkSession) -> bool:
    """True if `getOrCreate` returns a later session, and not this session."""
    return not is_remote(spark) and SparkSession._instantiatedSession is not spark  # noqa: SLF001 - as above


def interrupt_jobs(spark: SparkSession) -> None:
    """Cancels the running jobs of this session."""
    if is_remote(spark):
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()


def warm_up(spark: SparkSession) -> None:
    """Runs a job like a job of a batch, but without data.

    The job makes the JVM load its classes, and starts Python workers. Spark ends Python workers that were idle for a
    minute.
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
    """Imports the modules that tasks need."""
    from s3notify_platform.engine.stage import staging  # noqa: F401
    from s3notify_platform.spark import load, memory_limit  # noqa: F401

    SYSTEM_CLOCK.sleep(0.05)  # so that all tasks of the job run concurrently, each in a worker of its own
    yield from batches
