"""How commands end: after signals, within a time limit, and without the teardown of the interpreter."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from s3notify_platform.cli.printing import say, say_wrapped
from s3notify_platform.kernel.limits import DRAIN_SECONDS

if TYPE_CHECKING:
    from s3notify_platform.channels.service import Service
    from s3notify_platform.protocols.notification_queue import NotificationQueue


@contextmanager
def stop_on_signals(name: str) -> Iterator[threading.Event]:
    """Yields an event, which SIGINT or SIGTERM sets. The body must then finish or release its work, and return.

    The process ends with exit code 0 within `DRAIN_SECONDS`. Unfinished work is then in the same state as after a kill.
    A second signal ends the process at once. `name` is for messages.
    """
    stop = threading.Event()
    ended = threading.Event()

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if not stop.is_set():
            stop.set()
            threading.Thread(target=expire, name="drain", daemon=True).start()

    def expire() -> None:
        if not ended.wait(DRAIN_SECONDS):
            say_wrapped(
                f"{name}: not finished after {DRAIN_SECONDS:g} s; ends now, and the unfinished work is repeated later",
                err=True,
            )
            leave(0)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        ended.set()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGHUP raises `KeyboardInterrupt`; later signals are ignored."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_in_foreground(
    service: "Service", *, queue: "NotificationQueue | None" = None, metrics: str | None = None
) -> None:
    """Run a service until SIGINT or SIGTERM (`stop_on_signals`); then print its counts by name, in one line.

    `metrics`: while the service runs, this address HOST:PORT serves the service's counts, and facts of the queue
    (`channels.metrics`).
    """
    from s3notify_platform.channels.metrics import Metrics, served

    shown = Metrics(service.name, service.counts, queue)
    with served(metrics, shown), stop_on_signals(service.name) as stop:
        say_wrapped(f"{service.name}: running; Ctrl-C ends it", err=True)
        try:
            service.run(stop, lambda text: say_wrapped(f"{service.name}: {text}", err=True))
        finally:
            counts = " ".join(f"{name}={number}" for name, number in service.counts().items())
            say(f"{service.name}: {counts}", err=True)


def leave(code: int) -> NoReturn:
    """Run the functions that are registered with `atexit`, and end the process without a teardown of the interpreter.

    A thread of Arrow may own Python bytes until the thread ends. If the thread frees these bytes during the teardown,
    CPython ends the thread within a C++ destructor. The process then aborts with exit code 134, although all its work
    is done.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - no public function runs them
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # the pipe is closed, or the disk is full
            code = code or 1
    os._exit(code)
