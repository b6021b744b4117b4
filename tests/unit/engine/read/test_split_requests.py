"""Splits read from a real server: each range comes from the enumerated version, or has a reason why it was not read."""

import gzip
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import obstore
import pyarrow as pa
import pytest

from s3notify_platform.engine.read import remote_bytes
from s3notify_platform.engine.read.remote_bytes import RemoteBytes
from s3notify_platform.formats import object_bytes
from s3notify_platform.formats.base import SplitEnd
from s3notify_platform.formats.records import Parsed, Target
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.kernel.errors import ConflictError, UnavailableError
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.obstore_client import obstore_store
from tests.support.objects import put
from tests.support.split_reading import Found, listed

pytestmark = pytest.mark.server

AB = pa.schema([("a", pa.int64()), ("b", pa.string())])
CSV = b"a,b\n" + b"".join(b'%d,"x\n%d"\n' % (n, n) for n in range(200_000))


def read_split(config: S3Config, split: Split, fmt: str) -> Iterator[Parsed | SplitEnd]:
    return FORMATS[fmt].read(RemoteBytes(config, split.version), split, Target(schema=AB))


def rows_and_end(config: S3Config, split: Split, fmt: str) -> tuple[Found, SplitEnd]:
    *parts, end = read_split(config, split, fmt)
    assert isinstance(end, SplitEnd)
    return listed([part for part in parts if isinstance(part, Parsed)], AB), end


def split_at(version: ObjectVersion, count: int) -> list[Split]:
    borders = [version.size * n // count for n in range(count + 1)]
    return [Split(version=version, start=s, end=e) for s, e in itertools.pairwise(borders)]


@pytest.mark.parametrize(
    "key", [" +%🙂", *(pytest.param(key, marks=pytest.mark.thorough) for key in ("plain", "odd//key"))]
)
def test_reading_of_csv_resumes_where_a_split_ended(config: S3Config, key: str) -> None:
    of = put(config, key, CSV)
    found: Found = []
    start = 0
    for stop in (of.size // 3, of.size // 2, of.size):
        rows, end = rows_and_end(config, Split(version=of, start=start, end=stop), "csv")
        assert end.status == "ok"
        found += rows
        start = end.offset
    assert [row[1]["a"] for row in found] == list(range(200_000))
    assert end == SplitEnd(status="ok", offset=len(CSV), reach_end=True)


@pytest.mark.parametrize("key", ["plain", "odd//key"])
def test_a_changed_or_deleted_object_ends_its_split(config: S3Config, key: str) -> None:
    """The next read of the split, or a later read, must notice the change."""
    old = put(config, key, CSV)
    (split,) = split_at(old, 1)
    reading = read_split(config, split, "csv")
    assert isinstance(next(reading), Parsed)
    put(config, key, CSV + b"1,2\n")
    assert rows_and_end(config, split, "csv") == ([], SplitEnd(status="superseded"))
    S3ObjectStore(config).delete(key)
    assert rows_and_end(config, split, "csv") == ([], SplitEnd(status="deleted"))


def test_a_split_ends_if_its_object_is_overwritten_in_mid_read(
    config: S3Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remaining bytes belong to another object version, and must not be read."""
    monkeypatch.setattr(object_bytes.chunks_on, "__kwdefaults__", {"chunk_bytes": 8 << 20, "ahead": 1})
    body = b'{"a":1}\n' * (5 << 20)
    (split,) = split_at(put(config, "k", body), 1)
    reading = read_split(config, split, "jsonl")
    assert isinstance(next(reading), Parsed)
    put(config, "k", body[::-1])
    *_, end = reading
    assert end == SplitEnd(status="superseded")


def test_empty_objects_are_read_under_their_etag(config: S3Config) -> None:
    version = put(config, "k", b"")
    assert rows_and_end(config, Split(version=version, start=0, end=0), "jsonl")[1].reach_end
    other = replace(version, etag=ETag("other"))
    assert rows_and_end(config, Split(version=other, start=0, end=0), "jsonl")[1].status == "superseded"


def test_a_compressed_object_without_a_suffix_is_read_record_by_record(config: S3Config) -> None:
    text = b'{"a":7}\n' * 1000
    splits = split_at(put(config, "k", gzip.compress(text)), 2)
    rows, end = rows_and_end(config, splits[0], "jsonl")
    assert (len(rows), end) == (1000, SplitEnd(status="by_record", offset=1000, reach_end=True))
    assert rows_and_end(config, splits[1], "jsonl") == ([], SplitEnd(status="by_record"))


def test_a_short_answer_is_retried_and_then_refused(
    config: S3Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = replace(put(config, "k", b"short"), size=100)
    monkeypatch.setattr(remote_bytes, "READ_ATTEMPTS", 2)
    with pytest.raises(UnavailableError, match="5 bytes arrived"):
        RemoteBytes(config, version).read(0, 100)


def with_a_title(config: S3Config, key: str) -> ObjectVersion:
    """Writes an object with metadata that obstore can write, but not read."""
    version = put(config, key, CSV)
    obstore.put(obstore_store(config), key, CSV, attributes={"title": "Zürich"}, use_multipart=False)
    return version


def test_an_object_whose_metadata_is_not_ascii_is_read_in_parts(config: S3Config) -> None:
    """Otherwise such an object would count as an outage in each run, and never be loaded."""
    version = with_a_title(config, "a")
    remote = RemoteBytes(config, version)
    assert remote.read(10, 20) + remote.read(20, version.size) == CSV[10:]
    assert remote.meta is not None
    assert remote.gets == 2
    with_a_title(config, "a")
    put(config, "a", b"new")
    with pytest.raises(ConflictError):
        RemoteBytes(config, version).read(0, 10)


@pytest.mark.parametrize("write", [partial(put, key="odd//key", body=CSV), partial(with_a_title, key="a")])
def test_large_objects_that_obstore_cannot_read_are_refused(
    config: S3Config, monkeypatch: pytest.MonkeyPatch, write: Callable[[S3Config], ObjectVersion]
) -> None:
    """Otherwise a task would hold a huge object in memory."""
    monkeypatch.setattr(remote_bytes, "MAX_WHOLE_BYTES", 10)
    (split,) = split_at(write(config), 1)
    _, end = rows_and_end(config, split, "csv")
    assert (end.status, end.outage) == ("failed", False)
    assert "larger than 10 bytes" in end.reason
