"""The shell's completion, and the version that the program says."""

from importlib.metadata import version

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from s3notify_platform.cli.main import main


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"{version('s3notify-platform')}\n"


@pytest.mark.parametrize(
    ("words", "begun", "found"),
    [
        ([], "tab", {"table"}),
        (["table"], "co", {"compact", "confirm"}),
        (["ingest"], "--colum", {"--column-names"}),
    ],
)
def test_completion(words: list[str], begun: str, found: set[str]) -> None:
    """Commands and options, also where no source is configured."""
    complete = ShellComplete(main, {}, "s3notify", "_S3NOTIFY_COMPLETE")
    assert {item.value for item in complete.get_completions(words, begun)} == found
