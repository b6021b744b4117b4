"""A Dagster instance, and sources in new buckets of a real S3 server."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from tests.contracts.fault_proxy import FaultProxy
from tests.support.servers import S3Server
from tests.support.site import Site


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """A real SQLite instance, as in production except for its folder."""
    with dg.instance_for_test(temp_dir=str(tmp_path)) as found:
        yield found


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the environment variables that the sources name. boto3's own chain finds no credentials, so these variables
    must reach every task.
    """
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("S3NOTIFY_TEST_KEY", "test")
    monkeypatch.setenv("S3NOTIFY_TEST_SECRET", "test")


@pytest.fixture
def site_of(spark: SparkSession, ministack: S3Server, instance: dg.DagsterInstance) -> Callable[..., Site]:
    """A source of a new bucket, with the given attributes of the component."""
    return lambda **attributes: Site.of(ministack, instance, **attributes)


@pytest.fixture
def site(site_of: Callable[..., Site]) -> Site:
    """A source of JSON lines below `raw/`."""
    return site_of()


@pytest.fixture
def proxy(ministack: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(ministack.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def watched(
    spark: SparkSession, ministack: S3Server, proxy: FaultProxy, instance: dg.DagsterInstance
) -> Site:
    """A source after its first listing. The proxy records its requests."""
    server = replace(
        ministack,
        endpoint_url=proxy.url,
        config=lambda bucket: replace(ministack.config(bucket), endpoint_url=proxy.url),
    )
    site = Site.of(server, instance)
    site.settle()
    proxy.answered.clear()
    return site


@pytest.fixture(autouse=True)
def _topics(briefly_known: None) -> None:
    """Clients cache topics only briefly, so tests need not wait until clients know a new topic."""
