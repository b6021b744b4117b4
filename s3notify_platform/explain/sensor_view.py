"""What a source's sensor knows about one slot. Filled in where there is a Dagster instance."""

from dataclasses import dataclass

from s3notify_platform.ingest.batches import Failing


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
