"""Counts the requests of `s3notify ingest` for changes that are put between its polls.

Sequential requests are counted, too: on a real store, each sequential request takes 20 to 60 ms.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from s3notify_platform.spark.continuous import ContinuousIngest
from tests.contracts.fault_proxy import Answered, FaultProxy, in_sequence


@dataclass(frozen=True, slots=True)
class Requests:
    """The number of requests by method, and the number of requests that were sent one after another."""

    counts: Counter[str]
    in_sequence: int

    @classmethod
    def at(cls, proxy: FaultProxy) -> "Requests":
        """The requests at the proxy since the last call."""
        found = [*proxy.answered]
        proxy.answered.clear()
        return cls(Counter(map(method_of, found)), in_sequence(found))

    @property
    def total(self) -> int:
        return self.counts.total()


def method_of(request: Answered) -> str:
    """The method of a request to the bucket, or the operation of a request to DynamoDB."""
    return request.headers.get("x-amz-target", request.method).rpartition(".")[2]


def counted(
    ingest: ContinuousIngest, proxy: FaultProxy, rounds: int, put: Callable[[int], object]
) -> list[tuple[Requests, Requests]]:
    """The requests of each call of `put`, and of the following poll and batch. All requests pass through the proxy."""
    found: list[tuple[Requests, Requests]] = []

    class Rests(Event):
        puts: Requests | None = None

        def wait(self, timeout: float | None = None) -> bool:
            if self.puts is not None:
                found.append((self.puts, Requests.at(proxy)))
            if len(found) == rounds:
                self.set()
                return True
            proxy.answered.clear()
            put(len(found))
            self.puts = Requests.at(proxy)
            return False

    ingest.run(Rests(), every_seconds=0.1)
    return found
