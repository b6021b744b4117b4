"""A bar while a round is read: objects, bytes, and an estimate."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from s3notify_platform.ingest.results import Reading

if TYPE_CHECKING:
    from pyspark import SparkContext

LOOK_SECONDS: Final = 0.5


@contextmanager
def reading_bar(spark: "SparkContext") -> Iterator[Callable[[Reading], None]]:
    """What is called when a round begins. Nothing is shown where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    ended = Event()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("objects, {task.fields[read]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", visible=False, read="")
        now: list[Reading] = []

        def begin(reading: Reading) -> None:
            now[:] = [reading]
            bar.update(task, total=reading.done + reading.wanted, completed=reading.done, visible=True)

        def look() -> None:
            while not ended.wait(LOOK_SECONDS):
                if now and (share := share_done(spark)) is not None:
                    done, size = now[0].done + share * now[0].objects, share * now[0].bytes
                    read = f"{size / 1e6:,.0f} of {now[0].bytes / 1e6:,.0f} MB of this round"
                    bar.update(task, completed=int(done), read=read)
                else:
                    bar.update(task, visible=False)

        looking = Thread(target=look, daemon=True)
        looking.start()
        try:
            yield begin
        finally:
            ended.set()
            looking.join()


def share_done(spark: "SparkContext") -> float | None:
    """The share of the tasks of all jobs that run now; None if none does. No request."""
    tracker = spark.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    tasks = sum(stage.numTasks for stage in stages if stage)
    return sum(stage.numCompletedTasks for stage in stages if stage) / tasks if tasks else None
