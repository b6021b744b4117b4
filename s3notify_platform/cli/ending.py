"""How commands end: on signals, within a time, and without the interpreter's own teardown."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from s3notify_platform.cli.printing import say
from s3notify_platform.kernel.limits import DRAIN_SECONDS

if TYPE_CHECKING:
    from s3notify_platform.channels.service import Service
    from s3notify_platform.protocols.notification_queue import NotificationQueue


@contextmanager
def stop_on_signals(name: str) -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; the body then finishes or releases its work in progress, and returns.

    The process ends with exit code 0 within `DRAIN_SECONDS`: what is not finished by then is left as after a kill. A
    second signal ends it at once. `name` is for messages.
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
            say(f"{name}: not finished after {DRAIN_SECONDS:g} s: ends; the rest is done again", err=True)
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
    """SIGTERM and SIGHUP are as SIGINT: `KeyboardInterrupt`. More of them do nothing, as it is ending."""
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
    """Run a service until SIGINT or SIGTERM, as `stop_on_signals`; then print its counts by name, in one line.

    `metrics`: where they are served meanwhile, with facts of the queue (`channels.metrics`).
    """
    from s3notify_platform.channels.metrics import Metrics, served

    shown = Metrics(service.name, service.counts, queue)
    with served(metrics, shown), stop_on_signals(service.name) as stop:
        say(f"{service.name}: running; Ctrl-C ends it", err=True)
        try:
            service.run(stop, lambda text: say(f"{service.name}: {text}", err=True))
        finally:
            counts = " ".join(f"{name}={number}" for name, number in service.counts().items())
            say(f"{service.name}: {counts}", err=True)


def leave(code: int) -> NoReturn:
    """End the process, after what is registered with `atexit`, without tearing down the interpreter.

    A thread of Arrow may still hold bytes of Python. When it frees them during the teardown, CPython ends the thread
    within a C++ destructor, and the process aborts (134), although all its work is done.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no other way to run them
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # a closed pipe, or a full disk
            code = code or 1
    os._exit(code)
