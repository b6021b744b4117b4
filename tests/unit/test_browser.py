"""Tests that need Chromium are skipped on a machine without it; in CI, they fail."""

import pytest

from tests.support.browser import PROGRAMS, find_chromium


def test_without_a_browser_the_reason_names_the_package(tmp_path, monkeypatch):
    """Otherwise a developer would not learn what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        find_chromium()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="Chromium is missing"):
        find_chromium()


@pytest.mark.parametrize("name", PROGRAMS)
def test_browser_is_found_by_its_name(tmp_path, monkeypatch, name):
    program = tmp_path / name
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_chromium() == str(program)
