"""One Spark session for all Spark tests, and lakes on real servers."""

import os
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from s3notify_platform.stores.config import S3Config
from tests.support.servers import S3Server
from tests.support.spark import Lake, start_spark
from tests.support.spark_options import ENVIRONMENT

# Before any JVM starts, which hands its environment on.
os.environ.update(ENVIRONMENT)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_spark(master="local[2]")
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def config(ministack: S3Server) -> S3Config:
    """A new bucket."""
    return ministack.config(ministack.make_bucket())


@pytest.fixture
def lake(spark: SparkSession, config: S3Config) -> Lake:
    """A JSONL source `raw/` with 8 slots in a new bucket."""
    return Lake.of(spark, config)


@pytest.fixture
def lake_of(spark: SparkSession, ministack: S3Server) -> Callable[..., Lake]:
    """Lakes with other settings of the source."""
    return lambda **source: Lake.of(spark, ministack.config(ministack.make_bucket()), **source)
