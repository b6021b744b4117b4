"""The progress bar of `s3notify ingest`."""

from io import StringIO
from threading import Event

import pytest
from rich.console import Console
from rich.progress import Progress

from s3notify_platform.cli import reading_bar
from s3notify_platform.cli.reading_bar import ReadingBar
from s3notify_platform.engine.run_state import Reading


@pytest.fixture
def bar(monkeypatch: pytest.MonkeyPatch) -> Progress:
    monkeypatch.setattr(reading_bar, "REDRAW_SECONDS", 0.001)
    return Progress("{task.fields[read]}", console=Console(file=StringIO(), force_terminal=True))


def follow(shown: ReadingBar, *shares: float) -> None:
    """Makes the bar read each of these shares once."""
    ended, found = Event(), iter(shares)

    def share() -> float:
        now = next(found)
        if now == shares[-1]:
            ended.set()
        return now

    shown.follow(ended, share)


def test_the_bar_never_goes_back_within_a_round(bar):
    """Otherwise a user would believe that objects are read again. A round has several jobs, and each job's share begins
    at 0.
    """
    shown = ReadingBar(bar)
    shown.begin(Reading(objects=100, bytes=50_000_000, wanted=300, done=0))
    follow(shown, 0.5, 0.0, 0.25)
    (task,) = bar.tasks
    assert (task.visible, task.completed, task.total) == (True, 50, 300)
    assert task.fields["read"] == "25 of 50 MB of this round"


def test_the_bar_counts_earlier_rounds(bar):
    """Otherwise the bar would begin at 0 in each round, and the user could not see how many of all objects are read.
    Between two rounds the bar is hidden.
    """
    shown = ReadingBar(bar)
    shown.begin(Reading(objects=100, bytes=1, wanted=300, done=0))
    follow(shown, 1.0)
    shown.begin(None)
    assert not bar.tasks[0].visible
    shown.begin(Reading(objects=200, bytes=1, wanted=200, done=100))
    assert (bar.tasks[0].visible, bar.tasks[0].completed, bar.tasks[0].total) == (True, 100, 300)


def test_the_bar_ends_with_java(bar):
    """If Java has ended, the bar must raise no error, because the round reports the error."""
    asked = []

    def share() -> float:
        asked.append(1)
        raise ConnectionResetError

    shown = ReadingBar(bar)
    shown.begin(Reading(objects=1, bytes=1, wanted=1, done=0))
    shown.follow(Event(), share)
    assert len(asked) == 1
