"""Heartbeats of runs: that they live, and what they do. One record a run, which goes when it ends."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Final, Self

from s3notify_platform.engine.values.results import Progress
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.kernel.ports import Conflict, RecordStore, Version, WriteOutcome, Written

BEAT_SECONDS: Final = 5.0
FIRST_BEAT_SECONDS: Final = 2.0
"""A run that ends sooner has no heartbeat, which saves its two requests."""

HEARTBEATS: Final = "heartbeats"

FRESH_MS: Final = 60_000
"""A run is taken to live that long after a heartbeat: clocks of machines differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The newest heartbeat of a run. `batch`: what it works for; `doing`: at what it was then, by its clock."""

    number: int
    at_ms: int = 0
    batch: str = ""
    doing: str = ""

    def dumps(self) -> bytes:
        """JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def loads(cls, body: bytes) -> Self:
        """Inverse of `dumps`. What another version wrote is a heartbeat that stands still."""
        try:
            return cls(**json.loads(body))
        except (ValueError, TypeError):
            return cls(number=0)


def beats_of(records: RecordStore, run_id: str) -> int | None:
    """The number of a run's heartbeats; None before the first. 1 GET."""
    record = records.read(HEARTBEATS, run_id)
    return Beat.loads(record.value).number if record else None


def fresh_beats(records: RecordStore, now_ms: int) -> list[Beat]:
    """The newest heartbeat of each run that lives. 1 LIST, and 1 GET for each that has not ended or was killed."""
    found = [Beat.loads(record.value) for record in records.scan(HEARTBEATS)]
    return [beat for beat in found if now_ms - beat.at_ms < FRESH_MS]


@contextmanager
def heartbeat(
    records: RecordStore, run_id: str, *, batch: str = "", first_seconds: float = FIRST_BEAT_SECONDS
) -> Iterator[Progress]:
    """Beat every `BEAT_SECONDS` as long as the body runs, which may say what it does; first after `first_seconds`.

    A beat that fails is skipped: the sensor fails a run only after several missing beats. 1 PUT for each beat, and
    1 DELETE if there was one.
    """
    stop, doing = threading.Event(), [""]
    last: WriteOutcome = Conflict()
    number = 0

    def say(text: str) -> None:
        doing[0] = text

    def version() -> Version | None:
        """The record's, as it was written last; if that is in doubt, as it is read."""
        if isinstance(last, Written):
            return Version(last.etag or "")
        found = records.read(HEARTBEATS, run_id)
        return found.version if found is not None else None

    def beat() -> None:
        nonlocal last, number
        stop.wait(first_seconds)
        while not stop.is_set():
            number += 1
            body = Beat(number=number, at_ms=SYSTEM_CLOCK.wall_ms(), batch=batch, doing=doing[0]).dumps()
            try:
                if number == 1 or (known := version()) is None:
                    last = records.create(HEARTBEATS, run_id, body)
                else:
                    last = records.replace(HEARTBEATS, run_id, body, expected=known)
            except Exception:  # noqa: BLE001 - the work continues; it is safe even if the sensor fails the run
                logging.getLogger(__name__).warning("a heartbeat could not be written")
            stop.wait(BEAT_SECONDS)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield say
    finally:
        stop.set()
        thread.join(timeout=BEAT_SECONDS)
        with suppress(S3NotifyError):  # a heartbeat that stays behind stops, and the run has ended anyway
            if number and (known := version()) is not None:
                records.remove(HEARTBEATS, run_id, expected=known)


def purge_heartbeats(records: RecordStore, ended: Callable[[str], bool]) -> None:
    """Remove heartbeats that killed runs left. 1 LIST, and 1 GET and 2 writes for each."""
    for record in records.scan(HEARTBEATS):
        if ended(record.key):
            records.remove(HEARTBEATS, record.key, expected=record.version)
