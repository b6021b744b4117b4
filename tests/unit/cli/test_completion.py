"""Completion in the shell, and `--version`."""

from importlib.metadata import version

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from s3notify_platform.cli.main import main


def test_version_is_the_version_of_the_package() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"{version('s3notify-platform')}\n"


@pytest.mark.parametrize(
    ("words", "begun", "found"),
    [
        ([], "tab", {"table"}),
        (["table"], "co", {"compact", "confirm"}),
        (["ingest"], "--colum", {"--column-names"}),
    ],
)
def test_commands_and_options_are_completed(words: list[str], begun: str, found: set[str]) -> None:
    """Completion must work without a configured source. Options that only `--help-all` shows are completed too."""
    complete = ShellComplete(main, {}, "s3notify", "_S3NOTIFY_COMPLETE")
    assert {item.value for item in complete.get_completions(words, begun)} == found
