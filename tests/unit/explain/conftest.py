"""A source with its queue."""

import pytest

from tests.support.explained import Place


@pytest.fixture
def place():
    return Place().with_topic()
