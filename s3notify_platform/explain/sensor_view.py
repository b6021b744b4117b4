"""What a source's sensor knows of one slot. Whoever has a Dagster instance at hand fills it in."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBatch:
    """A batch that is to commit the slot."""

    id: str
    opened_ms: int
    listing: bool
    """It looks at all of the slot's keys, and not only at those that entries name."""
    runs: tuple[str, ...] = ()
    """Its runs, as people know them; empty where no Dagster instance is at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """The slot's last batch did not commit it."""

    attempts: int
    reason: str
    parked: bool
    """It failed too often: asked for again much later, or when it changes."""
    not_before_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorView:
    """The sensor's cursor, as far as one slot goes."""

    seen: bytes
    """Digest of the slot's signal that was taken up last (`protocols.keyspace.digest_of`)."""
    listing_due: bool
    """The whole source is still to be listed."""
    batches: tuple[OpenBatch, ...] = ()
    failing: Failing | None = None
