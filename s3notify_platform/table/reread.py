"""Requests that unchanged objects of a table are read again."""

from collections.abc import Mapping

from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.manifest import SlotFacts


def backfilled_keys(facts: SlotFacts, states: Mapping[str, ObjectState]) -> frozenset[str]:
    """The objects that a backfill requests and that have not been read since. Pure."""
    return frozenset(key for key, s in states.items() if s.since < facts.backfill and not s.reason)
