"""No object is silent: the records of a whole, cut or damaged object are rows or rejects, in every format and codec.

First, each object is cut at each byte. If the object's codec or format has an end mark (gzip, bz2, zstd, Parquet, ORC,
JSON documents), each cut is an error or a reject. Plain text, snappy frames and Avro blocks have no end mark: an object
that is cut at the end of a record, a frame or a block looks like a complete object. In an object that was cut there,
each record that begins before the cut is a row or a reject. An object that is only a header has neither rows nor
rejects.

Second, each bit is changed (all bits in `poe thorough`, a sample in `poe check`). The result has at least as many rows
as before, or an error, or a reject. For ORC, the process may also end: pyarrow's reader is native, and a damaged file
sometimes crashes it (see `tests/spark/test_deaths.py`). If the codec has a checksum (gzip, bz2, zstd, framed snappy),
the rows are unchanged. Without a checksum, some values may have changed, and nothing can detect the change. If every
line is a record (`text`, plain or in Hadoop's snappy), a changed bit may turn a line end into a letter. Two records
then become one record. No test covers this case.

Third, objects have any bytes. Every object of at least one byte has rows or rejects. The exceptions are a header alone,
an empty list, a file that declares no rows, blank JSON lines, and a complete stream without content.
"""

import io
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import orc

from s3notify_platform.formats.base import SplitEnd
from s3notify_platform.formats.codecs import decoded_whole
from s3notify_platform.formats.object_bytes import BytesInMemory
from s3notify_platform.formats.records import Parsed, Target
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.protocols.source_enumerator import Split
from tests.support.compressions import COMPRESS
from tests.support.split_reading import TINY, cut, version

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROWS = [{"id": n, "name": f"naïve {n}"} for n in range(6)]
AVRO = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}


def table(rows: int) -> pa.Table:
    return pa.Table.from_pylist(ROWS[:rows], schema=SCHEMA)


def parquet(rows: int, codec: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table(rows), sink, compression=codec, row_group_size=3)
    return sink.getvalue()


def orc_file(rows: int, codec: str) -> bytes:
    sink = io.BytesIO()
    orc.write_table(table(rows), sink, compression=codec)
    return sink.getvalue()


def avro(rows: int, codec: str) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, AVRO, ROWS[:rows], codec=codec, sync_interval=20)
    return sink.getvalue()


TEXTS: dict[str, Callable[[int], str]] = {
    "jsonl": lambda n: "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in ROWS[:n]),
    "json": lambda n: json.dumps(ROWS[:n], ensure_ascii=False, indent=0),
    "csv": lambda n: "id,name\n" + "".join(f"{r['id']},{r['name']}\n" for r in ROWS[:n]),
    "tsv": lambda n: "id\tname\r\n" + "".join(f'{r["id"]}\t"{r["name"]}"\r\n' for r in ROWS[:n]),
    "text": lambda n: "".join(f"{r['id']} {r['name']}\n" for r in ROWS[:n]),
}
FILES: dict[str, tuple[Callable[[int, str], bytes], tuple[str, ...]]] = {
    "parquet": (parquet, ("none", "snappy", "gzip", "zstd")),
    "avro": (avro, ("null", "deflate", "snappy")),
    "orc": (orc_file, ("uncompressed", "zlib", "snappy", "zstd")),
    "binary": (lambda rows, _: b"\0" * rows, ("",)),
}
CODECS = {"": bytes, **COMPRESS}
ENDLESS = ("", "k.sz", "k.snappy")
SAMPLE = 100
"""The number of an object's bytes in which the sample changes a bit. The sample also changes bits of the bytes at both
ends.
"""
CASES = [(fmt, codec) for fmt in TEXTS for codec in CODECS]
CASES += [(fmt, codec) for fmt, (_, codecs) in FILES.items() for codec in codecs]
every_case = pytest.mark.parametrize(("fmt", "codec"), CASES)


def made(fmt: str, codec: str, rows: int = len(ROWS)) -> bytes:
    if fmt in TEXTS:
        return CODECS[codec](TEXTS[fmt](rows).encode())
    return FILES[fmt][0](rows, codec)


def key_of(fmt: str, codec: str) -> str:
    return f"{codec or 'k'}" if fmt in TEXTS else "k"


@dataclass(frozen=True)
class Outcome:
    rows: int
    said: int
    """The number of rejects plus the number of failed parts."""
    values: tuple[object, ...] = ()


def of_whole(fmt: str, codec: str, bodies: Sequence[bytes], *, inferred: bool = False) -> list[Outcome]:
    """Parses all objects together, as a task does."""
    target = target_of(fmt, inferred=inferred)
    objects = [(key_of(fmt, codec), body) for body in bodies]
    values: list[list[object]] = [[] for _ in bodies]
    said = [0 for _ in bodies]
    for parsed in FORMATS[fmt].parse(objects, target):
        for number, row in zip(parsed.index.tolist(), parsed.table.to_pylist(), strict=True):
            values[number].append(sorted(row.items()))
        for reject in parsed.rejects:
            said[reject.index] += 1
    return [Outcome(len(v), s, tuple(map(str, v))) for v, s in zip(values, said, strict=True)]


def target_of(fmt: str, *, inferred: bool) -> Target:
    return Target(schema=FORMATS[fmt].fixed_schema or SCHEMA, inferred=inferred)


def splits_of(fmt: str, key: str, body: bytes, places: Sequence[int]) -> list[Split]:
    if FORMATS[fmt].may_be_cut(key, "utf-8"):
        return cut(body, places, fmt, key)
    return [Split(version=version(body, key), start=0, end=len(body))]


def of_parts(fmt: str, codec: str, body: bytes, *, inferred: bool = False) -> Iterator[Outcome]:
    """Yields the outcome of each way to read an object.

    An object is read piece by piece, in parts, and, if it has compressed lines of text, about two records at a time.
    """
    key, target = key_of(fmt, codec), target_of(fmt, inferred=inferred)
    for places in ([], [len(body) // 3, len(body) // 2]):
        yield added([ended(fmt, body, split, target)[0] for split in splits_of(fmt, key, body, places)])
    if fmt in TEXTS and codec and fmt != "json":
        parts, start, more = [], 0, True
        while more:
            split = Split(
                version=version(body, key), start=start, end=len(body), by_record=True, limit_bytes=20
            )
            part, end = ended(fmt, body, split, target)
            parts.append(part)
            assert end.reach_end or end.offset > start
            start, more = end.offset, not end.reach_end
        yield added(parts)


def ended(fmt: str, body: bytes, split: Split, target: Target) -> tuple[Outcome, SplitEnd]:
    *parts, end = FORMATS[fmt].read(BytesInMemory(body), split, target, limits=TINY)
    assert isinstance(end, SplitEnd)
    rows = said = 0
    for part in parts:
        assert isinstance(part, Parsed)
        rows += part.table.num_rows
        said += len(part.rejects)
    return Outcome(rows, said + (end.status == "failed")), end


def added(parts: Sequence[Outcome]) -> Outcome:
    return Outcome(sum(part.rows for part in parts), sum(part.said for part in parts))


def borders_of(fmt: str, codec: str, body: bytes) -> set[int]:
    """Places where a cut cannot be detected: the ends of frames and blocks."""
    found: set[int] = set()
    place = 0
    if fmt == "avro":
        sync = body[-16:]
        while (place := body.find(sync, place) + 16) > 15:
            found.add(place)
    elif codec == "k.sz":
        while place < len(body):
            place += 4 + int.from_bytes(body[place + 1 : place + 4], "little")
            found.add(place)
    elif codec == "k.snappy":
        while place < len(body):
            missing, place = int.from_bytes(body[place : place + 4]), place + 4
            # The compressor of this test writes parts of 24 bytes.
            while missing > 0:
                place += 4 + int.from_bytes(body[place : place + 4])
                missing -= 24
            found.add(place)
    return found


def records_begun(fmt: str, text: bytes) -> int:
    """The number of records that begin in a cut text."""
    lines = text.splitlines(keepends=True)
    return max(0, len(lines) - (fmt in ("csv", "tsv")))


def test_every_format_is_tested() -> None:
    assert {fmt for fmt, _ in CASES} == {*FORMATS}


@every_case
@pytest.mark.parametrize("inferred", [False, True])
def test_a_cut_at_any_byte_is_not_silent(fmt: str, codec: str, inferred: bool) -> None:
    body = made(fmt, codec)
    (whole,) = of_whole(fmt, codec, [body], inferred=inferred)
    assert whole.rows == (1 if fmt == "binary" else len(ROWS))
    assert whole.said == 0
    borders = borders_of(fmt, codec, body)
    places = [*range(1, len(body))]
    found = of_whole(fmt, codec, [body[:place] for place in places], inferred=inferred)
    step = max(1, len(places) // 25)
    for place, of_cut in zip(places, found, strict=True):
        ways = [of_cut]
        if place % step == 0 or place < 12:
            ways += of_parts(fmt, codec, body[:place], inferred=inferred)
        for one in ways:
            if fmt == "binary" or (fmt in TEXTS and fmt != "json" and codec == ""):
                assert one.rows + one.said >= records_begun(fmt, body[:place]), (place, one)
            elif place not in borders:
                assert one.said, (place, one)
            assert one.said or one.rows or may_be_empty(fmt, codec, body[:place]), (place, one)


def may_be_empty(fmt: str, codec: str, prefix: bytes) -> bool:
    """True if the cut text declares no records: it is a header, or the identifier of a stream."""
    header = {"csv": b"id,name\n", "tsv": b"id\tname\r\n"}.get(fmt, b"") if codec == "" else b""
    return header.startswith(prefix) or (codec == "k.sz" and len(prefix) == 10) or fmt == "avro"


@every_case
def test_a_cut_of_an_object_without_records_is_not_silent(fmt: str, codec: str) -> None:
    """Only a complete object may have neither rows nor rejects. If a cut object counted as empty, nobody would search
    for the records behind the cut.
    """
    if fmt == "binary":
        return
    body = made(fmt, codec, 0)
    assert of_whole(fmt, codec, [body]) == [Outcome(0, 0)]
    assert {*of_parts(fmt, codec, body)} <= {Outcome(0, 0)}
    if codec in ENDLESS:
        return
    borders = borders_of(fmt, codec, body)
    for place in range(1, len(body)):
        for one in (*of_whole(fmt, codec, [body[:place]]), *of_parts(fmt, codec, body[:place])):
            assert one.said or place in borders, (place, one)


@pytest.mark.parametrize("codec", ["k.gz", "k.bz2", "k.zst"])
@pytest.mark.parametrize("fmt", [fmt for fmt in TEXTS if fmt != "json"])
def test_a_complete_stream_without_content_is_empty(fmt: str, codec: str) -> None:
    """Otherwise the empty output of a writer that compresses would be a reject, for example because a CSV has no
    header. A cut stream is a reject, because nobody knows whether records are missing.
    """
    body = CODECS[codec](b"")
    assert of_whole(fmt, codec, [body]) == [Outcome(0, 0)]
    cuts = [body[:place] for place in range(1, len(body))]
    assert all(one == Outcome(0, 1) for one in of_whole(fmt, codec, cuts))


def flipped(body: bytes, place: int, bit: int) -> bytes:
    return body[:place] + bytes([body[place] ^ 1 << bit]) + body[place + 1 :]


def in_all_ways(fmt: str, codec: str, bodies: Sequence[bytes], inferred: bool) -> list[list[Outcome]]:
    """The result of `of_whole` for each object, and the results of `of_parts` for about 25 of the objects."""
    step = max(1, len(bodies) // 25)
    return [
        [whole, *(of_parts(fmt, codec, body, inferred=inferred) if number % step == 0 else ())]
        for number, (body, whole) in enumerate(
            zip(bodies, of_whole(fmt, codec, bodies, inferred=inferred), strict=True)
        )
    ]


class Apart:
    """Runs `in_all_ways` in another process, because an object can crash the process."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def in_all_ways(
        self, fmt: str, codec: str, bodies: Sequence[bytes], inferred: bool
    ) -> list[list[Outcome]]:
        """If an object crashes the process even when it is read alone, the crash counts as a report."""
        self._pool = self._pool or ProcessPoolExecutor(1, get_context("spawn"))
        try:
            return self._pool.submit(in_all_ways, fmt, codec, bodies, inferred).result()
        except BrokenProcessPool:
            self.end()
        if len(bodies) == 1:
            return [[Outcome(0, 1)]]
        half = len(bodies) // 2
        parts = [self.in_all_ways(fmt, codec, part, inferred) for part in (bodies[:half], bodies[half:])]
        return parts[0] + parts[1]

    def end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._pool = None


@pytest.fixture(scope="module")
def apart() -> Iterator[Apart]:
    apart = Apart()
    yield apart
    apart.end()


def check_flips(
    apart: Apart, fmt: str, codec: str, flips: Iterable[tuple[int, int]], *, inferred: bool
) -> None:
    """Flips each of these bits in turn, and checks the object. `flips` has the byte's place and the bit of
    each flip.
    """
    body = made(fmt, codec)
    (whole,) = of_whole(fmt, codec, [body], inferred=inferred)
    damaged = [(place, flipped(body, place, bit)) for place, bit in flips]
    assert damaged
    read = apart.in_all_ways if fmt == "orc" else in_all_ways
    found = read(fmt, codec, [each for _, each in damaged], inferred)
    for (place, _), ways in zip(damaged, found, strict=True):
        for one in ways:
            if fmt == "text" and codec in ("", "k.snappy"):
                assert one.said or one.rows >= whole.rows - 1, (place, one)
            else:
                assert one.said or one.rows >= whole.rows, (place, one)
        if fmt in TEXTS and codec in ("k.gz", "k.bz2", "k.zst", "k.sz"):
            assert ways[0].said or ways[0] == whole, (place, ways[0])


@every_case
def test_some_flipped_bits_are_not_silent(apart: Apart, fmt: str, codec: str) -> None:
    """If a flipped bit were silent, a damaged object would lose records without an error or a reject. Each run of the
    test flips the same bits. Some of these bits are at both ends of the file, where the file's metadata is.
    """
    size, draw = len(made(fmt, codec)), random.Random(f"{fmt} {codec}")
    ends = {*range(min(size, 20)), *range(max(0, size - 60), size)}
    places = ends | {*draw.sample(range(size), min(size, SAMPLE))}
    check_flips(apart, fmt, codec, [(place, draw.randrange(8)) for place in sorted(places)], inferred=False)


@pytest.mark.thorough
@every_case
@pytest.mark.parametrize("inferred", [False, True])
@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_is_silent(apart: Apart, fmt: str, codec: str, inferred: bool, bit: int) -> None:
    places = range(len(made(fmt, codec)))
    check_flips(apart, fmt, codec, [(place, (place + bit) % 8) for place in places], inferred=inferred)


pieces_of_texts = st.lists(
    st.sampled_from(
        [b"id,name\n", b"\n", b"\r", b" ", b"[", b"]", b"{}", b"1,a", b'"', b"\xef\xbb\xbf", b"\0", b"\xff"]
    ),
    min_size=1,
    max_size=5,
).map(b"".join)


@pytest.mark.parametrize("fmt", FORMATS)
@given(body=pieces_of_texts | st.binary(min_size=1, max_size=40))
@example(body=b"\n\n")
@example(body=b"\xef\xbb\xbf")
@example(body=b"id,name")
def test_no_bytes_are_silent(fmt: str, body: bytes) -> None:
    for one in (*of_whole(fmt, "", [body]), *of_parts(fmt, "", body)):
        assert one.rows or one.said or says_nothing(fmt, body), one


def says_nothing(fmt: str, body: bytes) -> bool:
    if fmt in TEXTS and decoded_whole(body, "k", "utf-8", 0) == b"":
        return True
    blank = body.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\n")
    if fmt == "jsonl":
        return not blank
    if fmt == "json":
        return b"[" in blank and not blank.strip(b"[] \t\r\n")
    return fmt in ("csv", "tsv") and not {b"id", b"name"}.isdisjoint(
        blank.split(b"\t" if fmt == "tsv" else b",")
    )
