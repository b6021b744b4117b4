"""A fixture: a publisher of one keyspace in memory."""

import pytest

from s3notify_platform.protocols.keyspace import Publisher


@pytest.fixture
def publisher(store):
    return Publisher(store, prefix="ks/")
