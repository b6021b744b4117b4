"""A fixture for the tests of channels: a bucket in memory, whose queue has one topic."""

import pytest

from tests.support.queued_publisher import World


@pytest.fixture
def world():
    world = World()
    world.topic()
    return world
