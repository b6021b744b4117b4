"""What these tests share."""

import pytest

from tests.support.table_fixtures import clock, rounds, store, vectors  # noqa: F401 - fixtures


@pytest.fixture(autouse=True)
def _topics(briefly_known: None) -> None:
    """No test waits for topics to be known."""
