"""One small Ceph for the tests of this stage. Where it is not installed they are skipped; `poe ceph` installs it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ceph import Ceph, missing_programs, running_ceph
from tests.support.servers import S3Server


@pytest.fixture(scope="session")
def ceph() -> Iterator[Ceph]:
    """A cluster with one gateway; each test takes buckets of its own."""
    if missing := missing_programs():
        pytest.skip(f"Ceph is not installed ({', '.join(missing)}): poe ceph")
    with (
        tempfile.TemporaryDirectory(prefix="s3notify-ceph-") as folder,
        running_ceph(Path(folder)) as running,
    ):
        yield running


@pytest.fixture(scope="session")
def rgw(ceph: Ceph) -> S3Server:
    """Its gateway as an S3 server like the others."""
    return ceph.server
