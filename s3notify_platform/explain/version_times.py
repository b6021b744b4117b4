"""When versions of a table were created, by the store's clock, remembered from one look to the next."""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.table.snapshot import LogReader

VERSIONS_TIMED: Final = 64
"""Versions of which a look asks when they were created: those that last changed a slot, or as many of them."""


class VersionTimes:
    """The times of one table's versions. Thread-safe: who comes at the same time asks the same."""

    def __init__(self) -> None:
        self._created_ms: dict[int, int] = {}

    def note(self, versions: Iterable[int], at_ms: int) -> None:
        """Versions that this process has created just now, so that nobody asks for their times."""
        self._created_ms = dict.fromkeys(versions, at_ms) | self._created_ms

    def of(self, reader: LogReader, versions: Iterable[int]) -> dict[int, int]:
        """When versions were created: in milliseconds, 0 for one that is not kept. 1 HEAD for each that is new.

        Of more than `VERSIONS_TIMED`, some have the time of a later one among them.
        """
        wanted = sorted(versions, reverse=True)
        some = wanted[:: -(-len(wanted) // VERSIONS_TIMED) or 1]
        known = self._created_ms
        new = [version for version in some if version not in known]
        found = in_parallel(
            lambda version: reader.store.head(reader.layout.version(version)), new, REQUESTS_IN_FLIGHT
        )
        asked = {
            version: meta.modified_ms if meta is not None else 0
            for version, meta in zip(new, found, strict=True)
        }
        known = self._created_ms = {n: at for n, at in (known | asked).items() if n in wanted}
        timed = sorted(known)
        return {version: known[timed[bisect_left(timed, version)]] for version in wanted}
