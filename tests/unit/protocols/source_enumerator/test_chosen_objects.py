"""The objects that a source reads: the same by listing and by entries, without additional requests."""

import time
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ETag, ListedColumns, ObjectMeta
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import Choice, Enumerator, time_of
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.sources import source_of

EVERY = frozenset(map(Slot, range(7)))
HIDDEN = (
    "_SUCCESS",
    "...",
    "..a/b",
    "a/_committed_1",
    "a/.part-0.crc",
    "_temporary/0/x",
    ".x/y",
    "a/",
    "/",
    "_a=1.x/.y",
)
VISIBLE = ("a_b", "..", "a/./b", "../x", "a/b.c", "_a=1/x", "a//b", "a/b_/c.", "x=_/y", "..=/z")


@pytest.mark.parametrize("key", HIDDEN)
def test_hidden_keys_are_skipped(key: str) -> None:
    assert "hidden" in Choice(hidden=False, prefix="raw/").why_not(f"raw/{key}")
    assert not Choice(prefix="raw/").why_not(f"raw/{key}")


@pytest.mark.parametrize("key", VISIBLE)
def test_visible_keys_are_read(key: str) -> None:
    """Otherwise an object would be skipped silently because of its name, or because its prefix looks hidden."""
    for prefix in ("raw/", "_raw/.x/", "raw/_"):
        assert not Choice(hidden=False, prefix=prefix).why_not(f"{prefix}{key}")


def test_a_prefix_may_end_within_a_name() -> None:
    """Otherwise the rest of a name after the prefix would be mistaken for a hidden name."""
    choice = Choice(hidden=False, prefix="raw/a")
    assert not choice.why_not("raw/a.jsonl")
    assert not choice.why_not("raw/a_b/c")
    assert choice.why_not("raw/ab/_c")
    listed = ListedColumns.of(
        [ObjectMeta(key=key, etag=ETag("e"), size=1) for key in ("raw/a.x", "raw/a/.b")]
    )
    assert choice.among(listed) == [True, False]


@given(st.text("ab/*?.", max_size=8), st.text("ab/.\n", max_size=8))
def test_patterns_match_as_in_fnmatch(pattern: str, path: str) -> None:
    choice = Choice(prefix="p/", include=f"{pattern}|x")
    assert bool(choice.why_not(f"p/{path}")) != (fnmatchcase(path, pattern) if pattern else False)


def test_patterns_take_linear_time() -> None:
    """Otherwise one long key would block a listing."""
    choice = Choice(include="*a" * 30 + "b")
    began = time.process_time()
    assert all(choice.why_not("a" * 1024) for _ in range(300))
    assert time.process_time() - began < 30


KEYS = st.sampled_from([*HIDDEN, *VISIBLE, "x.csv", "y.jsonl", "tmp/x.csv", "own/1"])
CHOICES = st.builds(
    Choice,
    prefix=st.sampled_from(["", "a/", "_s"]),
    own=st.sampled_from([(), ("own/",)]),
    hidden=st.booleans(),
    include=st.sampled_from(["", "*.csv", "*.csv|y*"]),
    exclude=st.sampled_from(["", "tmp/*"]),
    modified_after=st.sampled_from([None, 1000]),
)


@given(CHOICES, st.dictionaries(KEYS, st.sampled_from([999_999, 1_000_000, 1_000_999])))
def test_listings_and_columns_and_entries_choose_the_same_objects(
    choice: Choice, objects: dict[str, int]
) -> None:
    """Otherwise an object would be read by a sweep but not by its entry, or an entry would cost a HEAD for nothing."""
    memory = MemoryObjectStore()
    objects = {choice.prefix + key: ms for key, ms in objects.items()}
    metas = [
        ObjectMeta(key=key, etag=memory.put(key, b"x").etag, size=1, modified_ms=ms)  # type: ignore[union-attr, arg-type]
        for key, ms in sorted(objects.items())
    ]
    enumerator = Enumerator(memory, choice, slots=7)
    chosen = {meta.key for meta in metas if not choice.why_not(meta.key, meta)}
    assert {version.key for version in enumerator.among(metas, EVERY)} == chosen
    listed = ListedColumns.of(metas)
    among = choice.among(listed)
    columns = enumerator.columns_among(listed, EVERY, among)
    assert {*columns["key"]} == chosen
    by_key = {meta.key for meta in metas if not choice.why_not(meta.key)}
    assert {*enumerator.unchosen_among(listed, EVERY, among)["key"]} == by_key - chosen
    some = frozenset({Slot(1), Slot(2)})
    assert [version.key for version in enumerator.among(metas, some)] == [
        *enumerator.columns_among(listed, some, among)["key"]
    ]
    store = CountingStore(memory)
    for key in objects:
        found = Enumerator(store, choice, slots=7).current(key)
        # The object was written now, so after `modified_after`.
        assert (found is not None) == store.counts["HEAD"] == (key in by_key)
        store.counts.clear()


@pytest.mark.parametrize("text", ["yesterday", "2026-01-01T00:00:00", "2026-13-01T00:00:00Z"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="modified_after"):
        time_of(text)
    assert time_of("2026-01-01T00:00:00+01:00") == 1_767_222_000
    assert time_of("") is None


def test_a_source_of_a_whole_bucket_skips_the_platforms_objects() -> None:
    """Otherwise a source would read its own table, or the table of another source, as input."""
    bucket = S3Config(bucket="b", region="us-east-1")
    source = source_of(
        bucket=bucket, name="all", hidden_files="read", platform_prefix="mine/", keyspace_prefix="keys/"
    )
    outside = ("mine/table/x", "keys/_", "keys/17", "_s3notify/other/table/x", "_s3notify-known/other")
    assert all("platform's own" in source.choice.why_not(key) for key in outside)
    assert not any(source.choice.why_not(key) for key in ("keys", "minecraft/1", "_x", "17"))
    elsewhere = source_of(bucket=bucket, platform_bucket="p", name="all", platform_prefix="mine/")
    assert not elsewhere.choice.why_not("mine/table/x")
