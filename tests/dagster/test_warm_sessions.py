"""Spark sessions in a Java process that stays alive between runs."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from s3notify_platform.orchestration.resources import SlotSpark
from s3notify_platform.spark.warm_sessions import fresh_session

pytestmark = pytest.mark.spark


@pytest.fixture
def own_session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session for this test only. After the test, the other tests get their own session back."""
    yield spark
    fresh_session(spark)
    SparkSession._instantiatedSession = spark
    spark._jvm.SparkSession.setDefaultSession(spark._jsparkSession)


def test_each_run_of_a_resource_gets_a_fresh_session(own_session: SparkSession) -> None:
    """Otherwise a run would see settings or temporary views of other runs."""
    resource = SlotSpark()
    first = resource.started(resident=True)
    assert resource.spark_session is first
    first.range(1).createOrReplaceTempView("left_behind")
    fresh_session(first)
    second = resource.started(resident=True)
    assert second is not first
    assert resource.spark_session is second
    assert not second.catalog.tableExists("left_behind")
