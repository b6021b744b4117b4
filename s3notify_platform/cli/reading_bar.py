"""A progress bar while a round is read: objects, bytes, and an estimate."""

import atexit
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from s3notify_platform.engine.run_state import Reading

if TYPE_CHECKING:
    from pyspark import SparkContext
    from rich.progress import Progress

REDRAW_SECONDS: Final = 0.5


@contextmanager
def reading_bar(spark: "SparkContext") -> Iterator[Callable[[Reading | None], None]]:
    """A function that the caller calls with a `Reading` when the reading of a round begins, and with None when it ends.

    Without a terminal at stderr, the function does nothing.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, ended = Console(stderr=True), Event()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("objects, {task.fields[read]}"),
        TimeRemainingColumn(),
    )
    show_cursor = atexit.register(
        lambda: console.show_cursor(True)
    )  # shows the cursor if the process ends while the cursor is hidden
    with Progress(*columns, console=console, transient=True) as bar:
        shown = ReadingBar(bar)
        looking = Thread(target=shown.follow, args=[ended, lambda: share_done(spark)], daemon=True)
        looking.start()
        try:
            yield shown.begin
        finally:
            ended.set()
            looking.join()
            atexit.unregister(show_cursor)


class ReadingBar:
    """A progress bar, which shows one round after the other."""

    def __init__(self, bar: "Progress") -> None:
        self._bar = bar
        self._task = bar.add_task("reading", visible=False, read="")
        self._reading: Reading | None = None
        self._share = 0.0

    def begin(self, reading: Reading | None) -> None:
        """Begins a new round. If `reading` is None: hides the bar, because the round has been read."""
        self._reading, self._share = reading, 0.0
        if reading is None:
            self._bar.update(self._task, visible=False)
            return
        if not reading.done:
            self._bar.reset(self._task)
        self._bar.update(
            self._task, total=reading.done + reading.wanted, completed=reading.done, visible=True, read=""
        )

    def follow(self, ended: Event, share_done: Callable[[], float]) -> None:
        """Update the bar until `ended`.

        A round may have several jobs; the bar shows the largest share of finished tasks so far.
        """
        from s3notify_platform.spark.failures import JOB_ERRORS

        with suppress(*JOB_ERRORS, OSError):  # Java has ended; the reader of the round reports the error
            while not ended.wait(REDRAW_SECONDS):
                if (reading := self._reading) is not None:
                    self._share = max(self._share, share_done())
                    read = f"{self._share * reading.bytes / 1e6:,.0f} of {reading.bytes / 1e6:,.0f} MB of this round"
                    completed = reading.done + int(self._share * reading.objects)
                    self._bar.update(self._task, completed=completed, read=read)


def share_done(spark: "SparkContext") -> float:
    """The share of finished tasks in all running stages; 0 if no stage runs. No request."""
    tracker = spark.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
    found = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    begun = [stage for stage in found if stage and (stage.numActiveTasks or stage.numCompletedTasks)]
    tasks = sum(stage.numTasks for stage in begun)
    return sum(stage.numCompletedTasks for stage in begun) / tasks if tasks else 0.0
