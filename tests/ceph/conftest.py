"""One small Ceph for the tests of this folder. The tests are skipped if Ceph is not installed; `poe ceph` installs
it.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from tests.support.ceph import Ceph, missing_programs, running_ceph
from tests.support.servers import S3Server
from tests.support.site import Site


@pytest.fixture(scope="session")
def ceph() -> Iterator[Ceph]:
    """A cluster with one gateway; each test makes its own buckets."""
    if missing := missing_programs():
        pytest.skip(f"Ceph is not installed ({', '.join(missing)}): poe ceph")
    with (
        tempfile.TemporaryDirectory(prefix="s3notify-ceph-") as folder,
        running_ceph(Path(folder)) as running,
    ):
        yield running


@pytest.fixture(scope="session")
def rgw(ceph: Ceph) -> S3Server:
    """The cluster's gateway, as the same `S3Server` that tests use for other stores."""
    return ceph.server


@pytest.fixture
def site(
    spark: SparkSession, rgw: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    """A source of JSON lines below `raw/`; its credentials are in environment variables that the source names."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("S3NOTIFY_TEST_KEY", "test")
    monkeypatch.setenv("S3NOTIFY_TEST_SECRET", "test")
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        yield Site.of(rgw, instance)
