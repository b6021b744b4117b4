"""What these tests share."""

import pytest


@pytest.fixture(autouse=True)
def _topics(briefly_known: None) -> None:
    """No test waits for topics to be known."""
