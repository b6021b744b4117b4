"""A pushed topic in memory."""

import pytest

from tests.support.outlets import create, queue_over


@pytest.fixture
def queue(records, clock):
    queue = queue_over(records, clock)
    create(queue)
    return queue
