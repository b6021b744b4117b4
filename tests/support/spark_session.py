"""One Spark session for all tests of a process, and for the runs that they start in it."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """An embedded Spark session with two cores."""
    # This is imported here, because most tests need no Spark.
    from tests.support.spark import start_spark

    session = start_spark(master="local[2]")
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
