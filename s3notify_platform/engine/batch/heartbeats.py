"""Heartbeats of runs: each heartbeat shows that a run is alive, and contains the run's current work.

Each run has one record, which is deleted when the run ends.
"""

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
"""Seconds before the first heartbeat. A shorter run writes no heartbeat, which saves two requests."""

HEARTBEATS: Final = "heartbeats"

FRESH_MS: Final = 60_000
"""Milliseconds for which a run counts as alive after a heartbeat.

The time is long because the clocks of machines differ.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The newest heartbeat of a run.

    `batch`: the run's batch; `doing`: the run's current work; `at_ms`: the time of the heartbeat, by the run's clock.
    """

    number: int
    at_ms: int = 0
    batch: str = ""
    doing: str = ""

    def dumps(self) -> bytes:
        """JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def loads(cls, body: bytes) -> Self:
        """Inverse of `dumps`. If another version of this package wrote the body, the number is 0, and stays 0."""
        try:
            return cls(**json.loads(body))
        except (ValueError, TypeError):
            return cls(number=0)


def beats_of(records: RecordStore, run_id: str) -> int | None:
    """Returns the number of a run's newest heartbeat; None before the first heartbeat. Cost: 1 GET."""
    record = records.read(HEARTBEATS, run_id)
    return Beat.loads(record.value).number if record else None


def fresh_beats(records: RecordStore, now_ms: int) -> list[Beat]:
    """Returns the newest heartbeat of each living run.

    Cost: 1 LIST, and 1 GET for each heartbeat, including the heartbeats of killed runs.
    """
    found = [Beat.loads(record.value) for record in records.scan(HEARTBEATS)]
    return [beat for beat in found if now_ms - beat.at_ms < FRESH_MS]


@contextmanager
def heartbeat(
    records: RecordStore, run_id: str, *, batch: str = "", first_seconds: float = FIRST_BEAT_SECONDS
) -> Iterator[Progress]:
    """Writes a heartbeat every `BEAT_SECONDS` while the body runs, and the first heartbeat after `first_seconds`.

    Yields a function by which the body reports its current work. A failed heartbeat is skipped: the sensor fails a run
    only after several missing heartbeats. Cost: 1 PUT for each heartbeat, and 1 DELETE if a heartbeat was written.
    """
    stop, doing = threading.Event(), [""]
    last: WriteOutcome = Conflict()
    number = 0

    def say(text: str) -> None:
        doing[0] = text

    def version() -> Version | None:
        """Returns the version of the heartbeat's record. If the last write may or may not have been applied, the record
        is read again.
        """
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
        with suppress(S3NotifyError):  # a remaining record is harmless: the run has ended
            if number and (known := version()) is not None:
                records.remove(HEARTBEATS, run_id, expected=known)


def purge_heartbeats(records: RecordStore, ended: Callable[[str], bool]) -> None:
    """Deletes the heartbeats of killed runs. Cost: 1 LIST, 1 GET for each heartbeat, and 2 writes for each deletion."""
    for record in records.scan(HEARTBEATS):
        if ended(record.key):
            records.remove(HEARTBEATS, record.key, expected=record.version)
