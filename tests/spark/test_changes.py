"""Objects that change while they are read, between two rounds, and in every other way: the table ends equal to the bucket.

Each by listing and by the entries of the queue. The requests themselves decide what happens when: a proxy does the
change just before it passes on the request in question. Every test says how many runs it takes: a change of an object
that is just being read is taken in by the next run.
"""

import gzip
import json
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from s3notify_platform.channels.publisher import QueuedPublisher
from s3notify_platform.ports import Written
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.stores.fast_store import shared_store
from tests.contracts.fault_proxy import FaultProxy
from tests.support.changing import Changing, changing_source
from tests.support.independent import count_rows, differences
from tests.support.servers import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.server]

KEY, OTHER = "raw/a.jsonl", "raw/b.jsonl"


def lines(count: int, note: str = "") -> bytes:
    """Rows of about 50 bytes, no two alike."""
    return b"".join(json.dumps({"id": n, "note": f"{note}{n:020d}"}).encode() + b"\n" for n in range(count))


@pytest.fixture(params=[True, False], ids=["listing", "entries"])
def listing(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


@pytest.fixture(params=["ministack", "seaweed"])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def changing_of(
    spark: SparkSession, listing: bool, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Changing]]:
    """Sources of a bucket behind a proxy, with other settings."""
    name = "server" if "server" in request.fixturenames else "ministack"
    at: S3Server = request.getfixturevalue(name)
    with FaultProxy(at.endpoint_url) as proxy:

        def new(**settings: object) -> Changing:
            source = changing_source(at.config(at.make_bucket()), proxy, **settings)
            return Changing(spark=spark, source=source, proxy=proxy, listing=listing)

        yield new


@pytest.fixture
def bucket(changing_of: Callable[..., Changing]) -> Changing:
    return changing_of()


# Small objects: one GET each.


def test_overwritten_before_its_read(bucket: Changing) -> None:
    """The pinned read fails, the other object is committed, the old rows stay: the second run has the new ones."""
    bucket.put(KEY, lines(3))
    assert bucket.runs_until_equal() == 1
    bucket.put(KEY, lines(3, "second"))
    bucket.put(OTHER, lines(2))
    bucket.when_asked(lambda: bucket.put(KEY, lines(3, "third")), key=KEY)
    first = bucket.run()
    assert (first.status, first.objects, first.superseded, first.ok) == ("committed", 1, 1, True)
    assert bucket.runs_until_equal() == 1


def test_deleted_before_its_read(bucket: Changing) -> None:
    """The deletion wins: the old rows leave in this run."""
    bucket.put(KEY, lines(3))
    bucket.run()
    bucket.put(KEY, lines(3, "second"))
    bucket.when_asked(lambda: bucket.delete(KEY), key=KEY)
    assert bucket.runs_until_equal() == 1
    assert count_rows(bucket.place) == 0


def test_deleted_and_back_before_its_read(bucket: Changing) -> None:
    """With other bytes: superseded. With the same: nothing has happened."""
    bucket.put(KEY, lines(3))
    bucket.run()

    def gone_and_back(note: str) -> None:
        bucket.delete(KEY)
        bucket.put(KEY, lines(4, note))

    bucket.put(KEY, lines(4, "second"))
    bucket.when_asked(lambda: gone_and_back("second"), key=KEY)
    assert bucket.runs_until_equal() == 1
    bucket.put(KEY, lines(4, "third"))
    bucket.when_asked(lambda: gone_and_back("fourth"), key=KEY)
    assert bucket.runs_until_equal() == 2


def test_there_and_back_between_plan_and_read(bucket: Changing) -> None:
    """Overwritten, and again with what was planned: the read is as good as if nothing had happened."""
    bucket.put(KEY, lines(3))

    def there_and_back() -> None:
        bucket.put(KEY, lines(9, "in between"))
        bucket.put(KEY, lines(3))

    bucket.when_asked(there_and_back, key=KEY)
    assert bucket.runs_until_equal() == 1


def test_emptied_and_filled_again(bucket: Changing) -> None:
    """No bytes are an object version like any other, also while its filling is being read."""
    bucket.put(KEY, lines(3))
    assert bucket.runs_until_equal() == 1
    bucket.put(KEY, b"")
    assert bucket.runs_until_equal() == 1
    assert count_rows(bucket.place) == 0
    bucket.put(KEY, lines(2, "again"))
    assert bucket.runs_until_equal() == 1
    bucket.put(KEY, lines(2, "once more"))
    bucket.when_asked(lambda: bucket.put(KEY, b""), key=KEY)
    assert bucket.runs_until_equal() == 2
    bucket.put(KEY, lines(5))
    assert bucket.runs_until_equal() == 1
    assert count_rows(bucket.place) == 5


def test_emptied_while_empty_objects_are_read(bucket: Changing) -> None:
    """An empty object, filled before its read."""
    bucket.put(KEY, b"")
    bucket.when_asked(lambda: bucket.put(KEY, lines(2)), key=KEY)
    bucket.put(OTHER, lines(1))
    assert bucket.runs_until_equal() <= 2


def test_renamed(bucket: Changing) -> None:
    """Under the same ETag: rows leave with one key and arrive with the other, in one commit."""
    bucket.put(KEY, lines(3))
    bucket.run()
    generation = bucket.last.generation
    bucket.rename(KEY, OTHER)
    assert bucket.runs_until_equal() == 1
    assert bucket.last.generation == generation + 1
    bucket.put(KEY, lines(4, "new"))
    bucket.when_asked(lambda: bucket.rename(KEY, "raw/c.jsonl"), key=KEY)
    assert bucket.runs_until_equal() == 2


def test_two_change_places(bucket: Changing) -> None:
    """Each has then a version that the other one had."""
    bucket.put(KEY, lines(3, "a"))
    bucket.put(OTHER, lines(4, "b"))
    bucket.run()
    bucket.copy(KEY, "raw/c.jsonl")
    bucket.copy(OTHER, KEY)
    bucket.rename("raw/c.jsonl", OTHER)
    assert bucket.runs_until_equal() == 1


def test_the_same_etag_written_again(bucket: Changing) -> None:
    """Nothing is read and nothing committed; the entry leaves."""
    bucket.put(KEY, lines(3))
    bucket.run()
    bucket.asked()
    generation = bucket.last.generation
    bucket.put(KEY, lines(3))
    bucket.put(KEY, lines(3))
    assert (bucket.run().status, bucket.last.generation) == ("unchanged", generation)
    assert bucket.asked() == []
    assert bucket.entries() == []
    bucket.settled()


def test_only_its_metadata_changed(bucket: Changing) -> None:
    """A copy onto itself: where its ETag stays, nothing is read; where it moves, the object is read again."""
    bucket.put(KEY, lines(3))
    bucket.run()
    bucket.asked()
    bucket.copy(KEY, KEY, MetadataDirective="REPLACE", Metadata={"tagged": "yes"})
    assert bucket.runs_until_equal() == 1
    assert bucket.asked() == []


def test_a_multipart_upload(bucket: Changing) -> None:
    """Its ETag is of its own kind. The same bytes in one piece are another version, with the same rows."""
    head = lines(1, "x" * (5 << 20))
    etag = bucket.multipart(KEY, [head, lines(3)])
    assert etag.endswith("-2")
    assert bucket.runs_until_equal() == 1
    bucket.put(KEY, head + lines(3))
    assert bucket.runs_until_equal() == 1
    assert count_rows(bucket.place) == 4
    assert bucket.multipart(KEY, [head + lines(2), lines(1)]) != etag
    assert bucket.runs_until_equal() == 1
    bucket.delete(KEY)
    bucket.multipart(KEY, [head, lines(3)])
    bucket.when_asked(lambda: bucket.multipart(KEY, [head, lines(5)]), key=KEY)
    assert bucket.runs_until_equal() == 2


def test_what_our_publisher_told_is_overwritten_before_its_read(bucket: Changing) -> None:
    """An entry with an ETag is believed; if that is no longer there, the next entry tells what is."""
    if bucket.listing:
        pytest.skip("a listing believes no entry")
    source = bucket.source
    plain = Publisher(shared_store(source.platform), prefix=source.keyspace_prefix, slots=1)
    publisher = QueuedPublisher(plain, source.queue(), bucket=bucket.bucket)
    assert isinstance(publisher.put(KEY, lines(3)), Written)
    bucket.when_asked(lambda: publisher.put(KEY, lines(2, "second")), key=KEY)
    assert bucket.runs_until_equal() == 2
    assert isinstance(publisher.put(KEY, lines(3)), Written)
    bucket.when_asked(lambda: publisher.delete(KEY), key=KEY)
    assert bucket.runs_until_equal() == 1


# Versioned buckets.


def test_a_versioned_bucket(server: S3Server, bucket: Changing) -> None:
    """What counts is what a plain GET gives: the newest version, none behind a marker, an older one come back."""
    bucket.s3.put_bucket_versioning(Bucket=bucket.bucket, VersioningConfiguration={"Status": "Enabled"})
    first = bucket.put(KEY, lines(1, "first"))["VersionId"]
    second = bucket.put(KEY, lines(2, "second"))["VersionId"]
    assert bucket.runs_until_equal() == 1
    assert count_rows(bucket.place) == 2
    marker = bucket.delete(KEY)["VersionId"]
    assert bucket.runs_until_equal() == 1
    assert count_rows(bucket.place) == 0
    bucket.delete(KEY, VersionId=marker)
    assert bucket.runs_until_equal() == 1
    assert count_rows(bucket.place) == 2
    bucket.delete(KEY, VersionId=second)
    assert bucket.runs_until_equal() == 1
    assert count_rows(bucket.place) == 1
    bucket.put(KEY, lines(3, "third"))
    assert bucket.runs_until_equal() == 1
    bucket.copy(KEY, KEY, version=first)
    assert bucket.runs_until_equal() == 1
    assert count_rows(bucket.place) == 1


def test_a_version_is_put_back_while_the_object_is_read(server: S3Server, bucket: Changing) -> None:
    """An old version copied back, the newest removed, a marker removed, each just before the pinned read."""
    bucket.s3.put_bucket_versioning(Bucket=bucket.bucket, VersioningConfiguration={"Status": "Enabled"})
    first = bucket.put(KEY, lines(1, "first"))["VersionId"]
    bucket.run()
    bucket.put(KEY, lines(2, "second"))
    bucket.when_asked(lambda: bucket.copy(KEY, KEY, version=first), key=KEY)
    assert bucket.runs_until_equal() == 1, "what is committed is there again"
    third = bucket.put(KEY, lines(3, "third"))["VersionId"]
    bucket.when_asked(lambda: bucket.delete(KEY, VersionId=third), key=KEY)
    assert bucket.runs_until_equal() == 1
    bucket.put(KEY, lines(4, "fourth"))

    def gone_and_back() -> None:
        marker = bucket.delete(KEY)["VersionId"]
        bucket.delete(KEY, VersionId=marker)

    bucket.when_asked(gone_and_back, key=KEY)
    assert bucket.runs_until_equal() == 1
    assert count_rows(bucket.place) == 4


# Big objects: many GETs of one version.

PART = 2000
COUNT = 400
PACKED = "raw/a.jsonl.gz"


@pytest.fixture
def big(changing_of: Callable[..., Changing]) -> Changing:
    """A source whose objects are big from `PART` bytes on, ten and more parts in each of these."""
    return changing_of(split_bytes=PART)


def body_of(key: str, note: str, count: int = COUNT) -> bytes:
    body = lines(count, note)
    return gzip.compress(body, mtime=0, compresslevel=1) if key.endswith(".gz") else body


@pytest.mark.parametrize("number", [1, 2, 5, 10])
def test_overwritten_between_two_reads_of_its_parts(big: Changing, number: int) -> None:
    """Nothing of it counts, whichever part came first: it keeps its old rows until the second run."""
    big.put(KEY, body_of(KEY, "first", 100))
    big.put(OTHER, lines(2))
    assert big.runs_until_equal() == 1
    before = count_rows(big.place)
    big.put(KEY, body_of(KEY, "second"))
    big.put(OTHER, lines(3, "other"))
    big.when_asked(lambda: big.put(KEY, body_of(KEY, "third", 350)), key=KEY, number=number)
    first = big.run()
    assert (first.status, first.superseded, first.objects) == ("committed", 1, 1)
    assert first.live_rows == before + 1, "the other object has one row more"
    assert big.runs_until_equal() == 1


@pytest.mark.parametrize("number", [1, 2, 5, 10])
def test_deleted_between_two_reads_of_its_parts(big: Changing, number: int) -> None:
    """The deletion wins, in the very run that was reading it."""
    big.put(KEY, body_of(KEY, "first", 100))
    assert big.runs_until_equal() == 1
    big.put(KEY, body_of(KEY, "second"))
    big.when_asked(lambda: big.delete(KEY), key=KEY, number=number)
    assert big.runs_until_equal() == 1
    assert count_rows(big.place) == 0


def test_a_big_object_gets_small_and_big_again(big: Changing) -> None:
    """Also while it is read: empty, one line, many parts."""
    for count, meanwhile, runs in [(COUNT, None, 1), (0, None, 1), (COUNT, 0, 2), (1, COUNT, 2), (COUNT, 1, 2)]:
        big.put(KEY, body_of(KEY, f"{count}", count))
        if meanwhile is not None:
            body = body_of(KEY, f"meanwhile {count}", meanwhile)
            big.when_asked(lambda body=body: big.put(KEY, body), key=KEY)
        assert big.runs_until_equal() == runs


def test_the_same_etag_back_between_two_reads_of_its_parts(big: Changing) -> None:
    """Gone, another one, and back, each while parts are read: what was read of the planned version is that version."""
    big.put(KEY, body_of(KEY, "first"))

    def there_and_back() -> None:
        big.delete(KEY)
        big.put(KEY, body_of(KEY, "in between"))
        big.put(KEY, body_of(KEY, "first"))

    big.when_asked(there_and_back, key=KEY, number=4)
    assert big.runs_until_equal() == 1


# Rounds: what does not fit is read on in the next one.


@pytest.fixture
def limited(changing_of: Callable[..., Changing]) -> Changing:
    """No more than three parts to a round."""
    return changing_of(split_bytes=PART, max_bytes=3 * PART)


@pytest.mark.parametrize("key", [KEY, PACKED])
def test_a_big_object_takes_several_rounds_of_one_run(limited: Changing, key: str) -> None:
    """Each commits up to an offset; uncompressed, no byte is read twice but for the ends of records."""
    body = body_of(key, "one")
    limited.put(key, body)
    limited.asked()
    result = limited.run()
    assert (result.complete, result.rows, result.live_rows) == (True, COUNT, COUNT)
    assert result.generation >= 3
    read = limited.read_bytes()
    if key == KEY:
        assert len(body) <= read <= len(body) * 2.5
    assert not differences(limited.place)
    limited.settled()


@pytest.mark.parametrize("key", [KEY, PACKED])
def test_overwritten_between_two_rounds(limited: Changing, key: str) -> None:
    """What the first rounds committed of the old version leaves with the first commit of the new one."""
    limited.put(key, body_of(key, "old"))

    def before_round(number: int) -> None:
        if number == 3:
            limited.put(key, body_of(key, "new", 150))

    result = limited.run(before_round=before_round)
    assert result.complete
    assert limited.runs_until_equal() == 1
    assert count_rows(limited.place) == 150


@pytest.mark.parametrize("key", [KEY, PACKED])
@pytest.mark.parametrize("change", ["emptied", "deleted"])
def test_emptied_or_deleted_between_two_rounds(limited: Changing, key: str, change: str) -> None:
    """What the first rounds committed leaves."""
    limited.put(key, body_of(key, "old"))

    def before_round(number: int) -> None:
        if number == 2 and change == "emptied":
            limited.put(key, b"")
        elif number == 2:
            limited.delete(key)

    result = limited.run(before_round=before_round)
    assert result.complete
    assert limited.runs_until_equal() == 1
    assert count_rows(limited.place) == 0


@pytest.mark.parametrize("change", ["overwritten", "deleted"])
def test_changed_within_the_third_round(limited: Changing, change: str) -> None:
    """While it is read on: what the rounds before committed stays until the change itself is taken in."""
    limited.put(KEY, body_of(KEY, "old"))
    act = {"overwritten": lambda: limited.put(KEY, body_of(KEY, "new", 150)), "deleted": lambda: limited.delete(KEY)}

    def before_round(number: int) -> None:
        if number == 3:
            limited.when_asked(act[change], key=KEY, number=2)

    limited.run(before_round=before_round)
    assert limited.runs_until_equal() == 1


def test_a_run_without_time_leaves_the_rest_to_the_next(changing_of: Callable[..., Changing]) -> None:
    """Which goes on where it ended, although nothing has changed since; meanwhile overwritten, it begins anew."""
    short = changing_of(split_bytes=PART, max_bytes=3 * PART, max_seconds=0.0)
    body = body_of(KEY, "one")
    short.put(KEY, body)
    assert not short.run().complete
    short.read_bytes()
    runs, read = 0, 0
    while not short.run().complete:
        runs += 1
        read += short.read_bytes()
        assert runs < 40
    assert runs >= 2
    assert read <= 2.5 * len(body)
    assert not differences(short.place)
    short.put(KEY, body_of(KEY, "two"))
    assert not short.run().complete
    short.put(KEY, body_of(KEY, "three", 30))
    while not short.run().complete:
        pass
    assert not differences(short.place)
    assert count_rows(short.place) == 30
