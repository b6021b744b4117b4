"""The facts from which `explain` answers for one key, as plain values."""

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
    """True if the signal's writer also queues the keys that changed."""


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
    """The consumer that has claimed the entry, or "" if no consumer has claimed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """A topic that receives the key."""

    name: str
    own: bool
    """True for the source's own topic, from which batches read."""
    pushed: bool
    notices: tuple[Notice, ...]
    cut: bool
    """True if only some of the slot's entries were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedVersion:
    """The object version in the table. `version`: the table version that committed the object version. `newest`: the
    table version that last changed the object's slot.
    """

    etag: str
    size: int
    rows: int
    rejects: int
    files: tuple[str, ...]
    version: int
    doubt: str
    """The doubt about `version`, like "or later", or "" if there is no doubt. A doubt exists because old table versions
    are not kept.
    """
    seen_ms: int
    """The time when the object version's batch was opened, or 0 if unknown. `seen_ms` is from the sensor's clock, and
    `planned_ms` is from the run's clock.
    """
    planned_ms: int
    committed_ms: int
    batch: str
    newest: int
    reason: str = ""
    """The reason why the object could not be read, or "" if it was read."""
    trace: str = ""
    """The traceback, if the error was unforeseen."""
    reach_end: bool = True
    offset: int = 0
    """The number of the object's bytes that were read, or the number of records if `by_record` is set. The number is
    used only if the object's end is not reached yet.
    """
    by_record: bool = False
    emptiness: str = ""
    """A text that says when objects of this format have no records. The text is set if the object has bytes, but
    neither rows nor rejects.
    """
    pending: bool = False
    """True if the slot's next batch reads the next part of the object, or reads the object again."""

    @property
    def read(self) -> str:
        """A text that says how much of the object was read."""
        if self.reach_end:
            return f"{self.size} bytes read"
        read = f"{self.offset} records of its" if self.by_record else f"{self.offset} of"
        return f"{read} {self.size} bytes read so far"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A record in quarantine. `offset`: the record's position in bytes, or its row number in a Parquet file."""

    offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """An open batch that will commit the slot."""

    id: str
    opened_ms: int
    listing: bool
    """True if the batch lists all keys of the slot. Otherwise the batch reads only the keys that entries name."""
    runs: tuple[str, ...] = ()
    """The batch's runs, with their status. The tuple is empty without a Dagster instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorView:
    """The part of the sensor's cursor that concerns one slot."""

    seen: bytes
    """The digest of the slot's last signal that the sensor has seen (`protocols.keyspace.digest_of`)."""
    enumerated: str
    """The topic had this epoch when all slots were compared."""
    batches: tuple[BatchView, ...] = ()
    failing: Failing | None = None
    trace: str = ""
    """The traceback of the slot's failure, if the error was unforeseen."""
    on: bool = True
    """True if the sensor is switched on. `s3notify pause` switches the sensor off."""
    ticked_ms: int = 0
    """The time of the sensor's last tick, in Unix milliseconds, or 0 if unknown."""
    reported: tuple[tuple[int, int], ...] = ()
    """The slot's last data versions in Dagster's event log, and the time of each report."""
