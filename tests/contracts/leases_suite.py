"""The contract of `Leases`."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from s3notify_platform.protocols.conditional_commit import CommitLease, Granted, Leases, Occupied

LEASE = CommitLease(path="a/b", etag="*", generation=0, timeout_ms=20_000, ttl=1_700_000_000, writer="w1")
ODD = ["a b", "日本語/ключ/🙂", "a//b", 'a"b', "x" * 1000, "*"]


class LeasesSuite:
    """The contract. Subclasses define the fixture `leases`, an empty table."""

    writers = 16

    @pytest.fixture
    def leases(self) -> Iterator[Leases]:
        raise NotImplementedError

    def test_put_creates_a_lease_once(self, leases):
        """The second put returns the existing lease. Another path, or another ETag, has a separate lease."""
        assert leases.read("a/b", "*") is None
        assert leases.put(LEASE, seen=None) == Granted()
        assert leases.put(replace(LEASE, writer="w2"), seen=None) == Occupied(found=LEASE)
        assert leases.put(replace(LEASE, etag="e1"), seen=None) == Granted()
        assert leases.put(replace(LEASE, path="a/c"), seen=None) == Granted()
        assert leases.read("a/b", "*") == LEASE

    def test_any_path_is_returned_unchanged(self, leases):
        """Any path must be returned unchanged, even for a lease without a writer."""
        for path in ODD:
            for etag in ("*", "0123456789abcdef", "abc-2"):
                lease = replace(LEASE, path=path, etag=etag, writer=None)
                assert leases.put(lease, seen=None) == Granted()
                assert leases.read(path, etag) == lease

    def test_replace_needs_the_generation_and_writer_that_were_read(self, leases):
        """A put is refused if generation or writer differ from the stored lease. The timeout may differ."""
        second = replace(LEASE, generation=1, writer="w2")
        assert leases.put(second, seen=LEASE) == Occupied(found=None)
        leases.put(LEASE, seen=None)
        assert leases.put(second, seen=replace(LEASE, timeout_ms=0)) == Granted()
        assert leases.put(replace(second, writer="w3"), seen=LEASE) == Occupied(found=second)
        done = replace(second, generation=2, timeout_ms=0)
        assert leases.put(done, seen=second) == Granted()
        assert leases.read("a/b", "*") == done

    def test_leases_of_one_generation_differ_by_writer(self, leases):
        """The leases of this writer, of another writer, and of a client that names no writer must differ."""
        others = [replace(LEASE, writer=writer) for writer in ("w2", None)]
        leases.put(LEASE, seen=None)
        for other in others:
            assert leases.put(replace(LEASE, generation=1), seen=other) == Occupied(found=LEASE)
        foreign = replace(LEASE, generation=1, writer=None)
        leases.put(foreign, seen=LEASE)
        assert leases.put(replace(LEASE, generation=2), seen=replace(foreign, writer="w1")) == Occupied(
            found=foreign
        )
        assert leases.put(replace(LEASE, generation=2), seen=foreign) == Granted()

    @pytest.mark.parametrize("start", [None, LEASE])
    def test_one_of_many_replacements_of_a_lease_wins(self, leases, start):
        """Otherwise, two writers could hold one lease. The stored lease must be the lease of the winner."""
        if start:
            leases.put(start, seen=None)
        wanted = [
            replace(LEASE, generation=1 if start else 0, writer=f"racer {number}")
            for number in range(self.writers)
        ]
        with ThreadPoolExecutor(self.writers) as pool:
            outcomes = list(pool.map(lambda lease: leases.put(lease, seen=start), wanted))
        won = [lease for lease, outcome in zip(wanted, outcomes, strict=True) if outcome == Granted()]
        assert won == [leases.read("a/b", "*")]
        assert outcomes.count(Occupied(found=won[0])) == self.writers - 1
