"""A browser for tests that look at pages."""

import os
import shutil

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of Chromium. Without one the test is skipped; it fails where CI is set, which has to have one."""
    return find_chromium()


def find_chromium() -> str:
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        missing = "there is no Chromium: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(f"{missing} (CI is set)")
        pytest.skip(missing)
    return found
