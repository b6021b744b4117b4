"""Columns from keys and from the store's metadata, in one process, against a real server, without Spark."""

import gzip
import json
from typing import Any

import pyarrow as pa
import pytest

from s3notify_platform.engine.read import fetch
from s3notify_platform.engine.read.counted import Rejected
from s3notify_platform.engine.read.reader import SplitReader
from s3notify_platform.engine.read.splits import cut
from s3notify_platform.engine.values.object_read import Outcome
from s3notify_platform.engine.values.task_rows import ReadObject
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import Split
from tests.support.ingested import Place
from tests.support.servers import S3Server

pytestmark = pytest.mark.server

ONE_SLOT = frozenset([Slot(0)])
ALL = "_modified, _size, _version"


def versioned(server: S3Server, **settings: Any) -> Place:
    place = Place(server, **settings)
    bucket = place.source.input.bucket.bucket
    place.store.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    return place


def stored(place: Place, key: str) -> dict[str, Any]:
    """The metadata that the store has of the object now, read by boto3."""
    return dict(place.store.client.head_object(Bucket=place.source.input.bucket.bucket, Key=f"raw/{key}"))


def rows(place: Place, *, rejects: bool = False) -> list[dict[str, Any]]:
    return place.rows(rejects=rejects)


def metadata_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["_modified"], row["_size"], row["_version"]


def stored_metadata(place: Place, key: str) -> tuple[Any, ...]:
    head = stored(place, key)
    return head["LastModified"], head["ContentLength"], head["VersionId"]


@pytest.mark.parametrize("key", ["a.jsonl", "a.jsonl.gz", "in//empty segments.jsonl"])
def test_metadata_belongs_to_the_version_that_was_read(ministack: S3Server, key: str) -> None:
    """The metadata of a row must be that of the object version that was read. The rule holds for plain and compressed
    objects, read by obstore or by boto3.
    """
    place = versioned(ministack, metadata_columns=ALL)
    body = b'{"a":1}\n{"a":22}\n'
    place.store.put(f"raw/{key}", gzip.compress(body) if key.endswith(".gz") else body)
    place.run("1")
    first = stored_metadata(place, key)
    assert first[2]
    assert [(row["a"], *metadata_of(row)) for row in rows(place)] == [(1, *first), (22, *first)]
    place.store.put(f"raw/{key}", gzip.compress(body + body) if key.endswith(".gz") else body + body)
    place.run("2")
    assert stored_metadata(place, key) != first
    assert [metadata_of(row) for row in rows(place)] == 4 * [stored_metadata(place, key)]


def in_parts(place: Place, key: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[Outcome]]:
    """Rows, rejects and outcomes of an object that several tasks read."""
    (version,) = (v for v in place.source.enumerator().versions(ONE_SLOT) if v.key == f"raw/{key}")
    split = Split(version=version, start=0, end=version.size)
    reader = SplitReader(source=place.source, schema=pa.schema([("a", pa.int64())]), inferred=False)
    found = [each for part in cut(split, place.source) for each in reader.read([part])]
    rows = [row for each in found if isinstance(each, pa.RecordBatch) for row in each.to_pylist()]
    rejects = [row for each in found if isinstance(each, Rejected) for row in each.batch.to_pylist()]
    return rows, rejects, [each.outcome for each in found if isinstance(each, ReadObject)]


@pytest.mark.parametrize("key", ["a.jsonl", "in//empty segments.jsonl"])
def test_an_object_in_parts_has_metadata(ministack: S3Server, key: str) -> None:
    place = versioned(ministack, metadata_columns=ALL, split_bytes=9, slots=1)
    place.put(key, *range(1000, 1009))
    found, rejects, outcomes = in_parts(place, key)
    assert len(outcomes) > 1
    assert not rejects
    assert [(row["a"], *metadata_of(row)) for row in found] == [
        (n, *stored_metadata(place, key)) for n in range(1000, 1009)
    ]


def test_metadata_comes_from_the_get_and_not_from_the_listing(
    ministack: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes are written again between listing and GET, so the ETag is the same and the version is new.
    Metadata of the listing would give the rows the `_version` and `_modified` of an object version that was not read.
    """
    place = versioned(ministack, metadata_columns=ALL)
    place.put("a", 1)
    listed = stored_metadata(place, "a")
    send = fetch._fetch_fast

    def after_another_write(*arguments: Any) -> fetch.Fetched:
        place.put("a", 1)
        return send(*arguments)

    monkeypatch.setattr(fetch, "_fetch_fast", after_another_write)
    place.run("1")
    assert [metadata_of(row) for row in rows(place)] == [stored_metadata(place, "a")]
    assert stored_metadata(place, "a")[2] != listed[2]


def test_the_version_is_null_without_versioning(ministack: S3Server) -> None:
    place = Place(ministack, metadata_columns="_version,_size")
    place.put("a", 1)
    place.run("1")
    assert [(row["_version"], row["_size"]) for row in rows(place)] == [(None, 8)]
    assert "_modified" not in rows(place)[0]


PARTS = "dt date, region string"


def test_parts_of_keys_are_columns(ministack: S3Server) -> None:
    """Otherwise a query by `dt` or `region` would miss rows, or would find rows of other objects. All objects are in
    one slot, and are parsed together. A part that a key lacks is null.
    """
    place = Place(ministack, partition_columns=PARTS, slots=1)
    for number, path in enumerate(
        ["dt=2026-01-01/region=eu/", "dt=2026-01-02/region=a%20b/", "", "region=x/"]
    ):
        place.put(f"{path}{number}", number, 10 + number)
    place.run("1")
    values = {row["a"]: (row["dt"] and row["dt"].isoformat(), row["region"]) for row in rows(place)}
    expected = [("2026-01-01", "eu"), ("2026-01-02", "a b"), (None, None), (None, "x")]
    assert values == {more + n: value for n, value in enumerate(expected) for more in (0, 10)}
    assert rows(place, rejects=True) == []


def test_an_object_is_one_reject_if_its_key_does_not_fit_the_columns(ministack: S3Server) -> None:
    """Otherwise the object's rows would be in the table without a date, and queries by date would miss these rows. A
    reject for each record would fill the quarantine with copies of the same reason.
    """
    place = Place(ministack, partition_columns=PARTS, slots=1)
    place.put("dt=yesterday/a", 1, 2, 3)
    place.put("dt=2026-01-01/b", 4)
    (result,) = place.run("1").slots.values()
    assert (result.rows, result.rejects, result.complete) == (1, 1, True)
    (reject,) = rows(place, rejects=True)
    assert reject["_key"] == "raw/dt=yesterday/a"
    assert reject["reason"] == "dt: 'yesterday' does not fit date, in its key"
    assert [row["a"] for row in rows(place)] == [4]
    (result,) = place.run("2").slots.values()
    assert result.status == "unchanged"


def test_a_big_object_is_one_reject_if_its_key_does_not_fit_the_columns(ministack: S3Server) -> None:
    """Otherwise tasks would read a big object whose rows are all refused, and each part of the object would add a
    reject. An object with the same records and a fitting key is read in several parts.
    """
    place = Place(ministack, partition_columns=PARTS, slots=1, split_bytes=9)
    place.put("dt=yesterday/a", *range(1000, 1009))
    place.put("dt=2026-01-01/a", *range(1000, 1009))
    found, rejects, outcomes = in_parts(place, "dt=yesterday/a")
    assert ([row["reason"] for row in rejects], found) == (
        ["dt: 'yesterday' does not fit date, in its key"], [],
    )  # fmt: skip
    assert [(one.status, one.rejects, one.reach_end, one.gets) for one in outcomes] == [("ok", 1, True, 0)]
    found, rejects, outcomes = in_parts(place, "dt=2026-01-01/a")
    assert ([row["a"] for row in found], rejects) == ([*range(1000, 1009)], [])
    assert {row["dt"].isoformat() for row in found} == {"2026-01-01"}
    assert len(outcomes) > 1


RESCUED = [(1, {"dt": "a%20b"}), (None, {"a": "x", "dt": "a%20b"})]


def test_a_text_from_a_key_is_rescued_if_it_does_not_fit_its_column(ministack: S3Server) -> None:
    """Otherwise a wrong text in a key would be lost, and nobody could correct the object's rows. Without the count of
    rescued values, the owner would not notice that keys and declared types differ. `_rescued` also keeps the record's
    own values that do not fit.
    """
    place = Place(ministack, partition_columns=PARTS, mismatches="rescue", slots=1, metadata_columns="_size")
    place.store.put("raw/dt=a%20b/a", b'{"a":1}\n{"a":"x"}\n')
    place.store.put("raw/dt=2026-01-01/b", b'{"a":2}\n{"a":"y"}\n')
    (result,) = place.run("1").slots.values()
    first, second = rows(place)[:2], rows(place)[2:]
    assert [(row["a"], row["_rescued"]) for row in first] == [(2, None), (None, '{"a":"y"}')]
    assert [str(row["dt"]) for row in first] == ["2026-01-01", "2026-01-01"]
    assert [(row["a"], json.loads(row["_rescued"])) for row in second] == RESCUED
    assert [row["dt"] for row in second] == [None, None]
    assert result.mismatches == {"a": 2, "dt": 2}
    assert rows(place, rejects=True) == []


def test_a_text_from_a_key_is_rescued_even_if_the_object_is_read_in_parts(ministack: S3Server) -> None:
    place = Place(ministack, partition_columns=PARTS, mismatches="rescue", slots=1, split_bytes=9)
    place.store.put("raw/dt=a%20b/a", b'{"a":1}\n{"a":"x"}\n')
    found, rejects, outcomes = in_parts(place, "dt=a%20b/a")
    assert len(outcomes) > 1
    assert [(row["a"], json.loads(row["_rescued"])) for row in found] == RESCUED
    assert [row["dt"] for row in found] == [None, None]
    assert rejects == []
