"""The contract of `RecordStore`."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.ports import Conflict, RecordStore, Version, Written


class RecordStoreSuite:
    """The contract. Subclasses define the fixture `records`, an empty store."""

    writers = 16
    """The number of concurrent threads; 1 if the server itself does not support several at a time."""

    @pytest.fixture
    def records(self) -> Iterator[RecordStore]:
        raise NotImplementedError

    def needs_several_writers(self):
        if self.writers < 2:
            pytest.skip("this server lets two writers win under a race")

    def test_record_is_created_once(self, records):
        """The second create of a record conflicts. The same key in another partition is another record."""
        assert records.read("p", "a") is None
        assert isinstance(records.create("p", "a", b"1"), Written)
        assert records.create("p", "a", b"2") == Conflict()
        assert isinstance(records.create("q", "a", b"3"), Written)
        assert records.read("p", "a").value == b"1"
        assert records.read("q", "a").value == b"3"

    @pytest.mark.parametrize("value", [b"", b"\n", b"1 live x\n", bytes(range(256))])
    def test_values_are_opaque(self, records, value):
        """Any bytes are returned unchanged."""
        records.create("p", "a", value)
        assert records.read("p", "a").value == value
        assert [record.value for record in records.scan("p")] == [value]

    def test_replace_needs_the_version(self, records):
        """A version has only one successor, even if the content stays the same."""
        records.create("p", "a", b"same")
        first = records.read("p", "a").version
        assert isinstance(records.replace("p", "a", b"same", expected=first), Written)
        second = records.read("p", "a").version
        assert second != first
        assert records.replace("p", "a", b"late", expected=first) == Conflict()
        assert records.replace("p", "none", b"late", expected=first) == Conflict()
        assert records.read("p", "a").value == b"same"

    def test_conflict_returns_the_existing_record(self, records):
        """If a refusal returns a record, this record must be the existing one. If the record is missing, the refusal
        returns no record.
        """
        first = records.create("p", "a", b"1").etag
        records.replace("p", "a", b"2", expected=first)
        there = records.read("p", "a")
        for refused in (
            records.create("p", "a", b"3"),
            records.replace("p", "a", b"3", expected=first),
            records.remove("p", "a", expected=first),
        ):
            assert refused == Conflict()
            assert refused.found in (None, there)
        assert records.remove("p", "none", expected=first).found is None

    def test_written_etag_is_the_version(self, records):
        """The next write may expect the version that the previous write returned."""
        first = records.create("p", "a", b"1").etag
        second = records.replace("p", "a", b"2", expected=Version(first)).etag
        assert records.read("p", "a").version == second

    def test_remove_needs_the_version(self, records):
        """A remove succeeds only if it expects the record's current version. A second remove is refused."""
        records.create("p", "a", b"1")
        first = records.read("p", "a").version
        records.replace("p", "a", b"2", expected=first)
        second = records.read("p", "a").version
        assert records.remove("p", "a", expected=first) == Conflict()
        assert records.remove("p", "a", expected=second) == Written(etag=None)
        assert records.remove("p", "a", expected=second) == Conflict()
        assert records.replace("p", "a", b"3", expected=second) == Conflict()
        assert records.read("p", "a") is None
        assert list(records.scan("p")) == []

    def test_removed_key_may_be_created_again(self, records):
        """A removed key may be created again; the old versions stay invalid."""
        records.create("p", "a", b"1")
        old = records.read("p", "a").version
        records.remove("p", "a", expected=old)
        assert isinstance(records.create("p", "a", b"1"), Written)
        assert records.read("p", "a").version != old
        assert records.remove("p", "a", expected=old) == Conflict()
        assert records.create("p", "a", b"2") == Conflict()

    def test_scan_returns_records_in_key_order(self, records):
        """A scan returns all records of one partition, with unchanged keys in the order of their bytes."""
        keys = [
            "a",
            "a b",
            "a-b",
            "a/b",
            "a.b",
            "A",
            "a%b",
            "a_b",
            "a~",
            "..",
            "é",
            "\U0001f642",
            "0",
            "a\nb",
        ]
        for key in keys:
            records.create("p", key, key.encode())
        records.create("p/q", "other", b"")
        records.create("p2", "other", b"")
        found = list(records.scan("p"))
        assert [record.key for record in found] == sorted(keys)
        assert all(record.value == record.key.encode() for record in found)
        assert [record.key for record in records.scan("p/q")] == ["other"]
        assert list(records.scan("none")) == []

    @pytest.mark.parametrize("prefix", ["", "0", "042.", "a b", "é", "none", "a%"])
    def test_scan_returns_keys_with_a_prefix(self, records, prefix):
        """Only keys with the prefix are returned, in order.

        Some prefixes must be quoted, and some of the records are counters.
        """
        keys = ["0", "04", "042", "042.a", "042.b", "042x", "043.a", "a", "a b", "a bc", "a%b", "éa", "e"]
        for key in keys:
            records.create("p", key, key.encode())
        records.add("p", "042.n", 7)
        found = [record.key for record in records.scan("p", prefix=prefix)]
        assert found == sorted(key for key in [*keys, "042.n"] if key.startswith(prefix))
        assert list(records.scan("q", prefix=prefix)) == []

    def test_scan_returns_wanted_records(self, records):
        """Only wanted records below the prefix are returned. The function `wanted` gets unquoted names."""
        for key in ["a.1", "a.2", "b.1", "é.1"]:
            records.create("p", key, key.encode())
        found = records.scan("p", wanted=lambda key: key.endswith(".1"))
        assert [record.key for record in found] == ["a.1", "b.1", "é.1"]
        assert [record.key for record in records.scan("p", prefix="a", wanted=lambda key: key != "a.1")] == [
            "a.2"
        ]

    def test_scan_may_use_the_records_of_an_earlier_scan(self, records):
        """The result is the same with and without `known`, the records of an earlier scan: changed and new records are
        read, and removed records are left out.
        """
        for key in "abcd":
            records.create("p", key, b"old")
        known = {record.key: record for record in records.scan("p")}
        records.replace("p", "b", b"new", expected=known["b"].version)
        records.remove("p", "c", expected=known["c"].version)
        records.create("p", "e", b"new")
        found = list(records.scan("p", known=known))
        assert found == list(records.scan("p"))
        assert [(record.key, record.value) for record in found] == [
            ("a", b"old"),
            ("b", b"new"),
            ("d", b"old"),
            ("e", b"new"),
        ]

    def test_scan_may_return_keys_only(self, records):
        """A scan of keys returns no values, but it returns the versions that removals need."""
        versions = {}
        for key in ("a.1", "a.2", "b.1"):
            versions[key] = records.create("p", key, b"value").etag
        found = list(records.scan("p", prefix="a", keys_only=lambda key: key.endswith("1")))
        assert [(record.key, record.value) for record in found] == [("a.1", b""), ("a.2", b"value")]
        assert [record.version for record in found] == [versions["a.1"], versions["a.2"]]
        assert isinstance(records.remove("p", "a.1", expected=found[0].version), Written)
        assert [record.key for record in records.scan("p", keys_only=lambda _: True)] == ["a.2", "b.1"]

    def test_scan_may_be_abandoned(self, records):
        """The next scan returns also the records that the abandoned scan had not reached."""
        for number in range(50):
            records.create("p", f"{number:02}", b"1")
        scan = records.scan("p")
        assert [next(scan).key for _ in range(3)] == ["00", "01", "02"]
        del scan
        assert sum(1 for _ in records.scan("p")) == 50

    def test_counter_has_a_version(self, records):
        """A counter is read as a decimal number, and each addition changes its version."""
        records.add("p", "n", 3)
        first = records.read("p", "n")
        records.add("p", "n", 4)
        second = records.read("p", "n")
        assert (first.value, second.value) == (b"3", b"7")
        assert records.remove("p", "n", expected=first.version) == Conflict()
        assert isinstance(records.remove("p", "n", expected=second.version), Written)
        assert records.add("p", "n", 1) == 1

    def test_additions_stay_within_the_bounds(self, records):
        """A counter starts at 0, and no addition brings it below 0 or above the ceiling. A refusal changes nothing."""
        assert records.add("p", "n", 3) == 3
        assert records.add("p", "n", 2, ceiling=5) == 5
        assert records.add("p", "n", 1, ceiling=5) == Conflict()
        assert records.add("p", "n", -6) == Conflict()
        assert records.add("p", "n", 0) == 5
        assert records.add("p", "n", -1, ceiling=2) == 4
        assert records.add("p", "fresh", -1) == Conflict()
        assert records.add("p", "fresh", 6, ceiling=5) == Conflict()
        assert records.read("p", "fresh") is None

    def test_addition_to_a_record_that_is_no_counter_is_refused(self, records):
        """Otherwise a record that is no counter would be overwritten."""
        records.create("p", "a", b"text")
        with pytest.raises(CorruptError, match="text"):
            records.add("p", "a", 1)

    def test_one_winner_of_concurrent_creators(self, records):
        """Exactly one creator wins, and the record has the winner's value."""
        self.needs_several_writers()
        values = [b"%d" % number for number in range(self.writers)]
        with ThreadPoolExecutor(self.writers) as pool:
            outcomes = list(pool.map(lambda value: records.create("p", "a", value), values))
        winners = [
            value for value, outcome in zip(values, outcomes, strict=True) if isinstance(outcome, Written)
        ]
        assert winners == [records.read("p", "a").value]

    def test_concurrent_adds_lose_nothing(self, records):
        """Every addition is counted, and the ceiling holds for all writers together."""
        self.needs_several_writers()
        with ThreadPoolExecutor(self.writers) as pool:
            totals = list(pool.map(lambda _: records.add("p", "n", 1, ceiling=10), range(self.writers)))
        assert sorted(total for total in totals if isinstance(total, int)) == list(range(1, 11))
        assert totals.count(Conflict()) == self.writers - 10

    def test_created_record_is_removed_at_most_once(self, records):
        """For each successful create, at most one remove succeeds, in any interleaving."""
        self.needs_several_writers()
        removed = []

        def work(number: int) -> int:
            created = 0
            for _ in range(3):
                created += isinstance(records.create("p", "a", b"%d" % number), Written)
                found = records.read("p", "a")
                if found and isinstance(records.remove("p", "a", expected=found.version), Written):
                    removed.append(found.version)
            return created

        with ThreadPoolExecutor(4) as pool:
            created = sum(pool.map(work, range(4)))
        left = 1 if records.read("p", "a") else 0
        assert len(removed) == len(set(removed)) == created - left

    def test_version_is_replaced_or_removed_but_never_both(self, records):
        """A removal must never delete a newer version than the expected one."""
        self.needs_several_writers()
        for number in range(20):
            key = f"k{number}"
            version = Version(records.create("p", key, b"1").etag)
            ways = [
                lambda key=key, version=version: records.replace("p", key, b"2", expected=version),
                lambda key=key, version=version: records.remove("p", key, expected=version),
            ]
            with ThreadPoolExecutor(2) as pool:
                replaced, removed = pool.map(lambda way: way(), ways if number % 2 else ways[::-1])
            if number % 2 == 0:
                replaced, removed = removed, replaced
            assert isinstance(replaced, Written) != isinstance(removed, Written)
            found = records.read("p", key)
            assert (found.value if found else None) == (b"2" if isinstance(replaced, Written) else None)
