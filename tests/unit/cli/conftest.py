"""A fixture of all tests of commands."""

import pytest


@pytest.fixture(autouse=True)
def _topics(briefly_known: None) -> None:
    """Topics are cached only briefly, so that no test waits for a change."""
