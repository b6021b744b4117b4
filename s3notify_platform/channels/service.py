"""What runs for long beside the pipeline: inlets and outlets, as a command or managed by Dagster alike."""

from collections.abc import Callable, Mapping
from threading import Event
from typing import Protocol

Progress = Callable[[str], None]


class Service(Protocol):
    """An inlet or an outlet. Any number of them may run for the same topic."""

    name: str

    def run(self, stop: Event, progress: Progress) -> None:
        """Serve until `stop` is set, then end what is in hand, and return within seconds.

        Outages of what it talks to are waited for, with backoff, and told by `progress`. Raises `UsageError` for
        what only an operator can mend.
        """
        ...

    def counts(self) -> Mapping[str, int]:
        """What it has done since it began: received, queued, duplicates, failed, delivered, …"""
        ...
