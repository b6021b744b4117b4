"""A fixture for the tests of reading: a new bucket on a real server."""

import pytest

from s3notify_platform.stores.config import S3Config
from tests.support.servers import S3Server


@pytest.fixture
def config(ministack: S3Server) -> S3Config:
    """The settings of a new bucket."""
    return ministack.config(ministack.make_bucket())
