"""Fixtures of the engine's tests."""

import pytest


@pytest.fixture(autouse=True)
def _topics(briefly_known: None) -> None:
    """Topics are known briefly, so that no test waits for them."""
