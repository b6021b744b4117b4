"""Fixtures for the tests of maintenance."""

import pytest

from tests.support.table_fixtures import clock, rounds, store, vectors  # noqa: F401 - fixtures


@pytest.fixture(autouse=True)
def _topics(briefly_known: None) -> None:
    """Each process notices changes of topics at once, so that no test waits until a process notices a change."""
