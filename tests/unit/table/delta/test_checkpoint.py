"""Checkpoints can be read: our own checkpoints as they were written, and checkpoints of other engines."""

import io
import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.table.delta.actions import UNKNOWN_ROWS, Add, MetaData, Protocol, Remove, Vector
from s3notify_platform.table.delta.checkpoint import Checkpoint, LastCheckpoint, decode, encode

METADATA = MetaData(
    id="t", schema="{}", created_ms=5, configuration={"a": "b"}, name="orders", description="of all"
)
FEATURES = Protocol(
    reader=3,
    writer=7,
    reader_features=("deletionVectors",),
    writer_features=("appendOnly", "deletionVectors"),
)
VECTOR = Vector(storage="i", body="0", size=44, rows=2)
IN_A_FILE = Vector(storage="u", body="x" * 20, size=9, rows=2**33, offset=1)


def add(name: str, **more: Any) -> Add:
    stats = {"numRecords": 3, "minValues": {"_slot": 1, "_key": "a"}, "maxValues": {"_slot": 9, "_key": "ü"}}
    return Add.of(
        {"path": name, "size": 5, "modificationTime": 6, "dataChange": False, "stats": json.dumps(stats)}
        | more
    )


STATES = st.builds(
    Checkpoint,
    protocol=st.sampled_from([Protocol(), Protocol(reader=2, writer=5), FEATURES]),
    metadata=st.just(METADATA),
    txns=st.dictionaries(st.text(max_size=5), st.integers(0, 2**63 - 1), max_size=3),
    adds=st.lists(
        st.builds(
            add,
            st.text(max_size=5),
            tags=st.none() | st.just({"s3notify.since": "3", "s3notify.until": str(2**62)}),
            deletionVector=st.none() | st.sampled_from([VECTOR.json(), IN_A_FILE.json()]),
        ),
        max_size=4,
    ).map(tuple),
    removes=st.lists(
        st.builds(
            Remove,
            path=st.text(max_size=5),
            deleted_ms=st.integers(0, 2**50),
            size=st.integers(0, 9),
            data_change=st.booleans(),
            vector=st.sampled_from([None, VECTOR, IN_A_FILE]),
        ),
        max_size=4,
    ).map(tuple),
)


@given(STATES)
def test_checkpoint_is_read_as_it_was_written(state: Checkpoint) -> None:
    """Otherwise a field of an action would be lost, or `_last_checkpoint` would have a wrong size."""
    body, last = encode(state, version=7)
    assert decode(body, where="c") == state
    assert LastCheckpoint.loads(last.dumps(), where="l") == last
    assert last == LastCheckpoint(
        version=7,
        actions=2 + len(state.txns) + len(state.adds) + len(state.removes),
        size_bytes=len(body),
        adds=len(state.adds),
    )


def test_many_files_take_little_room_in_a_checkpoint() -> None:
    """Otherwise a checkpoint of a table with ten thousand files would be large, although the statistics of these
    files are similar.
    """
    state = Checkpoint(
        protocol=Protocol(), metadata=METADATA, adds=tuple(add(f"data/{n}") for n in range(10_000))
    )
    body, _ = encode(state, version=1)
    assert decode(body, where="c") == state
    assert len(body) < 200_000


def test_checkpoint_of_another_engine_is_read(tmp_path: Path) -> None:
    """Otherwise a table would not open after another engine wrote a checkpoint.

    The checkpoint of this test names applications and removed files.
    """
    for app in ("a", "b"):
        deltalake.write_deltalake(
            tmp_path,
            pa.table({"_slot": pa.array([4, 2], pa.int32()), "_key": ["x", "y"]}),
            mode="overwrite",
            commit_properties=deltalake.CommitProperties(app_transactions=[deltalake.Transaction(app, 5)]),
        )
    deltalake.DeltaTable(tmp_path).create_checkpoint()
    found = decode((tmp_path / f"_delta_log/{1:020d}.checkpoint.parquet").read_bytes(), where="c")
    last = LastCheckpoint.loads((tmp_path / "_delta_log/_last_checkpoint").read_bytes(), where="l")
    assert last.version == 1
    assert last.parts == 1
    assert found.txns == {"a": 5, "b": 5}
    assert found.strange == ()
    (live,) = found.adds
    assert (live.rows, live.slots, live.keys) == (2, (2, 4), ("x", "y"))
    assert len(found.removes) == 1


def checkpoint_of(**columns: list[Any]) -> bytes:
    whole = {
        "protocol": [Protocol().json()],
        "metaData": [METADATA.json() | {"format": None, "configuration": None}],
    } | columns
    rows = [{name: value} for name, values in whole.items() for value in values]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict.fromkeys(whole) | row for row in rows]), sink)
    return sink.getvalue()


def test_statistics_in_columns_are_read() -> None:
    """Otherwise counts and bounds in `stats_parsed` would be lost, or would replace the statistics in JSON."""
    parsed = {
        "numRecords": 7,
        "minValues": {"_slot": 3, "_key": "a", "f": 0.5, "s": {"x": 1}},
        "maxValues": {"_slot": 4, "_key": None, "f": 1.5, "s": {"x": 1}},
        "nullCount": {"_slot": 0, "s": {"x": 2}},
    }
    one = {"path": "p", "size": 1, "modificationTime": 2, "dataChange": False, "stats_parsed": parsed}
    body = checkpoint_of(add=[one, one | {"stats": '{"numRecords":9}'}, one | {"stats_parsed": None}])
    first, second, third = decode(body, where="c").adds
    assert (first.rows, first.slots, first.keys) == (7, (3, 4), ("a", third.keys[1]))
    assert json.loads(first.stats)["nullCount"] == {"_slot": 0, "s": {"x": 2}}
    assert (second.rows, third.rows) == (9, UNKNOWN_ROWS)


def test_v2_checkpoint_is_recognized() -> None:
    """Otherwise the table would appear empty, because a V2 checkpoint lists the files in other objects."""
    body = checkpoint_of(sidecar=[{"path": "x"}], domainMetadata=[{"domain": "d"}])
    assert decode(body, where="c").strange == ("domainMetadata", "sidecar")


def test_damaged_checkpoint_is_named() -> None:
    """Otherwise the user would not learn which object is damaged, or what to do."""
    body, _ = encode(Checkpoint(protocol=Protocol(), metadata=METADATA), version=1)
    for broken in (b"", body[:-9], checkpoint_of(protocol=[]), checkpoint_of(add=[{"path": 1}])):
        with pytest.raises(CorruptError, match=r"^c: "):
            decode(broken, where="c")
    for broken in (b"", b"[]", b"{}", b'{"version":"x"}', b'{"version":null}'):
        with pytest.raises(CorruptError, match=r"^l: "):
            LastCheckpoint.loads(broken, where="l")
    assert LastCheckpoint.loads(b'{"version":3,"size":9,"parts":2}', where="l").parts == 2
