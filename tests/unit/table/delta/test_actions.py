"""Versions of the log can be read: our own versions as they were written, and versions of other engines."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.table.delta.actions import (
    ANY_LABEL,
    LAST_KEY,
    UNKNOWN_ROWS,
    Add,
    LogVersion,
    MetaData,
    Protocol,
    Remove,
    Vector,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNT = st.integers(0, 2**40)
VECTORS = st.builds(
    Vector,
    storage=st.sampled_from("iu"),
    body=TEXT,
    size=COUNT,
    rows=COUNT,
    offset=st.none() | COUNT,
)


@st.composite
def adds(draw: st.DrawFn) -> Add:
    slots, keys = sorted(draw(st.tuples(COUNT, COUNT))), sorted(draw(st.tuples(TEXT, TEXT)))
    rows = draw(COUNT)
    stats = {
        "numRecords": rows,
        "minValues": {"_slot": slots[0], "_key": keys[0]},
        "maxValues": {"_slot": slots[1], "_key": keys[1]},
    }
    tagged = draw(st.booleans())
    return Add(
        path=draw(TEXT),
        size=draw(COUNT),
        rows=rows,
        modified_ms=draw(COUNT),
        data_change=draw(st.booleans()),
        slots=(slots[0], slots[1]),
        keys=(keys[0], keys[1]),
        since=draw(COUNT) if tagged else 0,
        until=draw(COUNT) if tagged else ANY_LABEL,
        stats=json.dumps(stats),
        vector=draw(st.none() | VECTORS),
    )


REMOVES = st.builds(
    Remove,
    path=TEXT,
    deleted_ms=COUNT,
    size=COUNT,
    data_change=st.booleans(),
    vector=st.none() | VECTORS,
)
METADATA = st.builds(
    MetaData,
    id=TEXT,
    schema=TEXT,
    created_ms=COUNT,
    configuration=st.dictionaries(TEXT, TEXT, max_size=3),
    name=TEXT,
    description=TEXT,
    partition_columns=st.lists(TEXT, max_size=2).map(tuple),
)
PROTOCOLS = st.just(Protocol()) | st.builds(
    Protocol,
    reader=st.just(3),
    writer=st.just(7),
    reader_features=st.lists(TEXT, max_size=3).map(sorted).map(tuple),
    writer_features=st.lists(TEXT, max_size=3).map(sorted).map(tuple),
)
VERSIONS = st.builds(
    LogVersion,
    number=st.integers(1, 2**63 - 1),
    parent=st.integers(0, 2**63 - 1),
    table=TEXT,
    created_ms=COUNT,
    operation=TEXT,
    adds=st.lists(adds(), max_size=3).map(tuple),
    removes=st.lists(REMOVES, max_size=3).map(tuple),
    metadata=st.none() | METADATA,
    protocol=st.none() | PROTOCOLS,
    note=st.dictionaries(TEXT.filter(lambda name: name not in ("n", "parent")), TEXT, max_size=3),
)


@given(VERSIONS)
def test_version_is_read_as_it_was_written(version: LogVersion) -> None:
    """Otherwise a field of an action would be lost or changed."""
    body = version.dumps()
    assert LogVersion.loads(body, where="v") == version
    assert not version.foreign
    assert body.count(b"\n") == len(body.splitlines())


def test_note_with_a_lone_surrogate_leaves_the_log_readable() -> None:
    """A note may quote any key of an event.

    Unless the surrogate is replaced, a key with a lone surrogate would make the version unreadable for engines.
    """
    body = LogVersion(number=1, table="t", note={"key": "a\ud800b"}).dumps()
    assert LogVersion.loads(body, where="v").note == {"key": "a?b"}


def test_missing_statistics_are_the_widest_bounds() -> None:
    """Otherwise rows would be missed in files of other engines: some engines write no statistics, no counts, or null as
    a bound.
    """
    wide = Add(path="p", size=1, rows=UNKNOWN_ROWS, modified_ms=1)
    assert "stats" not in wide.json()
    assert Add.of(wide.json()) == wide
    assert wide.live_rows == UNKNOWN_ROWS
    assert replace(wide, vector=Vector(storage="i", body="", size=0, rows=3)).live_rows == UNKNOWN_ROWS
    stats = json.dumps({"minValues": {"_slot": None}, "maxValues": {"_slot": None, "_key": None}})
    found = Add.of({"path": "p", "size": 1, "modificationTime": 1, "dataChange": True, "stats": stats})
    assert replace(found, stats="") == wide


def test_file_without_bounds_may_hold_any_key() -> None:
    """Otherwise rows of objects with the greatest possible keys would be missed."""
    wide = Add(path="p", size=1, rows=1, modified_ms=1)
    for key in ("", "a", "\U0010ffff", "\U0010ffffx", "\U0010ffff" * 256):
        assert key <= LAST_KEY
        assert wide.may_hold(999, key, 1, 1)


def test_version_of_another_engine_is_foreign() -> None:
    """Otherwise a version with transactions of other programs, or with unknown actions, would count as the platform's
    own.
    """
    lines = [
        {"commitInfo": {"timestamp": 5, "operation": "OPTIMIZE"}},
        {"txn": {"appId": "stream", "version": 3}},
        {"cdc": {"path": "x"}},
        {"remove": {"path": "p", "dataChange": False}},
    ]
    version = LogVersion.loads("\n".join(map(json.dumps, lines)).encode(), where="v")
    assert version.foreign
    assert version.strange == ("cdc", "txn of stream")
    assert version.removes == (Remove(path="p", deleted_ms=0, data_change=False),)


@pytest.mark.parametrize(
    "body",
    [
        b"\x00",
        b"[1]",
        b'{"add":{}}',
        b'{"add":1}',
        b'{"protocol":{}}',
        b'{"add":{"path":"p","stats":"[1]"}}',
        b'{"add":' + b"[" * 100_000,
    ],
)
def test_damaged_version_is_named(body: bytes) -> None:
    """Otherwise the user would not learn which object must be restored."""
    with pytest.raises(CorruptError, match=r"^00\.json: "):
        LogVersion.loads(body, where="00.json")
