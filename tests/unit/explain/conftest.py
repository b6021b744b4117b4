"""A source with its queue."""

import pytest

from tests.support.explained import Place


@pytest.fixture
def place():
    return Place().with_topic()


@pytest.fixture(autouse=True)
def _topics(briefly_known: None) -> None:
    """Processes cache topics only briefly, so that no test waits until a process knows a new topic."""
