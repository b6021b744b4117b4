"""The pages of the guide: their summaries, and their way into the installed package."""

import pytest
from hatchling.builders.wheel import WheelBuilder

from s3notify_platform.cli.guide import pages, summary
from tests.support.only import PROJECT


@pytest.mark.parametrize("topic", pages())
def test_a_topic_is_listed_with_one_sentence(topic: str) -> None:
    """Otherwise the list of topics would be a page of text, and nobody would find the right topic."""
    shown = summary(pages()[topic])
    assert shown.endswith(".")
    assert ". " not in shown


def test_the_wheel_has_all_pages() -> None:
    """Otherwise `s3notify guide` would show nothing where the package is installed without a clone."""
    files = WheelBuilder(str(PROJECT.parent)).recurse_included_files()
    shipped = {file.distribution_path for file in files}
    assert {f"s3notify_platform/guide/{topic}.md" for topic in pages()} <= shipped
