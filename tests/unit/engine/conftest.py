"""Fixtures of the engine's tests."""

import pytest


@pytest.fixture(autouse=True)
def _topics(briefly_known: None) -> None:
    """Processes cache topics for a shorter time than usual, so that no test has to wait."""
