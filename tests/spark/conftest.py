"""Fixtures that make sources (lakes) on real servers."""

import os
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from s3notify_platform.stores.config import S3Config
from tests.contracts.fault_proxy import FaultProxy
from tests.support.changing import Changing, changing_source
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
    """Clients cache topics only briefly, so tests need not wait until clients notice a change of a topic."""


@pytest.fixture(
    params=[pytest.param(True, id="listing", marks=pytest.mark.thorough), pytest.param(False, id="entries")]
)
def listing(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


@pytest.fixture(params=["ministack", pytest.param("seaweed", marks=pytest.mark.thorough)])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def changing_of(
    spark: SparkSession, listing: bool, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Changing]]:
    """Returns a function that makes a source with the given settings. A proxy is in front of the source's bucket."""
    name = "server" if "server" in request.fixturenames else "ministack"
    at: S3Server = request.getfixturevalue(name)
    with FaultProxy(at.endpoint_url) as proxy:

        def new(**settings: object) -> Changing:
            source = changing_source(at.config(at.make_bucket()), proxy, **settings)
            return Changing(spark=spark, source=source, proxy=proxy, listing=listing)

        yield new
