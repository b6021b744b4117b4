"""Tagging: the choice of objects, the object version that gets the tags, and interruptions."""

from contextlib import nullcontext
from dataclasses import replace

import boto3
import pytest

from s3notify_platform.kernel.errors import RefusedError, UnavailableError, UsageError
from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.maintenance.tagging import FAILURES_MAX, tag_again, tag_committed
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.source.source import Input
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.stores.rules import tags_of
from s3notify_platform.stores.s3.tags import ObjectTags
from s3notify_platform.table.check import SLOTS_AT_ONCE
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.open_table import forget
from s3notify_platform.table.round import RoundChange, SlotRound
from tests.support.faults import FaultyStore
from tests.support.sources import source_of, with_settings

SLOTS = 64


class World:
    """A source with a versioned bucket on moto. The platform's own objects are in memory."""

    def __init__(self, store):
        self.store = store
        self.s3 = boto3.client("s3", region_name="us-east-1")
        self.versioning("Enabled")
        self.platform = MemoryObjectStore()
        config = S3Config(bucket="moto")
        self.source = source_of(
            name="orders", bucket=config, platform=config, prefix="raw/", format="jsonl", slots=SLOTS,
            commit="native", committed_tags="archive=yes, by=s3notify",
        )  # fmt: skip
        self.source.open_table(store=self.platform)
        self.table = self.source.table(store=self.platform)
        self.tags = ObjectTags(config)

    def versioning(self, status):
        self.s3.put_bucket_versioning(Bucket="moto", VersioningConfiguration={"Status": status})

    def put(self, key, body=b"1"):
        """Puts a new object version, and returns its id."""
        return self.s3.put_object(Bucket="moto", Key=key, Body=body)["VersionId"]

    def commit(self, *keys, **fields):
        """Commits one version with the present objects of these keys."""
        base = self.table.newest()
        label, by_slot = base.version + 1, {}
        known = self.table.states.lookup(base.manifest.states, dict.fromkeys(self.slots(*keys), keys))
        for key in keys:
            etag = self.store.head(key).etag
            state = replace(ObjectState(key=key, etag=etag, size=1, since=label, until=label), **fields)
            by_slot.setdefault(Slot(slot_of(key, SLOTS)), {})[key] = state
        slots = {
            slot: SlotRound(changes=states, before={key: known[key] for key in states if key in known})
            for slot, states in by_slot.items()
        }
        change = RoundChange(base=base, slots=slots, table=self.table, clock=self.table.reader.clock)
        assert isinstance(self.table.commit(change, base), Committed)

    def run(self, **more):
        given = {"objects": self.store, "tags": self.tags, "platform": self.platform}
        return tag_committed(self.source, **(given | more))

    def again(self, *keys):
        tag_again(self.source.location, self.slots(*keys), platform=self.platform)

    def forget(self):
        """Deletes the newest version from the log, and calls `forget`, which accepts this loss."""
        self.platform.delete(self.table.layout.version(self.table.newest().version))
        forget(self.table.committer, lambda: None)

    def slots(self, *keys):
        return frozenset(Slot(slot_of(key, SLOTS)) for key in keys)

    def failing(self, monkeypatch, error, *keys):
        """Makes requests for tags of these keys (default: all) fail until `monkeypatch.undo`. Returns the calls."""
        add, calls = self.tags.add, []

        def failing(key, *more):
            if keys and key not in keys:
                return add(key, *more)
            calls.append(key)
            raise error

        monkeypatch.setattr(self.tags, "add", failing)
        return calls

    def tags_of(self, key, version):
        found = self.s3.get_object_tagging(Bucket="moto", Key=key, VersionId=version)["TagSet"]
        return {tag["Key"]: tag["Value"] for tag in found}


WANTED = {"archive": "yes", "by": "s3notify"}


@pytest.fixture
def world(moto_store):
    return World(moto_store)


def test_committed_objects_are_tagged_once(world):
    """If each pass tagged all objects again, each pass would cost requests for all committed objects. If a pass
    replaced an object's other tags, users would lose their own tags.
    """
    before = {key: world.put(key) for key in ("raw/a", "raw/b", "raw/c")}
    theirs = {"Key": "team", "Value": "sales"}
    world.s3.put_object_tagging(Bucket="moto", Key="raw/b", Tagging={"TagSet": [theirs]})
    world.commit("raw/a", "raw/b")
    assert world.run().counts == {"added": 2}
    assert world.tags_of("raw/a", before["raw/a"]) == WANTED
    assert world.tags_of("raw/b", before["raw/b"]) == {**WANTED, "team": "sales"}
    assert world.tags_of("raw/c", before["raw/c"]) == {}
    assert world.run().slots == 0
    world.commit("raw/c")
    assert world.run().counts == {"added": 1}
    assert world.tags_of("raw/c", before["raw/c"]) == WANTED


def test_uncommitted_object_version_is_not_tagged(world):
    """Otherwise a lifecycle rule could delete an object version before the platform has ingested this version. The next
    commit includes the object version, and the next pass tags it.
    """
    first = world.put("raw/a", b"1")
    world.commit("raw/a")
    second = world.put("raw/a", b"2")
    assert world.run().counts == {"gone": 1}
    assert world.tags_of("raw/a", first) == world.tags_of("raw/a", second) == {}
    world.commit("raw/a")
    assert world.run().counts == {"added": 1}
    assert (world.tags_of("raw/a", first), world.tags_of("raw/a", second)) == ({}, WANTED)


@pytest.mark.parametrize(
    "fields", [{"rejects": 1}, {"reason": "403"}, {"reach_end": False}, {"expired": True}], ids=str
)
def test_object_that_may_be_read_again_is_not_tagged(world, fields):
    version = world.put("raw/a")
    world.commit("raw/a", **fields)
    assert world.run().counts == {}
    assert world.tags_of("raw/a", version) == {}


@pytest.mark.parametrize("status", ["Suspended", None])
def test_bucket_without_versioning_is_refused(world, status):
    """Without versions, a tag could be set on an uncommitted object."""
    world.put("raw/a")
    if status:
        world.versioning(status)
    else:
        world.s3.create_bucket(Bucket="plain")
        world.tags = ObjectTags(S3Config(bucket="plain"))
    world.commit("raw/a")
    with pytest.raises(UsageError, match=r"bucket '(moto|plain)' has no versions.*enable its versioning"):
        world.run()
    assert world.s3.get_object_tagging(Bucket="moto", Key="raw/a")["TagSet"] == []


@pytest.mark.parametrize("shown", ["null", None], ids=["as AWS", "as Ceph"])
def test_object_from_before_the_versioning_is_counted_and_not_tagged(world, monkeypatch, shown):
    """Other objects must still be tagged."""
    head = world.store.head
    before = {key: world.put(key) for key in ("raw/a", "raw/b")}
    world.commit(*before)
    monkeypatch.setattr(
        world.store, "head", lambda key: replace(head(key), version_id=shown) if key == "raw/a" else head(key)
    )
    assert world.run().counts == {"unversioned": 1, "added": 1}
    assert world.tags_of("raw/a", before["raw/a"]) == {}
    assert world.run().slots == 0


def test_object_with_too_many_tags_is_counted(world):
    """If an object with too many tags ended the pass, other objects would stay without tags. Without the
    count, nobody would notice the untagged object. If the pass replaced tags of the object, users would lose
    their own tags.
    """
    versions = {key: world.put(key) for key in ("raw/a", "raw/b")}
    many = [{"Key": str(n), "Value": ""} for n in range(9)]
    world.s3.put_object_tagging(Bucket="moto", Key="raw/a", Tagging={"TagSet": many})
    world.commit("raw/a", "raw/b")
    assert world.run().counts == {"full": 1, "added": 1}
    assert world.tags_of("raw/a", versions["raw/a"]) == {tag["Key"]: tag["Value"] for tag in many}
    assert world.tags_of("raw/b", versions["raw/b"]) == WANTED


def test_pass_after_an_outage_tags_the_rest(world, monkeypatch):
    """Otherwise objects that an outage has left out would never be tagged, or the next pass would check all objects
    again.
    """
    keys = [f"raw/{n}" for n in range(3 * SLOTS_AT_ONCE)]
    versions = {key: world.put(key) for key in keys}
    world.commit(*keys)
    world.failing(monkeypatch, UnavailableError("for a while"), *keys[:3])
    with pytest.raises(UnavailableError):
        world.run()
    monkeypatch.undo()
    again = world.run()
    assert 0 < again.slots <= 3
    assert dict.fromkeys(keys, WANTED) == {key: world.tags_of(key, versions[key]) for key in keys}
    assert world.run().slots == 0


def test_refused_pass_is_tried_again(world, monkeypatch):
    """The store has refused all tags. A later pass sets the tags as soon as the permission exists. The reason must name
    no key, because it gets into logs.
    """
    version = world.put("raw/a")
    world.commit("raw/a")
    world.failing(monkeypatch, RefusedError("403 AccessDenied on arn:aws:s3:::b/raw/a"))
    for _ in range(2):
        done = world.run()
        assert (done.counts, done.refused) == ({"refused": 1}, "403 AccessDenied on arn:aws:s3:::b/…")
    monkeypatch.undo()
    world.run()
    assert world.tags_of("raw/a", version) == WANTED
    assert world.run().slots == 0


def test_refused_object_among_others_is_not_tried_again(world, monkeypatch):
    """A bucket policy may deny tags for some keys. If each pass tried such keys again, each pass would send useless
    requests. After a change of the policy, `tag_again` makes the next pass try the keys again.
    """
    versions = {key: world.put(key) for key in ("raw/a", "raw/b")}
    world.commit(*versions)
    calls = world.failing(monkeypatch, RefusedError("403 AccessDenied"), "raw/a")
    done = world.run()
    assert (done.counts, done.refused) == ({"refused": 1, "added": 1}, "403 AccessDenied")
    assert (world.run().slots, calls) == (0, ["raw/a"])
    monkeypatch.undo()
    world.again("raw/a", "raw/b")
    assert world.run().counts == {"added": 1, "there": 1}
    assert world.tags_of("raw/a", versions["raw/a"]) == WANTED


@pytest.mark.parametrize(
    "error", [RefusedError("403 AccessDenied"), UnavailableError("for a while")], ids=repr
)
def test_pass_without_success_stops_after_few_requests(world, monkeypatch, error):
    """Otherwise a pass without permission would send useless requests for each committed object. If the next pass did
    not try all objects again, the objects would never be tagged.
    """
    keys = [f"raw/{n}" for n in range(FAILURES_MAX + 5 * REQUESTS_IN_FLIGHT)]
    versions = {key: world.put(key) for key in keys}
    world.commit(*keys)
    calls = world.failing(monkeypatch, error)
    with nullcontext() if isinstance(error, RefusedError) else pytest.raises(UnavailableError):
        assert world.run().counts == {"refused": len(keys)}
    assert FAILURES_MAX <= len(calls) < FAILURES_MAX + REQUESTS_IN_FLIGHT
    monkeypatch.undo()
    world.run()
    assert dict.fromkeys(keys, WANTED) == {key: world.tags_of(key, versions[key]) for key in keys}


def test_forgotten_table_is_tagged_again(world):
    """The new table repeats version numbers of the forgotten table, with other content. If the record of the forgotten
    table still counted, new objects would stay without tags.
    """
    world.put("raw/a")
    for _ in range(3):
        world.commit("raw/a")
    world.run()
    world.forget()
    version = world.put("raw/a", b"2")
    world.commit("raw/a")
    assert world.run().counts == {"added": 1}
    assert world.tags_of("raw/a", version) == WANTED


def test_pass_ends_when_its_time_is_over(world):
    """Otherwise the tags of many objects could delay the end of a batch's run for hours. If later passes did not tag
    the remaining slots, the objects in these slots would stay without tags.
    """
    keys = [f"raw/{n}" for n in range(3 * SLOTS_AT_ONCE)]
    for key in keys:
        world.put(key)
    world.commit(*keys)
    slots = len({slot_of(key, SLOTS) for key in keys})
    for left in reversed(range(slots)):
        assert world.run(seconds=0).left == left
    assert world.run(seconds=0).slots == 0


def test_done_slots_are_not_read_again(world):
    """Otherwise each pass without new commits would read object states again. The number of requests must not grow with
    the number of versions that changed a slot.
    """
    keys = [f"raw/{n}" for n in range(SLOTS_AT_ONCE)]
    for key in keys:
        world.put(key)
    for _ in range(40):
        world.commit("raw/0")
    world.commit(*keys)
    world.run()
    platform = FaultyStore(world.platform)
    assert world.run(platform=platform).slots == 0
    methods = [call.method for call, _ in platform.calls]
    assert sorted(methods) == ["get", "get", "list"], "two reads of the table, and one of a record"


def test_new_table_is_tagged_from_its_first_version(world):
    """The version numbers of the new table begin again at 1. If a pass began after the last version of the former
    table, the first objects of the new table would stay without tags.
    """
    world.put("raw/a")
    world.commit("raw/a")
    world.commit("raw/a")
    assert world.run().counts == {"added": 1}
    world.platform = MemoryObjectStore()
    world.source.open_table(store=world.platform)
    world.table = world.source.table(store=world.platform)
    world.commit("raw/a")
    assert world.run().counts == {"there": 1}


def test_pass_without_a_table_does_nothing(world):
    world.platform = MemoryObjectStore()
    assert world.run().slots == 0
    world.source = with_settings(world.source, committed_tags="")
    with pytest.raises(UsageError, match="no committed_tags"):
        world.run()


@pytest.mark.parametrize(
    "text",
    [
        *("archive", "=yes", "aws:a=b", "a=b=c", "a=" + "x" * 257, "x" * 129 + "=a", "a=b;c=d"),
        ",".join(f"{n}=" for n in range(11)),
    ],
)
def test_invalid_tags_are_refused(text):
    """The error must come when the source's settings are read. Otherwise a user would notice the mistake only after
    objects have been committed without tags.
    """
    with pytest.raises(UsageError, match="committed_tags"):
        Input(bucket=S3Config(bucket="b"), committed_tags=text)


def test_tags_are_parsed_from_text():
    assert tags_of(" archive=yes,team name=a b/c@d , empty=") == {
        "archive": "yes",
        "team name": "a b/c@d",
        "empty": "",
    }
    assert tags_of("") == {}
