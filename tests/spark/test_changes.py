"""Objects change while they are read, between two rounds, or at rest. In the end the table equals the bucket.

Each test runs once by listing and once by the entries of the queue. The requests themselves determine the time of a
change: a proxy makes the change just before it forwards a certain request. Many objects go through a test together.
Each object has its own history, which says how many runs ingest the object. The number of runs is two if the object
changes while it is read, and otherwise one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import pytest

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.ports import Written
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.stores.open_store import open_store
from tests.support.changing import COUNT, PART, Changing, lines, packed
from tests.support.independent import differences, differing, rows_of
from tests.support.servers import S3Server
from tests.support.sources import with_settings
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.server]

both = pytest.mark.parametrize(
    "listing", [pytest.param(True, marks=pytest.mark.thorough), False], ids=["listing", "entries"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The history of one object. The object is first committed, then changed, and then changed again just before a GET.
    None means that the object does not exist.
    """

    committed: bytes | None
    planned: bytes | None
    meanwhile: Callable[[Changing, str], object]
    runs: int
    """The number of runs that ingest the object."""
    number: int = 1
    """The number of the GET before which the object changes again."""


def put(*bodies: bytes | None) -> Callable[[Changing, str], object]:
    """Writes these bodies, one after another. None deletes the object."""

    def change(bucket: Changing, key: str) -> None:
        for body in bodies:
            if body is None:
                bucket.delete(key)
            else:
                bucket.put(key, body)

    return change


def renamed(bucket: Changing, key: str) -> None:
    bucket.rename(key, key.replace("raw/", "raw/renamed-"))


ONE, TWO, THREE = lines(3), lines(4, "second"), lines(5, "third")
HISTORIES = {
    "overwritten": History(committed=ONE, planned=TWO, meanwhile=put(THREE), runs=2),
    "overwritten with the committed body": History(committed=ONE, planned=TWO, meanwhile=put(ONE), runs=1),
    "deleted": History(committed=ONE, planned=TWO, meanwhile=put(None), runs=1),
    "new and deleted": History(committed=None, planned=TWO, meanwhile=put(None), runs=1),
    "deleted and back": History(committed=ONE, planned=TWO, meanwhile=put(None, TWO), runs=1),
    "deleted and another": History(committed=ONE, planned=TWO, meanwhile=put(None, THREE), runs=2),
    "there and back": History(committed=ONE, planned=TWO, meanwhile=put(THREE, TWO), runs=1),
    "emptied": History(committed=ONE, planned=TWO, meanwhile=put(b""), runs=2),
    "filled": History(committed=ONE, planned=b"", meanwhile=put(TWO), runs=2),
    "new and filled": History(committed=None, planned=b"", meanwhile=put(TWO), runs=2),
    "renamed": History(committed=ONE, planned=TWO, meanwhile=renamed, runs=2),
    "packed": History(committed=packed(3), planned=packed(4, "p"), meanwhile=put(packed(5, "q")), runs=2),
    "unpacked": History(committed=packed(3), planned=packed(4, "p"), meanwhile=put(TWO), runs=2),
}


def go_through(bucket: Changing, histories: dict[str, History]) -> None:
    """Commits objects, changes them, and changes them again during the read. Checks the table after each run."""
    keys = {f"raw/{name}.jsonl": history for name, history in histories.items()}
    for key, history in keys.items():
        if history.committed is not None:
            bucket.put(key, history.committed)
    bucket.put("raw/steady.jsonl", ONE)
    bucket.run()
    assert not differing(bucket.place)
    before = rows_of(bucket.place)
    for key, history in keys.items():
        put(history.planned)(bucket, key)
        bucket.when_asked(
            lambda key=key, history=history: history.meanwhile(bucket, key), key=key, number=history.number
        )
    bucket.put("raw/other.jsonl", TWO)
    result = bucket.run()
    assert not bucket.waiting, "every object was requested"
    assert result.ok
    late = {key for key, history in keys.items() if history.runs == 2}
    found = differing(bucket.place)
    assert {key.replace("renamed-", "") for key in found} == late, found
    kept = sum(int(count) for key in found for count in _too_many(found[key]))
    # A rename deletes the old key, so the old key has no rows any more.
    assert kept == sum(before[key] for key in late & found.keys()), "an uningested object keeps its rows"
    bucket.run()
    bucket.settled()


def _too_many(error: str) -> list[str]:
    return [part.split()[0] for part in error.split("; ") if "rows too many" in part]


@both
def test_read_of_a_small_object_is_pinned_to_the_planned_etag(changing_of: Callable[..., Changing]) -> None:
    """Otherwise, if the object changes just before its read, the bytes of another object version would be committed
    under the planned ETag.
    """
    go_through(changing_of(), HISTORIES)


BIG = lines(COUNT, "second")
BIG_HISTORIES = {
    **{
        f"overwritten at {n}": History(
            committed=lines(100), planned=BIG, meanwhile=put(lines(350, "third")), runs=2, number=n
        )
        for n in (1, 2, 5, 10)
    },
    **{
        f"deleted at {n}": History(committed=lines(100), planned=BIG, meanwhile=put(None), runs=1, number=n)
        for n in (1, 2, 5, 10)
    },
    "emptied": History(committed=ONE, planned=BIG, meanwhile=put(b""), runs=2, number=3),
    "filled": History(committed=BIG, planned=b"", meanwhile=put(BIG), runs=1),
    "small now": History(committed=BIG, planned=TWO, meanwhile=put(ONE), runs=2),
    "back": History(committed=None, planned=BIG, meanwhile=put(None, TWO, BIG), runs=1, number=4),
    "renamed": History(committed=ONE, planned=BIG, meanwhile=renamed, runs=2, number=6),
    "packed": History(committed=ONE, planned=packed(COUNT), meanwhile=put(packed(300, "p")), runs=2),
    "unpacked": History(committed=packed(COUNT), planned=BIG, meanwhile=put(packed(300)), runs=2, number=4),
}


@pytest.mark.thorough
@both
def test_parts_of_different_object_versions_are_never_mixed(changing_of: Callable[..., Changing]) -> None:
    """A big object changes between the reads of its parts. If the parts of two versions were committed together, the
    table would show a content that the object never had.
    """
    go_through(changing_of(split_bytes=PART), BIG_HISTORIES)


@pytest.mark.thorough
def test_one_run_ingests_all_changes_since_the_last_run(changing_of: Callable[..., Changing]) -> None:
    """Otherwise a change would need a second run, or unchanged objects would be read."""
    bucket = changing_of()
    key = "raw/{}.jsonl".format
    large = lines(1, "x" * (5 << 20))
    for name in ("emptied", "renamed", "here", "there", "same", "tagged", "deleted"):
        bucket.put(key(name), lines(3, name))
    etag = bucket.multipart(key("multipart"), [large, lines(2)])
    assert etag.endswith("-2")
    bucket.run()
    bucket.settled()

    bucket.put(key("emptied"), b"")
    bucket.rename(key("renamed"), key("new name"))
    bucket.copy(key("here"), key("aside"))
    bucket.copy(key("there"), key("here"))
    bucket.rename(key("aside"), key("there"))
    bucket.put(key("same"), lines(3, "same"))
    bucket.copy(key("tagged"), key("tagged"), MetadataDirective="REPLACE", Metadata={"a": "b"})
    bucket.put(key("multipart"), large + lines(2))  # the same bytes as before, but uploaded in one piece
    bucket.delete(key("deleted"))
    bucket.run()
    # Only changed objects are read. An emptied object gets a GET that checks its ETag.
    changed = ("emptied", "new name", "here", "there", "multipart")
    assert set(bucket.asked()) == {key(name) for name in changed}
    assert bucket.last.gone == 2
    bucket.settled()

    bucket.put(key("emptied"), lines(2, "again"))
    bucket.rename(key("new name"), key("renamed"))
    bucket.put(key("deleted"), lines(3, "deleted"))
    assert bucket.multipart(key("multipart"), [large + lines(1), lines(1)]) != etag
    bucket.run()
    bucket.settled()


@pytest.mark.thorough
def test_object_rewritten_with_the_same_etag_is_not_read(changing_of: Callable[..., Changing]) -> None:
    """Otherwise a repeated write would cost a read and a commit. The entries must be removed."""
    bucket = changing_of()
    bucket.put("raw/a.jsonl", ONE)
    bucket.run()
    bucket.put("raw/a.jsonl", ONE)
    bucket.put("raw/a.jsonl", ONE, ServerSideEncryption="AES256")
    assert bucket.run().status == "unchanged"
    bucket.settled()


@pytest.mark.thorough
def test_run_reads_the_object_version_that_a_get_returns(
    server: S3Server, changing_of: Callable[..., Changing]
) -> None:
    """A run must read what a plain GET returns: the newest object version, a restored older one, or nothing after a
    delete marker.
    """
    bucket = changing_of()
    bucket.s3.put_bucket_versioning(Bucket=bucket.bucket, VersioningConfiguration={"Status": "Enabled"})
    keys = [f"raw/{name}.jsonl" for name in ("a", "b", "c", "d")]
    first = {key: bucket.put(key, lines(1, key))["VersionId"] for key in keys}
    second = {key: bucket.put(key, lines(2, key))["VersionId"] for key in keys}
    a, b, c, d = keys
    bucket.run()
    assert rows_of(bucket.place) == dict.fromkeys(keys, 2)
    assert not differences(bucket.place)

    marker = bucket.delete(a)["VersionId"]
    bucket.delete(b, VersionId=second[b])
    bucket.copy(c, c, version=first[c])
    bucket.delete(d, VersionId=first[d])  # this is not the newest object version, so nothing changes
    bucket.run()
    assert rows_of(bucket.place) == {b: 1, c: 1, d: 2}
    assert not differences(bucket.place)

    # Now the same changes come while the objects are read.
    bucket.delete(a, VersionId=marker)
    bucket.when_asked(lambda: bucket.delete(a), key=a)
    third = bucket.put(b, lines(3, b))["VersionId"]
    bucket.when_asked(lambda: bucket.delete(b, VersionId=third), key=b)
    bucket.put(c, lines(3, c))
    bucket.when_asked(lambda: bucket.copy(c, c, version=second[c]), key=c)

    def gone_and_back() -> None:
        bucket.delete(d, VersionId=bucket.delete(d)["VersionId"])

    bucket.put(d, lines(3, d))
    bucket.when_asked(gone_and_back, key=d)
    bucket.run()
    assert set(differing(bucket.place)) == {c}
    assert not bucket.waiting
    bucket.run()
    assert rows_of(bucket.place) == {b: 1, c: 2, d: 3}
    bucket.settled()


@pytest.mark.parametrize("listing", [False], ids=["entries"])
def test_change_after_the_announcement_reaches_the_table(changing_of: Callable[..., Changing]) -> None:
    """A run trusts the ETag of an entry. If the object has another ETag when it is read, a later entry must bring the
    change into the table.
    """
    bucket = changing_of()
    source = bucket.source
    plain = Publisher(open_store(source.location.platform), prefix=source.location.keyspace_prefix, slots=1)
    publisher = QueuedPublisher(plain, source.location.queue(), bucket=bucket.bucket)
    for name in ("a", "b"):
        assert isinstance(publisher.put(f"raw/{name}.jsonl", ONE), Written)
    bucket.when_asked(lambda: publisher.put("raw/a.jsonl", TWO), key="raw/a.jsonl")
    bucket.when_asked(lambda: publisher.delete("raw/b.jsonl"), key="raw/b.jsonl")
    bucket.run()
    assert set(differing(bucket.place)) == {"raw/a.jsonl"}
    bucket.run()
    bucket.settled()


@both
def test_only_included_objects_are_read(changing_of: Callable[..., Changing]) -> None:
    """Objects that are not included must be neither requested nor quarantined. With this source's `on_delete`, rows of
    a deleted object must stay.
    """
    bucket = changing_of(include="*.jsonl", exclude="*/tmp/*", on_delete="keep")
    for name in (
        "a.jsonl",
        "b.jsonl",
        "_SUCCESS",
        ".a.jsonl.crc",
        "_tmp/a.jsonl",
        "x/",
        "x/tmp/a.jsonl",
        "x/a.csv",
    ):
        bucket.put(f"raw/{name}", ONE)
    bucket.run()
    assert set(bucket.asked()) == {"raw/a.jsonl", "raw/b.jsonl"}
    assert (bucket.last.ok, bucket.last.objects, bucket.last.rejects) == (True, 2, 0)
    assert bucket.entries() == []

    bucket.delete("raw/a.jsonl")
    bucket.put("raw/b.jsonl", TWO)
    bucket.when_asked(lambda: bucket.delete("raw/b.jsonl"), key="raw/b.jsonl")
    bucket.run()
    assert (bucket.last.gone, bucket.last.status) == (0, "unchanged"), (
        "both are deleted, and nothing else changed"
    )
    assert bucket.committed() == {"raw/a.jsonl": 3, "raw/b.jsonl": 3}
    bucket.put("raw/a.jsonl", TWO)
    bucket.run()
    assert bucket.committed() == {"raw/a.jsonl": 4, "raw/b.jsonl": 3}


@pytest.mark.parametrize("listing", [True, False], ids=["listing", "entries"])
def test_object_older_than_the_setting_modified_after_is_not_read(
    changing_of: Callable[..., Changing],
) -> None:
    """The store's time of an object (`LastModified`) decides if the object is read. An older object must be neither
    read nor quarantined until it is written again.
    """
    bucket = changing_of()
    broken, old, new = "raw/broken.jsonl", "raw/old.jsonl", "raw/new.jsonl"

    def written(key: str) -> datetime:
        return bucket.s3.head_object(Bucket=bucket.bucket, Key=key)["LastModified"]

    bucket.put(broken, b"{\n")
    bucket.put(old, ONE)
    until(lambda: bucket.put(new, TWO) and written(new) > written(old))  # S3's times have whole seconds
    bucket.source = with_settings(bucket.source, modified_after=written(new).isoformat())
    bucket.run()
    assert set(bucket.asked()) == {new}
    assert (bucket.last.ok, bucket.last.objects, bucket.last.rejects) == (True, 1, 0)
    assert (bucket.committed(), bucket.entries()) == ({new: 4}, [])

    bucket.put(old, ONE)
    bucket.run()
    assert set(bucket.asked()) == {old}
    assert (bucket.last.ok, bucket.committed()) == (True, {new: 4, old: 3})


@pytest.mark.parametrize("listing", [True], ids=["listing"])
def test_source_of_a_whole_bucket_does_not_read_its_keyspace(changing_of: Callable[..., Changing]) -> None:
    """Writers of vnotify keep the keyspace in the source's bucket. The keyspace's objects must not be read as data."""
    bucket = changing_of(prefix="", keyspace_prefix="keys/", hidden_files="read")
    plain = Publisher(open_store(bucket.source.location.platform), prefix="keys/", slots=1)
    assert isinstance(plain.put("a.jsonl", ONE), Written)
    bucket.put("_b/c.jsonl", TWO)
    for _ in range(2):
        bucket.run()
        assert bucket.committed() == {"a.jsonl": 3, "_b/c.jsonl": 4}
    assert bucket.last.status == "unchanged"
