"""Fixtures: sources (lakes) on real servers."""

import os
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from s3notify_platform.stores.config import S3Config
from tests.support.servers import S3Server
from tests.support.spark import Lake
from tests.support.spark_options import ENVIRONMENT

# The data source's options name these environment variables. Tests without a Spark session need the variables, too.
os.environ.update(ENVIRONMENT)


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
    """Makes lakes whose sources have the given settings."""
    return lambda **source: Lake.of(spark, ministack.config(ministack.make_bucket()), **source)


@pytest.fixture(autouse=True)
def _topics(briefly_known: None) -> None:
    """Clients cache topics only briefly, so tests need not wait until a change of a topic is seen."""
