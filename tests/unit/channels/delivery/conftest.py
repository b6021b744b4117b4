"""A fixture for the tests of delivery: a queue in memory, with one topic that is pushed to an endpoint."""

import pytest

from tests.support.outlets import create, queue_over


@pytest.fixture
def queue(records, clock):
    queue = queue_over(records, clock)
    create(queue)
    return queue
