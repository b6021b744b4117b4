"""A machine without Chromium: tests that need it are skipped, but not in CI."""

import pytest

from tests.support.browser import PROGRAMS, find_chromium


def test_without_a_browser(tmp_path, monkeypatch):
    """The reason says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        find_chromium()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no Chromium"):
        find_chromium()


@pytest.mark.parametrize("name", PROGRAMS)
def test_with_a_browser(tmp_path, monkeypatch, name):
    program = tmp_path / name
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_chromium() == str(program)
