"""A table with a Delta view over a store in memory."""

import pytest

from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.clocks import HandClock
from tests.support.viewed import Viewed, spark_schema
from tests.unit.table.delta.helpers import ids


@pytest.fixture
def viewed(clock: HandClock) -> Viewed:
    """A table with two slots, not synced yet."""
    made = Viewed(store=MemoryObjectStore(clock=clock), clock=clock)
    made.pin(spark_schema(id="long"))
    made.append(1, ids(1, 2))
    made.append(2, ids(3))
    return made
