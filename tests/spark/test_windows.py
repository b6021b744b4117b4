"""Objects read and parsed in one task, in whatever compression and encoding: as if they were plain text."""

import bz2
import gzip
import json
from typing import Any

import pyarrow as pa
import pytest

from s3notify_platform.errors import UsageError
from s3notify_platform.formats import text_format
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.ingest import reader as read
from s3notify_platform.ingest.reader import SplitReader, control
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.wire import READ, Lineage, ReadObject, Reject
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split
from s3notify_platform.stores.config import S3Config
from tests.support import objects
from tests.support.compressions import COMPRESS

pytestmark = pytest.mark.server

KIND_OUTCOME, KIND_REJECT, KIND_ROW = map(READ.kind, (ReadObject, Reject, Lineage))
AB = pa.schema([("a", pa.int64()), ("b", pa.string())])


def source_of(config: S3Config, **settings: Any) -> Source:
    settings = {"format": "auto"} | settings
    return Source.of(name="s", bucket=config, prefix="in/", platform=config, **settings)


def put(config: S3Config, key: str, body: bytes) -> ObjectVersion:
    return objects.put(config, key, body, slot=len(key) % 2)


def rows_of(source: Source, versions: list[ObjectVersion]) -> list[dict[str, Any]]:
    reader = SplitReader(source=source, schema=AB, inferred=False)
    splits = [Split(version=version, start=0, end=version.size) for version in versions]
    found = [each for window in reader.windows(splits) for each in window]
    batches = [control(reader.output, [each]) if isinstance(each, ReadObject) else each for each in found]
    return [row for batch in batches for row in batch.to_pylist()]


def of_kind(rows: list[dict[str, Any]], kind: int, *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in rows if row["_kind"] == kind)


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
def test_cut_before_the_header_is_complete(config: S3Config, suffix: str) -> None:
    """As a small object and as a big one, a task says of each cut that something is missing."""
    body = COMPRESS[f"k{suffix}"](b"a,b\n" + b"".join(b"%d,x\n" % n for n in range(20)))
    places = {*range(1, min(15, len(body))), *range(15, len(body), 9)}
    made = [put(config, f"in/{place:03}.csv{suffix}", body[:place]) for place in sorted(places)]
    silent = {10} if suffix == ".sz" else set()  # the mark alone is a whole stream
    for split_bytes in (1 << 20, 1):
        source = source_of(config, split_bytes=split_bytes)
        reader = SplitReader(source=source, schema=AB, inferred=False)
        found = [*reader.read([Split(version=version, start=0, end=version.size) for version in made])]
        outcomes = {each.key: each.outcome for each in found if isinstance(each, ReadObject)}
        assert len(outcomes) == len(made)
        assert all(outcome.status == "ok" for outcome in outcomes.values())
        without = {int(key[3:6]) for key, outcome in outcomes.items() if not outcome.rejects}
        assert without <= silent, outcomes


def test_mixed_objects(config: S3Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed joined, in one call of the parser."""
    calls: list[int] = []
    parse = FORMATS["jsonl"].parse

    def counted(objects: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(len(objects))
        return parse(objects, *arguments, **options)

    monkeypatch.setattr(FORMATS["jsonl"], "parse", counted)
    made = bodies()
    rows = rows_of(source_of(config), [put(config, key, body) for key, body in made.items()])
    expected = [(key, o, a, b) for key in made for o, a, b in ((0, 1, "x"), (16, 2, "é"))]
    assert of_kind(rows, KIND_ROW, "_key", "_offset", "a", "b") == sorted(expected)
    assert of_kind(rows, KIND_REJECT, "_key") == []
    notes = {key: json.loads(note) for key, note in of_kind(rows, KIND_OUTCOME, "_key", "_outcome")}
    assert {key: (note["status"], note["size"], note["rows"]) for key, note in notes.items()} == {
        key: ("ok", len(body), 2) for key, body in made.items()
    }
    assert calls == [len(made)]


def test_what_decodes_to_too_much_is_streamed(config: S3Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is the same."""
    versions = [put(config, key, body) for key, body in bodies().items()]
    source = source_of(config)
    expected = rows_of(source, versions)
    for room in (0, 50, 100):
        monkeypatch.setattr(text_format, "DECODED_BYTES", room)
        rows = rows_of(source, versions)
        for kind in (KIND_ROW, KIND_OUTCOME, KIND_REJECT):
            names = ("_slot", "_key", "_etag", "_offset", "a", "b", "_outcome", "_reason")
            assert of_kind(rows, kind, *names) == of_kind(expected, kind, *names)


def test_a_damaged_object_stops_no_other(config: S3Config) -> None:
    text = b"".join(b'{"a":%d,"b":"%d"}\n' % (n, n * n) for n in range(1000))
    broken = gzip.compress(text)[:-20]
    versions = [
        put(config, "in/good.jsonl.gz", gzip.compress(b'{"a":7}\n')),
        put(config, "in/broken.jsonl.gz", broken),
        put(config, "in/plain.jsonl", b'{"a":8}\n'),
    ]
    rows = rows_of(source_of(config), versions)
    taken = of_kind(rows, KIND_ROW, "_key", "a")
    assert ("in/good.jsonl.gz", 7) in taken
    assert ("in/plain.jsonl", 8) in taken
    ((key, offset, reason),) = of_kind(rows, KIND_REJECT, "_key", "_offset", "_reason")
    assert key == "in/broken.jsonl.gz"
    assert "truncated" in reason
    assert text[:offset].count(b"\n") == len(taken) - 2 > 100


def test_the_encoding_of_a_source(config: S3Config) -> None:
    versions = [
        put(config, "in/a.csv", "a,b\n1,é\n".encode("cp1252")),
        put(config, "in/b.csv", b"\xef\xbb\xbf" + "a,b\n2,é\n".encode()),
        put(config, "in/c.csv.gz", gzip.compress("a,b\n3,€\n".encode("cp1252"))),
    ]
    rows = rows_of(source_of(config, encoding="cp1252"), versions)
    assert of_kind(rows, KIND_ROW, "a", "b") == [(1, "é"), (2, "é"), (3, "€")]
    with pytest.raises(UsageError, match="klingon"):
        source_of(config, encoding="klingon")


def test_parquet_and_binary_are_never_decompressed(config: S3Config) -> None:
    body = gzip.compress(b"x")
    rows = rows_of(
        source_of(config), [put(config, "in/x.parquet.gz", body), put(config, "in/x.parquet", body)]
    )
    assert [raw for (raw,) in of_kind(rows, KIND_REJECT, "_raw")] == [body, body]


def test_samples_of_large_objects_are_short(config: S3Config) -> None:
    """Their beginning is enough; those of compressed ones are their text."""
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
