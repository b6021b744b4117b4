"""A browser for tests of web pages."""

import os
import shutil

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of Chromium. If Chromium is missing, the test is skipped. In CI, the test fails instead."""
    return find_chromium()


def find_chromium() -> str:
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        missing = "Chromium is missing: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(f"{missing} (CI is set)")
        pytest.skip(missing)
    return found
