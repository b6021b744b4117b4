"""Reads creation times of a table's versions, by the store's clock, and caches them."""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.table.snapshot import LogReader

VERSIONS_TIMED: Final = 64
"""Maximum number of creation times that one call reads. If there are more versions, only a sample of them is read.
"""


class VersionTimes:
    """The creation times of one table's versions. The class is thread-safe, but concurrent callers may send the same
    requests.
    """

    def __init__(self) -> None:
        self._created_ms: dict[int, int] = {}

    def note(self, versions: Iterable[int], at_ms: int) -> None:
        """Adds versions that this process has just created, so that their times need no request."""
        self._created_ms = dict.fromkeys(versions, at_ms) | self._created_ms

    def of(self, reader: LogReader, versions: Iterable[int]) -> dict[int, int]:
        """Returns the creation times of versions in milliseconds, with 0 for a version that is not kept. Cost: 1 HEAD
        for each new version.

        If there are more versions than `VERSIONS_TIMED`, some versions get the time of a later version.
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
