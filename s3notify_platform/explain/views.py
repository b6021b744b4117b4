"""The facts from which `explain` answers for one key: values, as they were found."""

from dataclasses import dataclass

from s3notify_platform.engine.batch.batches import Failing


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectNow:
    """The object under the key."""

    etag: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """The signal of the key's slot."""

    etag: str
    modified_ms: int
    queued: bool
    """Whether its writer also queues the keys that changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An entry, or a dead letter, of the key."""

    op: str
    state: str
    etag: str | None
    since_ms: int
    attempts: int
    last_error: str
    reason: str
    worker: str
    """The consumer that has taken it; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """A topic that takes the key."""

    name: str
    own: bool
    """Whether it is the source's own, from which batches read."""
    pushed: bool
    notices: tuple[Notice, ...]
    cut: bool
    """The slot has more entries than were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedVersion:
    """The object version that the table holds. `version` of the table committed it; `newest` last changed its slot."""

    etag: str
    size: int
    rows: int
    rejects: int
    files: tuple[str, ...]
    version: int
    doubt: str
    """What is not known of that number, since versions are not kept for ever; empty: nothing."""
    seen_ms: int
    """When its batch was opened; 0: not known. As `planned_ms`, by the clocks of sensor and run."""
    planned_ms: int
    committed_ms: int
    batch: str
    newest: int
    reason: str = ""
    """Why it could not be read; empty: it was read."""
    trace: str = ""
    """The traceback, if nobody foresaw the error."""
    reach_end: bool = True
    offset: int = 0
    """Bytes, or with `by_record` records, that are read so far, if not to its end."""
    by_record: bool = False
    emptiness: str = ""
    """How an object of its format shows that it has no records, if it has bytes, but neither rows nor rejects."""
    pending: bool = False
    """The slot's next batch continues reading it, or reads it again."""

    @property
    def read(self) -> str:
        """As text: how much of it is read."""
        if self.reach_end:
            return f"{self.size} bytes read"
        read = f"{self.offset} records of its" if self.by_record else f"{self.offset} of"
        return f"{read} {self.size} bytes read so far"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A record in quarantine. `offset`: bytes, or the row number of a Parquet file."""

    offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """An open batch that is to commit the slot."""

    id: str
    opened_ms: int
    listing: bool
    """Whether it lists all of the slot's keys, instead of reading only those that entries name."""
    runs: tuple[str, ...] = ()
    """Its runs, with their status; empty without a Dagster instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorView:
    """The part of the sensor's cursor that concerns one slot."""

    seen: bytes
    """Digest of the last signal of the slot that the sensor has seen (`protocols.keyspace.digest_of`)."""
    enumerated: str
    """Epoch of the topic for which the whole source has been compared."""
    batches: tuple[BatchView, ...] = ()
    failing: Failing | None = None
    trace: str = ""
    """The traceback with which the slot failed, if nobody foresaw the error."""
    on: bool = True
    """Whether the sensor is switched on; off after `s3notify pause`."""
    ticked_ms: int = 0
    """When it ticked last; 0: not known."""
    reported: tuple[tuple[int, int], ...] = ()
    """The slot's last data versions in Dagster's event log, and when each was reported."""
