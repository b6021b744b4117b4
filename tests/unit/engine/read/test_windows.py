"""Objects read and parsed in one task, in any compression and encoding, give the same rows as plain text."""

import bz2
import gzip
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from s3notify_platform.engine.read import reader as read
from s3notify_platform.engine.read.counted import Rejected
from s3notify_platform.engine.read.reader import SplitReader
from s3notify_platform.engine.values.object_read import Outcome
from s3notify_platform.engine.values.task_rows import ReadObject
from s3notify_platform.formats import text_format
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split
from s3notify_platform.source.source import Source
from s3notify_platform.stores.config import S3Config
from tests.support import objects, sources
from tests.support.compressions import COMPRESS

pytestmark = pytest.mark.server

AB = pa.schema([("a", pa.int64()), ("b", pa.string())])


def source_of(config: S3Config, **settings: Any) -> Source:
    settings = {"format": "auto"} | settings
    return sources.source_of(name="s", bucket=config, prefix="in/", platform=config, **settings)


def put(config: S3Config, key: str, body: bytes) -> ObjectVersion:
    return objects.put(config, key, body, slot=len(key) % 2)


@dataclass(kw_only=True)
class Found:
    """Rows, rejects, and outcomes by key."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def of_rows(self, *names: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row[name] for name in names) for row in self.rows)

    def of_rejects(self, *names: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row[name] for name in names) for row in self.rejects)


def found_in(source: Source, versions: list[ObjectVersion]) -> Found:
    reader = SplitReader(source=source, schema=AB, inferred=False)
    splits = [Split(version=version, start=0, end=version.size) for version in versions]
    found = Found()
    for window in reader.windows(splits):
        for each in window:
            match each:
                case ReadObject():
                    found.outcomes[each.key] = each.outcome
                case Rejected():
                    found.rejects += each.batch.to_pylist()
                case _:
                    found.rows += each.to_pylist()
    return found


def bodies() -> dict[str, bytes]:
    text = b'{"a":1,"b":"x"}\n{"a":2,"b":"\xc3\xa9"}\n'
    return {
        "in/plain.jsonl": text,
        "in/utf16.jsonl": text.decode().encode("utf-16"),
        "in/encoded.jsonl.gz": gzip.compress(text.decode().encode("utf-32")),
        "in/unnamed.jsonl": bz2.compress(text),
        "in/not.jsonl.zst": text,
    } | {f"in/x.jsonl{name[1:]}": compress(text) for name, compress in COMPRESS.items()}


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst", ".sz", ".snappy"])
def test_an_object_that_is_cut_in_its_csv_header_is_a_reject(config: S3Config, suffix: str) -> None:
    """A compressed object that is cut has lost records. Without a reject, the object would count as read, and nobody
    would notice the loss. The test reads each object as a small object and as a big object.
    """
    body = COMPRESS[f"k{suffix}"](b"a,b\n" + b"".join(b"%d,x\n" % n for n in range(20)))
    places = {*range(1, min(15, len(body))), *range(15, len(body), 9)}
    made = [put(config, f"in/{place:03}.csv{suffix}", body[:place]) for place in sorted(places)]
    silent = {10} if suffix == ".sz" else set()  # a stream may end behind its identifier
    for split_bytes in (1 << 20, 1):
        source = source_of(config, split_bytes=split_bytes)
        reader = SplitReader(source=source, schema=AB, inferred=False)
        found = [*reader.read([Split(version=version, start=0, end=version.size) for version in made])]
        outcomes = {each.key: each.outcome for each in found if isinstance(each, ReadObject)}
        assert len(outcomes) == len(made)
        assert all(outcome.status == "ok" for outcome in outcomes.values())
        without = {int(key[3:6]) for key, outcome in outcomes.items() if not outcome.rejects}
        assert without <= silent, outcomes


def test_objects_of_all_compressions_are_parsed_together(
    config: S3Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each compression in a window would need a separate call of the parser, and many small objects
    would take longer to read.
    """
    calls: list[int] = []
    parse = FORMATS["jsonl"].parse

    def counted(objects: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(len(objects))
        return parse(objects, *arguments, **options)

    monkeypatch.setattr(FORMATS["jsonl"], "parse", counted)
    made = bodies()
    found = found_in(source_of(config), [put(config, key, body) for key, body in made.items()])
    expected = [(key, o, a, b) for key in made for o, a, b in ((0, 1, "x"), (16, 2, "é"))]
    assert found.of_rows("_key", "_offset", "a", "b") == sorted(expected)
    assert found.of_rejects("_key") == []
    assert {key: (each.status, each.size, each.rows) for key, each in found.outcomes.items()} == {
        key: ("ok", len(body), 2) for key, body in made.items()
    }
    assert calls == [len(made)]


def test_objects_that_decode_to_many_bytes_are_streamed(
    config: S3Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small compressed object may decode to more bytes than a task can hold. If streaming changed the result, an
    object's rows would depend on the sizes of the other objects in its window.
    """
    versions = [put(config, key, body) for key, body in bodies().items()]
    source = source_of(config)
    expected = found_in(source, versions)
    for room in (0, 50, 100):
        monkeypatch.setattr(text_format, "DECODED_BYTES", room)
        found = found_in(source, versions)
        names = ("_slot", "_key", "_etag", "_offset")
        assert found.of_rows(*names, "a", "b") == expected.of_rows(*names, "a", "b")
        assert found.of_rejects(*names, "reason") == expected.of_rejects(*names, "reason")
        assert found.outcomes == expected.outcomes


def test_a_damaged_object_does_not_stop_others(config: S3Config) -> None:
    text = b"".join(b'{"a":%d,"b":"%d"}\n' % (n, n * n) for n in range(1000))
    broken = gzip.compress(text)[:-20]
    versions = [
        put(config, "in/good.jsonl.gz", gzip.compress(b'{"a":7}\n')),
        put(config, "in/broken.jsonl.gz", broken),
        put(config, "in/plain.jsonl", b'{"a":8}\n'),
    ]
    found = found_in(source_of(config), versions)
    taken = found.of_rows("_key", "a")
    assert ("in/good.jsonl.gz", 7) in taken
    assert ("in/plain.jsonl", 8) in taken
    ((key, offset, reason),) = found.of_rejects("_key", "_offset", "reason")
    assert key == "in/broken.jsonl.gz"
    assert "truncated" in reason
    assert text[:offset].count(b"\n") == len(taken) - 2 > 100


def test_the_encoding_of_a_source_is_used(config: S3Config) -> None:
    versions = [
        put(config, "in/a.csv", "a,b\n1,é\n".encode("cp1252")),
        put(config, "in/b.csv", b"\xef\xbb\xbf" + "a,b\n2,é\n".encode()),
        put(config, "in/c.csv.gz", gzip.compress("a,b\n3,€\n".encode("cp1252"))),
    ]
    found = found_in(source_of(config, encoding="cp1252"), versions)
    assert found.of_rows("a", "b") == [(1, "é"), (2, "é"), (3, "€")]
    with pytest.raises(UsageError, match="klingon"):
        source_of(config, encoding="klingon")


def test_parquet_and_binary_are_never_decompressed(config: S3Config) -> None:
    body = gzip.compress(b"x")
    found = found_in(
        source_of(config), [put(config, "in/x.parquet.gz", body), put(config, "in/x.parquet", body)]
    )
    assert [raw for (raw,) in found.of_rejects("raw")] == [body, body]


def test_only_the_beginning_of_large_objects_is_sampled(config: S3Config) -> None:
    """For compressed objects, the limit must apply to the decoded text."""
    text = b'{"a":1,"b":"x"}\n' * 100_000
    versions = [
        put(config, "in/large.jsonl", text),
        put(config, "in/large.jsonl.gz", gzip.compress(text)),
        put(config, "in/small.jsonl", b'{"c":1.5}\n'),
    ]
    source = source_of(config)
    found = read.schema_of_sample(source, versions)
    assert found is not None
    assert set(found.names) == {"a", "b", "c"}
